"""From scrapes to intervals: the evidence rule, heartbeats, runs of gauges, increases of counters, and the
rows of pods, nodes and signals. ``evidence_rule`` is pure. What must not live here: history that only
detectors read, series of upstream exporters. Begin with ``evidence_rule``, then ``pods``."""
