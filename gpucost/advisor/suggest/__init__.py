"""What to change so that a job runs, earlier, or for less: each change is evaluated before it is suggested.

``ranking`` is the way in; ``candidates`` holds the question and the number of changes that may be evaluated.
``patches`` and ``manifest_fields`` are about documents, ``what_if`` about clusters with a change in them. The
other modules are one kind of suggestion each: node_choice, quota_limits, queue_choice, job_shapes, repairs,
switches. What must not: a suggestion that was not evaluated by the advisor.
"""
