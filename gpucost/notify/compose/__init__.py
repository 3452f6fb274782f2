"""From what is known to a message: one module for each kind of news. Pure.

    links      where the service, dashboards and runbooks are
    owners     whose team a name stands for, also where it is nobody's
    finding    a finding's life -> notice
    alert      a group of alerts -> notice
    advice     what would let a waiting job start earlier -> notice
    digest     the digest of a week -> notice; digest_charts, its charts
    month      a closed month -> notice
    amounts    money, GPU-hours and changes in words

What must not live here: reading the ledger, deciding who is told, markup.
"""
