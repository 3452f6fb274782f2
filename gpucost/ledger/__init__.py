"""The ledger: its tables, their migrations, and the only reader and writer of them.

What may live here: SQL. What must not: rules about money (attribution and reports have them). Every read
of what somebody used takes a Scope; every write is one transaction: all of a window or nothing.
"""

from gpucost.ledger.errors import CloseRefused, FoldRefused, LateLines, LedgerTooNew, MonthOpen
from gpucost.ledger.foretold import Foretold
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.query import DIMENSIONS, MEASURES
from gpucost.ledger.records import (
    Adjustment,
    Assessed,
    AuditEntry,
    FindingEvent,
    FindingRecord,
    FindingState,
    FoldedMonth,
    Forgotten,
    IngestResult,
    LedgerState,
    MonthInfo,
    ProposedAdjustment,
    VerifyFinding,
    WasteOfWindow,
    WindowInfo,
    WindowVersion,
)
from gpucost.ledger.runs import JobRun
from gpucost.ledger.uses import JobUse
from gpucost.ledger.waste import WASTE_MEASURES
from gpucost.ledger.waste_writer import WASTE_LINES

__all__ = [
    "DIMENSIONS",
    "MEASURES",
    "WASTE_LINES",
    "WASTE_MEASURES",
    "Adjustment",
    "Assessed",
    "AuditEntry",
    "CloseRefused",
    "FindingEvent",
    "FindingRecord",
    "FindingState",
    "FoldRefused",
    "FoldedMonth",
    "Foretold",
    "Forgotten",
    "IngestResult",
    "JobRun",
    "JobUse",
    "LateLines",
    "Ledger",
    "LedgerState",
    "LedgerTooNew",
    "MonthInfo",
    "MonthOpen",
    "ProposedAdjustment",
    "VerifyFinding",
    "WasteOfWindow",
    "WindowInfo",
    "WindowVersion",
]
