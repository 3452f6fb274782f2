"""One module or package per anti-pattern, called as the pattern: NAME, settings and run(facts, settings);
engine/registry lists them. A rule never guesses: where a guard holds it back or data are missing it returns
a WithheldFinding. It reports what is over as well, since the waste ledger counts both. Where two rules could
claim the same GPU-second, engine/waste_resolution decides. Must not: import another rule. Begin with
``not_advertised``.
"""
