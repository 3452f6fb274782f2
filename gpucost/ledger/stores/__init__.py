"""What the service keeps beside usage: findings, API keys, notifications, wait predictions.

What must not live here: anything a bill depends on. One module per store; its tables are in
db.store_tables, those of findings in db.tables. Every read takes a Scope, except for records without a team
(the outbox, keys). Begin at findings.
"""
