"""Anti-patterns: what wastes GPUs, who can get them back, and how. Pure: facts in, findings out.

``rules`` has one module per anti-pattern: a settings model and ``run(facts, settings) -> Detection``. What
rules share is here: ``facts`` (what they look at), ``findings`` (what they say), ``unmet`` (who waited while
what was free), ``resolve`` (every board-second in one bucket), ``evaluate`` (all rules on one set of facts),
``lifecycle`` (a finding's life over many evaluations). What must not live here: I/O, clocks, SQL.
"""
