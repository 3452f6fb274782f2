"""What to change so that a job runs, earlier, or for less: found by rule, and asked about before it is given.

``ranking`` is the way in. ``case`` is the question with what may be spent on it, ``patching`` and ``places``
are about documents, ``what_if`` about clusters; the other modules are one kind of suggestion each.
"""
