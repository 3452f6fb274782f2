"""Settings of detectors: one model per rule, with overrides for namespaces and queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpucost.domain.text import is_any
from gpucost.domain.time import HOUR_MS
from gpucost.settings.types import SettingsGroup

LATELY_MS = 12 * HOUR_MS
"""What a rule derives about a GPU or a pod (the least power it drew, the rate it always receives) comes from
the half day (UTC) of a row and the one before, so that the result for a row does not depend on how much
history was read."""


class DetectorSettings(SettingsGroup):
    """What every rule has."""

    enabled: bool = True
    """Whether the rule runs. A bucket of the waste ledger whose rule does not run stays empty."""

    rehearsal: bool = False
    """Findings are listed and marked as rehearsal, but raise no alert and are posted nowhere."""


S = TypeVar("S", bound=DetectorSettings)


@dataclass(frozen=True)
class SettingsOverride(Generic[S]):
    """Other settings for what is in one of ``namespaces`` or ``queues`` (shell patterns; empty: any)."""

    namespaces: tuple[str, ...]
    queues: tuple[str, ...]
    settings: S

    def applies(self, namespace: str, queue: str) -> bool:
        return is_any(namespace, self.namespaces) and is_any(queue, self.queues)


@dataclass(frozen=True)
class ScopedSettings(Generic[S]):
    """A rule's settings, and those of the places where others hold: the first override that applies."""

    default: S
    overrides: Sequence[SettingsOverride[S]] = ()

    def at(self, namespace: str = "", queue: str = "") -> S:
        for override in self.overrides:
            if override.applies(namespace, queue):
                return override.settings
        return self.default


def overridden(settings: S, values: Mapping[str, object]) -> S:
    """``settings`` with some other values, checked like the rest. Raises pydantic's ValidationError."""
    known = {name: getattr(settings, name) for name in settings.model_fields_set}
    return type(settings).model_validate({**known, **values})
