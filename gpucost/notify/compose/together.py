"""A finding and the alerts about it: one message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpucost.notify.alertmanager import Alert
from gpucost.notify.compose.amounts import instant
from gpucost.notify.hashes import short_hash
from gpucost.notify.message import Fact, Message
from gpucost.notify.notices import Notice
from gpucost.reports.display import name

MOST_ALERTS = 3


def with_alerts(finding: Notice, alerts: Sequence[Alert]) -> Notice:
    """The notice of a finding that says which alerts fire about it. Nothing changes without any."""
    if not alerts:
        return finding
    fires = sorted(alerts, key=lambda each: (each.starts_ms or 0, each.fingerprint))
    facts = tuple(Fact("Alert", _says(each)) for each in fires[:MOST_ALERTS])
    more = len(fires) - len(facts)
    if more:
        facts = (*facts, Fact("Alert", f"and {more:,} more"))
    fingerprints = "\0".join(each.fingerprint for each in fires)
    return replace(
        finding,
        version=short_hash(finding.version, fingerprints),
        message=_with(finding.message, facts),
        full=None if finding.full is None else _with(finding.full, facts),
    )


def _says(alert: Alert) -> str:
    since = "" if alert.starts_ms is None else f" since {instant(alert.starts_ms)}"
    return f"{name(alert.labels.get('alertname', '') or 'without a name')} fires{since}"


def _with(message: Message, facts: tuple[Fact, ...]) -> Message:
    return replace(message, facts=(*message.facts, *facts))
