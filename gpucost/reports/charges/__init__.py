"""What teams pay, as reports: a month under several policies side by side.

Models and renderers only: amounts come from ``gpucost.charges``. What must not live here: I/O, reads of the
ledger. Begin with ``charge_statements``.
"""
