"""gpucost key: keys in the ledger and for the settings, shown once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpucost.access.keys import hash_secret
from gpucost.cli.application import app
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.domain.scope import EVERYTHING
from gpucost.ledger.ledger import Ledger
from gpucost.service.settings.loader import load_settings
from tests.cli.api_server import Server, served
from tests.support.http import Reply, scripted_server

Run = Callable[..., Result]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def run(tmp_path: Path, url: str) -> Run:
    """With a ledger that is not there yet: the first key is made before the service ever ran."""
    settings = tmp_path / "settings.yaml"
    fixed = f"{{id: fixed, sha256: {'0' * 64}, role: finance}}"
    settings.write_text(f"ledger: {{url: '{url}'}}\napi: {{keys: [{fixed}]}}\n", encoding="utf-8")

    def call(*words: str) -> Result:
        return CliRunner().invoke(app, ["--config", str(settings), "key", *words])

    return call


def kept(url: str) -> Ledger:
    return Ledger.open(url, now=lambda: 0)


def test_a_key_is_kept_as_a_hash_and_told_on_stdout_alone(run: Run, url: str) -> None:
    words = (
        "--role",
        "team-admin",
        "--team",
        "a",
        "--team",
        "b",
        "--cluster",
        "c",
        "--expires",
        "2099-01-01",
    )
    made = run("add", "ada", *words, "--note", "hers", "--author", "root")
    assert made.exit_code == ExitCode.OK, made.output
    key = made.stdout.removesuffix("\n")
    assert key.startswith("gpc_ada_")
    assert made.stderr == "gpucost: the key ada is shown once; who has it is team-admin\n"
    with kept(url) as ledger:
        [found] = ledger.api_keys()
        [entry] = ledger.audit(EVERYTHING)
    assert found.sha256 == hash_secret(key.removeprefix("gpc_ada_"))
    assert (found.teams, found.clusters) == (frozenset({"a", "b"}), frozenset({"c"}))
    assert (found.created_by, found.note) == ("root", "hers")
    assert (entry.action, entry.author) == ("key issue", "root")


@pytest.mark.fault(49)
def test_the_list_says_what_became_of_each(run: Run, url: str) -> None:
    assert run("list").exit_code == ExitCode.LEDGER, "reading makes no ledger"
    secrets = [run("add", name, "--role", "finance", "--author", "ann").stdout for name in ("one", "two")]
    assert run("revoke", "two", "--reason", "left").stdout == "the key two is revoked\n"
    with kept(url) as ledger:
        ledger.keys_used({"one": 1_790_000_000_123})
    listed = run("list")
    rows = {line.split()[0]: line.split() for line in listed.stdout.splitlines()}
    assert rows["id"][-1] == "state"
    assert rows["one"] == ["one", "finance", "all", "never", "2026-09-21T14:13:20Z", "ann", "valid"]
    assert rows["two"][-1] == "revoked"
    assert not any(secret.strip() in listed.stdout for secret in secrets)


_WRONG = (
    (("add", "ada"), "--team: missing"),
    (("add", "ada", "--role", "finance", "--team", "x"), "--team: 'x' is not allowed"),
    (("add", "A B", "--role", "admin"), "ID: 'A B' is not allowed"),
    (("add", "loopback", "--role", "admin"), "ID: 'loopback' is not allowed; allowed: another id"),
    (("hash", "loopback", "--role", "admin"), "ID: 'loopback' is not allowed; allowed: another id"),
    (("add", "fixed", "--role", "admin"), "ID: 'fixed' is not allowed"),
    (("add", "x", "--role", "admin", "--expires", "soon"), "--expires: 'soon' is not allowed"),
    (("add", "x", "--role", "admin", "--expires", "2020-01-01"), "--expires: '2020-01-01' is not allowed"),
    (("add", "x", "--role", "admin", "--note", "n" * 1001), "--note: "),
    (("revoke", "nobody"), "ID: 'nobody' is not allowed; allowed: the id of a key"),
)


def test_wrong_words_are_named(run: Run) -> None:
    assert run("add", "known", "--role", "admin").exit_code == ExitCode.OK
    for words, sentence in _WRONG:
        result = run(*words)
        assert (result.exit_code, result.stdout) == (ExitCode.USAGE, ""), result.output
        assert result.stderr.startswith(f"gpucost: {sentence}")


@pytest.mark.fault(49)
def test_a_revocation_names_what_the_key_made(run: Run) -> None:
    run("add", "ada", "--role", "admin")
    for name in ("bot", "eve"):
        run("add", name, "--role", "admin", "--author", "ada")
    told = run("revoke", "ada").stdout.splitlines()
    assert told[0] == "the key ada is revoked"
    assert told[1].startswith("2 valid keys made in its name: ")
    assert "bot" in told[1]
    assert "eve" in told[1]


@pytest.mark.parametrize("key", ["gpc_eve_\x1b]0;owned\x07", "gpc_eve_a\n", "rm -rf", "gpc_eve_\u202e"])
def test_what_a_server_gives_as_a_key_is_a_key(key: str) -> None:
    with scripted_server(Reply(201, {"key": key, "made": {}})) as other:
        words = ["--server", other.url, "key", "add", "eve", "--role", "admin"]
        result = CliRunner().invoke(app, words)
    assert (result.exit_code, result.stdout) == (ExitCode.SOURCE, "")
    assert "answers with no key" in result.stderr


def test_an_id_is_given_once(run: Run) -> None:
    assert run("add", "ada", "--role", "admin").exit_code == ExitCode.OK
    run("revoke", "ada")
    again = run("add", "ada", "--role", "admin")
    assert again.stderr.startswith("gpucost: ID: 'ada' is not allowed; allowed: an id that no key has or had")


def test_the_hash_for_the_settings_has_clusters_and_roles(run: Run, tmp_path: Path) -> None:
    result = run(
        "hash", "lead", "--role", "team-admin", "--team", "a", "--cluster", "c", "--expires", "2099-01-01"
    )
    assert result.exit_code == ExitCode.OK, result.output
    (tmp_path / "keys.yaml").write_text(result.stdout, encoding="utf-8")
    [stored] = load_settings(tmp_path / "keys.yaml").api.keys
    key = result.stderr.strip().rpartition(" ")[2]
    assert stored.record().clusters == frozenset({"c"})
    assert stored.sha256 == hash_secret(key.removeprefix("gpc_lead_"))
    assert key.removeprefix("gpc_lead_") not in result.stdout


def test_a_team_admin_keeps_keys_through_the_server(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(server: Server, *words: str) -> Result:
        return CliRunner().invoke(app, ["--server", server.url, "key", *words])

    with served(url, tmp_path / "keys") as server:
        monkeypatch.setenv("GPUCOST_TOKEN_FILE", str(server.key("lead")))
        made = ask(server, "add", "eve", "--team", "vision")
        assert made.exit_code == ExitCode.OK, made.output
        assert made.stdout.startswith("gpc_eve_")
        names = [line.split()[0] for line in ask(server, "list").stdout.splitlines()]
        assert sorted(names) == ["eve", "id", "vera"], "and none of the others"
        foreign = ask(server, "revoke", "root")
        assert (
            foreign.stderr == "gpucost: ID: 'root' is not allowed; allowed: the id of a key that you keep\n"
        )
        monkeypatch.setenv("GPUCOST_TOKEN_FILE", str(server.key("vera")))
        assert "the role viewer may not keep keys;" in ask(server, "list").stderr
        monkeypatch.setenv("GPUCOST_TOKEN_FILE", str(server.key("lead")))
        refused = ask(server, "add", "new", "--role", "admin")
        assert refused.stderr.startswith("gpucost: --role: 'admin' is not allowed; allowed: viewer")
        assert ask(server, "revoke", "eve").stdout == "the key eve is revoked\n"
        found = server.ledger.key("eve")
        assert found is not None
        assert (found.created_by, found.revoked_by) == ("lead", "lead")
