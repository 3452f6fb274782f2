"""Months as FOCUS through the API: the bytes of the command, and for a team its own rows only."""

from __future__ import annotations

import io

import pyarrow.parquet as pq
import pytest

from gpucost.api.app import create_app
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import Month
from gpucost.ledger.ledger import Ledger
from gpucost.reports.focus.focus_columns import FocusDataset, FocusVersion
from gpucost.service.reporting.focus_exports import FocusExports, FocusRequest
from tests.api.conftest import SETTINGS, Clients
from tests.service.worlds import Clock
from tests.support.focus_rules import rows_of

URL = "/v1/focus/2026-10"
MONTH = Month(2026, 10)


@pytest.fixture(scope="module")
def clients(ledger: Ledger) -> Clients:
    return Clients(create_app(ledger, SETTINGS, now=Clock()))


def command(ledger: Ledger, scope: Scope, version: FocusVersion, dataset: FocusDataset) -> bytes:
    target = io.BytesIO()
    FocusExports(ledger, scope, "1").write(FocusRequest(MONTH, version), dataset, "csv", target)
    return target.getvalue()


@pytest.mark.parametrize("version", FocusVersion)
def test_the_api_sends_what_the_command_writes(
    clients: Clients, ledger: Ledger, version: FocusVersion
) -> None:
    for dataset in FocusDataset:
        if dataset.since <= version:
            answer = clients.fin.get(URL, params={"version": version, "dataset": dataset})
            assert answer.status_code == 200
            assert answer.content == command(ledger, EVERYTHING, version, dataset)
            assert f"gpucost-focus-2026-10-{dataset}.csv" in answer.headers["content-disposition"]
    parquet = clients.fin.get(URL, params={"version": version, "format": "parquet"})
    rows = len(rows_of(command(ledger, EVERYTHING, version, FocusDataset.COST_AND_USAGE)))
    assert pq.read_table(io.BytesIO(parquet.content)).num_rows == rows


def test_a_team_has_its_own_rows_whatever_it_asks_for(clients: Clients, ledger: Ledger) -> None:
    own = command(ledger, Scope(frozenset({"research"})), FocusVersion.V1_4, FocusDataset.COST_AND_USAGE)
    asked = {"version": "1.4"}
    assert clients.ada.get(URL, params=asked).content == own
    assert clients.fin.get(URL, params=asked | {"team": "research"}).content == own
    for dataset in FocusDataset:
        text = clients.ada.get(URL, params=asked | {"dataset": dataset}).text
        assert not [word for word in ("vision", "detect", "batch", "unallocated", "unknown") if word in text]
    for name in ("vision", "nobody"):
        refused = clients.ada.get(URL, params={"team": name})
        assert (refused.status_code, "vision" in refused.text.replace(name, "")) == (422, False)
    assert clients.prom.get(URL).status_code == 403
    assert clients.anybody.get(URL).status_code == 401


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"version": "1.1"}, 422),
        ({"version": "1.2", "dataset": "InvoiceDetail"}, 422),
        ({"grain": "week"}, 422),
        ({"colour": "red"}, 422),
        ({"cluster": "nowhere"}, 422),
    ],
)
def test_wrong_parameters_are_refused(clients: Clients, query: dict[str, str], status: int) -> None:
    assert clients.fin.get(URL, params=query).status_code in (status, 400)


def test_a_month_without_lines_is_not_found(clients: Clients) -> None:
    assert clients.fin.get("/v1/focus/2027-01").status_code == 404
    assert clients.fin.get("/v1/focus/2027-01/metadata").status_code == 404


def test_metadata_says_whether_the_month_is_final(clients: Clients) -> None:
    found = clients.ada.get(f"{URL}/metadata", params={"version": "1.4"}).json()
    assert found["DatasetInstance"]["DatasetInstanceComplete"] is False
    assert found["x_Request"]["x_Teams"] == "research"
