"""An anti-pattern in words: what it is, where its page is, what its settings are."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from gpucost.detectors.findings import Pattern
from gpucost.detectors.registry import RULES
from gpucost.detectors.settings import DetectorSettings
from gpucost.settings.page import shown

_REFERENCE = re.compile(r"\s*\([^()]*antipatterns[^()]*\)|\s+antipatterns \d[\d.]*;?")


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting of a rule: what it is now, by default, and what it means. Empty: not set."""

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


def explained(pattern: Pattern, settings: DetectorSettings) -> Explained:
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
                _paragraph(field.description),
            )
            for name, field in type(settings).model_fields.items()
        ),
    )


def _value(value: object) -> str:
    """Empty for what is not set."""
    return "" if value is None else shown(value)


def _paragraph(text: str | None) -> str:
    """A docstring for people who have not its sources at hand."""
    return " ".join(_REFERENCE.sub("", text or "").replace("``", "").split())
