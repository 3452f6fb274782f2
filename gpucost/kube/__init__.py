"""The Kubernetes API: the only place that speaks to an API server.

``connect`` is the way there, ``parse`` makes of its objects the types of ``gpucost.cluster``, ``watch``
keeps a whole cluster current; ``dumps`` and ``manifests`` read files, ``certificates`` keeps the webhook's.
What must not live here: what follows from objects (``gpucost.cluster.views``). Begin with
``watch.cluster_watch``.
"""
