"""The tables of a sealed month: columns, types, and since which version of the format there are.

A file has one table of one month and cluster. Every value is an integer, text, or (``progress`` alone) a
float; time is milliseconds UTC, money nano-units; null is "not known" and never 0. A later version may only
add columns: in files of an earlier one they are null. ``TABLES`` is the newest version; docs/sealed.md is the
page for readers of the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gpucost.contract.frames import LINE_MEASURES, PEAKS, SIGNAL_MEASURES
from gpucost.ledger.db.records import SealTooNew
from gpucost.ledger.db.tables import HOLDER, RATE, UNIT

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "gpucost sealed month"
VERSION = 1

ColumnKind: TypeAlias = Literal["integer", "text", "real"]
INTEGER: ColumnKind = "integer"
TEXT: ColumnKind = "text"
REAL: ColumnKind = "real"
_SQL = {INTEGER: "BIGINT", TEXT: "VARCHAR", REAL: "DOUBLE"}


@dataclass(frozen=True, slots=True)
class SealColumn:
    """A column of a sealed table; files before version ``since`` have none."""

    name: str
    kind: ColumnKind
    nullable: bool = False
    since: int = 1

    def selected(self, version: int) -> str:
        """The column in SELECT over files of ``version``."""
        name = quoted(self.name)
        return name if version >= self.since else f"CAST(NULL AS {_SQL[self.kind]}) AS {name}"


def quoted(name: str) -> str:
    return f'"{name}"'


def _columns(names: Sequence[str], integers: Sequence[str] = (), nullable: Sequence[str] = ()) -> Any:
    return tuple(
        SealColumn(name, INTEGER if name in integers else TEXT, nullable=name in nullable) for name in names
    )


def _content(table: Any) -> tuple[str, ...]:
    """The columns of a dimension, without its id and key."""
    return tuple(column.name for column in table.columns)[2:]


GROUP_ROWS = 122_880
"""Rows of a row group: what DuckDB and others read at once."""
UNIT_NAMES, HOLDER_NAMES, RATE_VALUES = _content(UNIT), _content(HOLDER), _content(RATE)
RATE_COLUMNS = tuple(name if name == "rate_id" else f"rate_{name}" for name in RATE_VALUES)
_SHARES = ("share_num", "share_den")
_RATE_NUMBERS = ("rate_nano_per_board_hour", "rate_list_nano_per_board_hour")
_WINDOW = _columns(("window_start_ms", "window_end_ms"), ("window_start_ms", "window_end_ms"))
_DAY = _columns(("day_ms",), ("day_ms",))
_ASSESSED = _columns(("assessed",))
_KEY = (
    *_columns(UNIT_NAMES, _SHARES),
    *_columns(("bucket", *HOLDER_NAMES)),
    *_columns(RATE_COLUMNS, _RATE_NUMBERS, RATE_COLUMNS[1:]),
)
_RULE = _columns(("team_rule",), nullable=("team_rule",))
_MEASURES = _columns(LINE_MEASURES, LINE_MEASURES, ("nano", *SIGNAL_MEASURES))

# What a day's sums leave out: who and where to the last detail, which makes nearly every line another.
DETAILS = frozenset({"node", "pod", "pod_uid", "team_label"})
DAY_DIMS = tuple(
    name for name in (*UNIT_NAMES, "bucket", *HOLDER_NAMES, "rate_id", "team_rule") if name not in DETAILS
)
SUMS = ("board_ms", "nano", "unpriced_ms", *SIGNAL_MEASURES)
DAY_MEASURES = (*SUMS, "first_ms", "last_ms")
_DAY_KEY = _columns(DAY_DIMS, _SHARES, ("team_rule",))
WASTE_SUMS = ("board_ms", "nano", "unpriced_ms")

TABLES: dict[str, tuple[SealColumn, ...]] = {
    "lines": (*_WINDOW, *_ASSESSED, *_KEY, *_RULE, *_MEASURES),
    "days": (*_DAY, *_ASSESSED, *_DAY_KEY, *_columns(DAY_MEASURES, DAY_MEASURES, ("nano", *SIGNAL_MEASURES))),
    "waste": (
        *(*_WINDOW, *_KEY, *_columns(("waste",))),
        *_columns(("board_ms", "nano"), ("board_ms", "nano"), ("nano",)),
    ),
    "waste_days": (
        *(*_DAY, *(column for column in _DAY_KEY if column.name != "team_rule"), *_columns(("waste",))),
        *_columns(WASTE_SUMS, WASTE_SUMS, ("nano",)),
    ),
    "progress": (
        *(*_WINDOW, *_columns(("cluster", "pod_uid", "name"))),
        SealColumn("amount", REAL),
    ),
    "problems": (
        *(*_WINDOW, *_columns(("cluster", "seq"), ("seq",))),
        *_columns(("code", "problem_cluster", "subject", "detail", "board_ms"), ("board_ms",), ("board_ms",)),
    ),
    "windows": (
        *(*_WINDOW, *_columns(("cluster",))),
        *_columns(
            ("version", "digest", "observed_ms", "line_count", "board_ms", "unknown_ms", "unpriced_ms"),
            ("version", "observed_ms", "line_count", "board_ms", "unknown_ms", "unpriced_ms"),
        ),
        *_columns(("nano", "source", "code_version", "written_at_ms"), ("nano", "written_at_ms")),
        *_columns(("assessed", "waste_digest"), nullable=("waste_digest",)),
    ),
}


def arrow_schema(table: str) -> pa.Schema:
    """The newest version of a table, as its files have it."""
    import pyarrow as pa  # slow to import, and most ledgers have nothing sealed

    kinds = {INTEGER: pa.int64(), TEXT: pa.string(), REAL: pa.float64()}
    fields = [pa.field(each.name, kinds[each.kind], nullable=each.nullable) for each in TABLES[table]]
    return pa.schema(fields, {"format": f"{FORMAT} {VERSION}", "table": table})


def check_version(version: object, place: str) -> int:
    """Raises SealTooNew for files of a version that this program does not know."""
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise SealTooNew(
            f"{place} has version {version} of the format, this gpucost reads 1 to {VERSION}: upgrade gpucost"
        )
    return version


def total(name: str) -> str:
    """How lines add up to one, in SQL: the peaks by their maximum. A sum beyond 64 bits is an error."""
    column = quoted(name)
    if name == "first_ms":
        return f"min({column})"
    if name == "last_ms" or name in PEAKS:
        return f"max({column})"
    return f"CAST(sum({column}) AS BIGINT)"
