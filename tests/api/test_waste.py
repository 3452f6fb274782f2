"""The waste ledger over HTTP: the buckets add up, and a team sees its own."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from gpucost.api.app import create_app
from gpucost.api.routes.responses import LEDGER_HEADER
from gpucost.domain.buckets import Waste
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import HOUR_MS, Window
from gpucost.ledger.db.records import WasteOfWindow
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.usage.query import DIMENSIONS
from gpucost.ledger.waste.waste_writer import WASTE_LINES
from tests.api.conftest import SETTINGS, Clients
from tests.api.every_route import strings
from tests.api.findings import FOREIGN, ledger_with_findings
from tests.api.test_errors import error_of
from tests.service.worlds import Clock
from tests.support.frames import hours

WINDOW = "window=2026-10-01T00:00:00Z/2026-10-02T00:00:00Z"
URL = f"/v1/waste?{WINDOW}"
KEYS = [name for name in WASTE_LINES.column_names if name in (*DIMENSIONS, "share_num", "share_den")]


def assess(ledger: Ledger, first: int, last: int, waste: Waste | None = None, *, final: bool = True) -> None:
    """Look at some hours: half of all held time was ``waste``, or nothing was found."""
    for number in range(first, last):
        window = hours(number, number + 1)
        [info] = ledger.windows(window, "c")
        lines = ledger.aggregate(EVERYTHING, window, KEYS, filters={"bucket": ["held"]})
        lines["window_start_ms"], lines["window_end_ms"] = window.start_ms, window.end_ms
        lines["team_label"], lines["waste"] = "", str(waste)
        lines["board_ms"] //= 2
        lines["nano"] = (lines["nano"] // 2).astype("Int64")
        parts = lines[list(WASTE_LINES.column_names)] if waste else lines[:0][list(WASTE_LINES.column_names)]
        ledger.write_waste("c", [WasteOfWindow(window, info.digest, parts, final)], code_version="1")


def no_parts(window: Window, digest: str) -> WasteOfWindow:
    """Nothing was found."""
    lines = pd.DataFrame(columns=list(WASTE_LINES.column_names), dtype=object)
    return WasteOfWindow(window, digest, lines, final=True)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    folder: Path = tmp_path_factory.mktemp("waste")
    with ledger_with_findings(folder, Clock()) as found:
        assess(found, 0, 12, Waste.IDLE)
        assess(found, 12, 20, final=False)
        yield found


@pytest.fixture(scope="module")
def clients(ledger: Ledger) -> Clients:
    return Clients(create_app(ledger, SETTINGS, now=Clock()))


def test_the_buckets_add_up_to_capacity(clients: Clients) -> None:
    response = clients.fin.get(URL)
    found = response.json()
    assert [row["waste"] for row in found["buckets"]] == list(Waste)
    assert sum(row["amount"]["board_ms"] for row in found["buckets"]) == 16 * 24 * HOUR_MS
    assert (found["difference_board_ms"], found["difference_nano"]) == (0, 0)
    assert found["assessment"] == {"final": 12, "provisional": 8, "missing": 4}
    idle = next(row for row in found["buckets"] if row["waste"] == "idle")
    assert idle["amount"]["board_ms"] > 0
    assert found["ledger"]["windows"] == 24
    assert response.headers[LEDGER_HEADER] == found["ledger"]["digest"]
    alike = [(row["finding"], row["alike"] and row["alike"]["findings"]) for row in found["to_do"]]
    assert alike == [(2, [3]), (5, None), (1, [4]), (6, None)]


def test_top_says_how_many(clients: Clients) -> None:
    found = clients.fin.get(f"{URL}&top=1").json()
    assert (len(found["jobs"]), len(found["to_do"])) == (1, 1)


def test_the_month_is_a_window(clients: Clients) -> None:
    month, day = clients.fin.get("/v1/waste?window=2026-10").json(), clients.fin.get(URL).json()
    assert month["buckets"] == day["buckets"]
    assert clients.fin.get("/v1/waste?window=2026-09").status_code == 404


def test_the_table_has_every_section(clients: Clients) -> None:
    by_parameter = clients.fin.get(f"{URL}&format=csv")
    by_header = clients.fin.get(URL, headers={"Accept": "text/csv"})
    assert by_parameter.content == by_header.content
    assert by_parameter.headers["content-disposition"] == 'attachment; filename="gpucost-waste.csv"'
    rows = list(csv.DictReader(io.StringIO(by_parameter.text)))
    assert {row["section"] for row in rows} == {"bucket", "team", "day", "job", "cause", "to_do"}
    whole = clients.fin.get(URL).json()
    buckets = [row for row in rows if row["section"] == "bucket"]
    assert [(row["waste"], row["nano"], row["cost"]) for row in buckets] == [
        (row["waste"], _text(row["amount"]["nano"]), _text(row["amount"]["cost"])) for row in whole["buckets"]
    ]
    assert [row["finding"] for row in rows if row["section"] == "to_do"] == ["2", "5", "1", "6"]


def _text(value: object) -> str:
    return "" if value is None else str(value)


@pytest.mark.fault(47)
def test_a_team_sees_its_own_waste_only(clients: Clients) -> None:
    everything, own = clients.fin.get(URL).json(), clients.ada.get(URL).json()
    assert own["teams_in_scope"] == ["research"]
    assert [row["team"] for row in own["teams"]] == ["research"]
    assert own["teams"] == [row for row in everything["teams"] if row["team"] == "research"]
    held = next(row for row in own["teams"])["held"]["board_ms"]
    assert own["capacity"]["board_ms"] == held < everything["capacity"]["board_ms"]
    assert [(row["finding"], row["alike"]["findings"]) for row in own["to_do"]] == [(1, [4])]
    assert not strings(own) & FOREIGN
    table = clients.ada.get(f"{URL}&format=csv").text.replace("docs/detectors/", "")
    assert not any(name in table for name in FOREIGN)


@pytest.mark.parametrize(
    ("url", "field"),
    [
        ("/v1/waste", "window"),
        ("/v1/waste?window=7d", "window"),
        ("/v1/waste?window=2016-01-01T00:00:00Z/2026-01-01T00:00:00Z", "window"),
        ("/v1/waste?window=2026-10-01T00:30:00Z/2026-10-02T00:00:00Z", "window"),
        (f"{URL}&top=0", "top"),
        (f"{URL}&top=1001", "top"),
        (f"{URL}&top=1_0", "top"),
        (f"{URL}&format=parquet", "format"),
        (f"{URL}&team=nobody", "team"),
    ],
)
def test_what_is_wrong_is_named(url: str, field: str, clients: Clients) -> None:
    response = clients.fin.get(url)
    assert response.status_code in (400, 422)
    assert error_of(response)["field"] == field
