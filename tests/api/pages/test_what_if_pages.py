"""Replays that were kept: a scenario above its baseline, for who sees all teams; pictures are tables."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from httpx2 import Response

from gpucost.advisor.replay.scenario_run import run_scenario
from gpucost.api.app import create_app
from gpucost.domain.errors import InputError
from gpucost.domain.time import Month
from gpucost.ledger.ledger import Ledger
from gpucost.reports.replay.scenario_figures import PlayedScenario, replay_report
from gpucost.service.replay.kept_replays import kept_file, kept_names, kept_replays, kept_report, kept_text
from tests.advisor.replay_worlds import job, kueue_history
from tests.advisor.test_scenarios import change
from tests.api.conftest import SETTINGS, Clients
from tests.service.worlds import Clock

MONTH = Month.parse("2026-10")
URL = "/month/2026-10/what-if"
PAGE = {"Accept": "text/html"}


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    jobs = [job(f"<b>j{n:02d}", 10 * n, 60, started=60 * n) for n in range(6)]
    history = kueue_history(*jobs, nodes=1)
    more = change('name: "<i>more"\nnodes: [{pool: h100, add: 1}]')
    played = [PlayedScenario(run_scenario(history)), PlayedScenario(run_scenario(history, more))]
    report = replay_report(history, played, "rules")
    kept_file(tmp_path, MONTH, "lend-8").write_text(kept_text(report), encoding="utf-8")
    (tmp_path / "2026-10.broken.json").write_text("{}", encoding="utf-8")
    return tmp_path


def clients_of(ledger: Ledger, folder: Path | None) -> Clients:
    return Clients(create_app(ledger, SETTINGS.model_copy(update={"replays": folder}), now=Clock()))


def texts(page: Response) -> str:
    assert page.status_code == 200, page.text
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page.text)).split())


def test_a_scenario_stands_above_its_baseline(ledger: Ledger, kept: Path) -> None:
    clients = clients_of(ledger, kept)
    page = clients.fin.get(f"{URL}?replay=lend-8", headers=PAGE)
    said = texts(page)
    found = clients.fin.get("/v1/months/2026-10/replays/lend-8").json()
    assert found["schema"] == "gpucost/ReplayReport/v1"
    for scenario in found["scenarios"]:
        for step in scenario["timeline"]:
            assert step["start"][:16].replace("T", " ") in said
    assert page.text.count('<svg class="day"') == 2
    # What is drawn is what the tables say, bar by bar.
    drawn = re.findall(r"<title>([^<]*), (held|waited for): ([0-9.,]+) GPU-hours</title>", page.text)
    rows = re.findall(
        r'<tr><th scope="row">(2026[^<]*)</th><td>([0-9.,]+)</td><td>([0-9.,]+)</td></tr>', page.text
    )
    told = [(at, "held", held) for at, held, _ in rows] + [(at, "waited for", wait) for at, _, wait in rows]
    assert sorted(drawn) == sorted(each for each in told if each[2] != "0.00")
    assert drawn
    assert "<b>j" not in page.text
    assert "<i>more" not in page.text
    assert "no JavaScript" not in said
    assert "What this cannot know" in said
    for name in ("utilisation", "fragmentation", "Jain's index of use over quota", "slowdown, mean"):
        assert name in said
    assert "= 0 nano-USD , 0 GPU-ms" in said
    base = clients.fin.get(URL, params={"replay": "lend-8", "scenario": "baseline"}, headers=PAGE)
    assert base.text.count('<svg class="day"') == 1


def test_what_is_not_there_is_said(ledger: Ledger, kept: Path) -> None:
    clients = clients_of(ledger, kept)
    assert clients.fin.get(f"{URL}?replay=other", headers=PAGE).status_code == 404
    assert clients.fin.get(f"{URL}?replay=lend-8&scenario=x", headers=PAGE).status_code == 422
    assert clients.fin.get(f"{URL}?replay=broken", headers=PAGE).status_code == 422
    assert clients.fin.get(f"{URL}?replay=..%2Fx", headers=PAGE).status_code == 422
    assert clients.fin.get("/v1/months/2026-10/replays/other").status_code == 404
    listed = clients.fin.get("/v1/months/2026-10/replays").json()["replays"]
    assert [(each["name"], each["scenarios"]) for each in listed] == [
        ("broken", []),
        ("lend-8", ["baseline", "<i>more"]),
    ]
    nothing = clients_of(ledger, None).fin.get(URL, headers=PAGE)
    assert "gpucost replay 2026-10 --change change.yaml --keep NAME" in texts(nothing)


def test_who_sees_one_team_sees_no_replay(ledger: Ledger, kept: Path) -> None:
    clients = clients_of(ledger, kept)
    for url in (URL, "/v1/months/2026-10/replays", "/v1/months/2026-10/replays/lend-8"):
        assert clients.vera.get(url).status_code == 403


def test_names_of_kept_replays(tmp_path: Path, kept: Path) -> None:
    assert kept_names(tmp_path / "none", MONTH) == ()
    assert kept_names(kept, Month.parse("2026-11")) == ()
    assert [each.name for each in kept_replays(kept, MONTH).replays] == ["broken", "lend-8"]
    report = kept_report(kept, MONTH, "lend-8")
    assert report is not None
    assert kept_text(report) == (kept / "2026-10.lend-8.json").read_text(encoding="utf-8")
    with pytest.raises(InputError, match="a-z, 0-9 and dashes"):
        kept_file(tmp_path, MONTH, "../x")
