"""Anti-patterns: what wastes GPUs, who can get them back, and how. Pure: facts in, findings out.

``rules`` has one module per anti-pattern: ``run(facts, settings) -> Detection``; the settings of all of them
stand in ``rule_settings``, which needs no pandas. What
rules share is here: ``facts`` (what they look at), ``findings`` (what they say), ``unmet`` (who waited while
what was free), ``resolve`` (every board-second in one bucket), ``evaluate`` (all rules on one set of facts),
``lifecycle`` (a finding's life over many evaluations). What must not live here: I/O, clocks, SQL.
"""
