"""A seeded cluster that never existed: its nodes, teams, jobs, disruptions and measurements, as frames.

Begin at ``cluster``. Drawn: ``inventory`` (nodes), ``workloads`` (teams, what is submitted), ``scheduler``
(nodes and GPUs, and room that is left), ``disruptions``, ``injected_patterns``. Measured: ``gpu_activity``,
``history``; ``state`` and ``state_workloads`` are the cluster at one instant as typed objects.
``cluster.demo_cluster`` is that of ``gpucost demo``. The same seed gives the same bytes, so that tests can
compare totals with what the simulator knows to be true. What must not: clocks, files other than its own,
sockets, attribution or prices.
"""
