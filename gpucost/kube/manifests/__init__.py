"""Manifests of jobs, as people write them, to the advisor's input, and back (``writer``).

``reader`` reads the text, ``checks`` and ``rules`` refuse what the API server would refuse,
``scheduler_hints`` and ``expansion`` read what concerns schedulers and what controllers add. What must not
live here: pod specs and shapes of jobs, which ``gpucost.kube.parse`` reads as those of a live cluster. Begin
with ``reader.read_manifests``.
"""

from gpucost.kube.manifests.reader import manifest_of, read_manifests, reread

__all__ = ["manifest_of", "read_manifests", "reread"]
