"""gpucost config check: what serve would read, without a service."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpucost.cli.application import app
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.service.settings.loader import load_settings
from gpucost.service.wiring.configuration import ServiceConfiguration

TEAMS = "version: 1\nteams: [{name: vision}]\nrules: [{team: vision, namespace: vision}]\n"


def check(file: Path) -> Result:
    return CliRunner().invoke(app, ["--config", str(file), "config", "check"])


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    (tmp_path / "teams.yaml").write_text(TEAMS, encoding="utf-8")
    file = tmp_path / "config.yaml"
    text = f"ledger: {{url: 'sqlite:///{tmp_path}/no.db'}}\nteams: {{rules: '{tmp_path}/teams.yaml'}}\n"
    file.write_text(text, encoding="utf-8")
    return file


def test_what_was_read_from_where_is_said(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCOST_LOG__LEVEL", "debug")
    done = check(settings)
    assert done.exit_code == ExitCode.OK, done.output
    lines = done.stdout.splitlines()
    assert lines[:2] == [f"settings: {settings}", "environment: GPUCOST_LOG__LEVEL"]
    assert f"team rules: {settings.parent / 'teams.yaml'}" in lines
    assert lines[-1] == "ok"
    assert not (settings.parent / "no.db").exists()
    monkeypatch.setenv("GPUCOST_CONFIG", str(settings))
    assert CliRunner().invoke(app, ["config", "check"]).stdout == done.stdout


def test_what_is_wrong_is_named(settings: Path) -> None:
    text = settings.read_text("utf-8")
    wrong = {
        "log: {levle: info}": "log.levle",
        "notify: {channels: {room: {url_file: /nowhere}}}": "notify.channels",
        "pricing: {book: /nowhere.yaml}": "/nowhere.yaml",
    }
    for line, name in wrong.items():
        settings.write_text(f"{text}{line}\n", encoding="utf-8")
        done = check(settings)
        assert (done.exit_code, done.stdout) == (ExitCode.USAGE, ""), done.output
        assert name in done.stderr
    for url in ("postgres://db/gpucost", "postgresql+psycopg://gpucost:hunter2@db:port/gpucost"):
        settings.write_text(f"ledger: {{url: '{url}'}}", encoding="utf-8")
        done = check(settings)
        assert (done.exit_code, done.stdout) == (ExitCode.USAGE, ""), done.output
        assert "ledger.url" in done.stderr
        assert "hunter2" not in done.stderr
    settings.write_text(text, encoding="utf-8")
    (settings.parent / "teams.yaml").write_text(TEAMS.replace("rules:", "ruels:"), encoding="utf-8")
    done = check(settings)
    assert done.exit_code == ExitCode.USAGE
    assert "ruels" in done.stderr


def test_the_charge_policy_is_read_and_checked_against_the_team_rules(settings: Path) -> None:
    """A team that no rule can give is refused; where a rule takes the team from a label, any name may be one.
    The policy is a file that the service watches, and a part of its hash."""
    file = settings.parent / "policy.yaml"
    settings.write_text(f"{settings.read_text('utf-8')}charges: {{policy: '{file}'}}\n", encoding="utf-8")
    file.write_text("version: 1\nname: a\nlimits: [{team: vision, cap: 1}]\n", encoding="utf-8")
    done = check(settings)
    assert f"charge policy: {file}" in done.stdout.splitlines()
    assert "other files: none" in done.stdout.splitlines()
    read = partial(ServiceConfiguration.read, partial(load_settings, settings))
    before = read()
    hashes = {before.hash}
    assert file in before.files()
    file.write_text("version: 1\nname: a\nlimits: [{team: visoin, cap: 1}]\n", encoding="utf-8")
    refused = check(settings)
    assert (refused.exit_code, refused.stdout) == (ExitCode.USAGE, "")
    assert (
        f"{file}: limits[0].team: 'visoin' is not allowed; allowed: a team of the team rules"
        in refused.stderr
    )
    rules = settings.parent / "teams.yaml"
    opened = TEAMS.replace("namespace: vision}]", "namespace: vision}, {team_from: team_label}]")
    rules.write_text(opened, encoding="utf-8")
    after = read()
    hashes.add(after.hash)
    assert [each.team for each in after.policy.file.limits] == ["visoin"]
    rules.write_text(TEAMS, encoding="utf-8")
    file.write_text("version: 1\nname: b\n", encoding="utf-8")
    assert len(hashes | {read().hash}) == 3
