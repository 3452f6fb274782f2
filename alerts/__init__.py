"""Recording rules, alerts, their promtool tests and an Alertmanager configuration, written from Python.

What may live here: what an alert queries, says and leads to, the thresholds it uses, and cases that show when
it fires. What must not: reading a Prometheus, or a number in an expression that has no name in
``rules.thresholds``.

    rules.model        AlertRule, RecordingRule, RuleGroup, AlertCase; links from names
    rules.thresholds   every number, with its unit and why
    rules/             one module per topic
    cases/             for every alert: silent just below, firing, resolved; what promtool runs
    build              the files: gpucost.rules.yaml, alertmanager.example.yaml (grouping, inhibition,
                       routes), tests/, the heads of runbooks/

``python -m alerts`` writes the files; ``--runbooks`` and ``--dashboards`` put addresses in the place of
``RUNBOOKS`` and ``DASHBOARDS``. Begin at rules.model.
"""
