"""The HTTP interface of the service, on FastAPI: the app, its routes, /metrics, the admission webhook, and
the service's run time.

What may live here: HTTP. What must not: SQL, PromQL, or arithmetic on money. Begin with ``app.create_app``;
``runtime`` puts loops and app into one process. Unknown parameters are refused by name, and every error has
the one shape of ``server.errors``.
"""
