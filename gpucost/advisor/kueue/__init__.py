"""Kueue's admission, restated for v0.19.2: quota, flavors, the cycle, preemption, fair sharing. Pure.

Held against decisions of the real scheduler (``gpucost advisor verify``). Begin at ``answer``, or at
``cycle`` for the rules: ``cycle.run_cycle`` is one scheduling cycle over a ``KueueSnapshot``, made from a
``ClusterState`` and a ``KueueConfig``. Modules follow Kueue's own files; each names its source. ``messages``
holds Kueue's words, ``rule_set`` version and gates. What must not: placement on nodes, Volcano, and waits
other than the order of queues.
"""
