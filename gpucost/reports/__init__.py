"""Reports from ledger frames, and their renderers (JSON, CSV, Parquet, HTML). Pure: frames in, text out.

What may live here: what a reader sees. What must not: SQL, HTTP, clocks; the same ledger gives the same
bytes.
"""
