"""One module per anti-pattern. Each has NAME and run(); ``gpucost.detectors.registry`` lists them, and their
settings stand in ``gpucost.detectors.rule_settings``.

A rule never guesses: where a guard holds it back or data are missing it says so (``Withheld``). It reports
what is over as well as what goes on, since the waste ledger counts both. Where two rules could claim the same
board-second, ``resolve`` decides; a rule only leaves to another what is the other's by definition.
"""
