"""A group of Prometheus alerts -> notice: one message for the group, an item for each alert that fires.

Annotations and labels are untrusted: they are shown as text, and of addresses only those are linked that
stand where addresses belong, are http or https, and lead to a host that the settings name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote

from gpucost.notify.alertmanager import Alert, AlertGroup
from gpucost.notify.compose.amounts import instant
from gpucost.notify.compose.links import Links
from gpucost.notify.compose.owners import owner
from gpucost.notify.hashes import short_hash
from gpucost.notify.message import Fact, Link, Message, Section, Tone
from gpucost.notify.notices import Kind, Notice, Rank, Stage
from gpucost.notify.text import address
from gpucost.reports.display import counted, name

MOST_ITEMS = 10
RUNBOOKS, DASHBOARDS = "RUNBOOKS/", "DASHBOARDS/"
RANKS: Mapping[str, Rank] = {
    **{rank.value: rank for rank in Rank},
    "warning": Rank.MEDIUM,
    "page": Rank.CRITICAL,
    "none": Rank.INFO,
}
"""Value of the label ``severity`` -> rank; any other is MEDIUM, so that a misspelt one is not lost."""
_TONES = {Rank.INFO: Tone.INFO, Rank.CRITICAL: Tone.CRITICAL}
_ADDRESSES = {"Runbook": "runbook_url", "Dashboard": "dashboard_url"}
"""Text of a link -> the annotation that it is from."""
_TEAM_LABELS = ("team", "owner_team")
_CLUSTER_LABELS = ("cluster", "gpu_cluster")


def alert_key(group_hash: str) -> str:
    """The key of the conversation about one group."""
    return f"alert:{group_hash}"


def forgotten(key: str, team: str, since_ms: int) -> Notice:
    """The end of a group that was not heard of for days: Alertmanager is gone, or groups otherwise now."""
    said = "Alertmanager has not spoken of it for nine days: nobody knows whether it is over."
    return Notice(
        key=key,
        group=key,
        kind=Kind.ALERT,
        stage=Stage.RESOLVED,
        rank=Rank.INFO,
        team=team,
        cluster="",
        since_ms=since_ms,
        version="forgotten",
        message=Message("Alerts: no longer heard of", said, Tone.INFO, footer="gpucost, from Alertmanager"),
    )


def of_group(group: AlertGroup, links: Links, *, received_ms: int) -> Notice:
    """How the group stands. Its team is the one that all of its alerts name; groups of several teams, or of
    none, are the platform's. ``received_ms`` stands for a start that nothing says."""
    firing, common = group.firing, _common(group)
    told = firing or group.alerts
    rank = max((_rank(each) for each in told), key=lambda each: each.order, default=_rank_of(common))
    since_ms = min((each.starts_ms for each in told if each.starts_ms is not None), default=received_ms)
    team = _first(common, _TEAM_LABELS)
    stage = Stage.OPEN if group.is_firing else Stage.RESOLVED
    key = alert_key(short_hash(group.group_key))
    return Notice(
        key=key,
        group=key,
        kind=Kind.ALERT,
        stage=stage,
        rank=rank,
        team=owner(team),
        cluster=_first(common, _CLUSTER_LABELS),
        since_ms=since_ms,
        version=_version(group),
        message=_message(group, links, rank, since_ms),
        name=common.get("alertname", ""),
    )


def _version(group: AlertGroup) -> str:
    """Another one when another set of alerts fires."""
    parts = (str(group.is_firing), str(group.truncated), *sorted(each.fingerprint for each in group.firing))
    return short_hash(*parts)


def _common(group: AlertGroup) -> dict[str, str]:
    """Labels that all alerts share: of those that are left, where some were taken out."""
    if not group.alerts:
        return {**group.common_labels, **group.group_labels}
    first, *others = group.alerts
    shared = first.labels.items()
    found = {
        label: value for label, value in shared if all(each.labels.get(label) == value for each in others)
    }
    if group.truncated:  # what was cut off may have others
        known = {**group.common_labels, **group.group_labels}
        return {label: value for label, value in found.items() if known.get(label) == value}
    return found


def _rank(alert: Alert) -> Rank:
    return _rank_of(alert.labels)


def _rank_of(labels: Mapping[str, str]) -> Rank:
    return RANKS.get(labels.get("severity", "").lower(), Rank.MEDIUM)


def _first(labels: Mapping[str, str], names: Iterable[str]) -> str:
    return next((value for each in names if (value := labels.get(each, ""))), "")


# Words


def _message(group: AlertGroup, links: Links, rank: Rank, since_ms: int) -> Message:
    common, told = _common(group), group.firing or group.alerts
    team = _first(common, _TEAM_LABELS)
    title = name(common.get("alertname", "") or "Alerts") + (f" (team {name(team)})" if team else "")
    return Message(
        title=title if group.is_firing else f"Resolved: {title}",
        summary=_summary(group, told),
        tone=_TONES.get(rank, Tone.WARNING) if group.is_firing else Tone.GOOD,
        facts=(*_facts(group, common, rank, since_ms), *_unlinked(group, links, told)),
        sections=tuple(_sections(group)),
        links=tuple(_links(group, links, common, told)),
        footer="gpucost, from Alertmanager",
    )


def _summary(group: AlertGroup, told: tuple[Alert, ...]) -> str:
    said = group.common_annotations.get("summary", "") or next(
        (text for each in told if (text := each.annotations.get("summary", ""))), ""
    )
    return said or f"{_count(group)}."


def _count(group: AlertGroup) -> str:
    """``3 firing, 1 resolved, 2 more cut off by Alertmanager``."""
    firing = len(group.firing)
    over = len(group.alerts) - firing
    parts = [f"{firing:,} firing"] if firing or not over else []
    parts += [f"{over:,} resolved"] if over else []
    parts += [f"{group.truncated:,} more cut off from what Alertmanager sent"] if group.truncated else []
    return ", ".join(parts)


def _facts(group: AlertGroup, common: Mapping[str, str], rank: Rank, since_ms: int) -> Iterator[Fact]:
    team, cluster = _first(common, _TEAM_LABELS), _first(common, _CLUSTER_LABELS)
    if team:
        yield Fact("Team", name(team))
    if cluster:
        yield Fact("Cluster", name(cluster))
    severity = common.get("severity", "")
    yield Fact("Severity", name(severity) if severity else rank.value)
    yield Fact("Alerts", _count(group))
    yield Fact("Since", instant(since_ms))
    if not group.is_firing:
        ended = [each.ends_ms for each in group.alerts if each.ends_ms is not None]
        if ended:
            yield Fact("Until", instant(max(ended)))


def _sections(group: AlertGroup) -> Iterator[Section]:
    firing = group.firing
    items = [_item(each) for each in firing[:MOST_ITEMS]]
    more = len(firing) - len(items)
    if more:
        items.append(f"and {counted(more, 'more alert')}")
    if group.truncated and group.is_firing:
        items.append(f"{counted(group.truncated, 'alert')} cut off from what Alertmanager sent")
    if items:
        yield Section(title="Firing", items=tuple(items))


def _item(alert: Alert) -> str:
    """Its description, else its summary, else its labels."""
    said = alert.annotations.get("description", "") or alert.annotations.get("summary", "")
    if said:
        return said
    labels = (f"{label}={value}" for label, value in sorted(alert.labels.items()) if label != "alertname")
    return ", ".join(labels) or "no labels"


def _links(
    group: AlertGroup, links: Links, common: Mapping[str, str], told: tuple[Alert, ...]
) -> Iterator[Link]:
    linked = {
        text: next(filter(links.may_lead_to, _annotated(key, group, told, links)), "")
        for text, key in _ADDRESSES.items()
    }
    yield from (Link(text, url) for text, url in linked.items() if url)
    if not linked["Dashboard"]:
        yield from links.team(owner(_first(common, _TEAM_LABELS)), _first(common, _CLUSTER_LABELS))
    silence = _silence(group)
    if silence and links.may_lead_to(silence):
        yield Link("Silence", silence)


def _unlinked(group: AlertGroup, links: Links, told: tuple[Alert, ...]) -> Iterator[Fact]:
    """Addresses of hosts that no setting names, for who knows them: as text, which links nowhere."""
    for text, key in _ADDRESSES.items():
        found = list(_annotated(key, group, told, links))
        if found and not any(map(links.may_lead_to, found)):
            yield Fact(text, found[0])
    if (base := _safe(group.external_url)) and _silence(group) and not links.may_lead_to(base):
        yield Fact("Alertmanager", base)


def _annotated(key: str, group: AlertGroup, told: tuple[Alert, ...], links: Links) -> Iterator[str]:
    """Those that could be linked, each once: of all alerts, then of one."""
    urls = (group.common_annotations.get(key, ""), *(each.annotations.get(key, "") for each in told))
    return (found for url in dict.fromkeys(urls) if (found := _safe(_placed(url, links))))


def _placed(url: str, links: Links) -> str:
    """``RUNBOOKS/`` and ``DASHBOARDS/``, which stand in gpucost's own rules until somebody replaces them."""
    for placeholder, base in ((RUNBOOKS, links.runbooks), (DASHBOARDS, links.dashboards)):
        if base and url.startswith(placeholder):
            return f"{base}/{url.removeprefix(placeholder)}"
    return url


def _silence(group: AlertGroup) -> str:
    """Alertmanager's form for a silence, filled in with the labels of the group; empty where it is over."""
    base = _safe(group.external_url)
    if not (base and group.is_firing and group.group_labels):
        return ""
    matchers = ",".join(f"{label}={json.dumps(value)}" for label, value in sorted(group.group_labels.items()))
    return _safe(f"{base.rstrip('/')}/#/silences/new?filter={quote('{' + matchers + '}', safe='')}")


def _safe(url: str) -> str:
    """``url`` where it is one that may be linked; else empty."""
    return address(Link("", url)) or ""
