"""What people are told in chat and by e-mail: one neutral message, pure renderers, one sender.

What may live here: messages and what they are composed from, the rules of who is told what when, renderers
for each service, and the only code that posts. What must not: reading the ledger or a cluster (the service
hands facts over), and markup in a message: what stands in one is plain text, and each renderer escapes it.

    message      the neutral message: title, facts, sections, charts, links
    channels     where messages go
    notices      what happened, the conversations about it, and posts on their way
    hashes       short names for long texts
    text         the one place where text is escaped and cut, per service
    render/      message -> what Slack, Teams, Mattermost, a plain reader or a mail program takes; pure
    pictures     chart -> PNG or bars of text
    routes       who is told: channels by team, kind and severity, quiet hours, cool-down, escalation; pure
    compose/     findings, alerts, advice, digests, closed months -> message; pure
    alertmanager the payload of Alertmanager's webhook, read and checked; pure
    sending/     transports (HTTP, SMTP, apprise), and the sender with its retries and dead letters
"""
