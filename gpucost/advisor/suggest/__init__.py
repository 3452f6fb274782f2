"""What to change so that a job runs, earlier, or for less: each change is evaluated before it is suggested.

``ranking`` is the way in; ``candidates`` holds the question, the number of changes that may be evaluated, and
clusters with a change in them. ``patches`` is about documents. The other modules are one kind of suggestion
each: node_choice, quota_limits, queue_choice, job_shapes, repairs. What must not: a suggestion that was not
evaluated by the advisor.
"""
