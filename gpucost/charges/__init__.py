"""Charges: what usage lines cost whom, derived from lines, policy and contracts; the lines stay the truth.

What may live here: contracts and their drawdown, charge policies and charges. Everything is computed again
from its inputs to the same bytes, in whole milliseconds and nano-units. Begin with ``contract_terms``.
What must not: I/O, clocks, frames.
"""
