"""Recorded decisions of a real scheduler: recorded, read, replayed through the rules, compared fact by fact.

The schema: docs/advisor-cases.md, as types ``case_schema``. Begin at ``replay``, of histories over days at
``history_check``. ``case_files``, ``case_objects`` and ``history_files`` read; ``decision_follower``,
``case_recording`` and ``case_writer`` write. The format is frozen: fields and their names are those of
recorded files. What must not: rules; those of Kueue are called from here.
"""
