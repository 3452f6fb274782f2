"""The tree of errors, and the problems that are recorded beside numbers.

Errors are raised. Errors of libraries are wrapped where they first occur, and chained:

GpuCostError
├── InputError            a value from outside is wrong: names the field, the value, what is allowed
│   └── ConfigError       … and the file it stands in
├── SourceError           telemetry could not be read; the window stays open
│   ├── SourceUnreachable   connection refused, DNS, 502, 503, 504, HTML from a proxy (retried)
│   ├── SourceTimeout       no answer in time (retried)
│   ├── QueryRejected       400 or 422: the query is wrong or too large (never retried)
│   ├── AnswerRefused       an answer that the query cannot have: samples twice, of another time (not retried)
│   ├── PartialResponse     an answer with warnings: true but not complete
│   ├── NotCovered          the source no longer, or does not yet, have the queried time
│   ├── DriverDown          the exporter's driver process has no reading (gpucost_gpu_exporter)
│   └── KubeletDown         the kubelet does not say who holds what (gpucost_gpu_exporter)
├── TransportError        the Kubernetes API gave no usable answer (gpucost.kube)
├── Unreadable            an object or event of the Kubernetes API makes no sense; it is skipped
└── LedgerError           the ledger refused
    ├── LedgerConflict      the same line or window with another value
    │   └── ChargesChanged    a closed month is not charged as it was
    ├── MonthClosed         a closed month does not change; file an adjustment
    ├── LedgerDamaged       the database cannot read what it stored; a backup can
    └── LedgerUnavailable   disk full, locked, connection lost (retry is safe)

A ``DataProblem`` is not raised: it names a fact that a number could not be computed from, and is reported
beside the number, which is never replaced by 0 or a default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum


class GpuCostError(Exception):
    """Base of every error that gpucost raises on purpose. Pickles whole, so a worker process can raise it."""

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class ErrorRemark(str):
    """What is wrong where there is no value to show: ``missing``, ``unknown key``."""

    __slots__ = ()


class InputError(GpuCostError):
    """A value that came from outside is wrong.

    ``field`` names it as the user wrote it, ``value`` is what was found, ``allowed`` says what would do.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        found = str(value) if isinstance(value, ErrorRemark) else f"{shorten(value)} is not allowed"
        super().__init__(f"{field}: {found}; allowed: {allowed}")


class ConfigError(InputError):
    """A configuration file is wrong; the process that reads it must not start. ``line`` counts from 1."""

    def __init__(self, file: str, field: str, value: object, allowed: str, line: int | None = None) -> None:
        super().__init__(field, value, allowed)
        self.file = file
        self.line = line
        where = f"{file}:{line}" if line else file
        self.args = (f"{where}: {self.args[0]}",)


class LinesOutdated(InputError):
    """Parts of other lines than the ledger has of a window: its source has learned of more since it was
    ingested, or prices and teams are others by now."""


class SourceError(GpuCostError):
    """Telemetry could not be read. Nothing was lost: the window stays open and is read again."""


class SourceUnreachable(SourceError):
    """The source did not answer, or something in front of it answered in its place."""


class SourceTimeout(SourceError):
    """The source did not answer in time."""


class QueryRejected(SourceError):
    """The source understood the request and refused it; repeating it would not help."""


class AnswerRefused(SourceError):
    """The source gave an answer that the query cannot have: samples twice, out of order, of another time,
    counts that are not numbers. None of it is used, and the window stays open. ``field`` is the wrong part of
    the answer, ``value`` what was found there.
    """

    def __init__(self, server: str, field: str, value: object, allowed: str) -> None:
        self.field, self.value, self.allowed = field, value, allowed
        super().__init__(f"{server} answered {field}: {shorten(value)} is not allowed; allowed: {allowed}")


class PartialResponse(SourceError):
    """The source answered with warnings; ``warnings`` holds them. The window must not be settled."""

    def __init__(self, message: str, warnings: tuple[str, ...]) -> None:
        self.warnings = warnings
        super().__init__(message)


class NotCovered(SourceError):
    """The queried time is older than the source's retention, or has not been recorded yet."""


class LedgerError(GpuCostError):
    """The ledger refused; nothing was half-written."""


class LedgerConflict(LedgerError):
    """The same natural key with a different value."""


class ChargesChanged(LedgerConflict):
    """A closed month is not charged as it was. ``whole`` is for who sees every team: it names some."""

    def __init__(self, month: str, why: str) -> None:
        super().__init__(f"the charges of {month} are not those that it was closed with")
        self.whole = f"{self} ({why}); gpucost month verify {month} says whether its lines were changed"


class MonthClosed(LedgerError):
    """The month is closed; corrections are adjustments."""


class LedgerDamaged(LedgerError):
    """The database cannot read its own pages. Trying again does not help."""


class LedgerUnavailable(LedgerError):
    """The database cannot be used now (disk full, locked, connection lost). Trying again is safe."""


def _rebuild(cls: type[GpuCostError], args: tuple[object, ...], state: dict[str, object]) -> GpuCostError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error


def shorten(value: object, limit: int = 120) -> str:
    """``repr`` of a value for a message: control characters escaped, cut to ``limit`` characters."""
    try:
        text = str(value) if isinstance(value, Decimal) else repr(value)
    except ValueError:  # Python does not print integers of more than 4300 digits
        text = f"a {type(value).__name__} too long to print"
    except RecursionError:  # JSON that is nested a thousand deep can be read, but not written out
        text = f"a {type(value).__name__} too deep to print"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


class DataProblemCode(StrEnum):
    PRICE_MISSING = "price_missing"
    PRICE_DOUBTFUL = "price_doubtful"
    COUNT_UNKNOWN = "count_unknown"
    UNIT_UNKNOWN = "unit_unknown"
    SHARE_UNKNOWN = "share_unknown"
    CLAIM_UNKNOWN = "claim_unknown"
    INNER_UNPLACED = "inner_unplaced"
    INNER_UNKNOWN = "inner_unknown"
    NODE_UNKNOWN = "node_unknown"
    OVERCOMMITTED = "overcommitted"
    CAPACITY_EXCEEDS_BOARDS = "capacity_exceeds_boards"
    INTERVAL_REFUSED = "interval_refused"
    END_UNKNOWN = "end_unknown"
    TEAM_UNKNOWN = "team_unknown"
    NOT_OBSERVED = "not_observed"
    DUPLICATE_SOURCE = "duplicate_source"
    SERIES_REFUSED = "series_refused"
    NOT_CONSERVED = "not_conserved"
    # Codes of sources that observe less than the objects have: how far a number may be off.
    END_BOUNDED = "end_bounded"
    SHORT_UNSEEN = "short_unseen"
    USE_SAMPLED = "use_sampled"
    USE_UNSPLIT = "use_unsplit"
    USE_DROPPED = "use_dropped"
    USE_UNKNOWN = "use_unknown"
    USE_UNREAD = "use_unread"


@dataclass(frozen=True, slots=True, order=True)
class DataProblem:
    """One problem: ``subject`` is what it is about (a node, a pod uid, a model), ``detail`` a sentence.

    ``board_ms`` is the GPU time it touches, or None where that is not known; for a bound, the most by which a
    number may be off. ``at_ms`` is an instant of the subject, where a source gives one: the problem is then
    recorded with the window of that instant, however many windows are read at once.
    """

    code: DataProblemCode
    cluster: str
    subject: str
    detail: str
    board_ms: int | None = None
    at_ms: int | None = field(default=None, compare=False)
