"""What follows from a ``ClusterState``: GPU units, ownership, gangs, queues, quota, who waits and why. Pure.

Each module answers one question; ``problems`` names objects that make no sense. What must not live here:
types of objects (``objects``), a scheduler's decision about the future (``gpucost.advisor``), prices. Begin
with ``overview``, which computes each view once.
"""
