"""The Kubernetes API: the only package that speaks to an API server.

``connect`` opens connections, ``parse`` makes the types of ``gpucost.cluster`` from its objects, ``watch``
keeps a whole cluster current; ``dumps`` and ``manifests`` read files, ``certificates`` maintains the
webhook's. What must not live here: what follows from objects (``gpucost.cluster.views``). Begin with
``watch.cluster_watch``.
"""
