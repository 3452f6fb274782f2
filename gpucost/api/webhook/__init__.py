"""The admission webhook: advice as warnings, at submission. It allows everything, and fails open.

What may live here: an ASGI app on a port of its own, its process, and reviews; its caller is the API server
of Kubernetes, which has no API key. What must not: routes of the API, rules of schedulers. Begin with
``supervisor.WebhookProcess``, then ``app`` and ``adviser``.
"""
