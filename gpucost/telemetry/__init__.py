"""Where intervals come from: Prometheus in one of two dialects, or Parquet files of the same frames.

The sources themselves are here (``interval_source`` is the protocol they share); the folders below build on
each other in this order: prometheus, evidence, history, upstream; beside them doctor. What must not live
here: prices, teams, SQL. A source returns the frames of gpucost.contract.frames, or raises a SourceError.
Begin with ``prometheus_source``, then ``evidence.evidence_rule``.
"""
