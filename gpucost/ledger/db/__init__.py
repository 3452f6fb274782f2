"""The database under the ledger: connections, locks, tables, digests, the audit trail, and records.

What must not live here: what a usage line or a month means; no import of another wing. A new table goes into
tables (usage, waste) or store_tables (everything else), with a revision in migrations. The schema is that of
migrations, which are never edited once released. Begin at database.LedgerDatabase, then tables.
"""
