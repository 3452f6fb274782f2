"""gpucost: who held which GPU, what it cost, and proof that the numbers add up.

The package is layered, lowest first, and the layers are checked in CI (see pyproject.toml):

    domain       pure types: time, money, GPU shares, holders, job kinds
    contract     the metric contract and the frames every source returns
    settings     what settings of every process are made of
    cluster      the typed state of a cluster, and what follows from it: queues, gangs, who waits and why
    pricing      the price book
    attribution  intervals x capacity x prices -> usage lines that add up
    detectors    anti-patterns, and the waste they explain
    advisor      the schedulers' rules: will a job run, when, and what to change
    simulator    a seeded cluster, for the demo, tests and benchmarks
    reports      monthly, allocation and job reports, and their renderers
    access       who asks, and what they may
    notify       messages for people: composed, routed, rendered, sent
    telemetry    where intervals come from: Prometheus, or recorded Parquet files
    ledger       the SQL ledger: the only reader and writer of its tables
    kube         the Kubernetes API: watched, parsed, dumped
    service      the loop that ties the above together
    api, cli     the edges people touch; demo starts all of it on one machine
"""

__version__ = "0.1.0"
