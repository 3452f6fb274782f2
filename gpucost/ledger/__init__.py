"""The ledger: its tables, their migrations, and the only reader and writer of them.

What lives here: SQL, by topic: db (tables), usage (lines and months), waste, stores (findings, keys,
messages, predictions), retention, sealed (months in files). What must not: rules about money (attribution and
reports have them).
Every read of usage takes a Scope; every write is one transaction: all of a window or nothing.
Begin at ledger.Ledger, the facade; each of its methods is one call into a wing.
"""

from gpucost.ledger.db.records import (
    Adjustment,
    AssessmentCounts,
    AuditEntry,
    CloseRefused,
    FindingEvent,
    FindingRecord,
    FindingState,
    FindingSum,
    FoldRefused,
    IngestResult,
    LateLines,
    LedgerState,
    LedgerTooNew,
    MonthCharges,
    MonthInfo,
    MonthOpen,
    MonthRollup,
    MonthSeal,
    ProposedAdjustment,
    PruningResult,
    SealRefused,
    VerifyFinding,
    WasteOfWindow,
    WindowInfo,
    WindowVersion,
)
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.retention.rollup import DayAddedUp
from gpucost.ledger.stores.kept_forecasts import KeptForecast
from gpucost.ledger.stores.predictions import WaitPrediction
from gpucost.ledger.usage.job_index import NamedJob
from gpucost.ledger.usage.query import DIMENSIONS, MEASURES
from gpucost.ledger.usage.run_history import JobRun, JobUse
from gpucost.ledger.waste.waste_reader import WASTE_MEASURES
from gpucost.ledger.waste.waste_writer import WASTE_LINES

__all__ = [
    "DIMENSIONS",
    "MEASURES",
    "WASTE_LINES",
    "WASTE_MEASURES",
    "Adjustment",
    "AssessmentCounts",
    "AuditEntry",
    "CloseRefused",
    "DayAddedUp",
    "FindingEvent",
    "FindingRecord",
    "FindingState",
    "FindingSum",
    "FoldRefused",
    "IngestResult",
    "JobRun",
    "JobUse",
    "KeptForecast",
    "LateLines",
    "Ledger",
    "LedgerState",
    "LedgerTooNew",
    "MonthCharges",
    "MonthInfo",
    "MonthOpen",
    "MonthRollup",
    "MonthSeal",
    "NamedJob",
    "ProposedAdjustment",
    "PruningResult",
    "SealRefused",
    "VerifyFinding",
    "WaitPrediction",
    "WasteOfWindow",
    "WindowInfo",
    "WindowVersion",
]
