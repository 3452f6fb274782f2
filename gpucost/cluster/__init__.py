"""The typed state of a cluster, and what follows from it: holders, waiting jobs and causes, free capacity.

``objects`` are the immutable types of pods, nodes, jobs and queues, and ``ClusterState``; ``views`` are pure
functions over a state. What must not live here: I/O, clocks, the API's own dicts (those end in
``gpucost.kube``), prices. Begin with ``objects.state``, then ``views.overview``, which the queue collector,
the detectors and the advisor all use.
"""
