"""The service: what connects sources, attribution, detectors, the ledger, reports and notifications.

What may live here: settings, builders, loops, retries, self-metrics. What must not: SQL, PromQL, HTML. Begin
with ``ingest.pipeline``, by which closed windows flow from a source through attribution into the ledger;
``wiring`` builds everything from the settings.
"""
