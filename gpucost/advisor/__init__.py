"""The admission advisor: will a job run, when, at what price, and what to change.

What may live here: pure functions from a manifest (or a job that exists) and a ``ClusterState`` to an answer
over quota, gang, placement and device. ``kueue`` and ``volcano`` restate their rules for one pinned version
each, ``placement`` puts gangs on nodes, ``wait`` predicts how long, ``suggest`` changes a manifest and asks
again, ``verify`` holds the rules against recorded decisions. What must not: I/O, clocks, random numbers of
its own, pandas: the webhook answers from here, in milliseconds.
"""
