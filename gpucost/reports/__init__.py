"""Reports from ledger frames, and their renderers (JSON, CSV, Parquet, HTML, terminal).

Pure: frames in, text out. What lives here, by topic: base, waste, month, job, digest, doctor, opencost; and
render, which shows them. What must not: SQL, HTTP, clocks; the same ledger gives the same bytes. A report is
a dataclass; its fields are its JSON (docs/reports.md), and its class name is the name of its schema. Begin at
month.model and month.builder.
"""
