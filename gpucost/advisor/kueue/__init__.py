"""Kueue's admission, restated for v0.19.2: quota, flavors, the cycle, preemption, fair sharing.

Held against decisions of the real scheduler (``gpucost advisor verify``). ``cycle.run`` is one scheduling
cycle over a ``Snapshot``; a snapshot is made from a ``ClusterState`` and ``KueueRules``.
"""
