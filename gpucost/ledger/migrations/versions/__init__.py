"""One module per revision of the schema, by number: what a ledger of the one before needs to become this one.

Released revisions are never edited, and import nothing of gpucost but ``triggers``. The last number is the
schema that ``gpucost.ledger.db.tables`` declares. Copy the newest one for a new revision.
"""
