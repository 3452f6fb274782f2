"""Queues that wait while GPUs that would fit their work lie idle: quota of others, or of no queue.

``quota_starvation_rule`` runs and claims; ``waiting_queues`` says what waits, what is unused meanwhile, and
what is in the way. What must not live here: how demand meets free units (``inputs.unmet_demand``). Begin with
``quota_starvation_rule``.
"""
