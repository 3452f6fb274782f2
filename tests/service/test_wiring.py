"""Settings -> parts: the source that was asked for, with its secrets where they are not shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import SecretStr

from gpucost.domain.buckets import NO_TEAM
from gpucost.domain.errors import ConfigError, InputError
from gpucost.domain.time import DAY_MS, Window
from gpucost.service.settings.model import PrometheusSettings, Settings
from gpucost.service.wiring.inputs import load_book, load_teams, parse_source
from gpucost.service.wiring.source import TrialLook, open_source
from gpucost.telemetry.dialect_sources import FallbackSource, source_by_day
from gpucost.telemetry.prometheus_source import PrometheusSource
from gpucost.telemetry.recorded_source import RecordedSource, record
from gpucost.telemetry.upstream.upstream_source import UpstreamSource
from tests.service.worlds import Clock, frames

NOW_MS = 1_790_812_800_000


def test_a_source_is_named_on_the_command_line(tmp_path: Path) -> None:
    record(tmp_path, frames())
    recorded = parse_source(f"recorded:{tmp_path}", Settings())
    assert isinstance(open_source(recorded, load_book(None), Clock()), RecordedSource)
    prometheus = parse_source("prometheus:https://p.example/prefix/", recorded)
    source = open_source(prometheus, load_book(None), Clock())
    assert isinstance(source, FallbackSource)
    assert source.name == "prometheus https://p.example/prefix"


@pytest.mark.parametrize(
    ("dialect", "kind"),
    [("auto", FallbackSource), ("gpucost", PrometheusSource), ("existing", UpstreamSource)],
)
def test_the_dialect_is_a_setting(dialect: Literal["auto", "gpucost", "existing"], kind: type) -> None:
    settings = Settings(prometheus=PrometheusSettings(dialect=dialect))
    assert isinstance(open_source(settings, load_book(None), Clock()), kind)


@pytest.mark.parametrize(
    "text", ["", "recorded", "recorded:", "prometheus:", "prometheus:localhost:9090", "file:/etc/passwd"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_source(text, Settings())


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        open_source(parse_source(f"recorded:{tmp_path / 'nowhere'}", Settings()), load_book(None), Clock())


def test_what_is_kept_of_days_is_of_who_is_logged_in() -> None:
    """Behind one address there may be a server for each tenant."""

    def kept(**login: Any) -> str:
        settings = Settings(prometheus=PrometheusSettings(**login))
        source = open_source(
            settings, load_book(None), Clock(), look=TrialLook(NOW_MS, Window(NOW_MS - DAY_MS, NOW_MS))
        )
        by_day = source_by_day(source)
        assert by_day is not None
        assert by_day._cache is not None
        assert "secret" not in by_day._cache.identity
        return by_day._cache.identity

    logins: list[dict[str, Any]] = [
        {},
        {"bearer_token": SecretStr("secret-a")},
        {"bearer_token": SecretStr("secret-b")},
        {"username": "a", "password": SecretStr("secret-a")},
        {"username": "b", "password": SecretStr("secret-a")},
        {"username": "a", "password": SecretStr("secret-b")},
    ]
    assert len({kept(**each) for each in logins}) == len(logins)
    assert kept(**logins[1]) == kept(**logins[1])


def test_secrets_reach_the_wire_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("p@ss/word:1\n", encoding="utf-8")
    settings = Settings(
        prometheus=PrometheusSettings(
            url="http://p.example",
            username="u@x",
            password_file=tmp_path / "password",
            bearer_token="hunter2",
            dialect="gpucost",
        )
    )
    source = open_source(settings, load_book(None), Clock())
    assert isinstance(source, PrometheusSource)
    assert source.name == "prometheus http://p.example"
    client = source._client
    assert client.auth == ("u@x", "p@ss/word:1")
    assert client.headers["Authorization"] == "Bearer hunter2"
    assert "hunter2" not in repr(settings)


def test_the_book_that_ships_is_the_default_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    assert load_book(None).currency == "USD"
    (tmp_path / "b.yaml").write_text("version: 2", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"b\.yaml"):
        load_book(tmp_path / "b.yaml")


def test_without_rules_the_team_label_decides() -> None:
    held = frames().allocations
    assert set(load_teams(None).assign(held, 0)) == {NO_TEAM}
