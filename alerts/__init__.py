"""Recording rules, alerts, their promtool tests and an Alertmanager configuration, written from Python.

What may live here: what an alert asks, says and leads to, the thresholds it goes by, and cases that
show when it fires. What must not: reading a Prometheus, or a number in an expression
that has no name in ``thresholds``.

    model          Alert, Recording, RuleGroup, Case; links from names
    thresholds     every number, with its unit and why
    rules/         one module per topic
    cases/         for every alert: silent just below, firing, resolved; what promtool runs
    alertmanager   grouping, inhibition, routes
    build          the files: gpucost.rules.yaml, alertmanager.example.yaml, tests/, the heads of runbooks/

``python -m alerts`` writes the files; ``--runbooks`` and ``--dashboards`` put addresses in the place of
``RUNBOOKS`` and ``DASHBOARDS``.
"""
