"""A seeded cluster that never existed: its nodes, teams, jobs, mishaps and measurements, as frames.

What may live here: drawing from seeds, a small scheduler, and the writing of frames as OpenMetrics text.
What must not: clocks, files, sockets, attribution or prices. The same seed gives the same bytes, so tests
and benchmarks can compare gpucost's totals with what the simulator knows to be true.

    tenants      the teams: namespaces, queues, users, projects
    inventory    the nodes, what they advertise, and what happens to them during the month
    workloads    what is submitted, when, and how it would end
    scheduler    who gets which node from when to when; never over-commits
    incidents    what the scheduler would not do: a lost device, a lost pod, a label that changes
    signals      how busy the held time was, and how far jobs came
    cluster      the whole of it as frames, and the ground truth by plain arithmetic
    exposition   the same frames as the metric contract's text
    demo         the cluster, prices and teams of ``gpucost demo``
"""
