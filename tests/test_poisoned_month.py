"""A month in which every name is an attack, on every face of gpucost: names are shown, and do nothing.

Faces are asked of the product: commands and formats of its parser, routes and formats of its API, services of
its channels. One that is new fails here until somebody says what it does with names.
"""

from __future__ import annotations

import io
import json
import logging
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest
import typer
import yaml
from fastapi.testclient import TestClient
from httpx2 import Response

from gpucost.advisor.advise import advise
from gpucost.advisor.explanation.job_explanation import explain
from gpucost.advisor.model.settings import AdvisorSettings
from gpucost.api.app import create_app
from gpucost.attribution.teams import TeamRules
from gpucost.attribution.usage_lines import storable_text
from gpucost.cli.application import app
from gpucost.cli.state.source import ClusterLocation, load
from gpucost.cluster.objects.metadata import OwnerKeys
from gpucost.domain.buckets import NO_TEAM, UNALLOCATED
from gpucost.domain.configfile import is_name
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import Month
from gpucost.kube.manifests import manifest_of, reread
from gpucost.kube.manifests.writer import document_of
from gpucost.ledger.ledger import Ledger
from gpucost.notify.alertmanager import parse
from gpucost.notify.channels import ChannelService
from gpucost.notify.compose.alert import of_group
from gpucost.notify.compose.digest import digest_brief, digest_message
from gpucost.notify.compose.finding import of_life
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.compose.month import month_message
from gpucost.notify.compose.receipt import day_message, receipt_message
from gpucost.notify.message import NotificationMessage
from gpucost.reports.digest.week_model import IsoWeek
from gpucost.reports.job.job_receipt import DayReceipts
from gpucost.service.advisor.advisor_service import AdvisorEngine, AdvisorService
from gpucost.service.detection.finding_records import life_of
from gpucost.service.notifications.digests import DigestScheduler
from gpucost.service.reporting.report_service import ReportService
from gpucost.service.settings.api import ApiSettings
from gpucost.settings import logs
from tests.api.advisor_worlds import StillCluster, ever_current
from tests.cli.findings_worlds import NOW_MS, Run, detect, ingest, prepare
from tests.notify import (
    test_render_email,
    test_render_mattermost,
    test_render_plain,
    test_render_slack,
    test_render_teams,
)
from tests.service.test_telling import alert, group
from tests.support import poison
from tests.support.chromium import console_messages, dump_dom, needs_chromium
from tests.support.hostile_messages import addresses
from tests.support.poison import BEACON, POISONS, TITLE
from tests.support.poisoned_month import MONTH, contracts, hostile_cluster, say, world

pytestmark = pytest.mark.slow

WEEK = "2026-W41"
DAY = "2026-10-06T00:00:00Z/2026-10-07T00:00:00Z"


@dataclass(frozen=True)
class Poisoned:
    """``logs`` is what was logged while all of it was made, as text and as JSON."""

    folder: Path
    run: Run
    logs: dict[str, io.StringIO]

    def ledger(self) -> Ledger:
        return Ledger.open(f"sqlite:///{self.folder / 'ledger.db'}", now=lambda: NOW_MS)


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Poisoned]:
    folder = tmp_path_factory.mktemp("poisoned")
    root, before = logging.getLogger(), logging.getLogger().level
    written = {form: io.StringIO() for form in get_args(logs.LogFormat)}
    handlers = []
    for form in get_args(logs.LogFormat):
        logs.configure(form, "debug", logs.SecretRedactor(), stream=written[form])
        handlers.append(root.handlers[-1])
        handlers[-1].name = f"poisoned-{form}"
    try:
        run = prepare(folder, world())
        ingest(run)
        detect(folder)
        say(folder)
        found = Poisoned(folder, run, written)
        (folder / "dump.json").write_text(json.dumps(hostile_cluster()), "utf-8")
        (folder / "job.yaml").write_text(JOB, "utf-8")
        (folder / "policy.yaml").write_text("version: 1\nname: plain\n", "utf-8")
        (folder / "contracts.yaml").write_text(contracts(), "utf-8")
        yield found
    finally:
        for handler in handlers:
            root.removeHandler(handler)
        root.setLevel(before)


JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: nlp, labels: {kueue.x-k8s.io/queue-name: gpus}}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: i, resources: {limits: {nvidia.com/gpu: 8}}}]
"""
_STATE = ("--state", "dump.json", "--prices", "prices.yaml")
COMMANDS: dict[str, tuple[str, ...] | str] = {
    "report": (MONTH,),
    "allocations": (DAY, "--group-by", "team,namespace,job,user"),
    "job": (f"job-0 {POISONS[0]}",),
    "waste": (DAY, "--top", "100"),
    "digest": (WEEK,),
    "replay": (MONTH, "--loop", "open"),
    "advise": ("-f", "job.yaml", *_STATE),
    "explain": ("pytorchjob/train-0", "-n", "nlp", *_STATE),
    "findings": (),
    "findings show": ("1",),
    "findings acknowledge": ("1", "--note", POISONS[0]),
    "findings mute": ("1", "--for", "7d", "--reason", POISONS[0]),
    "findings unmute": ("1",),
    "findings rehearse": ("--days", "1"),
    "savings": (MONTH,),
    "month status": (),
    "month close": (MONTH, "--dry-run", "--reason", POISONS[0]),
    "month adjust": (
        *(MONTH, "--team", POISONS[23], "--amount", "1", "--reason", POISONS[25]),
        *("--reference", POISONS[26], "--new-team"),
    ),
    "month verify": (),
    "ledger prune": ("--dry-run",),
    "ledger seal": "says how much",
    "ledger unseal": "says how much",
    "ledger verify": (),
    "state show": ("--from", "dump.json", "--all"),
    "notify status": (),
    "notify dead": (),
    "key list": (),
    "key revoke": ("key-1", "--reason", POISONS[0]),
    "key add": ("another", "--team", POISONS[23], "--note", POISONS[0]),
    "key hash": ("another", "--team", POISONS[23]),
    "ingest": ("--from", "2026-10-06", "--to", "2026-10-07"),
    "config check": (),
    "whoami": (),
    "prices check": "shows the price book, which is the administrator's",
    "prices show": "as prices check",
    "findings explain": "says how detectors work",
    "doctor": "asks a Prometheus: tests/telemetry/doctor_setups",
    "chargeback preview": (MONTH, "--policy", "policy.yaml"),
    "chargeback quotas": "quotas of a source as YAML: tests/charges/test_quota_history.py",
    "statement": (MONTH, "--all"),
    "export focus": (MONTH, "--unpriced", "null"),
    "import focus": "reads the invoice of a cloud: tests/service/test_invoice_imports.py",
    "commitments": (MONTH, "--contracts", "contracts.yaml"),
    "compare spans": ("2026-10-06T12:00:00Z/2026-10-07T00:00:00Z", "--by", "namespace"),
    "compare opencost": "asks a Prometheus: tests/cli/test_compare.py",
    "advisor verify": "reads cases: tests/cli/test_advisor_command.py",
    "advisor record": "writes cases, for programs",
    "state dump": "writes objects, for programs, in ASCII",
    "notify test": "a sample of its own words",
    "notify resend": "says how many",
    "ledger upgrade": "says revisions",
    "ledger wait": "says that it is ready",
    "ledger backup": "says how much",
    "ledger restore": "says how much",
    "session list": "asks a server: tests/access/test_sessions.py",
    "session revoke": "as session list",
    "mcp": "answers programs: tests/api/test_mcp_tenants.py",
    "jobs": (),
    "teams": (),
    "budgets": (MONTH,),
    "budget list": ("--at", "2026-10-07"),
    "budget show": "as budget list, of one; messages of budgets: tests/service/test_budgets.py",
    "forecast month": "a month that goes on: tests/service/test_month_forecasts.py",
    "forecast score": (),
    "incidents list": (),
    "incidents show": "weeks of a ledger: tests/service/test_incidents.py",
    "budget check": ("--at", "2026-10-07"),
    "explain-term": "says the glossary",
    "login": "keeps a key",
    "logout": "forgets a key",
    "serve": "its log is that of this module",
    "demo": "makes its own names",
}
"""What each command is asked, or why it is not."""
PRINTED: dict[str, Callable[[str], object]] = {
    "table": poison.plain_text,
    "text": poison.plain_text,
    "plain": poison.plain_text,
    "json": poison.a_document,
    "csv": poison.a_table,
    "html": poison.Page,
    "parquet": str,
    "xlsx": str,
}


def commands(command: Any = None, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command of the parser."""
    command = typer.main.get_command(app) if command is None else command
    below = getattr(command, "commands", {})
    if path and (not below or command.invoke_without_command):
        yield path, command
    for name, each in below.items():
        yield from commands(each, f"{path} {name}".strip())


def formats(command: Any) -> tuple[str, ...]:
    """What its option ``--format`` takes."""
    for each in command.params:
        if "--format" in each.opts:
            return get_args(each.type_descriptor.annotation) or ("table",)
    return ("",)


def test_no_command_is_forgotten() -> None:
    assert {path for path, _ in commands()} == set(COMMANDS)
    assert {each for _, command in commands() for each in formats(command)} <= {*PRINTED, ""}


DRIVEN = [
    pytest.param(path, each, id=f"{path} {each}".strip())
    for path, command in commands()
    for each in formats(command)
    if not isinstance(COMMANDS.get(path, ""), str)
]


@pytest.mark.fault(53)
@pytest.mark.parametrize(("path", "form"), DRIVEN)
def test_a_command_prints_names_and_nothing_else(
    path: str, form: str, poisoned: Poisoned, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(poisoned.folder)
    monkeypatch.setenv("COLUMNS", "400")
    asked = (*COMMANDS[path], *(("--format", form) if form else ()))
    to_file = form in ("parquet", "xlsx")
    result = poisoned.run(*path.split(" "), *asked, *(("-o", str(tmp_path / "out")) if to_file else ()))
    assert result.exit_code == 0, result.output
    PRINTED[form or "table"](result.stdout)
    poison.plain_text(result.stderr)


ROUTES: dict[str, tuple[str, dict[str, str]]] = {
    "/v1/reports/{month}": (f"/v1/reports/{MONTH}", {}),
    "/v1/allocations": ("/v1/allocations", {"window": DAY, "group_by": "team,namespace,job,user,model"}),
    "/v1/waste": ("/v1/waste", {"window": DAY, "top": "100"}),
    "/v1/changes": (
        "/v1/changes",
        {"window": "2026-10-06T12:00:00Z/2026-10-07T00:00:00Z", "by": "namespace"},
    ),
    "/v1/savings": ("/v1/savings", {"month": MONTH}),
    "/v1/jobs": ("/v1/jobs", {"job": POISONS[2]}),
    "/v1/jobs/{uid}": (f"/v1/jobs/{quote(f'job-2 {POISONS[2]}', safe='')}", {}),
    "/v1/jobs/{uid}/receipt": (f"/v1/jobs/{quote(f'job-2 {POISONS[2]}', safe='')}/receipt", {}),
    "/v1/queues": ("/v1/queues", {}),
    "/v1/nodes": ("/v1/nodes", {}),
    "/v1/state": ("/v1/state", {}),
    "/v1/teams": ("/v1/teams", {}),
    "/v1/prices": ("/v1/prices", {}),
    "/v1/budgets": ("/v1/budgets", {"month": MONTH}),
    "/v1/forecasts/score": ("/v1/forecasts/score", {}),
    "/v1/incidents": ("/v1/incidents", {}),
    "/v1/budgets/status": ("/v1/budgets/status", {"at": "2026-10-07"}),
    "/v1/months/{month}/replays": (f"/v1/months/{MONTH}/replays", {}),
    "/v1/sessions": ("/v1/sessions", {}),
    "/v1/findings": ("/v1/findings", {"state": "open,acknowledged,muted"}),
    "/v1/findings/{id}": ("/v1/findings/1", {}),
    "/v1/explain/{kind}/{namespace}/{name}": ("/v1/explain/PyTorchJob/nlp/train-0", {}),
    "/v1/months": ("/v1/months", {}),
    "/v1/months/{month}": (f"/v1/months/{MONTH}", {}),
    "/v1/months/{month}/close": (f"/v1/months/{MONTH}/close", {}),
    "/v1/months/{month}/charges": (f"/v1/months/{MONTH}/charges", {}),
    "/v1/months/{month}/statements": (f"/v1/months/{MONTH}/statements", {}),
    "/v1/months/{month}/statement": (f"/v1/months/{MONTH}/statement", {"team": POISONS[23]}),
    "/v1/focus/{month}": (f"/v1/focus/{MONTH}", {"unpriced": "null"}),
    "/v1/focus/{month}/metadata": (f"/v1/focus/{MONTH}/metadata", {"unpriced": "null"}),
    "/v1/focus/{month}/nodes": (f"/v1/focus/{MONTH}/nodes", {}),
    "/v1/digest": ("/v1/digest", {"week": WEEK}),
    "/v1/keys": ("/v1/keys", {}),
    "/v1/me": ("/v1/me", {}),
    "/": ("/", {}),
    "/metrics": ("/metrics", {}),
    "/readyz": ("/readyz", {}),
    "/healthz": ("/healthz", {}),
    "/healthz/ready": ("/healthz/ready", {}),
    "/v1/openapi.json": ("/v1/openapi.json", {}),
}
SENT: dict[str, Callable[[Response], object]] = {
    "application/json": lambda answer: poison.a_document(answer.text),
    "text/csv": lambda answer: poison.a_table(answer.text),
    "text/html": lambda answer: poison.Page(answer.text),
    "text/plain": lambda answer: poison.samples(answer.text),
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": lambda answer: zipfile.ZipFile(
        io.BytesIO(answer.content)
    ).testzip(),
    "application/vnd.apache.parquet": lambda answer: pq.read_table(io.BytesIO(answer.content)).to_pylist(),
}


def known_cluster(folder: Path) -> AdvisorService:
    """An advisor that knows the hostile cluster, by the real rules."""
    loaded = load(
        str(folder / "dump.json"), OwnerKeys(), ClusterLocation(None, "", ""), "2026-10-24T00:00:00Z", NOW_MS
    )
    engine = AdvisorEngine(advise, explain, manifest_of, reread, document_of)
    found = AdvisorService(
        StillCluster(loaded.state), engine, TeamRules.default(), settings=AdvisorSettings(samples=3)
    )
    found.refresh()
    return ever_current(found)


@pytest.fixture(scope="module")
def client(poisoned: Poisoned) -> Iterator[TestClient]:
    with poisoned.ledger() as ledger:
        api = create_app(
            ledger, ApiSettings(auth="off"), now=lambda: NOW_MS, advising=known_cluster(poisoned.folder)
        )
        with TestClient(api, base_url="http://localhost", raise_server_exceptions=False) as found:
            yield found


def harmless_answer(answer: Response) -> None:
    """What it is made of is what it says that it is, and no header is made of a name."""
    media_type = answer.headers["content-type"].partition(";")[0]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    for name, value in answer.headers.items():
        assert value.isascii(), name
        assert value.isprintable(), name
        assert not [word for word in (BEACON, TITLE, "calc", "1+1") if word in value], name
    SENT[media_type](answer)


@pytest.mark.fault(53)
def test_every_route_says_names_and_nothing_else(client: TestClient) -> None:
    paths = client.get("/v1/openapi.json").json()["paths"]
    asked = {path for path, item in paths.items() if "get" in item}
    # That month is over, and has no forecast; a kept replay is in tests/api/pages/test_what_if_pages.py.
    elsewhere = {"/v1/months/{month}/forecast", "/v1/months/{month}/replays/{name}"}
    assert asked - elsewhere == set(ROUTES)
    for path, (url, query) in ROUTES.items():
        parameters = {each["name"]: each for each in paths[path]["get"].get("parameters", ())}
        for form in _enum(parameters["format"]) if "format" in parameters else ("",):
            answer = client.get(url, params=query | ({"format": form} if form else {}))
            assert answer.status_code == 200, path
            harmless_answer(answer)
    answer = client.post("/v1/advisor/advice", json={"manifest": yaml.safe_load(JOB)})
    assert answer.status_code == 200, answer.text
    harmless_answer(answer)


def _enum(parameter: dict[str, Any]) -> tuple[str, ...]:
    schema = parameter["schema"]
    either = (schema, *schema.get("anyOf", ()))
    return next(tuple(each["enum"]) for each in either if "enum" in each)


@pytest.mark.fault(53)
def test_what_is_said_back_of_a_question_is_text(client: TestClient) -> None:
    asked: tuple[Callable[[str], Response], ...] = (
        lambda text: client.get("/v1/allocations", params={"window": text}),
        lambda text: client.get("/v1/allocations", params={"window": DAY, "team": text, "format": "csv"}),
        lambda text: client.get("/v1/findings", params={"team": text, text: "x"}),
        lambda text: client.get(f"/v1/reports/{quote(text, safe='')}", params={"format": "html"}),
        lambda text: client.get(f"/v1/jobs/{quote(text, safe='')}"),
        lambda text: client.get(f"/v1/explain/Job/{quote(text, safe='')}/x"),
        lambda text: client.get(f"/{quote(text, safe='')}"),
    )
    for at, text in enumerate(POISONS):
        for ask in (asked[at % len(asked)], asked[(at + 3) % len(asked)]):
            answer = ask(text)
            assert answer.status_code < 500
            harmless_answer(answer)


@pytest.mark.fault(53)
def test_the_names_are_there_as_they_were_written(client: TestClient, poisoned: Poisoned) -> None:
    """What programs read is data: nothing is escaped in it, nothing cut but beyond what a ledger keeps. A
    label that is no name for people to read makes no team."""
    rows = client.get("/v1/allocations", params={"window": DAY, "group_by": "namespace,job,user,team"}).json()
    kept = {storable_text(text) for text in POISONS}
    for name in ("namespace", "job", "user"):
        assert {row["group"][name] for row in rows["rows"]} >= kept, name
    teams = {row["group"]["team"] for row in rows["rows"]}
    names = {text.strip() for text in kept if is_name(text.strip())}
    assert teams == names | {NO_TEAM, UNALLOCATED}
    assert len(names) > len(POISONS) // 2
    labels = poison.samples(client.get("/metrics").text)
    priced = {each["owner_team"] for each in labels["gpucost_team_cost_usd"]} - {NO_TEAM, UNALLOCATED}
    assert priced <= names
    assert len(priced) > 10
    with poisoned.ledger() as ledger:
        assert {each.team for each in ledger.findings(EVERYTHING, limit=100)} & names


@needs_chromium
@pytest.mark.chromium
@pytest.mark.fault(63)
def test_no_page_runs_or_fetches_anything_in_a_browser(
    client: TestClient, poisoned: Poisoned, tmp_path: Path
) -> None:
    report, week = tmp_path / "report.html", tmp_path / "week.html"
    report.write_text(client.get(f"/v1/reports/{MONTH}", params={"format": "html"}).text, "utf-8")
    assert poisoned.run("digest", WEEK, "-f", "html", "-o", str(week)).exit_code == 0
    control = tmp_path / "control.html"
    control.write_text(f"<!doctype html><title>x</title>{''.join(POISONS)}", "utf-8")
    assert f"<title>{TITLE}</title>" in dump_dom(control), "it would be seen"
    for page in (report, week):
        found = dump_dom(page)
        assert f"<title>{TITLE}" not in found
        assert TITLE in poison.Page(found).words, "the names are there, as words"
        assert console_messages(page) == []


HARMLESS: dict[ChannelService, Callable[[NotificationMessage], None]] = {
    ChannelService.SLACK: test_render_slack.harmless,
    ChannelService.TEAMS: test_render_teams.harmless,
    ChannelService.MATTERMOST: test_render_mattermost.harmless,
    ChannelService.EMAIL: test_render_email.harmless,
    ChannelService.APPRISE: test_render_plain.harmless,
}
OURS = ("https://gpucost.example.com", "https://grafana.example.com", "https://runbooks.example.com")
LINKS = MessageLinks(*OURS)


def messages(poisoned: Poisoned) -> Iterator[NotificationMessage]:
    """The messages about the month, the week, a finding of each pattern, and alerts of any name."""
    with poisoned.ledger() as ledger:
        reporting = ReportService(ledger, "test", {})
        month = reporting.month(EVERYTHING, Month.parse(MONTH))
        week = DigestScheduler(reporting).week(IsoWeek.parse(WEEK))
        assert month is not None
        assert week is not None
        yield month_message(month.report, LINKS)
        yield digest_message(week, LINKS)
        yield digest_brief(week, LINKS)
        receipts = [reporting.receipt(EVERYTHING, row.job_uid) for row in month.report.top_jobs]
        made = tuple(each.report for each in receipts if each is not None)
        assert made
        for each in made:
            yield receipt_message(each, LINKS, cluster=each.clusters[0], team=each.teams[0])
            day = DayReceipts("2026-10-05", each.teams[0], "USD", 1, each.held, (each,))
            yield day_message(day, LINKS, user=each.users[0] if each.users else "")
        for record in ledger.findings(EVERYTHING, limit=100)[:: len(POISONS) // 8]:
            notice = of_life(
                life_of(record), record_id=record.id, episode=record.episode, links=LINKS, currency="USD"
            )
            yield from filter(None, (notice.message, notice.full))
    alerts = []
    for text in POISONS:
        each = alert(
            **dict.fromkeys(("team", "job", "namespace", "node", "queue", "severity", "cluster"), text)
        )
        address = f"https://{BEACON}/{text}"
        alerts.append(each | {"annotations": dict.fromkeys(("summary", "description", "runbook_url"), text)})
        alerts.append(
            each | {"annotations": {"summary": text, "runbook_url": address}, "generatorURL": address}
        )
    for some in (alerts, *([each] for each in alerts)):
        given = parse(json.loads(group(*some, key=POISONS[0])))
        yield of_group(given, LINKS, received_ms=NOW_MS).message


@pytest.mark.fault(63)
def test_every_service_is_told_names_and_nothing_else(poisoned: Poisoned) -> None:
    assert set(HARMLESS) == set(ChannelService)
    told = list(messages(poisoned))
    assert len(told) > 8
    for message in told:
        for link in addresses(message):
            assert link.startswith(OURS), "no address is a tenant's"
        for harmless in HARMLESS.values():
            harmless(message)


LINE = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]{12}Z (DEBUG|INFO|WARNING|ERROR) [A-Za-z0-9_.]+ |    ")


def test_no_line_of_a_log_is_forged(client: TestClient, poisoned: Poisoned) -> None:
    for text in POISONS:
        logging.getLogger("gpucost.x").warning("of %s", text)
        client.get(f"/v1/jobs/{quote(text, safe='')}")
    plain, structured = (poisoned.logs[form].getvalue() for form in ("text", "json"))
    for line in plain.splitlines():
        assert LINE.match(line), line
        poison.plain_text(line)
        assert not re.match(r"\S+ \S+ gpucost\.x (?!of |\[)", line), "forged"
    told = [json.loads(line) for line in structured.splitlines()]
    assert len(told) == len([line for line in plain.splitlines() if not line.startswith("    ")])
    assert len([each for each in told if each["logger"] == "gpucost.x"]) == len(POISONS)
    assert structured.isascii()
