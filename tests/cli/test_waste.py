"""gpucost waste and gpucost job: where a day's capacity went, by arithmetic that was done by hand."""

from __future__ import annotations

import csv
import io
import json
import shutil
from html import unescape
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from gpucost.api.app import create_app
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.ledger.ledger import Ledger
from gpucost.service.settings.api import ApiSettings
from tests.cli.findings_worlds import (
    NOW_MS,
    Run,
    changing,
    detect,
    ingest,
    looked_at,
    prepare,
    resolve,
    world,
)

__all__ = ["changing", "looked_at"]

# Of 8 GPUs over a day: 2 idle from 01:10 on, 4 free ones that train would have fitted for an hour.
HOURS = {"Idle": "45.7", "Starved": "4.0", "No demand": "50.0", "In use": "92.3", "Unknown": "0.0"}


def test_ten_buckets_add_up_to_capacity(looked_at: Run) -> None:
    result = looked_at("waste", "2026-10")
    assert (result.exit_code, result.stderr) == (ExitCode.OK, "")
    lines = [line.strip(" !?") for line in result.stdout.splitlines()]
    for name, hours in HOURS.items():
        [row] = [line for line in lines if line.startswith(f"{name} ") and "%" in line]
        assert row.removeprefix(name).split()[0] == hours
    assert "198.67 USD wasted: 49.7 GPU-hours, 25.9% of capacity" in lines
    assert "Sum of the buckets against capacity: difference 0 GPU-ms, 0 nano-USD." in lines
    assert "Of 24 windows: 0 final, 24 provisional until more is known, 0 not looked at." in lines
    assert any(line.startswith("1. critical  vision  192 USD a day at its rate of now; ") for line in lines)
    assert any(line.startswith("kubectl -n ns patch jobs.batch/forgotten") for line in lines)


def test_the_buckets_for_programs(looked_at: Run, tmp_path: Path) -> None:
    found = json.loads(looked_at("waste", "2026-10", "-f", "json").stdout)
    buckets = {row["waste"]: row["amount"]["board_ms"] for row in found["buckets"]}
    assert sum(buckets.values()) == found["capacity"]["board_ms"] == 192 * 3_600_000
    assert (found["difference_board_ms"], found["difference_nano"]) == (0, 0)
    assert buckets["idle"] == 2 * (23 * 60 - 10) * 60_000
    assert found["ledger"]["windows"] == 24
    rows = list(csv.DictReader(io.StringIO(looked_at("waste", "2026-10", "-f", "csv").stdout)))
    assert [row["gpu_hours"] for row in rows if row["section"] == "bucket" and row["waste"] == "starved"] == [
        "4.000000000"
    ]
    target = tmp_path / "waste.parquet"
    assert looked_at("waste", "2026-10", "-f", "parquet", "-o", str(target)).exit_code == ExitCode.OK
    assert target.stat().st_size > 1000


def test_hours_of_a_day_may_be_asked_for(looked_at: Run) -> None:
    window = "2026-10-06T00:00:00Z/2026-10-06T01:00:00Z"
    found = json.loads(looked_at("waste", window, "-f", "json").stdout)
    buckets = {row["waste"]: row["amount"]["gpu_hours"] for row in found["buckets"]}
    assert (buckets["starved"], buckets["no_demand"]) == ("4.000000000", "4.000000000")


def test_what_nobody_has_looked_at_is_unknown(tmp_path: Path) -> None:
    run = prepare(tmp_path, detectors="{enabled: false}")
    ingest(run)
    found = json.loads(run("waste", "2026-10", "-f", "json").stdout)
    assert found["assessment"] == {"final": 0, "provisional": 0, "missing": 24}
    assert {row["waste"] for row in found["buckets"] if row["amount"]["board_ms"]} == {"unknown"}
    text = run("waste", "2026-10").stdout
    assert "No detector has looked at any of 24 windows" in text
    assert "No finding goes on." in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("2026-09",), "WINDOW: '2026-09' is not allowed; allowed: a month or START/END within"),
        (("October",), "WINDOW: 'October' is not allowed; allowed: a month such as 2026-10"),
        (("2026-10", "-o", "x"), "--output: 'x' is not allowed; allowed: a --format other than table"),
        (("2026-10-06T00:30:00Z/2026-10-06T02:00:00Z",), "WINDOW"),
        (("2026-10", "--top", "0"), "--top"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_code_2(
    words: tuple[str, ...], sentence: str, looked_at: Run
) -> None:
    result = looked_at("waste", *words)
    assert (result.exit_code, result.stdout) == (ExitCode.USAGE, "")
    assert sentence in " ".join(result.stderr.replace("│", " ").split())


def test_a_job_shows_each_gpu_its_waits_and_where_its_time_went(looked_at: Run) -> None:
    result = looked_at("job", "uid-train")
    assert (result.exit_code, result.stderr) == (ExitCode.OK, "")
    gpus = [line.split() for line in result.stdout.splitlines() if " GPU-" in line and "%" in line]
    assert [gpu[1] for gpu in gpus] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    assert {(gpu[4], gpu[6], gpu[7]) for gpu in gpus} == {("90%", "0.0", "23.0")}
    assert "Waited 1 h in all, since 2026-10-06T00:00:00Z" in result.stdout
    assert "1 h in cq, 1 pod with 4 × nvidia.com/gpu each; held by quota: no quota\\x1b[2J" in result.stdout
    assert (
        "Nothing to change: no detector found anything about this job, and none of it was wasted."
        in result.stdout
    )


def test_a_job_that_idles_is_told_the_exact_change(looked_at: Run) -> None:
    text = looked_at("job", "uid-forgotten").stdout
    note = text[text.index("What to change") :]
    assert "1. critical  idle_allocation, finding 1, open" in note
    assert """kubectl -n ns patch jobs.batch/forgotten --type=merge -p '{"spec":{"suspend":true}}'""" in note
    found = json.loads(looked_at("job", "uid-forgotten", "-f", "json").stdout)
    buckets = {row["waste"]: row["amount"]["board_ms"] for row in found["account"]["buckets"]}
    assert sum(buckets.values()) == found["held"]["board_ms"] == 46 * 3_600_000
    assert buckets["idle"] == 2 * (23 * 60 - 10) * 60_000
    assert [gpu["idle_gpu_hours"] for gpu in found["seen"]["gpus"]] == ["23.000000000"] * 2
    assert found["findings"][0]["finding"] == 1


def test_a_receipt_says_it_in_a_few_lines_with_the_one_change(looked_at: Run) -> None:
    text = looked_at("job", "forgotten", "--receipt").stdout
    assert "It holds GPUs up to the end of the ledger." in text
    assert "for 46.0 GPU-hours: 2 GPUs of H100" in text
    assert "Wasted" in text
    assert "For the next run  finding 1, docs/detectors/idle_allocation.md" in text
    assert """kubectl -n ns patch jobs.batch/forgotten --type=merge -p '{"spec":{"suspend":true}}'""" in text
    report = json.loads(looked_at("job", "uid-forgotten", "-f", "json").stdout)
    found = json.loads(looked_at("job", "uid-forgotten", "--receipt", "-f", "json").stdout)
    assert found["schema"] == "gpucost/JobReceipt/v1"
    assert found["held"] == report["held"]
    assert found["wasted"] == report["account"]["wasted"]
    waited = looked_at("job", "uid-train", "--receipt").stdout
    assert (
        "Waited  not known\n" in waited
    )  # it waits where the recording begins: for how long before, nothing says
    assert "Nothing to change for the next run is known." in waited


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("-f", "csv"), "--format: 'csv' is not allowed; allowed: table or json with --receipt"),
        (("--progress", "x"), "--progress: 'x' is not allowed; allowed: no --progress with --receipt"),
    ],
)
def test_a_receipt_has_no_progress_and_no_table_file(
    words: tuple[str, ...], error: str, looked_at: Run
) -> None:
    result = looked_at("job", "uid-train", "--receipt", *words)
    assert result.exit_code == ExitCode.USAGE
    assert error in result.stderr


def test_the_source_need_not_be_asked(looked_at: Run) -> None:
    assert json.loads(looked_at("job", "uid-train", "--no-gpus", "-f", "json").stdout)["seen"] is None
    assert "Ask for them with --gpus" in looked_at("job", "uid-train", "--no-gpus").stdout


@pytest.mark.parametrize("words", [(), ("--gpus",)])
def test_a_job_outlives_its_source(words: tuple[str, ...], changing: Run, tmp_path: Path) -> None:
    """The recording is gone: what the ledger knows is shown, and why the rest is not."""
    shutil.rmtree(tmp_path / "recording")
    result = changing("job", "uid-train", *words)
    assert (result.exit_code, result.stderr) == (ExitCode.OK, "")
    assert "The source cannot say what single GPUs did: recording:" in result.stdout
    assert "368.00 USD for 92.0 GPU-hours" in result.stdout


def test_a_prometheus_that_does_not_answer_is_said_when_it_was_asked(changing: Run, tmp_path: Path) -> None:
    settings = (tmp_path / "settings.yaml").read_text(encoding="utf-8")
    source = f"{{kind: recorded, path: {tmp_path / 'recording'}}}"
    moved = settings.replace(
        source, "{kind: prometheus}\nprometheus: {url: 'http://127.0.0.1:9', timeout: 1s}"
    )
    (tmp_path / "settings.yaml").write_text(moved, encoding="utf-8")
    assert "Ask for them with --gpus" in changing("job", "uid-train").stdout, (
        "a server is asked on demand only"
    )


def test_findings_of_a_job_that_were_resolved_stay_with_it(changing: Run, tmp_path: Path) -> None:
    """A reader of a finished job wants to know what to change next time."""
    resolve(tmp_path)
    found = json.loads(changing("job", "uid-forgotten", "-f", "json").stdout)["findings"]
    assert [(note["state"], note["counted"], note["until"]) for note in found] == [
        ("resolved", True, "2026-10-07T00:10:00Z")
    ]
    assert "1. critical  idle_allocation, finding 1, resolved" in changing("job", "uid-forgotten").stdout
    assert json.loads(changing("waste", "2026-10", "-f", "json").stdout)["to_do"] == []


@pytest.fixture(scope="module")
def ledger_only(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Windows that were assessed, and no finding: no live detector ran. For tests that only read."""
    folder = tmp_path_factory.mktemp("ledger-only")
    run = prepare(folder)
    ingest(run)
    detect(folder, live=False)
    return run


def test_a_job_whose_waste_has_no_finding_is_looked_at_again(ledger_only: Run) -> None:
    text = ledger_only("job", "uid-forgotten").stdout
    assert "Nothing to change" not in text
    note = text[text.index("What the detectors say of its time") :]
    assert "1. critical  idle_allocation whole, since 2026-10-06T01:10:00Z; 45.7 GPU-hours" in note
    assert "sum over idle GPUs" in note, "how it follows"
    assert "kubectl -n ns patch jobs.batch/forgotten" in note
    [found] = json.loads(ledger_only("job", "uid-forgotten", "-f", "json").stdout)["look"]["findings"]
    assert (found["pattern"], found["wasted"]["cost"]) == ("idle_allocation", "182.666666667")
    rows = list(csv.DictReader(io.StringIO(ledger_only("job", "uid-forgotten", "-f", "csv").stdout)))
    assert sum(int(row["board_ms"] or 0) for row in rows) == 46 * 3_600_000, (
        "the trace, and nothing beside it"
    )
    assert {row["section"] for row in rows} == {"line", "waste", "look"}
    [look] = [row for row in rows if row["section"] == "look"]
    assert (look["pattern"], look["wasted_gpu_hours"]) == ("idle_allocation", "45.666666667")


def test_a_job_that_the_source_has_lost_still_says_what_the_ledger_has(ledger_only: Run) -> None:
    text = ledger_only("job", "uid-forgotten", "--no-gpus").stdout
    assert "45.7 GPU-hours of it were idle: see docs/detectors/idle_allocation.md" in text
    assert "Nothing to change" not in text


LONG = "a-very-long-name-of-a-job-that-somebody-gave-to-it-because-they-could-and-nobody-said-no-to-them-001"


def test_in_a_pipe_names_stand_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    run = prepare(tmp_path, world(LONG))
    ingest(run)
    detect(tmp_path)
    for words in (("findings",), ("waste", "2026-10")):
        lines = run(*words).stdout.splitlines()
        assert any(f"{LONG} " in line and "182.67" in line for line in lines), words
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("findings").stdout.splitlines()
    assert not any(LONG in line for line in lines)
    assert any("182.67" in line and "…" in line for line in lines)


def test_the_page_of_a_job_shows_the_change_for_its_next_run_once(day_looked_at: Path) -> None:
    with Ledger.open(f"sqlite:///{day_looked_at / 'ledger.db'}", now=lambda: NOW_MS) as ledger:
        app = create_app(ledger, ApiSettings(auth="off"), now=lambda: NOW_MS)
        client = TestClient(app, base_url="http://127.0.0.1", headers={"Accept": "text/html"})
        page = unescape(client.get("/job?job=uid-forgotten").text)
    assert page.count("kubectl -n ns patch jobs.batch/forgotten --type=merge -p") == 1
    assert 'href="#next-run"' in page
    assert 'id="next-run"' in page
