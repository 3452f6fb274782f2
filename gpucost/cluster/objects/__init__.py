"""The immutable types of one cluster: what an object of Kubernetes, Kueue or Volcano says, and nothing that
follows from it.

``metadata``, ``quantities`` and ``node_labels`` are shared by all; the rest is one module per family of
objects. What must not live here: a question about more than one object (``views``), the API's dicts
(``gpucost.kube.parse``). Begin with ``state``: everything that is known of a cluster at one instant.
"""
