"""The read commands against a server say what they say against its ledger, byte for byte."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from gpucost.cli.application import app
from gpucost.cli.remote import api_client
from gpucost.cli.remote.server_target import ServerTarget
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.domain.errors import SourceUnreachable
from gpucost.domain.time import Month
from tests.cli.api_server import SECRET, Server, served
from tests.cli.findings_worlds import Run, copied
from tests.cli.test_chargeback import QUOTA
from tests.detectors.worlds import CLUSTER
from tests.support.http import Reply, scripted_server

Ask = Callable[..., Result]
DAY = "2026-10-06T00:00:00Z/2026-10-07T00:00:00Z"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("remote")


@pytest.fixture(scope="module")
def local(day_looked_at: Path, folder: Path) -> Run:
    return copied(day_looked_at, folder)


@pytest.fixture(scope="module")
def server(local: Run, folder: Path) -> Iterator[Server]:
    assert local("findings").exit_code == ExitCode.OK
    with served(f"sqlite:///{folder / 'ledger.db'}", folder / "keys") as found:
        yield found


@pytest.fixture
def ask(server: Server, monkeypatch: pytest.MonkeyPatch) -> Ask:
    def call(*words: str, key: str = "root", url: str = server.url) -> Result:
        monkeypatch.setenv("GPUCOST_TOKEN_FILE", str(server.key(key)))
        result = CliRunner().invoke(app, ["--server", url, *words])
        assert SECRET not in result.output
        return result

    return call


COMMANDS = {
    "report": ("report", "2026-10"),
    "report of a team": ("report", "2026-10", "--team", "vision"),
    "report of a team csv": ("report", "2026-10", "--team", "vision", "-f", "csv"),
    "report json": ("report", "2026-10", "-f", "json"),
    "report csv": ("report", "2026-10", "-f", "csv"),
    "report html": ("report", "2026-10", "-f", "html"),
    "report of a cluster": ("report", "2026-10", "--cluster", CLUSTER),
    "allocations": ("allocations", "2026-10", "--group-by", "team,job"),
    "allocations json": ("allocations", DAY, "--step", "1h", "--group-by", "job", "-f", "json"),
    "allocations csv": ("allocations", DAY, "--step", "1h", "--group-by", "node,bucket", "-f", "csv"),
    "allocations of some": ("allocations", DAY, "--filter", "team=nlp,vision", "--idle", "proportional"),
    "allocations of nobody": ("allocations", DAY, "--filter", "user=nobody"),
    "waste of a team": ("waste", "2026-10", "--team", "vision"),
    "jobs": ("jobs",),
    "jobs of a team": ("jobs", "--team", "vision", "-f", "json"),
    "jobs of somebody": ("jobs", "--user", "ada", "--since", "2026-10-01"),
    "teams": ("teams",),
    "teams json": ("teams", "-f", "json"),
    "budgets": ("budgets", "2026-10"),
    "budgets json": ("budgets", "2026-10", "--team", "vision", "-f", "json"),
    "forecast score": ("forecast", "score"),
    "incidents list": ("incidents", "list", "--at", "2026-10-07"),
    "budget list": ("budget", "list", "--at", "2026-10-07"),
    "budget check json": ("budget", "check", "--at", "2026-10-07", "-f", "json"),
    "job": ("job", "uid-forgotten", "--no-gpus"),
    "job json": ("job", "uid-forgotten", "--no-gpus", "-f", "json"),
    "receipt": ("job", "uid-forgotten", "--no-gpus", "--receipt"),
    "receipt json": ("job", "uid-forgotten", "--no-gpus", "--receipt", "-f", "json"),
    "job csv": ("job", "uid-train", "--no-gpus", "-f", "csv"),
    "compare": ("compare", f"2026-10-06T12:00:00Z/{DAY[21:]}"),
    "compare json": ("compare", f"2026-10-06T12:00:00Z/{DAY[21:]}", "--by", "model", "-f", "json"),
    "waste": ("waste", "2026-10"),
    "waste json": ("waste", DAY, "-f", "json", "--top", "1"),
    "waste csv": ("waste", DAY, "-f", "csv"),
    "findings": ("findings",),
    "findings json": ("findings", "-f", "json"),
    "findings csv": ("findings", "-f", "csv", "--team", "vision", "--state", "open"),
    "no findings": ("findings", "--severity", "low", "--team", "vision"),
    "months": ("month", "status"),
    "a month": ("month", "status", "2026-10"),
    "a month without windows": ("month", "status", "2026-08"),
    "what a close makes final": ("month", "close", "2026-10", "--dry-run"),
    "what an empty close makes final": ("month", "close", "2026-08", "--dry-run"),
    "focus": ("export", "focus", "2026-10", "--unpriced", "null"),
    "focus of a team": ("export", "focus", "2026-10", "--by", "team", "--team", "vision", "--version", "1.4"),
    "statement": ("statement", "2026-10", "--team", "nlp"),
    "statement json": ("statement", "2026-10", "--team", "nlp", "-f", "json"),
    "statement csv": ("statement", "2026-10", "--team", "vision", "-f", "csv"),
    "statement html": ("statement", "2026-10", "--team", "vision", "-f", "html"),
    "statements": ("statement", "2026-10", "--all"),
    "statements json": ("statement", "2026-10", "--all", "-f", "json"),
    "statements of two": ("statement", "2026-10", "--team", "vision", "--team", "nlp", "-f", "json"),
    "digest": ("digest", "2026-W41"),
    "digest of the last week": ("digest",),
    "digest json": ("digest", "2026-W41", "--team", "vision", "-f", "json"),
    "digest html": ("digest", "2026-W41", "-f", "html"),
    "finding": ("findings", "show", "1"),
    "finding json": ("findings", "show", "1", "-f", "json"),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_a_server_is_asked_and_the_answer_is_the_same(case: str, local: Run, ask: Ask) -> None:
    here, there = local(*COMMANDS[case]), ask(*COMMANDS[case])
    assert here.exit_code == ExitCode.OK, here.output
    assert (there.exit_code, there.stderr) == (ExitCode.OK, here.stderr)
    assert there.stdout_bytes == here.stdout_bytes
    assert here.stdout


def test_parquet_is_a_file_as_well(local: Run, ask: Ask, tmp_path: Path) -> None:
    for words in (("report", "2026-10"), ("allocations", DAY)):
        here, there = tmp_path / "here", tmp_path / "there"
        assert local(*words, "-f", "parquet", "-o", str(here)).exit_code == ExitCode.OK
        assert ask(*words, "-f", "parquet", "-o", str(there)).exit_code == ExitCode.OK
        assert there.read_bytes() == here.read_bytes()


def test_pages_are_put_together(ask: Ask, local: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = api_client.RemoteApi.allocations

    def few(self: api_client.RemoteApi, **params: str | None) -> object:
        return found(self, **params, limit="3")

    words = ("allocations", DAY, "--step", "1h", "--group-by", "job,bucket", "-f", "json")
    monkeypatch.setattr(api_client.RemoteApi, "allocations", few)
    assert ask(*words).stdout == local(*words).stdout


@pytest.mark.parametrize(
    ("call", "pages", "sentence"),
    [
        ("findings", 0, "answers with more than 3 pages"),
        ("allocations", 2, "changed while its pages were read, 4 times"),
        ("allocations", 4, "a number of pages that is none, or more than 3"),
        ("allocations", "many", "a number of pages that is none, or more than 3"),
        ("allocations", True, "a number of pages that is none, or more than 3"),
    ],
)
def test_a_server_cannot_keep_one_for_ever(
    call: str, pages: object, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Other:
        def json(self, path: str, _params: object) -> dict[str, object]:
            asked.append(path)
            return {"pages": pages}

    remote = api_client.RemoteApi(ServerTarget("http://127.0.0.1:1"))
    monkeypatch.setattr(remote, "_client", Other())
    monkeypatch.setattr(api_client, "_MOST_PAGES", 3)
    monkeypatch.setattr(api_client, "_MOST_TRIES", 4)
    page = SimpleNamespace(next="more", findings=())
    monkeypatch.setattr(remote, "_read", lambda *_: page)
    monkeypatch.setattr(remote, "_stand", lambda _: SimpleNamespace(digest=len(asked) + next(numbers)))
    numbers = count()
    with pytest.raises(SourceUnreachable, match=sentence):
        getattr(remote, call)()
    assert len(asked) <= 8


@pytest.mark.fault(47)
def test_a_team_sees_itself_only(ask: Ask) -> None:
    for words in (("report", "2026-10", "-f", "json"), ("allocations", DAY, "--group-by", "team,job")):
        text = ask(*words, key="vera").stdout
        assert "vision" in text
        assert "nlp" not in text
    foreign = ask("job", "uid-train", key="vera")
    assert foreign.exit_code == ExitCode.USAGE
    assert foreign.stderr.startswith("gpucost: NAME: 'uid-train' is not allowed; allowed: no such job")


@pytest.mark.parametrize(
    ("words", "key", "code", "sentence"),
    [
        (("report", "2026-09"), "root", ExitCode.USAGE, "MONTH: '2026-09' is not allowed; allowed: 2026-10"),
        (("waste", "2026-09"), "root", ExitCode.USAGE, "WINDOW: '2026-09' is not allowed; allowed: 2026-10"),
        (("waste", "2026-10", "--cluster", "x"), "root", ExitCode.USAGE, "--cluster: 'x' is not allowed"),
        (
            ("allocations", DAY, "--filter", "page=2"),
            "root",
            ExitCode.USAGE,
            "--filter: 'page' is not allowed",
        ),
        (("allocations", DAY, "--group-by", "x"), "root", ExitCode.USAGE, "--group-by: 'x' is not allowed"),
        (("allocations", DAY, "--idle", "proportional"), "vera", ExitCode.USAGE, "--idle: 'proportional'"),
        (
            ("findings", "show", "99"),
            "root",
            ExitCode.USAGE,
            "ID: '99' is not allowed; allowed: no such finding",
        ),
        (("job", "nobody"), "root", ExitCode.USAGE, "NAME: 'nobody' is not allowed; allowed: no such job"),
        (("job", "../keys"), "root", ExitCode.USAGE, "request: nothing is at this address"),
        (("job", ".."), "root", ExitCode.USAGE, ""),
        (("job", "x", "--gpus"), "root", ExitCode.USAGE, ""),
        (("report", "2026-10"), "prom", ExitCode.USAGE, "key or token: the role metrics may not read this"),
        (
            ("findings", "mute", "1", "--for", "1d"),
            "vera",
            ExitCode.USAGE,
            "key or token: the role viewer may not",
        ),
        (("findings", "mute", "1"), "root", ExitCode.USAGE, "--until: missing"),
        (("findings", "mute", "1", "--for", "900d"), "root", ExitCode.USAGE, "--for: '900d' is not allowed"),
        (("findings", "acknowledge", "1", "--author", "eve"), "root", ExitCode.USAGE, "--author: 'eve'"),
        (("month", "verify"), "root", ExitCode.USAGE, "this command: cannot ask http://127.0.0.1:"),
        (("month", "close", "2026-10"), "vera", ExitCode.USAGE, "key or token: the role viewer may not"),
        (
            ("month", "close", "2026-10", "--author", "eve"),
            "root",
            ExitCode.USAGE,
            "--author: 'eve' is not allowed; allowed: no --author",
        ),
        (
            ("statement", "2026-10", "--all", "--policy", "a.yaml"),
            "root",
            ExitCode.USAGE,
            "--policy: 'a.yaml' is not allowed; allowed: no --policy: a server goes by its own",
        ),
        (
            ("statement", "2026-10", "--team", "nlpp"),
            "fin",
            ExitCode.USAGE,
            "--team: 'nlpp' is not allowed; allowed: nlp (did you mean this?), or another of: nlp, vision",
        ),
        (
            ("statement", "2026-10", "--team", "nlp"),
            "vera",
            ExitCode.USAGE,
            "--team: 'nlp' is not allowed; allowed: vision\n",
        ),
        (("statement", "2026-08", "--all"), "fin", ExitCode.USAGE, "MONTH: '2026-08' is not allowed"),
        (
            ("digest", "2026-W41"),
            "vera",
            ExitCode.USAGE,
            "--team: 'missing' is not allowed; allowed: one of yours: vision",
        ),
        (("digest", "2026-W20"), "fin", ExitCode.USAGE, "WEEK: '2026-W20' is not allowed"),
        (("ingest",), "root", ExitCode.USAGE, "this command: cannot ask http://127.0.0.1:"),
    ],
)
def test_refusals_name_what_was_written(
    words: tuple[str, ...], key: str, code: ExitCode, sentence: str, ask: Ask
) -> None:
    result = ask(*words, key=key)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert result.stderr.startswith(f"gpucost: {sentence}")
    assert result.stderr.count("\n") == 1


@pytest.mark.fault(47)
def test_a_team_reads_its_own_statement_with_its_own_key(ask: Ask, local: Run, tmp_path: Path) -> None:
    """The document that finance has of it, to the byte; of all that it asks for it gets its own."""
    words = ("statement", "2026-10", "--team", "vision", "-f", "json")
    assert ask(*words, key="vera").stdout_bytes == local(*words).stdout_bytes
    everything = json.loads(ask("statement", "2026-10", "--all", "-f", "json", key="vera").stdout)
    assert [each["team"] for each in everything] == ["vision"]
    assert ask(*words, key="lead").stdout == ask(*words, key="fin").stdout
    shown = ask("statement", "2026-10", "--all", "-f", "csv", "--output-dir", str(tmp_path / "o"), key="vera")
    assert shown.exit_code == ExitCode.OK, shown.output
    assert [file.name for file in (tmp_path / "o").iterdir()] == ["2026-10-vision.csv"]
    assert ask("digest", "2026-W41", "--team", "vision", key="vera").stdout.count("nlp") == 0


def test_policies_are_tried_through_it(ask: Ask, local: Run, tmp_path: Path) -> None:
    for name, text in (("a", "version: 1\nname: a\n"), ("b", QUOTA), ("c", "version: 1\nname: a\nbase: x")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    words = (
        "chargeback",
        "preview",
        "2026-10",
        "--policy",
        str(tmp_path / "a"),
        "--policy",
        str(tmp_path / "b"),
    )
    named = QUOTA[QUOTA.index("quotas:") :]
    (tmp_path / "quotas.yaml").write_text(f"version: 1\n{named}", encoding="utf-8")
    apart = QUOTA.replace(named, "quotas_file: quotas.yaml\n")
    (tmp_path / "d").write_text(apart, encoding="utf-8")
    for more in ((), ("-f", "json"), ("--by", "cost-centre"), ("--policy", str(tmp_path / "d"))):
        assert ask(*words, *more, key="fin").stdout_bytes == local(*words, *more).stdout_bytes
    wrong = ask("chargeback", "preview", "2026-10", "--policy", str(tmp_path / "c"), key="fin")
    assert (wrong.exit_code, wrong.stdout) == (ExitCode.USAGE, "")
    assert wrong.stderr.startswith(f"gpucost: {tmp_path / 'c'}:3: base: ")
    for more, option in ((("--waiting",), "--waiting"), (("-f", "csv"), "--format")):
        refused = ask(*words, *more, key="fin")
        assert (refused.exit_code, refused.stderr.split(": ")[1]) == (ExitCode.USAGE, option)
    assert ask(*words, key="vera").exit_code == ExitCode.USAGE


def test_a_month_is_closed_through_it(
    day_looked_at: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who closed it is the key; what is shown before and after is what a ledger would say."""
    local = copied(day_looked_at, tmp_path)
    with served(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "keys") as found:

        def ask(*words: str, key: str = "root") -> Result:
            monkeypatch.setenv("GPUCOST_TOKEN_FILE", str(found.key(key)))
            return CliRunner().invoke(app, ["--server", found.url, *words])

        close = ("month", "close", "2026-10")
        for words in (close, (*close, "--yes")):
            here, there = local(*words), ask(*words)
            assert (here.exit_code, there.exit_code) == (ExitCode.LEDGER, ExitCode.LEDGER)
            assert here.stdout == there.stdout
            assert "2026-10 cannot be closed without a reason: " in there.stderr
        refused = ask(*close, "--reason", "x", key="fin")
        assert (refused.exit_code, found.ledger.month(Month.parse("2026-10")).digest) == (
            ExitCode.USAGE,
            None,
        )
        done = ask(*close, "--reason", "a test")
        assert done.exit_code == ExitCode.OK, done.output
        assert done.stdout.splitlines()[-1].startswith("2026-10 closed by root, digest ")
        again = ask(*close, "--reason", "more")
        assert again.stdout.startswith("2026-10 already closed by root, digest ")
        assert "this --reason is not recorded" in again.stderr
        for words in (("month", "status"), (*close, "--dry-run"), ("statement", "2026-10", "--all")):
            assert ask(*words).stdout == local(*words).stdout
        info = found.ledger.month(Month.parse("2026-10"))
        assert (info.author, info.reason) == ("root", "a test")
        said = json.loads(ask("statement", "2026-10", "--team", "nlp", "-f", "json").stdout)
        assert (said["state"], said["digest"]) == ("closed", info.digest)


def test_people_answer_findings_through_it(ask: Ask) -> None:
    said = ask("findings", "acknowledge", "1", "--note", "mine", key="lead")
    assert said.stdout.startswith("finding 1 is acknowledged: idle_allocation of ns/forgotten in ")
    assert "finding 1 is muted until 20" in ask("findings", "mute", "1", "--for", "1d", key="lead").stdout
    assert ask("findings", "unmute", "1", key="lead").stdout.startswith("finding 1 is acknowledged")
    told = json.loads(ask("findings", "show", "1", "-f", "json").stdout)["events"]
    assert [event["author"] for event in told[-3:]] == ["lead"] * 3


@pytest.mark.fault(49)
def test_a_key_that_is_revoked_is_refused_and_one_is_told_what_to_do(
    ask: Ask, local: Run, server: Server
) -> None:
    made = local("key", "add", "k0", "--role", "finance")
    assert made.exit_code == ExitCode.OK, made.output
    server.key("k0").write_text(made.stdout, encoding="utf-8")
    time.sleep(1.1)  # an unknown id is looked for again after a second
    assert ask("findings", key="k0").exit_code == ExitCode.OK
    assert ask("key", "revoke", "k0").stdout == "the key k0 is revoked\n"
    refused = ask("findings", key="k0")
    assert (refused.exit_code, refused.stdout) == (ExitCode.USAGE, "")
    assert f"gpucost login {server.url}" in refused.stderr
    assert made.stdout.strip() not in refused.stderr


@pytest.mark.parametrize(
    ("reply", "code", "words"),
    [
        (
            Reply(200, "<html>Sign in</html>", "text/html"),
            ExitCode.SOURCE,
            "text/html' instead of application/json",
        ),
        (
            Reply(502, "<html>Bad gateway</html>", "text/html"),
            ExitCode.SOURCE,
            "HTTP 502 without an error of",
        ),
        (
            Reply(302, b"", headers={"Location": "https://u:pw@login.test/?k=1"}),
            ExitCode.SOURCE,
            "'login.test'",
        ),
        (Reply(200, "{"), ExitCode.SOURCE, "an answer that is not JSON"),
        (Reply(200, "[]"), ExitCode.SOURCE, "does not understand"),
        (Reply(200, {"schema": "gpucost/WasteReport/v1"}), ExitCode.SOURCE, "window is missing"),
        (Reply(200, "[" * 100_000), ExitCode.SOURCE, "an answer that is not JSON"),
        (Reply(401, {"detail": "no"}), ExitCode.SOURCE, "HTTP 401 without an error of gpucost's"),
        (Reply(hang_up=True), ExitCode.SOURCE, "cannot be reached"),
    ],
)
def test_what_is_not_gpucost_is_said_plainly(reply: Reply, code: ExitCode, words: str, ask: Ask) -> None:
    with scripted_server(reply) as other:
        result = ask("waste", "2026-10", url=other.url)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert words in result.stderr
    assert "pw@" not in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_page_of_a_proxy_is_no_report(ask: Ask) -> None:
    with scripted_server(Reply(200, "<html>Sign in</html>", "text/html")) as other:
        result = ask("report", "2026-10", "-f", "html", url=other.url)
    assert (result.exit_code, result.stdout) == (ExitCode.SOURCE, "")
    assert "an HTML page that is not gpucost's" in result.stderr
