"""Volcano's rules, restated for v1.15.1: who is let in, whose turn it is, and if the whole gang finds room.

``gang`` is one PodGroup as the scheduler sees it, ``answer`` asks for one and answers. Behind it one session
of the scheduler: ``enqueue`` lets PodGroups in, ``proportion`` and ``capacity`` say what queues may have,
``order`` whose turn it is, ``allocate`` puts gangs on nodes, ``evict`` finds victims, ``hypernodes`` who may
stand where; ``rules`` names what was restated, and what of a configuration is not.
"""
