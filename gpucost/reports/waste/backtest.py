"""A backtest: what detectors would have found on past days, without sending anything.

``explained`` describes an anti-pattern: what it is, where its page is, what its settings are.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from gpucost.detectors.engine.registry import RULES
from gpucost.detectors.findings import Finding, WastePattern
from gpucost.detectors.rule_settings import DetectorSettings
from gpucost.domain.configfile import described
from gpucost.domain.time import iso
from gpucost.reports.base.values import CostAmount
from gpucost.reports.waste.findings import SubjectPart
from gpucost.settings.types import setting_value


@dataclass(frozen=True, slots=True)
class BacktestCluster:
    """``days`` whole days up to ``end`` could be assessed, of those requested."""

    cluster: str
    end: str
    days: int


@dataclass(frozen=True, slots=True)
class BacktestFindingRow:
    """A finding as it was on the last of the ``days`` of ``of`` on which it was found; ``wasted`` is added up
    over them. One that is not ``counted`` is a view, in no sum."""

    pattern: str
    variant: str
    severity: str
    subject: SubjectPart
    team: str
    since: str
    days: int
    of: int
    wasted: CostAmount
    counted: bool
    summary: str
    action: str
    patch: str


@dataclass(frozen=True, slots=True)
class BacktestAbsence:
    """What a detector withheld on these days: ``because`` completes "not said, because …"."""

    pattern: str
    because: str
    lacks_data: bool
    times: int


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The findings, the most expensive first. None of them was stored. ``withheld`` is by pattern, the most
    frequent first."""

    currency: str
    days: int
    clusters: tuple[BacktestCluster, ...]
    findings: tuple[BacktestFindingRow, ...]
    withheld: tuple[BacktestAbsence, ...] = ()


@dataclass(frozen=True, slots=True)
class DayPresence:
    """A finding of several days, with its waste on all of them."""

    finding: Finding
    days: int
    of: int
    wasted: CostAmount


def rehearsal(
    currency: str,
    days: int,
    clusters: Sequence[BacktestCluster],
    found: Sequence[DayPresence],
    withheld: Sequence[BacktestAbsence] = (),
) -> Rehearsal:
    """The report, for any order of ``found`` and ``withheld``."""
    ranked = sorted(
        found,
        key=lambda each: (-(each.wasted.nano or 0), -each.wasted.board_ms, each.finding.fingerprint),
    )
    unsaid = sorted(withheld, key=lambda each: (each.pattern, -each.times, each.because))
    return Rehearsal(currency, days, tuple(clusters), tuple(map(_row, ranked)), tuple(unsaid))


def _row(found: DayPresence) -> BacktestFindingRow:
    finding, draft = found.finding, found.finding.draft
    subject = draft.subject
    return BacktestFindingRow(
        pattern=draft.pattern.value,
        variant=draft.variant,
        severity=finding.severity.value,
        subject=SubjectPart(
            subject.kind.value, subject.cluster, subject.namespace, subject.name, subject.uid
        ),
        team=draft.team,
        since=iso(draft.since_ms),
        days=found.days,
        of=found.of,
        wasted=found.wasted,
        counted=finding.wasted.counted,
        summary=draft.summary,
        action=draft.action.text,
        patch=draft.action.patch,
    )


_REFERENCE = re.compile(r"\s*\([^()]*antipatterns[^()]*\)|\s+antipatterns \d[\d.]*;?")


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting of a rule: its value, its default, and its meaning. Empty: not set."""

    key: str
    value: str
    default: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Explained:
    """``page`` is a path in gpucost's documentation, ``group`` the group of the settings' file."""

    pattern: str
    meaning: str
    page: str
    group: str
    settings: tuple[SettingRow, ...]


def explained(pattern: WastePattern, settings: DetectorSettings) -> Explained:
    """``settings`` are those of the rule where no override applies."""
    default = type(settings)()
    return Explained(
        pattern=pattern.value,
        meaning=_paragraph(sys.modules[RULES[pattern].run.__module__].__doc__),
        page=f"docs/detectors/{pattern.value}.md",
        group=f"detectors.{pattern.value}",
        settings=tuple(
            SettingRow(
                name,
                _value(getattr(settings, name)),
                _value(getattr(default, name)),
                _paragraph(described(type(settings), name)),
            )
            for name in type(settings).model_fields
        ),
    )


def _value(value: object) -> str:
    """The value as text; empty where it is not set."""
    return "" if value is None else setting_value(value)


def _paragraph(text: str | None) -> str:
    """The first paragraph of a docstring, for readers without the source code."""
    return " ".join(_REFERENCE.sub("", text or "").replace("``", "").split())
