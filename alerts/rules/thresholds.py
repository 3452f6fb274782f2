"""Every number that an alert uses: its unit, and the reason for it. Change it here, nowhere else.

Then ``python -m alerts`` writes rules, promtool tests and the heads of the runbooks anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpucost.detectors.rule_settings import UnhealthyAllocatedSettings
from gpucost.service.settings.api import ApiSettings

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


@dataclass(frozen=True, slots=True)
class AlertThreshold:
    """``value`` in ``unit``: s, ratio (of 1), or a noun. ``meaning`` names it; ``why``: the reason for the
    value."""

    value: float
    unit: str
    meaning: str
    why: str

    def __str__(self) -> str:
        """As PromQL writes a number."""
        return f"{self.value:.15g}"

    @property
    def duration(self) -> str:
        """As Prometheus writes a duration (``1h30m``). Raises ValueError for a value that is not one."""
        if self.unit != "s" or self.value != int(self.value):
            raise ValueError(f"{self.meaning} is no duration in whole seconds")
        rest, text = int(self.value), ""
        for letter, seconds in _UNITS:
            if rest >= seconds:
                text += f"{rest // seconds}{letter}"
                rest %= seconds
        return text or "0s"

    @property
    def shown(self) -> str:
        """For people: ``12h``, ``90 %``, ``500 findings``."""
        if self.unit == "s":
            return self.duration
        if self.unit == "ratio":
            return f"{self.value * 100:.15g} %"
        return f"{self.value:.15g} {self.unit}".rstrip()


MINUTE, HOUR, DAY = 60, 3_600, 86_400


def _lasts(seconds: float, why: str) -> AlertThreshold:
    return AlertThreshold(seconds, "s", "lasts for", why)


# How long it must last

BLIP = _lasts(5 * MINUTE, "five scrapes of a minute: longer than a restart or a rolling update")
SETTLED = _lasts(10 * MINUTE, "longer than a pod takes to move to another node")
PATIENT = _lasts(15 * MINUTE, "longer than a node takes to boot, or Prometheus to come back")
STEADY = _lasts(30 * MINUTE, "longer than a queue takes to calm down after a burst")
AN_HOUR = _lasts(1 * HOUR, "one window of the ledger: what one late window brings is no news")
TWO_HOURS = _lasts(2 * HOUR, "two windows of the ledger missed, not one")

# Values that the service exports

HELD_WHILE_AWAY = AlertThreshold(
    1 * HOUR,
    "s",
    "what the service said is kept while it is away for up to",
    "a restart must not resolve what it did not change; after an hour nobody knows any more",
)
FINDINGS_SHOWN = AlertThreshold(
    ApiSettings.model_fields["metrics_findings"].default,
    "findings",
    "most findings on /metrics",
    "the default of api.metrics_findings; change it together with that setting",
)

# Queues

PENDING_LONG = AlertThreshold(
    12 * HOUR,
    "s",
    "longest wait",
    "submitted in the evening, not begun in the morning; ours, shorter is usual",
)
BORROWED_NEAR = AlertThreshold(
    0.9, "ratio", "part of the borrowing limit", "one job more of the usual size will no longer fit"
)
NO_ADMISSION = AlertThreshold(
    1 * HOUR,
    "s",
    "no admission for",
    "Kueue looks again with every change; an hour without one is no coincidence",
)

# Money

MONTH_BEGUN = AlertThreshold(
    3, "days", "the month must be this old", "the first days say nothing about the other twenty-seven"
)
PROJECTED = AlertThreshold(1.0, "times", "expected cost against the budget", "the budget itself")
RISE = AlertThreshold(
    2.0,
    "times",
    "cost per hour against the day before, and the same time last week",
    "twice is no ordinary day",
)
RISE_FLOOR = AlertThreshold(
    20.0,
    "currency units per hour",
    "least rise in cost per hour",
    "five H100 or so; less is not worth a call",
)

# Exporters and collector

EXPORTER_STALE = AlertThreshold(
    5 * MINUTE, "s", "counters not brought up to date for", "ten collections of the GPU exporter, or more"
)
XID_WINDOW = AlertThreshold(
    1 * HOUR, "s", "an Xid within the last", "long enough to be read, short enough to be news"
)
# Codes that programs cause, not GPUs: the default of what the detector of unhealthy GPUs ignores. To leave
# out more, add them: frozenset(…) | {119}.
_PROGRAMS_XIDS = frozenset(UnhealthyAllocatedSettings.model_fields["programs_xids"].default)
XID_PROGRAMS = "|".join(str(code) for code in sorted(_PROGRAMS_XIDS))
"""What GpuCostXidCritical leaves out, as a regular expression."""
REMEMBERED = AlertThreshold(
    1 * DAY,
    "s",
    "what has been there within the last",
    "a cluster that was given up is forgotten after a day",
)

# Service and ledger

LAG = AlertThreshold(
    3 * HOUR, "s", "settled windows behind now", "a window of an hour, its lateness, and two missed in a row"
)
LOOP_SILENT = AlertThreshold(
    30 * MINUTE, "s", "no turn of the loop for", "it turns every minute; a batch of a day is minutes"
)
DETECTORS_SILENT = AlertThreshold(
    15 * MINUTE, "s", "no look of the detectors for", "they look every five minutes: two looks missed"
)
DETECTOR_ERRORS = AlertThreshold(
    1.5,
    "failures",
    "failures within half an hour",
    "two or more: increase() makes a little more than 1 of one",
)
DETECTOR_ERRORS_WITHIN = AlertThreshold(
    30 * MINUTE, "s", "failures are counted over", "six looks of the detectors"
)
OBSERVED = AlertThreshold(
    0.95,
    "ratio",
    "part of the last 24 h that was observed",
    "a month needs 99 % to be closed; one day may cost 0.2 %",
)
MEASURED = AlertThreshold(
    0.9, "ratio", "part of held GPU time whose use was seen", "below it detectors answer: not enough data"
)
MISSING_WINDOWS = AlertThreshold(
    3, "windows", "windows that no detector has looked at", "the newest one or two are on their way"
)
GREW_WITHIN = AlertThreshold(
    1 * DAY, "s", "grew within the last", "told for a day, then it stands in the books"
)
CLOSED_BY = AlertThreshold(
    5, "day of the month", "the last month is closed by", "the fifth, when invoices go out"
)
OPEN_REVIEWS = AlertThreshold(
    0.1, "ratio", "part of reviews without advice, for our reasons", "one in ten users is told nothing"
)
OPEN_REVIEWS_WITHIN = AlertThreshold(
    15 * MINUTE, "s", "reviews are counted over", "enough reviews for a ratio"
)
CERTIFICATE_LEFT = AlertThreshold(
    7 * DAY,
    "s",
    "the certificate ends within",
    "renewed a month before by default: three weeks of failures, and a week to mend them",
)
POST_WAITS = AlertThreshold(
    30 * MINUTE,
    "s",
    "a message has waited for",
    "longer than any Retry-After that services are known to ask for",
)
