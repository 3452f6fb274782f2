"""Where the histories of replays come from: what was observed of a cluster, files, and public traces.

Each module gives a ``ReplayHistory`` (``gpucost.advisor.replay.history_record``): ``observed_history`` of a
telemetry source and the ledger, ``history_files`` of Parquet, SWF and recorded histories of Kueue,
``public_traces`` of the traces that others published. What must not: play anything, or compute answers.
"""
