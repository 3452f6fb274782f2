"""From scrapes to intervals: the evidence rule, heartbeats, gauges by stretches, increases of counters, and
the rows of pods, nodes and signals. Must not: detectors' history, series of other exporters.
``evidence_rule`` is pure. Begin with ``evidence_rule``, then ``pods``.
"""
