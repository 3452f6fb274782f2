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
    charges      what teams pay: a charge policy over usage lines
    simulator    a seeded cluster, for the demo, tests and benchmarks
    reports      monthly, allocation and job reports, and their renderers
    access       who asks, and what they may
    notify       messages for people: composed, routed, rendered, sent
    telemetry    where intervals come from: Prometheus, or recorded Parquet files
    ledger       the SQL ledger: the only reader and writer of its tables
    kube         the Kubernetes API: watched, parsed, dumped
    service      the loop that ties the above together
    api, cli     the edges people touch; demo starts all of it on one machine

Beside them stand exporters/ (what a cluster is watched with), dashboards/ and alerts/. Words:
docs/glossary.md. Where to put what is new: CONTRIBUTING.md.

A tour of five minutes: the entry points, in the order in which to read their first lines.

Intervals -> attribution -> ledger -> report: what a month cost.

    telemetry/evidence/evidence_rule.py      scrapes and timestamps -> who held what, from when to when
    telemetry/prometheus_source.py           a window of it out of the series of gpucost's exporters
    telemetry/upstream/upstream_source.py    the same out of kube-state-metrics and dcgm-exporter
    pricing/price_book.py                    what a GPU-hour of a node cost at an instant, or why nothing says
    attribution/attribute.py                 intervals x capacity x prices -> usage lines
    attribution/apportion.py                 how milliseconds and nano-units are dealt: nothing is lost
    attribution/conservation.py              the proof: capacity computed a second time; the difference is 0
    service/ingest/pipeline.py               one window after another: read, attribute, write
    ledger/ledger.py                         the one way in and out of the database
    ledger/usage/writer.py                   versions of windows, closed months, proposals
    reports/month/builder.py                 sums of the ledger -> the report of a month
    api/app.py                               who may ask for it over HTTP

Object -> state -> series: what the cluster is, and what Prometheus scrapes of it.

    kube/watch/reflector.py                  a collection of Kubernetes, kept current
    cluster/objects/state.py                 all objects of a cluster at one instant, typed
    exporters/gpucost_queue_collector/collector.py
                                             state -> the series of pods, nodes, queues and workloads
    exporters/gpucost_gpu_exporter/exporter.py
                                             looks at the driver -> counters of GPU time by pod

Manifest -> advice: will a job run, when, at what price, and what to change.

    advisor/request/scheduling_request.py    a manifest, or a job that waits, as all layers are asked about it
    advisor/advise.py                        the layers in their order, then wait, price and suggestions
    advisor/kueue/cycle.py                   one scheduling cycle of Kueue, restated
    advisor/placement/gang_placement.py      whether all pods find a node at once, and else why not

History -> findings -> waste: what became of the time that was paid for.

    detectors/engine/evaluation.py           all rules on one look: findings, what they waste, how severe
    detectors/engine/waste_resolution.py     every GPU-second in one bucket
    service/detection/waste_accounting.py    windows of the ledger divided among the buckets, for good
"""

__version__ = "0.1.0"
