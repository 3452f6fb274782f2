"""gpucost compare opencost, of one day of two nodes of which a Prometheus has OpenCost's series.

On 6 October 2026, in a book of 6.88 an hour for an H100 less 30 %:

- ``train`` of team nlp held all 8 GPUs of n1 from 01:00 on, and ran from 01:10 on; OpenCost splits the price
  of that node, 55.04, and leaves 2.33985 for a GPU;
- ``a`` and ``b`` held one of four time-slices each of the one GPU of n2, all day; OpenCost has a price of
  0.95 for it, and counts 4 GPUs.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpucost.cli.application import app
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.domain.money import NANO
from gpucost.telemetry.recorded_source import record
from tests.detectors.worlds import CLUSTER, H100, World, at
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus]

Run = Callable[..., Result]
DAY = 24 * 60
PRICES = """
version: 1
currency: USD
prices:
  - {model: H100, per_hour: "6.88", source: a test, retrieved: 2026-10-01}
discounts:
  - {name: contract, percent: 30}
"""


def world() -> World:
    found = World(end=DAY).node("n1")
    found.node("n2", 1, units=4, replicas=4, product=f"{H100}-SHARED")
    found.pod("train", "n1", 60, units=8, team="nlp", namespace="ml")
    for uid in ("a", "b"):
        found.pod(uid, "n2", 0, team="web", namespace="apps")
    seen = 8 * 23 * 3_600_000.0
    found.add(
        "signals", node="n1", pod_uid="train", start_ms=at(60), end_ms=at(DAY), observed_ms=seen,
        busy_ms=seen, sm_observed_ms=float("nan"), sm_active_ms=float("nan"),
        tensor_active_ms=float("nan"),
    )  # fmt: skip
    return found


def series(name: str, value: Callable[[int], float] | float, **labels: str) -> str:
    inner = ",".join(f'{key}="{text}"' for key, text in {"cluster": CLUSTER, **labels}.items())
    times = (at(minute) + 17_000 for minute in range(-5, DAY))
    values = ((now, value(now) if callable(value) else value) for now in times)
    return "".join(f"{name}{{{inner}}} {found!r} {now / 1000:.3f}\n" for now, found in values)


def text() -> Iterator[str]:
    requests = {"resource": "nvidia_com_gpu", "unit": "integer"}
    for namespace, pod, node, units, runs in (
        ("ml", "train", "n1", 8.0, 70),
        ("apps", "a", "n2", 1.0, -5),
        ("apps", "b", "n2", 1.0, -5),
    ):
        who = {"namespace": namespace, "pod": pod, "container": "main"}
        yield series("kube_pod_container_resource_requests", units, node=node, **who, **requests)
        yield series("container_cpu_allocation", 4.0, node=node, **who)
        running = "kube_pod_container_status_running"
        yield series(running, lambda now, runs=runs: float(now >= at(runs)), **who)
    busy = {"namespace": "ml", "pod": "train", "container": "main"}
    for gpu in range(8):
        yield series("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1.0, gpu=str(gpu), **busy)
    for node, price, count in (("n1", 2.33985, 8.0), ("n2", 0.95, 4.0)):
        yield series("node_gpu_hourly_cost", price, node=node, instance=node)
        yield series("node_gpu_count", count, node=node, instance=node)
    for node, price in (("n1", 55.04), ("n2", 0.95)):
        yield series("node_total_hourly_cost", price, node=node, instance=node)
    yield series("opencost_build_info", 0.0, version="1.112.0", revision="2ea71a1")
    yield "# EOF\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder: Path = tmp_path_factory.mktemp("compare")
    record(folder / "recording", world().frames())
    (folder / "prices.yaml").write_text(PRICES, encoding="utf-8")
    create_blocks(text(), folder / "data")
    with running_prometheus(folder / "data") as url:
        (folder / "settings.yaml").write_text(
            f"""
ledger: {{url: "sqlite:///{folder / "ledger.db"}"}}
source: {{kind: recorded, path: {folder / "recording"}}}
prometheus: {{url: "{url}"}}
pricing: {{book: {folder / "prices.yaml"}}}
detectors: {{enabled: false}}
""",
            encoding="utf-8",
        )

        def found(*words: str) -> Result:
            return CliRunner().invoke(app, ["--config", str(folder / "settings.yaml"), *words])

        result = found("ingest", "--from", "2026-10-06", "--to", "2026-10-07")
        assert result.exit_code == ExitCode.OK, result.stderr
        yield found


def compared(run: Run, *words: str) -> dict[str, dict[str, object]]:
    result = run("compare", "opencost", "2026-10", "-f", "json", *words)
    assert (result.exit_code, result.stderr) == (ExitCode.OK, ""), result.stderr
    found = json.loads(result.stdout)
    assert found["schema"] == "gpucost/OpenCostComparison/v1"
    for row in (*found["rows"], found["total"]):
        causes = sum(each["nano"] for each in row["causes"])
        assert row["opencost_nano"] + causes == row["ours_nano"]
    rows = {row["name"] or row["kind"]: row for row in found["rows"]}
    return rows | {"total": found["total"], "whole": found}


def causes(row: dict[str, object]) -> dict[str, float]:
    listed: list[dict[str, object]] = row["causes"]  # type: ignore[assignment]
    return {str(each["cause"]): float(str(each["nano"])) / NANO for each in listed}


@pytest.mark.vector("V2", "V27", "V17")
def test_the_whole_price_the_discount_and_the_time_before_it_ran(run: Run) -> None:
    row = compared(run)["ml"]
    ran = 273 * 5 / 60  # from the look at 01:15 to that at 24:00
    split = 2.33985
    assert float(str(row["opencost"])) == pytest.approx(8 * ran * split)
    assert float(str(row["ours"])) == pytest.approx(184 * 4.816)
    rounding = 8 * 5 / 60 * split
    assert causes(row) == pytest.approx(
        {
            "sampling": rounding,
            "not_seen": 8 * (23 - ran) * split - rounding,
            "node_price": 184 * (6.88 - split),
            "discount": 184 * (4.816 - 6.88),
        }
    )
    assert row["efficiency"] == {"opencost": 0.125, "ours": 1.0, "coverage": 1.0}


@pytest.mark.vector("V20")
def test_time_slices_and_a_price_of_every_gpu(run: Run) -> None:
    found = compared(run)
    row, idle = found["apps"], found["idle"]
    assert (row["opencost_nano"], row["ours_nano"]) == (round(45.6 * NANO), round(12 * 4.816 * NANO))
    assert causes(row) == pytest.approx(
        {"units": -36 * 0.95, "price": 12 * (6.88 - 0.95), "discount": 12 * (4.816 - 6.88)}
    )
    assert float(str(idle["ours"])) == pytest.approx((8 + 12) * 4.816)
    theirs = 8 * 24 * 2.33985 + 4 * 24 * 0.95 - 8 * 273 * 5 / 60 * 2.33985 - 45.6
    assert float(str(idle["opencost"])) == pytest.approx(theirs)


def test_rows_of_teams_and_nodes_have_the_same_total(run: Run) -> None:
    by_name, by_team, by_node = (compared(run, "--by", each) for each in ("namespace", "team", "node"))
    assert {"nlp", "web", "idle"} < by_team.keys()
    assert {"n1", "n2"} < by_node.keys()
    assert by_name["total"] == by_team["total"] == by_node["total"]
    assert float(str(by_name["total"]["ours"])) == pytest.approx(9 * 24 * 4.816)
    assert by_node["whole"]["days"] == 1


def test_a_day_of_the_month_is_compared_alike(run: Run) -> None:
    result = run("compare", "opencost", "--from", "2026-10-06", "--to", "2026-10-07", "-f", "json")
    assert (result.exit_code, result.stderr) == (ExitCode.OK, ""), result.stderr
    found, month = json.loads(result.stdout), compared(run)
    assert found["rows"] == month["whole"]["rows"]
    assert (found["month"], month["whole"]["month"]) == (None, "2026-10")


def test_a_look_each_minute_sees_more(run: Run) -> None:
    row = compared(run, "--resolution", "1m", "--by", "pod")["ml/train"]
    assert row["opencost_gpu_hours"] == f"{8 * (24 * 60 - 71) / 60:.9f}"  # the scrape of 01:10:17 at 01:11
    assert row["ours_gpu_hours"] == "184.000000000"


def test_a_table_says_what_makes_the_difference(run: Run) -> None:
    result = run("compare", "opencost", "2026-10")
    assert (result.exit_code, result.stderr) == (ExitCode.OK, ""), result.stderr
    words = " ".join(result.stdout.split())
    assert "OpenCost and gpucost, October 2026, USD, 1 day" in words
    assert (
        "OpenCost 1.112.0: pods by name, from the first look at them to the last, a look every 5 min."
        in words
    )
    assert "ml (D4) 425.85 886.14 +460.29 12.5% 100% (100%)" in words
    assert "D1 node price split +835.39" in words
    assert "(D4) efficiency: OpenCost divides the mean of a pod's GPUs by their number." in words
    assert "D3 units as GPUs −34.20" in words
    assert "whoever holds the GPUs blocks all of" in words
    assert max(map(len, result.stdout.splitlines())) <= 120
    page = (Path(__file__).parents[2] / "docs" / "opencost.md").read_text(encoding="utf-8")
    sample = page.partition("--by namespace\n")[2].partition("```")[0]
    assert " ".join(sample.replace("─", "").split()) in words.replace("─", "").replace("  ", " ")


def test_a_csv_has_a_row_per_cause_that_adds_up(run: Run) -> None:
    result = run("compare", "opencost", "2026-10", "-f", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    for section in ("row", "total"):
        named = "cause" if section == "row" else "total_cause"
        made = sum(int(row["nano"]) for row in rows if row["section"] == named)
        assert made == sum(int(row["difference_nano"]) for row in rows if row["section"] == section)
    assert {row["cause"] for row in rows} >= {"node_price", "units", "price", "discount"}


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("2026-09",), ExitCode.USAGE, "MONTH: '2026-09' is not allowed; allowed: a month of 2026-10-06"),
        (("2026-9",), ExitCode.USAGE, "MONTH: '2026-9' is not allowed; allowed: YYYY-MM"),
        (("2026-10", "-o", "x"), ExitCode.USAGE, "--output: 'x' is not allowed"),
        (
            (),
            ExitCode.USAGE,
            "MONTH: '' is not allowed; allowed: a month such as 2026-10, or both --from and --to",
        ),
        (
            ("2026-10", "--from", "2026-10-06"),
            ExitCode.USAGE,
            "--from: '2026-10-06' is not allowed; allowed: either",
        ),
        (
            ("--from", "2026-10-06"),
            ExitCode.USAGE,
            "--to: '' is not allowed; allowed: a month such as 2026-10",
        ),
        (("--from", "2026-10-06", "--to", "2026-10-06"), ExitCode.USAGE, "a time after --from"),
        (
            ("--from", "2026-09-06", "--to", "2026-09-07"),
            ExitCode.USAGE,
            "--from: '2026-09-06T00:00:00Z/2026-09-07",
        ),
        (
            ("2026-10", "--resolution", "90s"),
            ExitCode.USAGE,
            "--resolution: '90s' is not allowed; allowed: whole",
        ),
        (("2026-10", "--resolution", "7m"), ExitCode.USAGE, "that divide an hour: 1m, 2m, 5m"),
        (("2026-10", "--prometheus", "nonsense"), ExitCode.USAGE, "nonsense"),
        (("2026-10", "--prometheus", "http://127.0.0.1:1"), ExitCode.SOURCE, "connection refused"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    run: Run, words: tuple[str, ...], code: ExitCode, sentence: str
) -> None:
    result = run("compare", "opencost", *words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert sentence in " ".join(result.stderr.split())


def test_a_prometheus_without_opencost_is_said(run: Run, tmp_path: Path) -> None:
    with running_prometheus(tmp_path / "empty") as url:
        result = run("compare", "opencost", "2026-10", "--prometheus", url)
    assert result.exit_code == ExitCode.SOURCE
    assert "nothing of 2026-10 could be read; gpucost --config " in result.stderr
    assert f" doctor --prometheus {url} --month 2026-10 says why" in result.stderr
