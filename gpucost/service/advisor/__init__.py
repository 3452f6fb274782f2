"""Answers of the advisor for a watched cluster, and predictions of waits.

What may live here: the cluster's watcher, the answering service, its caches and status.
What must not: schedulers' rules (gpucost.advisor), HTTP, Kubernetes' parsing.
Begin with ``advisor_service.AdvisorService``.
``wait_predictor`` is a loop of its own.
"""
