"""Notifications in chat and by e-mail: one neutral message, pure renderers, one sender.

What may live here: messages and what they are composed from, the rules of routing, renderers for each
service, and the only code that posts. What must not: reading the ledger or a cluster (the service passes
facts in), and markup in a message: its texts are plain, and each renderer escapes them. Begin with
``message``, then ``routes.decision`` and ``sending.sender``.

    message       the neutral message: title, facts, sections, charts, links; and its JSON
    channels      where messages go
    notices       what happened, the conversations about it, and posts on their way
    text          the one place where text is escaped and cut, per service
    render/       message -> the payload of Slack, Teams, Mattermost, a plain reader or a mail program; pure
    pictures      chart -> PNG or bars of text
    routes/       channels by team, kind and severity, quiet hours, cool-down, escalation; pure
    compose/      findings, alerts, advice, digests, closed months, receipts -> message; pure
    alertmanager  the payload of Alertmanager's webhook, parsed and checked; pure
    sending/      transports (HTTP, SMTP, apprise), and the sender with its retries and dead letters
"""
