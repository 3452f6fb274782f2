"""Where intervals come from: Prometheus in one of two dialects, or Parquet files of the same frames.

Here stand the sources themselves (``interval_source`` is what all of them are); the wings are below:
prometheus < evidence < history < upstream, and doctor. Must not: prices, teams, SQL. A source returns the
frames of gpucost.contract.frames, or raises a SourceError. Begin with ``prometheus_source``, then
evidence/evidence_rule.
"""
