"""``gpucost state``: a dump of a cluster, and its queues, gangs and nodes on a screen.

What may live here: sources of state, and the screen. What must not: what follows from a state
(gpucost.cluster), and its rows (gpucost.reports.live). Begin with ``state_command``. ``cli.advise`` imports
it, never the other way.
"""
