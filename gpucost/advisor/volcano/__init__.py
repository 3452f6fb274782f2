"""Volcano's rules, restated for v1.15.1: which PodGroups are let in, and if a gang finds room. Pure.

``gang`` is one PodGroup as the scheduler sees it, ``answer`` asks for one and answers: begin there. Behind it
one ``session``: ``enqueue_action`` lets PodGroups in, ``queue_shares`` says what queues may have,
``allocation`` puts gangs on nodes. ``eviction`` finds victims, ``hypernodes`` the domains in which pods may
stand, ``queue_simulation`` lets time go by; ``rule_set`` names what was restated. What must not: Kueue, and
rules that Volcano does not have.
"""
