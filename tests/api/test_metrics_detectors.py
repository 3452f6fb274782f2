"""/metrics of findings, of the waste ledger and of the detectors: cheap, bounded, and never falling."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpucost.api.app import create_app
from gpucost.api.metrics import detectors
from gpucost.detectors.engine.lifecycle import FindingLifeState
from gpucost.detectors.findings import FindingSubject, SubjectKind, WastePattern
from gpucost.domain.buckets import Waste
from gpucost.domain.errors import LedgerUnavailable
from gpucost.domain.scope import EVERYTHING
from gpucost.ledger.ledger import Ledger
from gpucost.service.detection.loop import DetectorStatus
from gpucost.service.settings.api import ApiSettings
from tests.api.conftest import Clients
from tests.api.findings import CLUSTER, finding, ledger_with_findings, life, save
from tests.api.test_findings import HOSTILE, WITHHELD, looked
from tests.api.test_routes import samples
from tests.api.test_waste import assess, no_parts
from tests.service.worlds import NOW_MS, Clock
from tests.support.frames import hours
from tests.support.prometheus import PROMTOOL, needs_prometheus

LOCAL = {"Host": "localhost"}
TOTAL = "gpucost_waste_gpu_seconds_total"
CAPACITY_S = 16 * 3600
"""Of an hour."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("metrics")
    ledger_with_findings(folder, Clock()).close()
    return folder / "ledger.db"


@pytest.fixture
def ledger(filled: Path, tmp_path: Path) -> Iterator[Ledger]:
    shutil.copy(filled, tmp_path)
    with Ledger.open(f"sqlite:///{tmp_path / filled.name}", now=Clock()) as found:
        yield found


def scraper(ledger: Ledger, status: DetectorStatus | None = None, **settings: int) -> Clients:
    return Clients(
        create_app(ledger, ApiSettings(auth="off", **settings), now=Clock(), detectors=status)  # type: ignore[arg-type]
    )


def text_of(clients: Clients) -> str:
    return clients.anybody.get("/metrics", headers=LOCAL).text


def scrape(clients: Clients) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by name of the sample, and by the values of the labels in the order of the labels' names."""
    return samples(text_of(clients))


# --- findings -------------------------------------------------------------------------------------------


def test_what_speaks_is_active_and_what_it_wastes_is_said(ledger: Ledger) -> None:
    save(ledger, life(finding("cheap", "vision", None)))
    found = scrape(scraper(ledger))
    # finding, cluster, namespace, team, pattern, severity, kind, name, variant
    train = ("1", "c", "research", "research", "idle_allocation", "medium", "job", "train", "batch")
    node = ("5", "c", "", "", "not_advertised", "medium", "node", "node-9", "")
    active = found["gpucost_finding_active"]
    assert {key[0]: value for key, value in active.items()} == dict.fromkeys(("1", "2", "5", "8"), 1.0)
    assert train in active
    assert node in active
    hourly = found["gpucost_finding_wasted_per_hour_usd"]
    assert {key[0]: value for key, value in hourly.items()} == {"1": 8.0, "2": 20.0, "5": 10.0}
    assert hourly[train] == 8.0
    counts = found["gpucost_findings"]
    assert counts["open", "c", "idle_allocation", "medium"] == 5, "exempt ones and rehearsals too"
    assert counts["muted", "c", "idle_allocation", "medium"] == 1
    assert sum(counts.values()) == 7


def test_the_dearest_have_series_and_all_are_counted(ledger: Ledger) -> None:
    found = scrape(scraper(ledger, metrics_findings=2))
    assert {key[0] for key in found["gpucost_finding_active"]} == {"2", "5"}
    assert sum(found["gpucost_findings"].values()) == 6
    none = scrape(scraper(ledger, metrics_findings=0))
    assert "gpucost_finding_active" not in none


def test_what_people_say_is_in_the_next_scrape(ledger: Ledger) -> None:
    clients = scraper(ledger)
    before = scrape(clients)["gpucost_finding_active"]
    ledger.acknowledge(EVERYTHING, 1, "ada")
    assert {key[0] for key in before} - {key[0] for key in scrape(clients)["gpucost_finding_active"]} == {"1"}
    record = ledger.finding(EVERYTHING, 2)
    assert record is not None
    [ended] = ledger.save_findings(
        CLUSTER, [replace(record, state=FindingLifeState.RESOLVED, closed_at_ms=NOW_MS)]
    )
    assert {key[0] for key in scrape(clients)["gpucost_finding_active"]} == {"5"}
    assert ended.id == 2


def test_another_currency_is_a_label(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "currency", "EUR")
    found = scrape(scraper(ledger))
    assert "gpucost_finding_wasted_per_hour_usd" not in found
    assert {key[0] for key in found["gpucost_finding_wasted_per_hour"]} == {"EUR"}


# --- the waste ledger -----------------------------------------------------------------------------------


def totals(clients: Clients) -> dict[tuple[str, str], float]:
    """Seconds by bucket and team."""
    return {(bucket, team): value for (bucket, _, team), value in scrape(clients).get(TOTAL, {}).items()}


def test_windows_count_once_they_are_final(ledger: Ledger) -> None:
    clients = scraper(ledger)
    assert totals(clients) == {}
    assess(ledger, 3, 5, Waste.IDLE, final=False)
    assert totals(clients) == {}
    assess(ledger, 3, 5, Waste.IDLE)
    first = totals(clients)
    assert sum(first.values()) == 2 * CAPACITY_S
    assert first["idle", "research"] == first["productive", "research"] == 4 * 2 * 3600 / 2 + 900 / 2
    assert first["no_demand", "__unallocated__"] > 0
    assert len(first) == 3 * len(Waste), "every bucket of every team, nobody among them"
    assess(ledger, 0, 3)
    assess(ledger, 5, 24)
    whole = totals(clients)
    assert sum(whole.values()) == 24 * CAPACITY_S
    assert all(whole[key] >= value for key, value in first.items())
    waste = ledger.waste(EVERYTHING, hours(0, 24), ["team"])
    expected = {
        (bucket, team): board_ms / 1000
        for team, bucket, board_ms in zip(waste["team"], waste["waste"], waste["board_ms"], strict=True)
    }
    assert {key: value for key, value in whole.items() if value} == expected


def test_counters_do_not_fall(ledger: Ledger) -> None:
    """What is assessed again, with a reason, was counted; after a restart all is added anew."""
    assess(ledger, 0, 24, Waste.IDLE)
    clients = scraper(ledger)
    before = totals(clients)
    window = hours(3, 4)
    [info] = ledger.windows(window, "c")
    ledger.write_waste("c", [no_parts(window, info.digest)], code_version="2", reason="a better rule")
    assert totals(clients) == before
    after = totals(scraper(ledger))
    assert after["idle", "research"] < before["idle", "research"]
    assert sum(after.values()) == sum(before.values())


def test_a_scrape_adds_only_what_is_new(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    assess(ledger, 0, 6)
    clients = scraper(ledger)
    totals(clients)
    summed: list[int] = []
    real = Ledger.final_waste

    def counted(self: Ledger, *args: object, **more: object) -> object:
        found = real(self, *args, **more)  # type: ignore[arg-type]
        summed.append(len(found.starts))
        return found

    monkeypatch.setattr(Ledger, "final_waste", counted)
    totals(clients)
    assess(ledger, 6, 8)
    totals(clients)
    assert summed == [0, 2]


def test_a_long_ledger_is_added_over_several_scrapes_and_then_told(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No rate may see the catching up: until all is added there is no series."""
    assess(ledger, 0, 6, Waste.IDLE)
    monkeypatch.setattr(detectors, "_SUMMING_S", 0.0)
    monkeypatch.setattr(detectors, "_PART_S", 0.0)
    clients = scraper(ledger)
    assert detectors._WINDOWS_AT_ONCE == 24, "halved with every part: 24 are all"
    assert sum(totals(clients).values()) == 6 * CAPACITY_S
    assess(ledger, 6, 24)
    seen = [sum(totals(clients).values()) for _ in range(4)]
    assert seen == [18 * CAPACITY_S, 24 * CAPACITY_S, 24 * CAPACITY_S, 24 * CAPACITY_S]


def test_until_the_whole_ledger_is_added_nothing_is_told(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    assess(ledger, 0, 24)
    monkeypatch.setattr(detectors, "_SUMMING_S", 0.0)
    monkeypatch.setattr(detectors, "_PART_S", 0.0)
    real = Ledger.final_waste
    monkeypatch.setattr(
        Ledger,
        "final_waste",
        lambda self, cluster, known, most: real(self, cluster, known, most=min(most, 10)),
    )
    clients = scraper(ledger)
    seen = [sum(totals(clients).values()) for _ in range(4)]
    assert seen[0] == seen[1] == 0
    assert seen[-1] == 24 * CAPACITY_S


def test_how_many_windows_were_looked_at(ledger: Ledger) -> None:
    assess(ledger, 0, 12)
    assess(ledger, 12, 20, final=False)
    assert scrape(scraper(ledger))["gpucost_waste_windows"] == {
        ("final", "c"): 12,
        ("provisional", "c"): 8,
        ("missing", "c"): 4,
    }


# --- the detectors themselves ---------------------------------------------------------------------------


def test_detectors_say_how_they_do(ledger: Ledger) -> None:
    status = DetectorStatus()
    status.looked(CLUSTER, looked(WITHHELD, WastePattern.MONOPOLY), 1.5)
    status.failed(CLUSTER, "SourceTimeout")
    found = scrape(scraper(ledger, status))
    assert found["gpucost_detectors_last_evaluation_timestamp_seconds"]["c",] == NOW_MS / 1000
    assert found["gpucost_detectors_evaluation_seconds"]["c",] == 1.5
    errors = found["gpucost_detector_errors_total"]
    assert {detector: n for (detector, _), n in errors.items() if n} == {"monopoly": 1, "SourceTimeout": 1}
    assert len(errors) == len(WastePattern) + 1, "from 0, so that the first failure is an increase"
    withheld = found["gpucost_detector_withheld"]
    assert {pattern: n for (_, pattern), n in withheld.items() if n} == {"fragmentation": 1, "gang_stall": 1}
    assert len(withheld) == len(WastePattern)


# --- trouble --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "lost"), [("findings", "gpucost_findings"), ("final_waste", "gpucost_waste_windows")]
)
def test_a_ledger_that_cannot_be_read_costs_its_families_only(
    method: str, lost: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object, **__: object) -> None:
        raise LedgerUnavailable("gone")

    monkeypatch.setattr(Ledger, method, down)
    found = scrape(scraper(ledger))
    assert lost not in found
    others = {"gpucost_findings", "gpucost_waste_windows", "gpucost_team_cost_usd"} - {lost}
    assert others <= found.keys()


def test_a_finding_that_cannot_be_read_costs_its_families_only(ledger: Ledger) -> None:
    record = ledger.finding(EVERYTHING, 1)
    assert record is not None
    ledger.save_findings(CLUSTER, [replace(record, content='{"of": "a later version"}')])
    found = scrape(scraper(ledger))
    assert "gpucost_findings" not in found
    assert found["gpucost_team_cost_usd"]


@needs_prometheus
@pytest.mark.prometheus
def test_promtool_finds_nothing_to_say_whatever_the_names(ledger: Ledger) -> None:
    subject = FindingSubject(SubjectKind.JOB, CLUSTER, HOSTILE, HOSTILE, "uid-x")
    save(ledger, life(finding("x", HOSTILE, 900, subject=subject)))
    assess(ledger, 0, 24, Waste.IDLE)
    status = DetectorStatus()
    status.looked(CLUSTER, looked(WITHHELD), 1.5)
    text = text_of(scraper(ledger, status))
    assert HOSTILE in {value for key in samples(text)["gpucost_finding_active"] for value in key}
    assert "\n# TYPE evil" not in text
    done = subprocess.run(
        [PROMTOOL or "", "check", "metrics"], input=text.encode(), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
