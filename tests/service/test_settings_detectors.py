"""Settings of the detectors: groups within a group, in file and environment; overrides and exemptions."""

from __future__ import annotations

import itertools
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

from gpucost.detectors.engine.registry import RULES
from gpucost.detectors.findings import WastePattern
from gpucost.detectors.rule_settings import IdleAllocationSettings
from gpucost.domain.errors import ConfigError
from gpucost.domain.time import parse_instant
from gpucost.service.settings.detectors import DetectorsSettings
from gpucost.service.settings.loader import environment_names, load_settings
from gpucost.service.settings.model import Settings

IDLE = WastePattern.IDLE_ALLOCATION


def load(folder: Path, text: str) -> Settings:
    file = folder / "settings.yaml"
    file.write_text(text, encoding="utf-8")
    return load_settings(file)


def test_every_rule_has_a_group_of_its_own_settings() -> None:
    settings = DetectorsSettings()
    assert {pattern: type(settings.of(pattern)) for pattern in WastePattern} == {
        pattern: rule.settings for pattern, rule in RULES.items()
    }
    for pattern, rule in RULES.items():
        assert settings.rules.of(pattern).default == rule.settings()


def test_every_setting_of_a_rule_is_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    names = environment_names()
    wanted = {
        f"GPUCOST_DETECTORS__{pattern.value}__{key}".upper()
        for pattern, rule in RULES.items()
        for key in rule.settings.model_fields
    }
    assert wanted <= {*names}
    assert len(names) == len({*names})
    monkeypatch.setenv("GPUCOST_DETECTORS__IDLE_ALLOCATION__BATCH", "90m")
    monkeypatch.setenv("GPUCOST_DETECTORS__UNHEALTHY_ALLOCATED__PROGRAMS_XIDS", "[13]")
    monkeypatch.setenv("GPUCOST_DETECTORS__MONOPOLY__AGREED", '["research"]')
    monkeypatch.setenv("GPUCOST_DETECTORS__GANG_STALL__ENABLED", "false")
    found = load_settings().detectors
    assert found.idle_allocation.batch == timedelta(minutes=90)
    assert found.unhealthy_allocated.programs_xids == {13}
    assert found.monopoly.agreed == ("research",)
    assert not found.rules.of(WastePattern.GANG_STALL).default.enabled


def test_the_environment_wins_key_by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCOST_DETECTORS__IDLE_ALLOCATION__BATCH", "90m")
    found = load(tmp_path, "detectors: {idle_allocation: {batch: 8h, serving: 6h}}").detectors
    assert (found.idle_allocation.batch, found.idle_allocation.serving) == (
        timedelta(minutes=90),
        timedelta(hours=6),
    )


WRONG = {
    "a typo in a rule": (
        "idle_alocation: {batch: 1h}",
        "detectors.idle_alocation",
        "unknown key",
        "idle_allocation (did you mean this?)",
    ),
    "a typo in a key": (
        "idle_allocation: {bach: 1h}",
        "detectors.idle_allocation.bach",
        "unknown key",
        "batch (did you mean this?)",
    ),
    "no unit": (
        "idle_allocation: {batch: 60}",
        "detectors.idle_allocation.batch",
        "60",
        "a whole number and a unit",
    ),
    "below a bound": (
        "idle_allocation: {batch: 1m}",
        "detectors.idle_allocation.batch",
        "'0:01:00'",
        "greater than or equal to 5 minutes",
    ),
    "above a bound": ("monopoly: {share: 2}", "detectors.monopoly.share", "2", "less than 1"),
    "an empty group": ("monopoly:", "detectors.monopoly", "None", "a mapping of enabled"),
    "too short a history": ("history: 1h", "detectors.history", "1:00:00", "at least 1 day"),
    "an override of nothing known": (
        "overrides: [{detector: idle, settings: {}}]",
        "detectors.overrides[0].detector",
        "'idle'",
        "such as idle_allocation",
    ),
    "a typo in an override": (
        "overrides: [{detector: idle_allocation, settings: {bach: 1h}}]",
        "detectors.overrides[0].settings.bach",
        "unknown key",
        "batch (did you mean this?)",
    ),
    "below a bound in an override": (
        "overrides: [{detector: idle_allocation, settings: {batch: 1m}}]",
        "detectors.overrides[0].settings.batch",
        "'0:01:00'",
        "greater than or equal to 5 minutes",
    ),
    "no unit in an override": (
        "overrides: [{detector: idle_allocation, settings: {batch: 60}}]",
        "detectors.overrides[0].settings.batch",
        "60",
        "a whole number and a unit",
    ),
    "an override of what holds everywhere": (
        "overrides: [{detector: idle_allocation, settings: {rehearsal: true}}]",
        "detectors.overrides[0].settings.rehearsal",
        "cannot differ",
        "rehearsal in the group idle_allocation",
    ),
    "an override where nothing has a namespace": (
        "overrides: [{detector: not_advertised, namespaces: [a], settings: {after: 1h}}]",
        "detectors.overrides[0].detector",
        "'not_advertised'",
        "a detector of jobs, queues or teams",
    ),
    "an exemption for ever": (
        "exemptions: [{reason: r, teams: [a]}]",
        "detectors.exemptions[0].until",
        "missing",
        "A day",
    ),
    "an exemption of everything": (
        "exemptions: [{until: 2026-12-31, reason: r}]",
        "detectors.exemptions[0]",
        "nothing is named",
        "at least one of detectors",
    ),
    "a context without its state": (
        "{state: in-cluster, context: prod}",
        "detectors.state",
        "'in-cluster'",
        "kubeconfig where",
    ),
}


@pytest.mark.fault(67)
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named_with_its_line(case: str, tmp_path: Path) -> None:
    text, key, value, allowed = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"ledger: {{}}\ndetectors:\n  {text}\n")
    assert str(caught.value).startswith(f"{tmp_path / 'settings.yaml'}:3: {key}: ")
    assert caught.value.field == key
    assert value in str(caught.value)
    assert allowed in caught.value.allowed


@pytest.mark.fault(67)
@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("GPUCOST_DETECTORS__IDLE_ALLOCATION__BACH", "1h", "IDLE_ALLOCATION__BATCH (did you mean this?)"),
        ("GPUCOST_DETECTORS__IDLE_ALLOCATION", "{}", "GPUCOST_DETECTORS__IDLE_ALLOCATION__"),
        ("GPUCOST_DETECTORS__IDLE_ALLOCATION__BATCH", "60", "a whole number and a unit"),
        ("GPUCOST_DETECTORS__IDLE_ALLOCATION__BATCH", "1m", "greater than or equal to 5 minutes"),
        ("GPUCOST_DETECTORS__MONOPOLY__SHARE", "half", "The part of all allocated GPU time, 0 to 1"),
        ("GPUCOST_DETECTORS__INTERVAL", "1s", "at least"),
        ("GPUCOST_DETECTORS__OVERRIDES", '[{"detector": "idle"}]', "such as idle_allocation"),
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


def test_lists_in_the_environment_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCOST_DETECTORS__MONOPOLY__AGREED", "research")
    with pytest.raises(ConfigError, match=r"MONOPOLY__AGREED: .*JSON for lists"):
        load_settings()


OVERRIDES = """
detectors:
  idle_allocation: {batch: 3h, serving: 6h}
  overrides:
    - {detector: idle_allocation, namespaces: [night-*], settings: {batch: 8h}}
    - {detector: idle_allocation, queues: [slow], settings: {batch: 9h}}
    - {detector: monopoly, settings: {share: 0.75}}
"""


def test_the_first_override_that_applies_counts_and_keeps_the_rest(tmp_path: Path) -> None:
    rules = load(tmp_path, OVERRIDES).detectors.rules
    idle = rules.of(IDLE)
    places = (("night-1", "slow"), ("day", "slow"), ("day", "fast"))
    assert [idle.at(*place).batch for place in places] == [timedelta(hours=n) for n in (8, 9, 3)]
    assert {idle.at(*place).serving for place in places} == {timedelta(hours=6)}
    assert rules.of(WastePattern.MONOPOLY).at("any", "any").share == 0.75
    assert rules.of(WastePattern.FRAGMENTATION).overrides == ()


def test_overrides_and_exemptions_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    override = '[{"detector": "idle_allocation", "namespaces": ["a"], "settings": {"batch": "8h"}}]'
    monkeypatch.setenv("GPUCOST_DETECTORS__OVERRIDES", override)
    exemption = '[{"until": "2026-12-31", "reason": "move", "teams": ["a"]}]'
    monkeypatch.setenv("GPUCOST_DETECTORS__EXEMPTIONS", exemption)
    found = load_settings().detectors
    assert found.rules.of(IDLE).at("a").batch == timedelta(hours=8)
    (exempt,) = found.exempt
    assert exempt.until_ms == parse_instant("2026-12-31T00:00:00Z")
    assert (exempt.reason, exempt.teams, exempt.queues) == ("move", ("a",), ())


@pytest.mark.parametrize("least", ["interval", "history"])
def test_bounds_hold_in_code_too(least: str) -> None:
    with pytest.raises(ValidationError):
        DetectorsSettings.model_validate({least: timedelta(seconds=1)})


def test_keys_of_different_rules_do_not_share_a_variable() -> None:
    """``a__b`` within one group would be ``b`` of the group ``a``."""
    keys = itertools.chain(IdleAllocationSettings.model_fields, (pattern.value for pattern in WastePattern))
    assert not [key for key in keys if "__" in key]


@pytest.mark.parametrize(("serving", "before"), [("4h", 24), ("11h", 24), ("12h", 36), ("3d", 96)])
def test_how_much_before_a_day_is_read_is_fixed(serving: str, before: int) -> None:
    """Half days: those that the longest stretch reaches into, and the one before, from which rules learn."""
    rule = IdleAllocationSettings.model_validate({"serving": serving})
    assert DetectorsSettings(idle_allocation=rule).looks_before == timedelta(hours=before)
