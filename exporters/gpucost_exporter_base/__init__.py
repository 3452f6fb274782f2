"""What gpucost's exporters share: the HTTP endpoint and the guarded rendering of metrics.

``endpoint`` serves the routes that an exporter gives it, ``scrape_access`` guards them by tokens and TLS,
``exposition`` renders metrics, ``fetch`` reads other exporters. Begin with ``endpoint``. What must not live
here: anything about GPUs or Kubernetes; pandas, numpy or SQL.
"""
