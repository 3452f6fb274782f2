"""/metrics of the service: families of Prometheus, collected when scraped.

What may live here: collectors. What must not: names of metrics (gpucost.service.metrics).
Begin with ``collector.ServiceCollector``.
``detectors`` are findings and waste, ``recent`` the last hours.
Families' own helpers are in ``server.metric_families``.
"""
