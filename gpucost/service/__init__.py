"""What ties the parts together: closed windows flow from a source through attribution into the ledger.

What may live here: settings, scheduling, retries, self-metrics. What must not: SQL, PromQL, HTML.
"""
