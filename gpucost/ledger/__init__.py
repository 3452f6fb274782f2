"""The ledger: its tables, their migrations, and the only reader and writer of them.

What may live here: SQL. What must not: rules about money (attribution and reports have them). Every read
of what somebody used takes a Scope; every write is one transaction: all of a window or nothing.
"""

from gpucost.ledger.errors import CloseRefused, LateLines, LedgerTooNew, MonthOpen
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.query import DIMENSIONS, MEASURES
from gpucost.ledger.records import (
    Adjustment,
    AuditEntry,
    IngestResult,
    LedgerState,
    MonthInfo,
    ProposedAdjustment,
    VerifyFinding,
    WindowInfo,
    WindowVersion,
)

__all__ = [
    "DIMENSIONS",
    "MEASURES",
    "Adjustment",
    "AuditEntry",
    "CloseRefused",
    "IngestResult",
    "LateLines",
    "Ledger",
    "LedgerState",
    "LedgerTooNew",
    "MonthInfo",
    "MonthOpen",
    "ProposedAdjustment",
    "VerifyFinding",
    "WindowInfo",
    "WindowVersion",
]
