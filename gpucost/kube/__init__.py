"""The Kubernetes API: list and watch, objects kept by uid. The only place that speaks to an API server.

``connect`` is the way there; a ``reflector`` keeps one collection current, ``watch`` a whole cluster;
``parse`` makes of the API's objects the types of ``gpucost.cluster``; ``dumps`` writes them to files, and
reads them.
"""
