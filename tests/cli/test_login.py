"""gpucost login, logout, whoami: over real TLS, with secrets in files only."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpucost.access.keys import format_key
from gpucost.cli.application import app
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.ledger.ledger import Ledger
from tests.cli.api_server import SECRET, Server, served
from tests.kube.pki import Pki, make_pki
from tests.support.http import Reply, scripted_server

Run = Callable[..., Result]
_MAIN = "from gpucost.cli import main; main()"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return make_pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("login")
    with served(f"sqlite:///{folder / 'ledger.db'}", folder / "keys", pki) as found:
        yield found


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)

    def call(*words: str, typed: str | None = None) -> Result:
        result = CliRunner().invoke(app, list(words), input=typed)
        assert SECRET not in result.output
        return result

    return call


@pytest.fixture
def login_file(tmp_path: Path) -> Path:
    return tmp_path / "config" / "gpucost" / "login.json"


def test_a_login_with_a_key_file_keeps_its_path_only(
    run: Run, server: Server, pki: Pki, login_file: Path
) -> None:
    done = run("login", server.url, "--key-file", str(server.key("vera")), "--ca-file", str(pki.ca))
    assert done.exit_code == ExitCode.OK, done.output
    assert done.stdout == f"{server.url}: vera, viewer of vision in all clusters (key)\n"
    kept = json.loads(login_file.read_text(encoding="utf-8"))
    assert kept["file"] == str(server.key("vera"))
    assert SECRET not in login_file.read_text(encoding="utf-8")
    assert stat.S_IMODE(login_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(login_file.parent.stat().st_mode) == 0o700
    assert list(login_file.parent.iterdir()) == [login_file]
    assert run("whoami").stdout == done.stdout
    for words in (("findings",), ("month", "status"), ("teams",)):
        told = run(*words)
        assert told.exit_code == ExitCode.OK
        assert told.stderr == (
            f"gpucost: as {server.url} says, which you are logged in to; --config FILE asks a ledger\n"
        )
    assert "no finding goes on" in run("findings").stdout
    mine = run("jobs", "--mine")
    assert "No job of vera" in mine.stdout
    assert run("logout").stdout == "logged out; the key itself stays valid\n"
    assert run("logout").stdout == "was not logged in\n"
    assert run("whoami").stdout.startswith("not logged in")


def test_a_key_file_that_others_may_read_is_remarked_on(run: Run, server: Server, pki: Pki) -> None:
    file = server.key("vera")
    for mode, is_told in ((0o644, True), (0o600, False)):
        file.chmod(mode)
        done = run("login", server.url, "--key-file", str(file), "--ca-file", str(pki.ca))
        assert done.exit_code == ExitCode.OK, done.output
        assert (f"chmod 600 {file}" in done.stderr) is is_told


def test_a_key_may_be_typed_and_is_kept_where_nobody_else_reads(
    run: Run, server: Server, pki: Pki, login_file: Path
) -> None:
    key = format_key("fin", SECRET)
    done = run("login", server.url, "--ca-file", str(pki.ca), typed=f"{key}\n")
    assert done.exit_code == ExitCode.OK, done.output
    assert json.loads(login_file.read_text(encoding="utf-8"))["key"] == key
    assert stat.S_IMODE(login_file.stat().st_mode) == 0o600
    assert run("whoami").stdout.endswith(": fin, finance in all clusters (key)\n")
    login_file.chmod(0o644)
    open_ = run("whoami")
    assert (open_.exit_code, open_.stdout) == (ExitCode.USAGE, "")
    assert "chmod 600" in open_.stderr


def test_a_folder_that_others_may_read_gets_no_login(
    run: Run, server: Server, pki: Pki, login_file: Path
) -> None:
    login_file.parent.mkdir(parents=True, mode=0o755)
    login_file.parent.chmod(0o755)
    done = run("login", server.url, "--ca-file", str(pki.ca), typed=format_key("fin", SECRET))
    assert (done.exit_code, done.stdout) == (ExitCode.USAGE, "")
    assert "chmod 700" in done.stderr
    assert list(login_file.parent.iterdir()) == []


def test_a_token_file_is_read_anew_each_time(run: Run, tmp_path: Path) -> None:
    me = {"id": "sa", "role": "finance", "teams": None, "clusters": None, "method": "kubernetes"}
    token = tmp_path / "token"
    with scripted_server(Reply(200, me)) as other:  # type: ignore[arg-type]
        for text in ("first.token", "second.token"):
            token.write_text(text, encoding="utf-8")
            words = ("login", other.url, "--token-file", str(token)) if text == "first.token" else ("whoami",)
            assert run(*words).exit_code == ExitCode.OK
        sent = [asked.headers["Authorization"] for asked in other.asked]
    assert sent == ["Bearer first.token", "Bearer second.token"]
    token.unlink()
    gone = run("whoami")
    assert (gone.exit_code, gone.stdout) == (ExitCode.USAGE, "")
    assert f"key or token: '{token}' is not allowed" in gone.stderr


@pytest.mark.fault(49)
def test_a_wrong_key_leaves_the_old_login(run: Run, server: Server, pki: Pki, tmp_path: Path) -> None:
    first = run("login", server.url, "--key-file", str(server.key("fin")), "--ca-file", str(pki.ca))
    assert first.exit_code == ExitCode.OK
    wrong = tmp_path / "wrong"
    wrong.write_text("gpc_fin_wrong-s3cret", encoding="utf-8")
    refused = run("login", server.url, "--key-file", str(wrong), "--ca-file", str(pki.ca))
    assert (refused.exit_code, refused.stdout) == (ExitCode.USAGE, "")
    assert "it is wrong, has expired or was revoked" in refused.stderr
    assert "wrong-s3cret" not in refused.stderr
    assert run("whoami").stdout == first.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("http://gpucost.test",), "URL: 'http://gpucost.test' is not allowed"),
        (("ftp://127.0.0.1",), "URL: 'ftp://127.0.0.1' is not allowed"),
        (("127.0.0.1:1",), "URL: '127.0.0.1:1' is not allowed"),
        (("https://me:hunter2@gpucost.test",), "URL: holds more than an address"),
        (("https://gpucost.test/?key=hunter2",), "URL: holds more than an address"),
        (("https://[::1",), "URL: not an address"),
        (("https://x", "--key-file", "a", "--token-file", "b"), "--key-file: so is --token-file"),
        (("https://x", "--key-file", "missing"), "--key-file: 'missing' is not allowed"),
        (("https://x", "--ca-file", "missing"), "--ca-file: 'missing' is not allowed"),
        (("https://x",), "key: holds no key or token"),
    ],
)
def test_what_cannot_be_a_login_is_refused(words: tuple[str, ...], sentence: str, run: Run) -> None:
    result = run("login", *words, typed="\n")
    assert (result.exit_code, result.stdout) == (ExitCode.USAGE, ""), result.output
    assert result.stderr.startswith(f"gpucost: {sentence}")
    assert "hunter2" not in result.output


@pytest.mark.parametrize("content", ["", "two words", "tok\u00e9n", "a\nb", "x" * 70_000])
def test_a_file_without_a_token_is_not_shown(content: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(content, encoding="utf-8")
    result = run("login", "https://127.0.0.1:1", "--token-file", str(tmp_path / "token"))
    assert result.exit_code == ExitCode.USAGE
    assert "key or token" in result.stderr
    assert len(result.stderr) < 500


def test_tls_that_is_not_trusted_says_what_to_do(run: Run, server: Server, login_file: Path) -> None:
    refused = run("login", server.url, "--key-file", str(server.key("fin")))
    assert (refused.exit_code, refused.stdout) == (ExitCode.SOURCE, "")
    assert "its certificate is not trusted here" in refused.stderr
    assert "--ca-file" in refused.stderr
    assert not login_file.exists()
    nobody = run("login", "http://127.0.0.1:1", "--key-file", str(server.key("fin")))
    assert (nobody.exit_code, nobody.stdout) == (ExitCode.SOURCE, "")
    assert "cannot be reached" in nobody.stderr
    plain = run("login", server.url.replace("https", "http"), "--key-file", str(server.key("fin")))
    assert plain.exit_code == ExitCode.SOURCE


def test_the_key_of_a_login_goes_to_its_server_only(
    run: Run, server: Server, pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = format_key("fin", SECRET)
    assert run("login", server.url, "--ca-file", str(pki.ca), typed=key).exit_code == ExitCode.OK
    with scripted_server(Reply(401, {"error": {}})) as other:
        run("--server", other.url, "whoami")
        monkeypatch.setenv("GPUCOST_SERVER", other.url)
        run("whoami")
        assert [asked.headers.get("Authorization") for asked in other.asked] == [None, None]
    assert run("--server", f"{server.url}/", "whoami").exit_code == ExitCode.OK, "the same server, named"


def test_the_token_of_the_environment_goes_to_its_server_only(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("a.token", encoding="utf-8")
    monkeypatch.setenv("GPUCOST_TOKEN_FILE", str(token))
    monkeypatch.setenv("GPUCOST_SERVER", "https://gpucost.test")
    with scripted_server(Reply(401, {"error": {}})) as other:
        refused = run("--server", other.url, "whoami")
        assert (refused.exit_code, refused.stdout, other.asked) == (ExitCode.USAGE, "", [])
        assert "the server of GPUCOST_SERVER, for which GPUCOST_TOKEN_FILE is" in refused.stderr
        monkeypatch.setenv("GPUCOST_SERVER", f"{other.url}/")
        run("--server", other.url, "whoami")
        assert [asked.headers["Authorization"] for asked in other.asked] == ["Bearer a.token"]


def test_a_ledger_named_by_config_wins(
    run: Run, server: Server, pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        run("login", server.url, "--key-file", str(server.key("fin")), "--ca-file", str(pki.ca)).exit_code
        == ExitCode.OK
    )
    Ledger.open(f"sqlite:///{tmp_path / 'own.db'}", now=lambda: 0).close()
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"ledger: {{url: 'sqlite:///{tmp_path / 'own.db'}'}}\n", encoding="utf-8")
    config = ("--config", str(settings))
    assert run(*config, "month", "status").stdout == "the ledger is empty\n"
    refused = run("month", "verify")
    assert refused.stderr.startswith(f"gpucost: this command: cannot ask {server.url}: it needs the ledger")
    both = run(*config, "--server", server.url, "whoami")
    assert both.stderr.startswith("gpucost: --server: so is --config")
    monkeypatch.setenv("GPUCOST_SERVER", "https://nowhere.test")
    assert run(*config, "month", "status").exit_code == ExitCode.OK


def test_the_secret_is_in_no_list_of_processes(server: Server, tmp_path: Path) -> None:
    """Of the command, and of its environment, while it waits for an answer."""
    held = threading.Event()
    slow = Reply(200, {"error": {}}, held=held)
    with scripted_server(slow) as other:
        environ = {
            **os.environ,
            "XDG_CONFIG_HOME": str(tmp_path),
            "GPUCOST_TOKEN_FILE": str(server.key("fin")),
        }
        command = [sys.executable, "-c", _MAIN, "--debug", "--server", other.url, "whoami"]
        process = subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        while not other.asked and process.poll() is None:
            time.sleep(0.01)
        seen = b"".join(Path(f"/proc/{process.pid}/{part}").read_bytes() for part in ("cmdline", "environ"))
        held.set()
        said, _ = process.communicate()
    assert b"GPUCOST_TOKEN_FILE=" in seen
    assert SECRET.encode() not in seen
    assert SECRET not in said
    assert process.returncode == ExitCode.SOURCE
