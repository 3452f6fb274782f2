"""The queue collector: watches the cluster and exports who holds, who waits, what is left, and why.

What may live here: series out of a ``ClusterState``, the page they are served as, settings and the command.
What must not: reading objects (``gpucost.kube``), what follows from them (``gpucost.cluster``), prices.
"""
