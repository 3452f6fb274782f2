"""gpucost doctor on real Prometheus servers: the right diagnosis, and a next step that helps."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import gpucost.cli.commands.doctor
import gpucost.cli.commands.reports
import tests.support.prometheus
from gpucost.cli.application import app
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS
from tests.support.prometheus import needs_prometheus, running_prometheus
from tests.telemetry.doctor_setups.doctor_worlds import FULL, NOW, START, Setup, write

pytestmark = [needs_prometheus, pytest.mark.prometheus, pytest.mark.slow]
Ask = Callable[..., Result]
PAGE = Path(__file__).parents[3] / "docs" / "doctor.md"
NOVEMBER = START + 31 * DAY_MS
SETUPS = {
    "full": FULL,
    "report": replace(FULL, start_ms=START - HOUR_MS, every=4 * MINUTE_MS),
    "without-dcgm": replace(FULL, has_gpus=False),
    "exported": replace(FULL, honors=False, labels=False, extra=()),
    "bare": replace(FULL, labels=False, has_gpus=False, extra=()),
    "empty": Setup(has_state=False, has_gpus=False),
    "unrelated": Setup(has_state=False, has_gpus=False, extra=(("up", {"job": "node", "instance": "a"}),)),
    "pair": replace(
        FULL, replicas=("a", "b"), gap=(START + 5 * HOUR_MS + 1, START + 5 * HOUR_MS + 20 * MINUTE_MS)
    ),
    "without-uid": replace(FULL, drops=frozenset({"uid"}), beat=61_000),
    "two-jobs": replace(
        FULL, extra=(*FULL.extra, ("kube_node_created", {"node": "mine", "job": "a: rogue", "instance": "x"}))
    ),
    "split": replace(
        FULL,
        without=frozenset({"kube_pod_container_resource_requests"}),
        extra=(
            (
                "kube_pod_container_resource_requests",
                {
                    "namespace": "research",
                    "pod": "train-0",
                    "uid": "6d1f",
                    "container": "main",
                    "node": "gpu-1",
                    "resource": "nvidia_com_gpu",
                    "job": "ksm-pods",
                    "instance": "x",
                },
            ),
        ),
    ),
    "page": replace(
        FULL,
        honors=False,
        labels=False,
        gpu_fields=tuple(name for name in Setup.gpu_fields if "SM_ACTIVE" not in name and "XID" not in name),
        extra=(("kueue_pending_workloads", {"cluster_queue": "research", "job": "kueue"}),),
        gap=(START + 5 * DAY_MS + 1, START + 5 * DAY_MS + 20 * MINUTE_MS),
        now_ms=NOVEMBER + DAY_MS,
    ),
    "kueue": replace(
        FULL,
        extra=(
            *FULL.extra,
            ("gpucost_state_up", {"job": "collector", "instance": "a"}),
            (
                "gpucost_scheduler_info",
                {"job": "collector", "instance": "a", "scheduler": "kueue", "version": "v0.18.6"},
            ),
        ),
    ),
    "hostile": replace(FULL, cluster={"cluster": "\x1b[2Jevil[red]"}, team="\x1b[31m"),
}
SHORT = replace(FULL, start_ms=START + 16 * DAY_MS - 12 * HOUR_MS, now_ms=NOVEMBER + DAY_MS)


class Servers:
    """Each set-up, served when it is first asked for."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._urls: dict[str, str] = {}
        self.answers: dict[tuple[object, ...], Result] = {}

    def url(self, name: str, setup: Setup, *, retention: str = "100y") -> str:
        if name not in self._urls:
            data = self._folder / name
            if setup.has_state or setup.has_gpus or setup.extra:
                write(setup, data)
            with pytest.MonkeyPatch.context() as patch:
                plain = tests.support.prometheus.prometheus_command
                patch.setattr(
                    tests.support.prometheus,
                    "prometheus_command",
                    lambda *args, **more: [
                        each.replace("time=100y", f"time={retention}") for each in plain(*args, **more)
                    ],
                )
                self._urls[name] = self._stack.enter_context(running_prometheus(data))
        return self._urls[name]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(tmp_path_factory.mktemp("doctor"), stack)


@pytest.fixture
def ask(servers: Servers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ask:
    """``gpucost doctor`` on one of the set-ups, at its time. The same question is asked once."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def run(
        name: str, *arguments: str, month: str = "2026-10", retention: str = "100y", later: int = 0
    ) -> Result:
        setup = SETUPS.get(name, SHORT)
        url = servers.url(name, setup, retention=retention)
        asked = ("doctor", "--prometheus", url, "--month", month, *arguments)
        monkeypatch.setattr(gpucost.cli.commands.doctor, "now_ms", lambda: setup.now_ms + later)
        key = (*asked, later, os.environ.get("COLUMNS"))
        if key not in servers.answers:
            servers.answers[key] = CliRunner().invoke(app, asked)
        return servers.answers[key]

    return run


def document(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["not_known"] == []
    return found


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    [cluster] = found["clusters"]
    return {name: each["works"] for name, each in cluster["features"].items()}


def facts(found: dict[str, Any]) -> dict[str, list[str]]:
    said: dict[str, list[str]] = {}
    for each in found["clusters"][0]["facts"]:
        said.setdefault(each["what"], []).append(each["found"])
    return said


def settings(found: dict[str, Any]) -> list[str]:
    return [each["text"] for step in found["steps"] for each in step["settings"]]


def test_a_full_stack_gives_all_but_what_needs_a_collector(ask: Ask) -> None:
    result = ask("full", "-f", "json")
    found = document(result)
    assert (result.exit_code, found["can_tell"]) == (ExitCode.OK, True)
    assert found["command"] == f"gpucost report 2026-10 --prometheus {found['prometheus']}"
    assert {name for name, works in verdicts(found).items() if works != "yes"} == {"quotas", "live"}
    assert [step["title"] for step in found["steps"]] == ["Install gpucost in the cluster"]
    said = facts(found)
    assert said["job kube-state-metrics"] == ["1 target, every 2 min"]
    assert said["gaps between scrapes"] == ["none longer than 10 min; above 5 min they count"]
    assert said["idle GPUs"] == ["1 carry the exporter's own pod; gpucost takes them as held by nobody"]
    assert said["dcgm-exporter rows"] == ["2 GPUs, 1 held by pods; NVIDIA H100 80GB HBM3"]
    first = ask("full").stdout.splitlines()[0]
    assert first == f"The cost of October 2026 can be told so far. Next: {found['command']}"


def test_the_command_that_is_named_works(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    command = document(ask("report", "-f", "json"))["command"]
    monkeypatch.setattr(gpucost.cli.commands.reports, "now_ms", lambda: NOW)
    result = CliRunner().invoke(app, [*shlex.split(command)[1:], "--format", "json"])
    assert result.exit_code == ExitCode.OK, result.stderr
    buckets = json.loads(result.stdout)["capacity"]["buckets"]
    held = buckets["held"]["board_ms"]
    # One of two GPUs, until the last whole window before now.
    assert 2 * DAY_MS - HOUR_MS <= held == buckets["unallocated"]["board_ms"] <= NOW - START


def test_without_dcgm_exporter_cost_is_told_and_use_is_not(ask: Ask) -> None:
    result = ask("without-dcgm", "-f", "json")
    found = document(result)
    works = verdicts(found)
    assert (result.exit_code, works["cost"], works["jobs"]) == (ExitCode.OK, "yes", "yes")
    assert {works[name] for name in ("busy", "sm", "tensor", "memory", "energy", "idle", "broken")} == {"no"}
    assert found["steps"][0]["title"] == "Let Prometheus scrape dcgm-exporter"
    assert found["steps"][0]["settings"][0] == {
        "where": "GPU operator (Helm)",
        "text": "dcgmExporter:\n  enabled: true\n  serviceMonitor:\n    enabled: true",
    }


@pytest.mark.trap(20)
def test_either_honor_labels_is_seen_and_read(ask: Ask) -> None:
    """With honor_labels false, pods stand in exported_pod, and an idle GPU names the exporter's own pod."""
    kept, renamed = facts(document(ask("full", "-f", "json"))), document(ask("exported", "-f", "json"))
    said = facts(renamed)
    assert kept["honor_labels"] == ["true for kube-state-metrics, or no label was in the way"]
    assert said["honor_labels"] == [
        "false for kube-state-metrics (exported_namespace, exported_pod); gpucost reads both",
        "false for dcgm-exporter (exported_pod): busy GPUs by exported_pod",
    ]
    for name in ("GPU requests", "dcgm-exporter rows", "idle GPUs", "GPU nodes"):
        assert said[name] == kept[name]
    assert {verdicts(renamed)[name] for name in ("jobs", "busy", "memory", "idle")} == {"yes"}
    # The label that is missing is what helps; honorLabels only tidies, and stands last.
    assert "labels-allowlist" in settings(renamed)[0]
    assert renamed["steps"][-1]["title"] == "Keep kube-state-metrics' own labels"
    assert renamed["steps"][-1]["gains"] == []


def test_labels_are_what_the_named_allowlist_lacks(ask: Ask) -> None:
    found = document(ask("bare", "-f", "json"))
    works = verdicts(found)
    assert (works["cost"], works["teams"], works["sharing"]) == ("in part", "in part", "in part")
    assert found["clusters"][0]["features"]["cost"]["why"] == (
        "GPU models are unknown of 100 % of the GPUs, so prices by model do not apply"
    )
    [step] = [each for each in found["steps"] if "cost" in each["gains"]]
    flag = step["settings"][0]["text"]
    assert flag.startswith("--metric-labels-allowlist=nodes=[nvidia.com/gpu.product,nvidia.com/gpu.count,")
    assert ",pods=[gpucost.io/team,team," in flag
    # With those labels, as "full" has them, what the step promises is there.
    after = verdicts(document(ask("full", "-f", "json")))
    assert {after[name] for name in step["gains"]} == {"yes"}


def test_what_dcgm_exporter_tells_of_boards_needs_no_label(ask: Ask) -> None:
    """It names the models and shows every GPU: a report has prices, and knows what is shared."""
    found = document(ask("exported", "-f", "json"))
    works = verdicts(found)
    assert {works[name] for name in ("cost", "sharing", "unadvertised")} == {"yes"}
    [step] = [each for each in found["steps"] if "teams" in each["gains"]]
    assert not {"cost", "sharing", "unadvertised"} & set(step["gains"])


def test_too_short_a_retention_is_named_with_what_to_set(ask: Ask) -> None:
    result = ask("short", "-f", "json", retention="20d")
    found = document(result)
    assert (result.exit_code, found["can_tell"], found["command"]) == (ExitCode.SOURCE, False, None)
    assert found["turn_on"] == "--storage.tsdb.retention.time=62d"
    assert facts(found)["retention"] == ["20d"]
    assert found["verdict"] == (
        "The cost of October 2026 can be told in part only: samples begin 2026-10-16T12:00:00Z. Nothing "
        "mends that month; the first whole month is 2026-11, over on 2026-12-01."
    )
    assert found["clusters"][0]["first_whole_month"] == "2026-11"
    later = ask("short", month="2026-11", retention="20d")
    assert later.exit_code == ExitCode.OK
    assert later.stdout.startswith(
        "The cost of November 2026 can be told so far. Next: gpucost report 2026-11 "
    )


def test_scraping_that_began_late_is_no_matter_of_retention(ask: Ask) -> None:
    found = document(ask("late", "-f", "json"))
    assert found["can_tell"] is False
    assert found["command"] == f"gpucost report 2026-11 --prometheus {found['prometheus']}"
    assert not any("retention" in each for each in settings(found))


def test_scraping_that_stopped_is_looked_at_where_it_stopped(ask: Ask) -> None:
    result = ask("full", "-f", "json", later=2 * DAY_MS)
    found = document(result)
    assert (result.exit_code, found["can_tell"], found["command"]) == (ExitCode.SOURCE, False, None)
    assert "in part only, 2 days of it: samples end 2026-10-03T01:00:00Z" in found["verdict"]
    assert found["turn_on"] == 'up{job=~".*kube-state-metrics.*"}'
    assert facts(found)["GPU requests"] == ["1 pod, with uid; nvidia.com/gpu"]
    assert verdicts(found)["teams"] == "yes"


def test_of_what_stopped_no_month_to_come_is_whole(ask: Ask) -> None:
    """It began late, and is there no more: first it has to be scraped again."""
    found = document(ask("late", "-f", "json", later=40 * DAY_MS))
    assert found["command"] is None
    assert "the first whole month is" not in found["verdict"]
    assert found["turn_on"] == 'up{job=~".*kube-state-metrics.*"}'


def test_a_cluster_that_is_gone_is_looked_at_where_it_was_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside one that goes on: what it had in the month can be reported, up to its end."""
    gone = replace(FULL, cluster={"cluster": "gone"}, now_ms=START + DAY_MS)
    for setup in (gone, replace(FULL, cluster={"cluster": "there"})):
        write(setup, tmp_path / "data")
    monkeypatch.setattr(gpucost.cli.commands.doctor, "now_ms", lambda: FULL.now_ms)
    with running_prometheus(tmp_path / "data") as url:
        result = CliRunner().invoke(app, ["doctor", "--prometheus", url, "--month", "2026-10", "-f", "json"])
    found = {each["cluster"]: each for each in document(result)["clusters"]}
    assert found["there"]["features"]["cost"]["works"] == "yes"
    cost = found["gone"]["features"]["cost"]
    assert (cost["works"], cost["why"]) == ("in part", "samples end 2026-10-02T00:00:00Z")
    assert found["gone"]["features"]["teams"]["works"] == "yes"
    assert found["gone"]["features"]["memory"]["why"] == "samples end 2026-10-02T00:00:00Z"


def test_an_empty_server_is_told_what_to_scrape_first(ask: Ask) -> None:
    result = ask("empty", "-f", "json")
    found = document(result)
    assert (result.exit_code, found["clusters"], found["command"]) == (ExitCode.SOURCE, [], None)
    assert found["turn_on"] == "kubeStateMetrics:\n  enabled: true"
    first = ask("empty").stdout.splitlines()[0]
    assert first.startswith("The cost of October 2026 cannot be told: nothing that gpucost reads was there")
    assert first.endswith("Turn on first: Let Prometheus scrape kube-state-metrics (step 1 below)")


def test_a_server_of_others_is_not_called_empty(ask: Ask) -> None:
    found = document(ask("unrelated", "-f", "json"))
    assert "it scrapes 1 target, none of them kube-state-metrics" in found["verdict"]


def test_members_of_a_pair_are_told_apart_by_the_label_that_is_named(ask: Ask, tmp_path: Path) -> None:
    found = document(ask("pair", "-f", "json"))
    said = facts(found)
    assert said["duplicates"] == [
        "kube-state-metrics: 1 subject twice, HA members; prometheus_replica differ",
        "dcgm-exporter: 2 subjects twice, HA members; prometheus_replica differ",
    ]
    assert said["GPU requests"] == ["1 pod, with uid; nvidia.com/gpu"]
    assert settings(found)[0] == "prometheus:\n  replica_labels: [prometheus_replica]"
    file = tmp_path / "gpucost.yaml"
    file.write_text(settings(found)[0] + f"\n  url: {found['prometheus']}\n")
    after = CliRunner().invoke(
        app, ["--config", str(file), "doctor", "--month", "2026-10", "--format", "json"]
    )
    assert "duplicates" not in facts(document(after))
    assert json.loads(after.stdout)["command"].startswith(f"gpucost --config {file} report 2026-10 ")


def test_a_gap_is_found_and_bounded(ask: Ask) -> None:
    [says] = facts(document(ask("pair", "-f", "json")))["gaps between scrapes"]
    assert says.startswith("20 min of 2 days without a scrape; the longest, of 20 min, begins ")
    assert "begins 2026-10-01T05:00:00Z: " in says


def test_names_of_others_do_not_drive_the_terminal(ask: Ask) -> None:
    result = ask("hostile")
    assert "\x1b" not in result.stdout
    found = document(ask("hostile", "-f", "json"))
    assert found["clusters"][0]["cluster"] == "\x1b[2Jevil[red]"
    assert verdicts(found)["cost"] == "yes"
    another = ask("hostile", "--cluster", "another")
    assert (another.exit_code, another.stdout) == (ExitCode.USAGE, "")
    assert "--cluster: 'another' is not allowed; allowed: " in another.stderr
    assert "evil[red]" in another.stderr
    assert "\x1b" not in another.stderr


def test_a_cluster_that_is_known_is_looked_at_alone(ask: Ask) -> None:
    found = document(ask("full", "-f", "json", "--cluster", "default"))
    assert [each["cluster"] for each in found["clusters"]] == ["default"]
    refused = ask("full", "--cluster", "nope")
    assert refused.exit_code == ExitCode.USAGE
    assert "--cluster: 'nope' is not allowed; allowed: default" in refused.stderr


def test_series_without_uid_cannot_be_told(ask: Ask) -> None:
    result = ask("without-uid", "-f", "json")
    found = document(result)
    assert (result.exit_code, verdicts(found)["cost"]) == (ExitCode.SOURCE, "no")
    assert found["steps"][0]["title"] == "Keep the label uid of kube-state-metrics' series"
    assert not any("allowlist" in each for each in settings(found))  # they are all there
    said = facts(found)
    assert said["job kube-state-metrics"] == ["1 target, every 1 min 1 s"]
    assert said["kube-state-metrics"] == ["all of the month, in 49 of 49 hours"]


def test_one_of_two_jobs_is_named_and_then_believed(ask: Ask, tmp_path: Path) -> None:
    found = document(ask("two-jobs", "-f", "json"))
    assert facts(found)["jobs of kube-state-metrics"] == [
        "2 give its series: kube-state-metrics (2 nodes), a: rogue (1 node); only one can be right"
    ]
    setting = "prometheus:\n  kube_state_metrics_jobs: [kube-state-metrics]"
    assert setting in settings(found)
    file = tmp_path / "gpucost.yaml"
    file.write_text(setting + f"\n  url: {found['prometheus']}\n")
    after = CliRunner().invoke(
        app, ["--config", str(file), "doctor", "--month", "2026-10", "--format", "json"]
    )
    assert setting not in settings(document(after))
    assert "jobs of kube-state-metrics" not in facts(document(after))


def test_a_part_of_kube_state_metrics_in_a_job_of_its_own_is_named(ask: Ask, tmp_path: Path) -> None:
    """A report believes the job that shows nodes, so pods that another job shows are not in it."""
    found = document(ask("split", "-f", "json"))
    assert verdicts(found)["cost"] == "in part"
    assert facts(found)["GPU requests"] == ["none"]
    [step] = [
        each for each in found["steps"] if each["title"] == "Name all scrape jobs of kube-state-metrics"
    ]
    setting = "prometheus:\n  kube_state_metrics_jobs: [kube-state-metrics, ksm-pods]"
    assert step["settings"] == [{"where": "gpucost (settings file)", "text": setting}]
    file = tmp_path / "gpucost.yaml"
    file.write_text(setting + f"\n  url: {found['prometheus']}\n")
    after = CliRunner().invoke(
        app, ["--config", str(file), "doctor", "--month", "2026-10", "--format", "json"]
    )
    assert verdicts(document(after))["cost"] == "yes"


@pytest.mark.parametrize(
    ("setting", "what", "job", "lost"),
    [
        ("kube_state_metrics_jobs", "kube-state-metrics", "kube-state-metrics", {"cost", "jobs", "idle"}),
        ("dcgm_exporter_jobs", "dcgm-exporter", "dcgm-exporter", {"busy", "sm", "memory", "idle"}),
    ],
)
def test_a_job_that_is_not_there_is_told_with_the_one_that_is(
    ask: Ask, tmp_path: Path, setting: str, what: str, job: str, lost: set[str]
) -> None:
    file = tmp_path / "gpucost.yaml"

    def under(text: str) -> dict[str, Any]:
        file.write_text(text)
        url = document(ask("full", "-f", "json"))["prometheus"]
        asked = ["--config", str(file), "doctor", "--prometheus", url, "--month", "2026-10", "-f", "json"]
        return document(CliRunner().invoke(app, asked))

    wrong = under(f"prometheus:\n  {setting}: [misspelt]\n")
    assert lost <= {name for name, works in verdicts(wrong).items() if works == "no"}
    [first, *rest] = wrong["steps"]
    assert first["title"] == f"Name the scrape job of {what} that is there"
    assert not any("Let Prometheus scrape" in step["title"] for step in rest)
    [step] = [each["text"] for each in first["settings"]]
    assert step == f"prometheus:\n  {setting}: [{job}]"
    right = under(step)
    assert not any(name in lost for name, works in verdicts(right).items() if works == "no")
    assert right["can_tell"]


def test_the_page_shows_what_is_printed(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    url = document(ask("page", "-f", "json", retention="62d"))["prometheus"]
    printed = ask("page", retention="62d").stdout.replace(url, "http://prometheus:9090")
    page = PAGE.read_text(encoding="utf-8")
    shown = page.rsplit("```", 2)[1]
    assert [line.rstrip() for line in shown.strip().splitlines()] == [
        line.rstrip() for line in printed.strip().splitlines()
    ]


def test_the_version_of_kueue_is_what_its_own_metrics_say(ask: Ask) -> None:
    [cluster] = document(ask("kueue", "--format", "json"))["clusters"]
    facts = {each["what"]: each["found"] for each in cluster["facts"]}
    assert facts["Kueue's version"].startswith("v0.18.6: Kueue v0.18.6 runs, an older minor version")
    assert "whether annotations hold a workload back (gate AdmissionGatedBy)" in facts["Kueue's version"]
