"""Manifests of jobs, as people write them, to what the advisor is asked about.

What may live here: reading the text (``documents``), what the API server would refuse of it (``checks``,
``fields``), and what its schedulers would make of it (``read``, ``quota``, ``pod_groups``, ``train_jobs``).
Pod specs and the shapes of jobs are read by ``gpucost.kube.parse``, as those of a live cluster.
"""

from gpucost.kube.manifests.read import manifest_of, read_manifests, reread

__all__ = ["manifest_of", "read_manifests", "reread"]
