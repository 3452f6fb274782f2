"""The typed state of a cluster, and what follows from it: who holds what, who waits and why, what is left.

What may live here: immutable types of pods, nodes, jobs, queues and gangs, and pure functions over a
``ClusterState``. What must not: I/O, clocks, the API's own dicts (those end in ``gpucost.kube``), prices.
The queue collector, the detectors and the advisor answer from the same state.
"""
