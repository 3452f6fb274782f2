"""Times of invoices in Parquet files, which say their zone and unit, and may lie beyond any calendar."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from gpucost.domain.errors import InputError
from gpucost.reports.focus.invoice_lines import InvoiceLine
from gpucost.service.reporting.invoice_imports import opened
from tests.ledger.builders import hour
from tests.service.test_invoice_imports import HOURS, month_rows


def test_times_of_parquet_with_another_zone_are_those_of_utc(tmp_path: Path) -> None:
    """In the month in which Berlin's clocks went back."""
    table = pa.Table.from_pylist(month_rows()[:HOURS])
    for name in ("ChargePeriodStart", "ChargePeriodEnd"):
        times = pc.assume_timezone(pc.strptime(table[name], "%Y-%m-%dT%H:%M:%SZ", "ms"), "UTC")
        local = times.cast(pa.timestamp("us", "Europe/Berlin"))
        table = table.set_column(table.column_names.index(name), name, local)
    pq.write_table(table, tmp_path / "f.parquet")
    with opened(tmp_path / "f.parquet") as found:
        periods = [line.period for line in found if isinstance(line, InvoiceLine)]
    assert periods == [hour(number) for number in range(HOURS)]


def test_a_time_of_parquet_that_no_calendar_has_is_refused(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(month_rows()[:1])
    late = pa.array([2**60], pa.timestamp("ms"))
    table = table.set_column(table.column_names.index("ChargePeriodEnd"), "ChargePeriodEnd", late)
    pq.write_table(table, tmp_path / "f.parquet")
    with (
        pytest.raises(InputError, match="a Parquet file that can be read"),
        opened(tmp_path / "f.parquet") as found,
    ):
        list(found)
