"""Settings: a wrong one stops the start and says where it stands, what it is, and what would do."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from gpucost.domain.configfile import described
from gpucost.domain.errors import ConfigError
from gpucost.domain.gpu import ShareBasis
from gpucost.service.settings.api import ApiSettings
from gpucost.service.settings.loader import environment_names, load_settings
from gpucost.service.settings.model import Settings
from gpucost.service.settings_docs import render
from gpucost.settings.types import groups_in

ROOT = Path(__file__).parents[2]


def load(folder: Path, text: str) -> Settings:
    file = folder / "settings.yaml"
    file.write_text(text, encoding="utf-8")
    return load_settings(file)


def test_the_defaults_need_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUCOST_CONFIG", raising=False)
    settings = load_settings()
    assert settings.ingest.window == timedelta(hours=1)
    assert settings.ledger.database_url() == "sqlite:///gpucost.db"


def test_a_file_is_read_and_the_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCOST_INGEST__WINDOW", "15m")
    monkeypatch.setenv("GPUCOST_PROMETHEUS__REPLICA_LABELS", '["replica"]')
    settings = load(tmp_path, "ingest: {window: 1h, poll: 30s}\nattribution: {basis: memory}\n")
    assert settings.ingest.window == timedelta(minutes=15)
    assert settings.ingest.poll == timedelta(seconds=30)
    assert settings.attribution.basis is ShareBasis.MEMORY
    assert settings.prometheus.replica_labels == ("replica",)


def test_the_environment_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "g.yaml"
    file.write_text("api: {port: 9000}", encoding="utf-8")
    monkeypatch.setenv("GPUCOST_CONFIG", str(file))
    assert load_settings().api.port == 9000


WRONG = {
    "typo in a key": ("ingest: {windw: 1h}", "ingest.windw", "unknown key", "window (did you mean this?)"),
    "typo in a group": ("ingets: {window: 1h}", "ingets", "unknown key", "ingest (did you mean this?)"),
    "no unit": ("ingest: {window: 3600}", "ingest.window", "3600", "a whole number and a unit"),
    "wrong unit": ("ingest: {window: 1hour}", "ingest.window", "'1hour'", "a whole number and a unit"),
    "not a part of a day": ("ingest: {window: 7h}", "ingest.window", "7:00:00", "a part of a day"),
    "a key twice": ("ingest: {poll: 1m, poll: 2m}", "ingest.poll", "duplicate key", "every key once"),
    "out of range": ("api: {port: 99999}", "api.port", "99999", "0 to 65535"),
    "not one of": ("source: {kind: graphite}", "source.kind", "'graphite'", "or recorded: Parquet files"),
    "not a mapping": ("[1]", "(top level)", "not shown here", "a mapping of ledger"),
    "an empty group": ("api:", "api", "None", "a mapping of host"),
    "missing secret file": (
        "ledger: {url_file: /nonexistent/url}",
        "ledger.url_file",
        "'/nonexistent/url'",
        "a file that exists",
    ),
    "a share above one": (
        "attribution: {resources: {x/gpu: 2}}",
        "attribution.resources.x/gpu",
        "2",
        "at most 1",
    ),
    "auth off in the open": ("api: {host: 0.0.0.0, auth: off}", "api.auth", "'off'", "loopback"),
    "a viewer without teams": (
        f"api: {{keys: [{{id: a, sha256: {'0' * 64}}}]}}",
        "api.keys[0].teams",
        "[]",
        "teams for the roles viewer",
    ),
    "duplicate key ids": (
        f"api: {{keys: [{', '.join(['{id: a, role: admin, sha256: ' + '0' * 64 + '}'] * 2)}]}}",
        "api.keys",
        "['a', 'a']",
        "all different",
    ),
    "user info in a URL": (
        "prometheus: {url: 'http://u:hunter2@h'}",
        "prometheus.url",
        "it has user info",
        "without user",
    ),
    "a line end in a URL": (
        'prometheus: {url: "http://h\\r\\nX: y"}',
        "prometheus.url",
        "not shown here",
        "of the signs",
    ),
    "a variable in a URL": (
        "notify: {base_url: 'http://${HOME}/'}",
        "notify.base_url",
        "not shown here",
        "of the signs",
    ),
    "a backslash in a URL": (
        "access: {oidc: {issuer: 'https://h\\evil'}}",
        "access.oidc.issuer",
        "evil",
        "of the signs",
    ),
    "no path for recorded": (
        "source: {kind: recorded}",
        "source.path",
        "missing",
        "a folder when kind is recorded",
    ),
    "a secret for a list of keys": ("api: {keys: gpc_a_hunter2}", "api.keys", "not shown", "API keys"),
    "a secret for a key": ("api: {keys: [gpc_a_hunter2]}", "api.keys[0]", "not shown", "id, sha256"),
    "a secret for an id": (
        f"api: {{keys: [{{id: gpc_a_hunter2, sha256: {'0' * 64}}}]}}",
        "api.keys[0].id",
        "not shown",
        "1 to 32",
    ),
    "a secret for a group": ("ledger: hunter2", "ledger", "not shown", "a mapping of url"),
    "a secret for the settings": ("hunter2", "(top level)", "not shown", "a mapping of ledger"),
    "a list of URLs": ("prometheus: {url: ['http://u:hunter2@h']}", "prometheus.url", "not shown", "http"),
    "a token of two lines": (
        'prometheus: {bearer_token: "one\\nhunter2"}',
        "prometheus.bearer_token",
        "not fit for a header",
        "printable",
    ),
    "coverage above one": ("ledger: {close_coverage: 1.5}", "ledger.close_coverage", "1.5", "from 0 to 1"),
}


@pytest.mark.fault(67)
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_in_a_file_is_named_with_its_line(case: str, tmp_path: Path) -> None:
    text, key, value, allowed = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'settings.yaml'}")
    assert caught.value.field == key
    assert value in message
    assert allowed in caught.value.allowed
    assert "hunter2" not in message


@pytest.mark.fault(67)
@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("GPUCOST_API__PROT", "1", "GPUCOST_API__PORT (did you mean this?)"),
        ("GPUCOST_SOMETHING", "1", "docs/settings.md"),
        ("GPUCOST_API__PORT", "http", "TCP port"),
        ("GPUCOST_API__KEYS", "[{", "JSON for lists and maps"),
        ("GPUCOST_INGEST__WINDOW", "soon", "a whole number and a unit"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named(
    name: str, value: str, allowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert str(caught.value).startswith(f"environment: {name}: ")
    assert allowed in caught.value.allowed


@pytest.mark.fault(67)
@pytest.mark.parametrize(
    "text",
    [
        "ledger: {url: [hunter2]}",
        "prometheus: {bearer_token: [hunter2]}",
        "prometheus: {username: u, password: {hunter2: 1}}",
        "api: {keys: [{id: a, role: admin, sha256: hunter2}]}",
    ],
)
def test_a_secret_is_never_shown(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert "hunter2" not in str(caught.value)


def test_the_variables_of_kubernetes_services_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    of_a_service = {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT_HTTP": "80",
        "PORT": "tcp://10.0.0.1:80",
        "PORT_80_TCP_ADDR": "10.0.0.1",
    }
    for name, value in of_a_service.items():
        monkeypatch.setenv(f"GPUCOST_{name}", value)
    monkeypatch.setenv("GPUCOST_PROMETHEUS_SERVICE_HOST", "10.0.0.2")
    assert load_settings().api.port == 8080
    monkeypatch.setenv("GPUCOST_PORT", "8081")  # a person's, who means the port of the API
    with pytest.raises(ConfigError, match="GPUCOST_PORT: unknown setting"):
        load_settings()


def test_secrets_do_not_appear_in_repr(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        "ledger: {url: 'postgresql+psycopg://u:hunter2@h/d'}\nprometheus: {bearer_token: hunter2}\n",
    )
    assert "hunter2" not in repr(settings)
    assert settings.prometheus.token() == "hunter2"


def test_secrets_come_from_files_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2\n", encoding="utf-8")
    settings = load(tmp_path, f"prometheus: {{bearer_token_file: {tmp_path / 'token'}}}")
    assert settings.prometheus.token() == "hunter2"
    with pytest.raises(ConfigError, match="not both"):
        load(tmp_path, f"prometheus: {{bearer_token: a, bearer_token_file: {tmp_path / 'token'}}}")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_auth_may_be_off_on_loopback(host: str) -> None:
    assert ApiSettings(host=host, auth="off").auth == "off"


def test_a_missing_or_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_settings(tmp_path / "nowhere.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_settings(tmp_path / "latin.yaml")


def test_the_documentation_is_up_to_date() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page == render(), "run: python -m gpucost.service.settings_docs > docs/settings.md"
    assert all(f"`{name}`" in page for name in environment_names())


def test_every_setting_says_what_it_is() -> None:
    groups = Settings.groups()
    for name, model in (*groups.items(), *groups_in(groups["detectors"]).items()):
        assert model.__doc__
        for key in model.model_fields:
            assert described(model, key) or key in groups_in(model), f"{name}.{key} has no description"


@pytest.mark.parametrize("setting", ["prometheus: {{bearer_token_file: {}}}", "ledger: {{url_file: {}}}"])
@pytest.mark.parametrize("content", ["first\nhunter2\n", "\n"])
def test_a_file_of_a_secret_has_one_line(setting: str, content: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match="a file of one line") as caught:
        load(tmp_path, setting.format(file))
    assert "hunter2" not in str(caught.value)
