"""What teams pay: charges, derived from usage lines, a charge policy and contracts. Pure.

Usage lines stay the truth. Charges are computed from them again whenever they are asked for, to the same
byte: a cell (one pool in one window of the ledger) at a time, in whole GPU-milliseconds and nano-units, and
what no team pays is kept by the platform as the exact remainder. What must not live here: I/O, clocks, SQL,
pandas, floats. Begin with ``policy_file`` (what can be said), then ``capacity_cells``, ``quota_balance`` and
``cell_charges``; ``charge_account`` adds them up. Contracts: ``contract_terms`` (what can be said),
``contract_schedule`` and ``commitment_drawdown``; ``commitment_report`` says what they were worth.
"""
