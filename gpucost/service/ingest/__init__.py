"""Closed windows flow from a source through attribution into the ledger.

What may live here: the pipeline, its loop, its status, and the loop of retention.
What must not: detectors, reports, HTTP.
Begin with ``pipeline.Pipeline``; ``loop`` calls it.
``status`` is what /metrics and the API read.
"""
