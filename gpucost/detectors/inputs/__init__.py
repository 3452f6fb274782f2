"""Inputs of rules: the history and state of a cluster as tables, arrays and step functions (activity, quotas,
demand, jobs, schedulability). What must not live here: drafts of findings, thresholds of one rule, settings
of rules. Begin with ``detector_facts``."""
