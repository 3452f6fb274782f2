"""Usage lines, written by window and read as sums; months, rollups and the history of runs.

What must not live here: waste, findings, messages; it imports db only. The caller of a writer holds the
transaction and the lock. A sum that reports need is a function of query; what is stored per window is
prepared in lines. Begin at lines, then writer and query.
"""
