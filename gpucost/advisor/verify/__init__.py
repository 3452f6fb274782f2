"""Recorded decisions of a real scheduler: read, replayed through the rules and compared fact by fact; and
written down. The schema: docs/advisor-cases.md, as types ``case_schema``. Begin at ``replay``.
``case_files``, ``case_objects`` and ``json_fields`` read; ``decision_follower``, ``case_recording`` and
``case_writer`` write. The format is frozen: fields and their names are those of recorded files.
What must not: rules; they are called, and only those of Kueue.
"""
