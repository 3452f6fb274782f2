"""What to change so that a job runs, earlier, or for less: found by rule, and asked about before it is given.
``ranking`` is the way in; ``candidates`` is the question with what may be spent on it.
``patches`` and ``manifest_fields`` are about documents, ``what_if`` about clusters with a change in them.
The other modules are one kind of suggestion each: node_choice, quota_limits, queue_choice, job_shapes,
repairs, switches. What must not: a suggestion that was not asked about again.
"""
