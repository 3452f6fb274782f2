"""The schema of the ledger over time, by alembic: ``env`` runs the revisions in ``versions``, oldest first.

What is released is never edited; a change is a new revision. ``triggers`` are the rules that the database
itself keeps. What must not live here: tables as they are now (``gpucost.ledger.db.tables``, which a new
revision must lead to). Begin with ``versions/0001_first``.
"""
