"""Jobs that hold more GPU than they have use for.

``candidates`` is what the variants share; ``batch_jobs`` and ``servers`` (with ``server_load``) claim time;
the views stand in ``oversized_request_rule``, which runs all. Begin with ``oversized_request_rule``, then
``candidates``.
"""
