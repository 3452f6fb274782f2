"""Anti-patterns: what wastes GPUs, who can free them, and how. Pure: facts in, findings out.

What all rules share is here: ``findings`` (the results of rules), ``allocation_pieces``,
``request_patches`` (rows, amounts and commands) and ``rule_settings``. Below: engine >
rules > inputs. What must not live here: I/O, clocks, SQL. Begin with ``findings``, then
``rules.not_advertised``, then ``engine.registry``.
"""
