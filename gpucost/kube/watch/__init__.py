"""Collections kept current: listed once, then watched, and snapshots of all of them together.

``reflector`` follows one collection with ``api_calls`` and ``object_store``; ``api_calls`` also finds what is
served and lists once; ``scheduler_reader`` reads the schedulers' configuration. What must not live here: how
bytes travel (``connect``), what an object's fields mean (``parse``). Begin with ``cluster_watch``.
"""
