"""The ledger: its tables, their migrations, and the only reader and writer of them.

What lives here: SQL, by topic: db (tables), usage (lines and months), waste, stores (findings, keys,
messages, predictions), retention, sealed (months in files). What must not: rules about money (attribution and
reports have them).
Every read of usage takes a Scope; every write is one transaction: all of a window or nothing.
Begin at ledger.Ledger, the facade; each of its methods is one call into a wing.
"""
