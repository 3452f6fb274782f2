"""One module or package per anti-pattern, named like the pattern: NAME and run(facts, settings);
engine/registry lists them. A rule never guesses: where a guard holds it back or data are missing it returns a
WithheldFinding. It also reports findings that are over, since the waste ledger counts both. Where two rules
could claim the same GPU-second, engine/waste_resolution decides. What must not live here: an import of
another rule. Begin with ``not_advertised``."""
