"""The queue collector: watches the cluster and exports what is held, what waits, what is left, and why.

Begin with ``collector``. What may live here: series out of a ``ClusterState``, the page they are served as,
settings and the command. What must not: reading objects (``gpucost.kube``), what follows from them
(``gpucost.cluster``), prices.
"""
