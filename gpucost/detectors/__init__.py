"""Anti-patterns: what wastes GPUs, who can get them back, and how.

Pure: facts in, findings out.
Here stands what all share: ``findings`` (what rules say), ``allocation_pieces`` and ``request_patches``
(rows, amounts and commands), ``detector_settings``. Below: engine > rules > inputs. Must not: I/O, clocks,
SQL. Begin with ``findings``, then rules/not_advertised, then engine/registry.
"""
