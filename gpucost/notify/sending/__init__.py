"""The only code that posts: a transport for each kind of service, and the sender with its dead letters.

What may live here: transports, the network below them, and what the sender needs of the ledger. What must
not: composing and routing. Begin with ``sender.NoticeSender``.

    sender           drains the outbox: order, pace, back-off, dead letters; channel -> its transport
    delivery         posts on their way, the outbox as a protocol, why a message did not arrive, counters
    slack, teams, mattermost
                     what each service is sent for each act, and what its responses mean
    smtp             e-mail; related mails share one thread
    apprise_service  every other service, in a process of its own (extra ``chat``): apprise_child
    http             requests, and responses as what they mean for a post
    network          resolve once, connect to that address, all within one deadline
    address          which addresses may be connected to; pure
"""
