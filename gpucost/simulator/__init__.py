"""A seeded cluster that never existed: its nodes, teams, jobs, mishaps and measurements, as frames.

What may live here: drawing from seeds, a small scheduler, and the writing of frames as OpenMetrics text.
What must not: clocks, files, sockets, attribution or prices. The same seed gives the same bytes, so tests
and benchmarks can compare gpucost's totals with what the simulator knows to be true.

    tenants      the teams: namespaces, queues, users, projects
    inventory    the nodes, what they advertise, and what happens to them during the month
    workloads    what is submitted, when, and how it would end
    scheduler    who gets which node from when to when; never over-commits
    incidents    what the scheduler would not do: a lost device, a lost pod, a label that changes
    plants       anti-patterns on purpose, listed as ground truth for detectors; rooms and staged put those
                 where the scheduler left room which it would not make by itself
    unrest       trouble around one instant, for who looks at it just then
    boards       which GPUs each pod holds
    activity     what each GPU did, step by step (levels: how busy)
    signals      the sums of the activity by the hour, and how far jobs came
    history      who waited, stalled, was evicted, and what was broken; quotas: what queues may use and used
    machines     the nodes as frames
    cluster      the whole of it as frames, and the ground truth by plain arithmetic
    state        the cluster at one instant as typed objects (state_work, state_queues, state_volcano,
                 state_names)
    exposition   the same frames as the metric contract's text (series, series_gpu, series_queues)
    demo         the cluster, prices and teams of ``gpucost demo``
"""
