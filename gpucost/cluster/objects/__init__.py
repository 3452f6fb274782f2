"""The immutable types of one cluster: the content of an object of Kubernetes, Kueue or Volcano, without
conclusions.

``metadata`` and ``node_labels`` are shared by all; the rest is one module per family of
objects. What must not live here: questions about more than one object (``views``), the API's dicts
(``gpucost.kube.parse``). Begin with ``state``: the objects of a cluster at one instant.
"""
