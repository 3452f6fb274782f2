"""News for people: how findings, alerts, advice, digests and months stand now.

They are told by the rules of ``gpucost.notify``.

    findings    the ledger's findings -> notices, with the alerts about them
    alerts      what Alertmanager sent -> notices of groups that are about no finding
    advice      jobs that wait, and a change that would let them start earlier -> notices
    digests     weeks and closed months -> notices
    loop        all of it, reconciled with what each channel was told, turn by turn
    status      what the loop says of itself

Nothing is remembered here that would be missed after a restart: how things stand is read anew, what was told
is in the ledger, and posts leave from its outbox.
"""
