"""``gpucost state``: a dump of a cluster, and its queues, gangs and nodes on a screen.

What may live here: sources of state, facts and rows, their screen. What must not: what follows from a state
(gpucost.cluster). Begin with ``state_command``, then ``facts``. ``cli.advise`` imports it, never the other
way.
"""
