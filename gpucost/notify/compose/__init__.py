"""From facts to messages: one module for each kind of notice. Pure.

What must not live here: reading the ledger, routing, markup. Begin with ``finding.of_life``.

    links      pages of the service, dashboards and runbooks
    finding    a finding's life -> notice
    alert      a group of alerts -> notice
    advice     a change by which a waiting job starts earlier -> notice
    digest     the digest of a week -> notice; and whole, with its charts, for the command
    month      a closed month -> notice
    receipt    a job that has ended, or those of a day -> notice
    wording    money, GPU-hours, shares, instants and owners in words
"""
