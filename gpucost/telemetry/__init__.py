"""Where intervals come from: Prometheus, or Parquet files of the same frames.

What may live here: the wire, retries, dialects, and the repair of a source's faults. What must not: prices,
teams, SQL. A source returns the frames of gpucost.contract.frames, or raises a SourceError.
"""
