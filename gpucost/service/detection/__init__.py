"""Detectors run over a history, and their waste is accounted for in the ledger.

What may live here: runs, their loop and status, backtests, the inspection of one job, records of findings.
What must not: rules of detectors (gpucost.detectors), reports, messages. Begin with
``runner.DetectorRunner``. ``waste_accounting`` is what assigns waste to windows.
"""
