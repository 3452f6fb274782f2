"""Notices of findings, alerts, advice, digests, months, receipts, reconciled with what each channel was sent.
What may live here: sources of notices, the loop, schedules of digests.
What must not: composing and sending (gpucost.notify); memory that a restart would lose.
Begin with ``loop.NotificationLoop``.
What was sent is in the ledger, and deliveries leave from its outbox.
"""
