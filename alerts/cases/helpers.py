"""Series and cases in few words. Times are seconds from a case's start; samples are a minute apart."""

from __future__ import annotations

from collections.abc import Mapping

from alerts.rules import ALERTS
from alerts.rules.model import AlertCase, ExpectedAlert

BEGINS = 600
"""When the series of ``around`` change."""
_AFTER = 20


def samples(*runs: tuple[object, int]) -> str:
    """Each value so many times in a row, in promtool's notation: ``1x4`` are five, ``_x4`` are four."""
    return " ".join(_run(value, count) for value, count in runs)


def _run(value: object, count: int) -> str:
    if value == "_":
        return f"_x{count}"
    return str(value) if count == 1 else f"{value}x{count - 1}"


def always(value: object = 1, minutes: int = 200) -> str:
    return samples((value, minutes))


def lasts(alert: str) -> int:
    """How long ``alert`` must hold before it fires."""
    found = ALERTS[alert].lasts
    return 0 if found is None else int(found.value)


def around(alert: str, below: object, beyond: object) -> str:
    """Ten minutes of values that do not fire, then values that fire for as long as needed, ten minutes more,
    then as before."""
    return samples((below, BEGINS // 60), (beyond, lasts(alert) // 60 + 10), (below, _AFTER))


def pair(
    alert: str,
    about: str,
    series: Mapping[str, str],
    labels: Mapping[str, str],
    description: str,
    dashboard: str,
    *,
    begins: int = BEGINS,
    resolved: int | None = None,
    others: tuple[ExpectedAlert, ...] = (),
) -> AlertCase:
    """Silent a minute before ``begins``, and a minute before it has lasted long enough; firing then; resolved
    at ``resolved`` (ten minutes later and a bit)."""
    fires = begins + lasts(alert)
    labelled = {"severity": str(ALERTS[alert].severity), **labels}
    return AlertCase(
        alert,
        about,
        series,
        silent=tuple(sorted({begins - 60, fires - 60})),
        firing={fires: (ExpectedAlert(labelled, description, dashboard), *others)},
        resolved=(fires + 600 if resolved is None else resolved,),
    )
