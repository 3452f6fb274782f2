"""The only code that posts: a transport for each kind of service, and the sender with its dead letters.

address    which addresses may be connected to; pure
network    resolve once, connect to that address, all within one deadline
http       requests over it, and answers as what they mean for a post
slack, teams, mattermost
           what each service is sent for each act, and what its answers mean
smtp       e-mail; what belongs together has one thread
apprise_   every other service, in a process of its own (extra ``chat``): apprise_child
transports channel -> its transport
outcome    why a message did not arrive
outbox     what the sender needs of the ledger
status     counters for metrics
sender     drains the outbox: order, pace, back-off, dead letters
"""
