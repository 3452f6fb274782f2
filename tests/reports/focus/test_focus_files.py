"""Files of FOCUS: harmless, the same each time, and read back as they were."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.errors import InputError
from gpucost.domain.time import parse_instant
from gpucost.reports.focus.focus_columns import (
    FocusBatch,
    FocusColumn,
    FocusDataset,
    FocusType,
    FocusVersion,
    columns_of,
)
from gpucost.reports.focus.focus_files import hidden, read_csv, read_parquet, shown, to_csv, to_parquet

COLUMNS = tuple(FocusColumn(kind.value, kind, True, "") for kind in FocusType)
KNOWN = {column.name: column for column in COLUMNS}
NAMES = st.text(st.sampled_from("=+-@'\"\t\n\r;|,ab ＝＠é漢"), min_size=1, max_size=12) | st.text(
    min_size=1, max_size=20
).filter(lambda text: "\0" not in text)
CELLS = {
    FocusType.TEXT: NAMES,
    FocusType.JSON: NAMES,
    FocusType.TIME: st.integers(1_300_000_000, 4_000_000_000).map(lambda second: second * 1000),
    FocusType.MONEY: st.integers(-(10**17), 10**17),
    FocusType.PRODUCT: st.integers(-(10**15), 10**15) | st.just(0.1 + 0.2),
    FocusType.NUMBER: st.floats(allow_nan=False, allow_infinity=False, width=64),
    FocusType.SECONDS: st.integers(-(10**12), 10**12),
}


@st.composite
def batches(draw: st.DrawFn) -> FocusBatch:
    rows = draw(st.integers(1, 6))
    cells = {
        column.name: draw(st.lists(st.none() | CELLS[column.type], min_size=rows, max_size=rows))
        for column in COLUMNS
    }
    return FocusBatch(rows, cells)


@given(batches())
def test_what_was_written_is_read_back(batch: FocusBatch) -> None:
    content = to_csv(COLUMNS, [batch])
    [read] = read_csv(io.StringIO(content.decode(), newline=""), KNOWN.get)
    assert read.dicts() == batch.dicts()
    assert to_csv(COLUMNS, [read]) == content
    again = to_parquet(COLUMNS, [batch], {"a": "b"})
    [read] = read_parquet(io.BytesIO(again), KNOWN.get)
    assert read.dicts() == batch.dicts()
    assert to_parquet(COLUMNS, [read], {"a": "b"}) == again


@given(NAMES)
def test_no_text_begins_a_formula_and_none_is_changed(text: str) -> None:
    written = hidden(text)
    assert written[0] not in "=+-@\t\r\n＝＋－＠"
    assert shown(written) == text


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "@x", "'=x", "a;=x", "two\nlines", 'a "b", c', "-1+1"])
def test_names_of_an_attacker_stay_names(name: str) -> None:
    content = to_csv(COLUMNS[:1], [FocusBatch(1, {"text": [name]})]).decode()
    [read] = read_csv(io.StringIO(content, newline=""), KNOWN.get)
    assert read.dicts() == [{"text": name}]
    assert not content.splitlines()[1].lstrip('"').startswith(("=", "+", "-", "@"))


@pytest.mark.parametrize(
    ("head", "cell", "field"),
    [
        ("money", "NaN", "money"),
        ("money", "1.0000000001", "money"),
        ("time", "2026-10-01T00:00:00", "time"),
        ("number", "many", "number"),
        ("other", "1", "column"),
    ],
)
def test_a_wrong_cell_is_refused(head: str, cell: str, field: str) -> None:
    with pytest.raises(InputError) as caught:
        list(read_csv(io.StringIO(f"{head}\r\n{cell}\r\n"), KNOWN.get))
    assert caught.value.field.startswith(field)


def test_the_columns_of_every_version() -> None:
    costs = {version: columns_of(FocusDataset.COST_AND_USAGE, version) for version in FocusVersion}
    own = {version: [c.name for c in columns if not c.is_own] for version, columns in costs.items()}
    assert [len(own[version]) for version in FocusVersion] == [57, 65, 64]
    assert all(names == sorted(names) for names in own.values())
    v2, v3, v4 = (set(own[version]) for version in FocusVersion)
    assert v3 - v2 == {
        *("AllocatedMethodId", "AllocatedMethodDetails", "AllocatedResourceId", "AllocatedResourceName"),
        *("AllocatedTags", "ContractApplied", "ServiceProviderName", "HostProviderName"),
    }
    assert v3 - v4 == {"ProviderName", "PublisherName"}
    assert v4 - v3 == {"InvoiceDetailId"}
    mandatory = [c.name for c in columns_of(FocusDataset.CONTRACT_COMMITMENT, FocusVersion.V1_3)]
    assert len(mandatory) == 13
    assert parse_instant("2026-10-01T00:00:00Z")
