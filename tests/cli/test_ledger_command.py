"""gpucost ledger: as a job, an init container and a person run it."""

from __future__ import annotations

import logging
import re
from fractions import Fraction
from hashlib import sha256
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpucost.access.keys import KeyRecord
from gpucost.access.principal import AccessRole
from gpucost.cli.application import app
from gpucost.domain.errors import InputError, LedgerUnavailable
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, Month, Window
from gpucost.ledger.db.database import LedgerDatabase
from gpucost.ledger.ledger import Ledger
from gpucost.service.ingest.retention_loop import RetentionLoop, RetentionRun
from gpucost.service.ingest.status import LoopStatus
from gpucost.service.settings.loader import checked
from gpucost.service.settings.model import RetentionSettings
from tests.ledger.builders import MONTH, NOW_MS, hour, ingest, line
from tests.ledger.tampering import flip, flip_index_page, tamper


@pytest.fixture(autouse=True)
def url(empty_sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("GPUCOST_LEDGER__URL", empty_sqlite_url)
    # The real clock decides what is old; October 2026 is, ten years later.
    monkeypatch.setattr("gpucost.cli.commands.ledger.now_ms", lambda: NOW_MS + 3_650 * DAY_MS)
    return empty_sqlite_url


SEALING = (("seal", "2026-10"), ("unseal", "2026-10"), ("verify",))


def run(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["ledger", *words])
    assert result.exit_code == code, result.output
    return result


def fill(url: str) -> None:
    with Ledger.open(url, now=lambda: NOW_MS) as ledger:
        for number in range(3):
            ingest(ledger, hour(number), line(hour(number)))
        ledger.close_month(MONTH, author="ann", min_coverage=Fraction(0), reason="three hours")


@pytest.mark.fault(45)
@pytest.mark.usefixtures("url")
def test_upgrade_makes_migrates_and_does_nothing() -> None:
    assert "from revision none (no tables) to 00" in run("upgrade").output
    again = run("upgrade").output
    assert again.endswith("already: nothing to do\n")
    assert run("wait", "--timeout", "1s").output == "the ledger is ready\n"


@pytest.mark.fault(45)
def test_wait_creates_nothing_and_says_what_it_waits_for(url: str) -> None:
    result = run("wait", "--timeout", "1ms", code=4)
    assert "not ready after 1ms: no such ledger" in result.output
    assert not Path(url.removeprefix("sqlite:///")).exists()
    assert "--timeout" in run("wait", "--timeout", "soon", code=2).output
    Path(url.removeprefix("sqlite:///")).touch()
    missing = run("wait", "--timeout", "1ms", code=4).output
    assert "has no tables, this program needs 00" in missing
    assert "gpucost ledger upgrade brings it there" in missing


@pytest.mark.fault(45)
def test_wait_ends_when_the_ledger_is_upgraded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says once what it waits for, and again when that changes."""
    pauses = list[float]()

    def upgraded_meanwhile(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            Path(url.removeprefix("sqlite:///")).touch()
        elif len(pauses) == 4:
            LedgerDatabase.open(url, 60_000).close()

    monkeypatch.setattr("gpucost.cli.commands.ledger.time.sleep", upgraded_meanwhile)
    result = run("wait", "--timeout", "5m")
    assert result.stdout == "the ledger is ready\n"
    missing, empty = result.stderr.splitlines()
    assert "waiting: no such ledger" in missing
    assert "waiting: the ledger has no tables, this program needs 00" in empty
    assert pauses == [2.0] * 4


@pytest.mark.parametrize("given", ["--server", "login"])
def test_each_goes_to_a_ledger_and_to_no_server(
    url: str, given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who is logged in would take this ledger for the server's."""
    server, words = "https://costs.test", ["--server", "https://costs.test"]
    if given == "login":
        monkeypatch.setenv("GPUCOST_SERVER", server)
        words = []
    file = str(tmp_path / "copy.db")
    for command in (("upgrade",), ("wait",), ("backup", file), ("restore", file), ("prune",), *SEALING):
        result = CliRunner().invoke(app, [*words, "ledger", *command])
        assert result.exit_code == 2, command
        assert f"this command: cannot ask {server}: it needs the ledger" in result.stderr
    assert not Path(url.removeprefix("sqlite:///")).exists()
    assert not Path(file).exists()


@pytest.mark.fault(45)
def test_a_newer_ledger_is_refused_by_each(url: str, tmp_path: Path) -> None:
    run("upgrade")
    tamper(url, "UPDATE alembic_version SET version_num = '9999'")
    for words in (("upgrade",), ("wait",), ("backup", str(tmp_path / "copy.db")), ("prune",)):
        result = run(*words, code=4)
        assert "a newer gpucost has migrated this ledger (revision 9999" in result.output
        assert "upgrade gpucost, or restore a backup" in result.output
    assert not (tmp_path / "copy.db").exists()


def test_backup_and_restore(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(url)
    with Ledger.open(url, now=lambda: NOW_MS) as ledger:
        for name in ("one", "two"):
            ledger.add_key(KeyRecord(name, "0" * 64, AccessRole.ADMIN, created_ms=NOW_MS, created_by="root"))
    copy, file = str(tmp_path / "copy.db"), Path(url.removeprefix("sqlite:///"))
    told = run("backup", copy).output
    assert "3 windows, 1 closed month; every digest verified" in told
    assert "not there yet" in run("backup", copy, code=2).output
    assert "--replace" in run("restore", copy, code=2).output
    with Ledger.open(url, now=lambda: NOW_MS) as ledger:
        digest = ledger.month(MONTH).digest
        ledger.revoke_key("two", "ann")
        ingest(ledger, hour(0, MONTH.next()), line(hour(0, MONTH.next())))
    told = run("restore", copy, "--replace").output
    assert "the ledger that was there is kept as" in told
    assert "1 valid API key in it; 1 key revoked since the backup stayed revoked" in told
    assert list(tmp_path.glob(f"{file.name}.replaced-*Z"))
    with Ledger.open(url, now=lambda: NOW_MS) as ledger:
        assert ledger.month(MONTH).digest == digest
        assert ledger.windows(MONTH.next().window) == ()
    monkeypatch.setenv("GPUCOST_LEDGER__URL", f"sqlite:///{tmp_path / 'elsewhere.db'}")
    told = run("restore", copy).output
    assert "2 valid API keys in it; keys that were revoked since the backup are valid again" in told


def test_postgresql_has_its_own_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "postgresql+psycopg://ann:hunter2@127.0.0.1:1/ledger"
    monkeypatch.setenv("GPUCOST_LEDGER__URL", address)
    for name, command in (
        ("backup", "pg_dump --format=custom --no-owner --file=f.part "),
        ("restore", "pg_restore --no-owner --exit-on-error --single-transaction "),
    ):
        result = run(name, "f", code=2)
        assert result.stdout.startswith(command)
        assert "PGPASSWORD" in result.stderr
        assert ("are valid again" in result.stderr) == (name == "restore")
        assert "hunter2" not in result.output
    assert "127.0.0.1:1" in run("wait", "--timeout", "1ms", code=4).output


@pytest.mark.parametrize(
    "given",
    [
        "gpucost:p@ss:hunter2@db/gpucost",
        "gpucost:p@hunter2@db/gpucost",
        "gpucost:hunter2@db:x/gpucost",
        "us/er:hunter2?ret@db/gpucost",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The password has an @ or a colon as it is: what is read as host or port is a part of it."""
    for scheme in ("postgresql+psycopg", "postgres"):
        monkeypatch.setenv("GPUCOST_LEDGER__URL", f"{scheme}://{given}")
        for words in (["upgrade"], ["wait"], ["backup", "f"], ["restore", "f"]):
            said = run(*words, code=2).output
            assert "ledger.url" in said, words
            assert "hunter2" not in said, words


def test_prune_says_what_it_would_do_and_does_it(url: str) -> None:
    fill(url)
    dry = run("prune", "--dry-run").output
    assert "2026-10 would be folded by day: 3 usage lines, 0 waste lines" in dry
    with Ledger.open(url, now=lambda: NOW_MS) as ledger:
        assert ledger.folded(MONTH) is None
    done = run("prune", "--author", "ann", "--vacuum").output
    assert "2026-10 folded by day: 3 usage lines became 1, 0 waste lines 0" in done
    assert "forgotten: 0 resolved findings" in done
    assert "room in the file for new lines: 0.0 MiB" in done
    assert "no closed month is old enough" in run("prune").output
    with Ledger.open(url, now=lambda: NOW_MS) as ledger:
        assert ledger.folded(MONTH) is not None
        assert ledger.audit(EVERYTHING)[-1].author == "ann"
        assert ledger.verify() == ()


def test_prune_ends_with_5_when_a_month_was_changed(url: str) -> None:
    fill(url)
    tamper(url, "UPDATE usage_line SET nano = 1")
    assert "2026-10 is not folded" in run("prune", code=5).output


def test_the_loop_folds_and_counts_what_fails(url: str, caplog: pytest.LogCaptureFixture) -> None:
    fill(url)
    now = [MONTH.window.end_ms + 400 * DAY_MS - 1]
    status, pauses = LoopStatus(), list[float]()

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        return len(pauses) > 2

    with Ledger.open(url, now=lambda: NOW_MS) as ledger:
        retaining = RetentionRun(ledger, RetentionSettings(), lambda: now[0])
        loop = RetentionLoop(retaining, status, wait=wait)
        loop.turn()
        assert ledger.folded(MONTH) is None, "not a millisecond early"
        now[0] += 1
        tamper(url, "UPDATE usage_line SET nano = nano + 1")
        with caplog.at_level(logging.ERROR):
            loop.turn()
        assert "2026-10 is not folded, for it does not verify" in caplog.text
        assert status.other_errors() == {"FoldRefused": 1}
        tamper(url, "UPDATE usage_line SET nano = nano - 1")
        loop.run()
        assert ledger.folded(MONTH) is not None
    assert pauses == [600.0, 86_400.0, 86_400.0]


def test_what_is_written_of_each_day_comes_first_and_its_failure_stops_nothing(url: str) -> None:
    fill(url)
    status, called = LoopStatus(), list[int]()

    def daily() -> None:
        called.append(1)
        raise LedgerUnavailable("not now")

    with Ledger.open(url, now=lambda: NOW_MS) as ledger:
        due_ms = MONTH.window.end_ms + 400 * DAY_MS
        retaining = RetentionRun(ledger, RetentionSettings(), lambda: due_ms)
        RetentionLoop(retaining, status, wait=lambda _: False, daily=daily).turn()
        assert ledger.folded(MONTH) is not None
    assert (called, status.other_errors()) == ([1], {"LedgerUnavailable": 1})


def test_the_loop_seals_what_is_due_once(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(url)
    now, status = [MONTH.window.end_ms + 30 * DAY_MS - 1], LoopStatus()
    wanted = RetentionSettings.model_validate({"seal": "30d"})
    with Ledger.open(url, now=lambda: NOW_MS, sealed=str(tmp_path / "sealed")) as ledger:
        before = ledger.aggregate(EVERYTHING, MONTH.window, ["team"]).to_csv()
        loop = RetentionLoop(RetentionRun(ledger, wanted, lambda: now[0]), status, wait=lambda _: False)
        loop.turn()
        assert ledger.sealed(MONTH) is None, "not a millisecond early"
        now[0] += 1
        tamper(url, "UPDATE usage_line SET nano = nano + 1")
        loop.turn()
        assert (ledger.sealed(MONTH), status.other_errors()) == (None, {"SealRefused": 1})
        tamper(url, "UPDATE usage_line SET nano = nano - 1")
        with caplog.at_level(logging.INFO):
            loop.turn()
        assert "2026-10 sealed: 3 usage lines in 3 files" in caplog.text
        assert ledger.sealed(MONTH) is not None
        assert ledger.aggregate(EVERYTHING, MONTH.window, ["team"]).to_csv() == before
        ledger.unseal(MONTH, author="ann")
        loop.turn()
        assert ledger.sealed(MONTH) is None, "whoever unsealed it decides"
    monkeypatch.setenv("GPUCOST_RETENTION__SEAL", "30d")
    refused = CliRunner().invoke(app, ["ledger", "prune"])
    assert refused.exit_code == 2
    assert "GPUCOST_RETENTION__SEAL: '30d' is not allowed" in refused.output
    assert "ledger.sealed set" in refused.output


def test_prune_seals_what_is_due(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(url)
    monkeypatch.setenv("GPUCOST_RETENTION__SEAL", "30d")
    monkeypatch.setenv("GPUCOST_LEDGER__SEALED", str(tmp_path / "sealed"))
    assert "2026-10 would be sealed" in run("prune", "--dry-run").output
    assert "2026-10 sealed: 1 usage line in 3 files" in run("prune").output, "folded before"
    assert "sealed" not in run("prune").output


def in_the_way(folder: Path) -> None:
    """Another ledger's list of October in the folder: October cannot be sealed into it."""
    content = b'{"month_digest": "of another ledger"}'
    (folder / "manifests").mkdir(parents=True)
    (folder / "manifests" / f"2026-10-{sha256(content).hexdigest()[:16]}.json").write_bytes(content)


def test_a_month_that_cannot_be_sealed_holds_up_nothing(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later, folder, status = Month(2026, 11), tmp_path / "sealed", LoopStatus()
    fill(url)
    in_the_way(folder)
    wanted = RetentionSettings.model_validate({"seal": "30d", "detail": "0"})
    with Ledger.open(url, now=lambda: NOW_MS, sealed=str(folder)) as ledger:
        ingest(ledger, hour(0, later), line(hour(0, later)))
        ledger.close_month(later, author="ann", min_coverage=Fraction(0), reason="an hour")
        retaining = RetentionRun(ledger, wanted, lambda: NOW_MS + 300 * DAY_MS)
        RetentionLoop(retaining, status, wait=lambda _: False).turn()
        assert ledger.sealed_months() == (later,)
        assert status.other_errors() == {"LedgerConflict": 1}
    monkeypatch.setenv("GPUCOST_RETENTION__SEAL", "30d")
    monkeypatch.setenv("GPUCOST_LEDGER__SEALED", str(folder))
    said = run("prune", code=4).output
    assert "ledger.sealed: another ledger has sealed 2026-10 into the same folder" in said
    assert "forgotten: 0 resolved findings" in said
    monkeypatch.setenv("GPUCOST_LEDGER__SEALED", "nosuch://bucket/sealed")
    said = run("prune", code=2).output
    assert "ledger.sealed: 'nosuch://bucket/sealed' is not allowed" in said
    assert "forgotten: 0 resolved findings" in said


def test_detail_is_kept_for_ever_where_that_is_wanted(url: str) -> None:
    fill(url)
    with Ledger.open(url, now=lambda: NOW_MS) as ledger:
        forever = RetentionSettings.model_validate({"detail": "0", "findings": "0"})
        retaining = RetentionRun(ledger, forever, lambda: NOW_MS + 3_650 * DAY_MS)
        assert retaining.foldable() == ()
        assert retaining.forget().findings == 0
        assert ledger.aggregate(EVERYTHING, Window(hour(1).start_ms, hour(1).end_ms), ["team"]) is not None
    for name, value in (("detail", "1d"), ("detail", "4000d"), ("findings", "1d")):
        with pytest.raises(InputError, match="0 is for ever"):
            checked(RetentionSettings, {name: value}, "retention.")


@pytest.mark.fault(41)
def test_a_damaged_page_is_told_by_every_command_and_verify_says_what_to_do(url: str) -> None:
    fill(url)
    file = Path(url.removeprefix("sqlite:///"))
    assert _said("month", "verify") == (0, "every month: the ledger holds what was written\n")
    flip_index_page(file, "ix_holder_team")
    code, text = _said("month", "verify")
    assert (code, "ix_holder_team" in text) == (5, True)
    assert "gpucost ledger restore BACKUP --replace" in text
    assert "must be made again" in text
    flip(file, 1, 4096, 2_000)  # the schema
    commands = ("month status", "month verify", "report 2026-10 -f json", "key list", "findings")
    for words in (*commands, "ledger upgrade", "ledger prune --dry-run", f"ledger backup {file}.copy"):
        code, text = _said(*words.split())
        assert code == (5 if words == "month verify" else 4), text
        assert "damaged" in text
        assert "Traceback" not in text
        assert "unexpected" not in text
    assert not list(file.parent.glob("*.copy*"))


def _said(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, words)
    return result.exit_code, result.output


def test_seal_verify_and_unseal(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(url)
    assert "ledger.sealed is not set" in run("seal", "2026-10", code=4).output
    monkeypatch.setenv("GPUCOST_LEDGER__SEALED", str(tmp_path / "sealed"))
    assert run("verify").output == "no month is sealed\n"
    assert "MONTH: '2026-11' is not allowed; allowed: a closed month" in run("seal", "2026-11", code=2).output
    said = run("seal", "2026-10", "--author", "ann").output
    assert said.startswith("2026-10 sealed: 3 usage lines in 3 files of 0.0 MiB; digest ")
    assert re.search(r"; sealed in files \d{4}-\S+Z\n", _said("month", "status", "2026-10")[1])
    assert run("verify", "--deep").output == "2026-10: every file is what was sealed\n"
    assert (
        "MONTH: '2026-09' is not allowed; allowed: a sealed month" in run("verify", "2026-09", code=2).output
    )
    file = next((tmp_path / "sealed" / "days").rglob("*.parquet"))
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    changed = run("verify", "2026-10", code=5).output
    assert changed.startswith(
        f"2026-10: sealed files: {file.relative_to(tmp_path / 'sealed')} changed: SHA-256 "
    )
    assert "stays as it is, for it does not verify" in run("unseal", "2026-10", code=4).output
    file.write_bytes(content)
    stray = file.with_name("days-x-0.parquet")
    stray.mkdir()
    assert f"{file.parent.relative_to(tmp_path / 'sealed')}/days-x-0.parquet" in run("verify", code=5).output
    assert f"not to be removed now: sealed file {stray}" in run("seal", "2026-10").output
    stray.rmdir()
    assert run("unseal", "2026-10").output == "2026-10 unsealed: 3 usage lines in the database again\n"
    assert "sealed" not in _said("month", "status", "2026-10")[1]
