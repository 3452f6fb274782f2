"""The ledger over years: months rolled up by day, old rows deleted, verification, backup and restore.

What must not live here: writing of windows. No sum of a day, and nothing that was closed, changes here. It
may read and write every wing below it. The caller of rollup holds the transaction and the lock. Begin at
rollup.RetentionStore, a part of the facade; then verification and backup.
"""
