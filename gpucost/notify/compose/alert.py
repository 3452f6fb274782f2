"""Notices about a group of Prometheus alerts: one message for the group, an item for each alert that fires.

Annotations and labels are untrusted: they are shown as text, and only addresses in the annotations for
addresses become links, if they are http or https and lead to a host that the settings name.

A finding and the alerts about it become one message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from urllib.parse import quote

from gpucost.domain.time import Month
from gpucost.notify.alertmanager import AlertmanagerAlert, AlertmanagerGroup
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.compose.wording import brief, instant, owner
from gpucost.notify.message import MessageFact, MessageLink, MessageSection, MessageTone, NotificationMessage
from gpucost.notify.notices import Notice, NoticeKind, NoticeRank, NoticeStage, short_hash
from gpucost.notify.text import address
from gpucost.reports.base.display import counted, name

MOST_ITEMS = 2
_SUMMARY, _ITEM = 66, 70
"""Characters: two lines of a phone."""
RUNBOOKS, DASHBOARDS = "RUNBOOKS/", "DASHBOARDS/"
RANKS: Mapping[str, NoticeRank] = {
    **{rank.value: rank for rank in NoticeRank},
    "warning": NoticeRank.MEDIUM,
    "page": NoticeRank.CRITICAL,
    "none": NoticeRank.INFO,
}
"""Value of the label ``severity`` -> rank; any other is MEDIUM, so that a misspelt one is not lost."""
_TONES = {NoticeRank.INFO: MessageTone.INFO, NoticeRank.CRITICAL: MessageTone.CRITICAL}
_ADDRESSES = {"Runbook": "runbook_url", "Dashboard": "dashboard_url"}
"""Text of a link -> the annotation that it is from."""
_TEAM_LABELS = ("team", "owner_team")
_CLUSTER_LABELS = ("cluster", "gpu_cluster")


def alert_key(group_hash: str) -> str:
    """The key of the conversation about one group."""
    return f"alert:{group_hash}"


def forgotten(key: str, team: str, since_ms: int) -> Notice:
    """The end of a group that was not sent for days: Alertmanager is gone, or its grouping has changed."""
    said = "Alertmanager has not spoken of it for nine days: nobody knows whether it is over."
    return Notice(
        key=key,
        group=key,
        kind=NoticeKind.ALERT,
        stage=NoticeStage.RESOLVED,
        rank=NoticeRank.INFO,
        team=team,
        cluster="",
        since_ms=since_ms,
        version="forgotten",
        message=NotificationMessage(
            "Alerts: no longer heard of", said, MessageTone.INFO, footer="gpucost, from Alertmanager"
        ),
    )


def of_group(group: AlertmanagerGroup, links: MessageLinks, *, received_ms: int) -> Notice:
    """The notice of a group in its present state. Its team is the one that all of its alerts name; groups of
    several teams, or of none, are the platform's. ``received_ms`` stands in for a missing start."""
    firing, common = group.firing, _common(group)
    told = firing or group.alerts
    rank = max((_rank(each) for each in told), key=lambda each: each.order, default=_rank_of(common))
    since_ms = min((each.starts_ms for each in told if each.starts_ms is not None), default=received_ms)
    team = _first(common, _TEAM_LABELS)
    stage = NoticeStage.OPEN if group.is_firing else NoticeStage.RESOLVED
    key = alert_key(short_hash(group.group_key))
    return Notice(
        key=key,
        group=key,
        kind=NoticeKind.ALERT,
        stage=stage,
        rank=rank,
        team=owner(team),
        cluster=_first(common, _CLUSTER_LABELS),
        since_ms=since_ms,
        version=_version(group),
        message=_message(group, links, rank, since_ms),
        name=common.get("alertname", ""),
    )


def _version(group: AlertmanagerGroup) -> str:
    """Changes when another set of alerts fires."""
    parts = (str(group.is_firing), str(group.truncated), *sorted(each.fingerprint for each in group.firing))
    return short_hash(*parts)


def _common(group: AlertmanagerGroup) -> dict[str, str]:
    """Labels that all alerts share: of the remaining ones, where some were taken out."""
    if not group.alerts:
        return {**group.common_labels, **group.group_labels}
    first, *others = group.alerts
    shared = first.labels.items()
    found = {
        label: value for label, value in shared if all(each.labels.get(label) == value for each in others)
    }
    if group.truncated:  # alerts that were cut off may have others
        known = {**group.common_labels, **group.group_labels}
        return {label: value for label, value in found.items() if known.get(label) == value}
    return found


def _rank(alert: AlertmanagerAlert) -> NoticeRank:
    return _rank_of(alert.labels)


def _rank_of(labels: Mapping[str, str]) -> NoticeRank:
    return RANKS.get(labels.get("severity", "").lower(), NoticeRank.MEDIUM)


def _first(labels: Mapping[str, str], names: Iterable[str]) -> str:
    return next((value for each in names if (value := labels.get(each, ""))), "")


# Words


def _message(
    group: AlertmanagerGroup, links: MessageLinks, rank: NoticeRank, since_ms: int
) -> NotificationMessage:
    common, told = _common(group), group.firing or group.alerts
    team = _first(common, _TEAM_LABELS)
    title = name(common.get("alertname", "") or "Alerts") + (f" (team {name(team)})" if team else "")
    unlinked = tuple(_unlinked(group, links, told))
    items = _items(group, MOST_ITEMS - len(unlinked))
    summary = _summary(group, told)
    return NotificationMessage(
        title=title if group.is_firing else f"Resolved: {title}",
        summary=brief(summary, _SUMMARY),
        tone=_TONES.get(rank, MessageTone.WARNING) if group.is_firing else MessageTone.GOOD,
        facts=unlinked,
        sections=(MessageSection(items=items),) if items else (),
        links=tuple(_links(group, links, common, told, since_ms)),
        footer=f"{_count(group)}, since {instant(since_ms)}",
    )


def _summary(group: AlertmanagerGroup, told: tuple[AlertmanagerAlert, ...]) -> str:
    said = group.common_annotations.get("summary", "") or next(
        (text for each in told if (text := each.annotations.get("summary", ""))), ""
    )
    return said or f"{_count(group)}."


def _count(group: AlertmanagerGroup) -> str:
    """``3 firing, 1 resolved, 2 more cut off by Alertmanager``."""
    firing = len(group.firing)
    over = len(group.alerts) - firing
    parts = [f"{firing:,} firing"] if firing or not over else []
    parts += [f"{over:,} resolved"] if over else []
    parts += [f"{group.truncated:,} more cut off from what Alertmanager sent"] if group.truncated else []
    return ", ".join(parts)


def _items(group: AlertmanagerGroup, most: int) -> tuple[str, ...]:
    """What fires, as far as that says more than the summary."""
    items = [brief(_item(each), _ITEM) for each in group.firing[:most]]
    more = len(group.firing) - len(items) + (group.truncated if group.is_firing else 0)
    if more:
        items.append(f"and {counted(more, 'more alert')}")
    return tuple(items)


def _item(alert: AlertmanagerAlert) -> str:
    """Its description, else its summary, else its labels."""
    said = alert.annotations.get("description", "") or alert.annotations.get("summary", "")
    if said:
        return said
    labels = (f"{label}={value}" for label, value in sorted(alert.labels.items()) if label != "alertname")
    return ", ".join(labels) or "no labels"


def _links(
    group: AlertmanagerGroup,
    links: MessageLinks,
    common: Mapping[str, str],
    told: tuple[AlertmanagerAlert, ...],
    since_ms: int,
) -> Iterator[MessageLink]:
    """The page, else the dashboard; the runbook; and the form for a silence."""
    linked = {
        text: next(filter(links.may_lead_to, _annotated(key, group, told, links)), "")
        for text, key in _ADDRESSES.items()
    }
    page = links.alert(common, Month.of(since_ms))
    yield from page
    yield from (
        MessageLink(text, url) for text, url in linked.items() if url and not (page and text != "Runbook")
    )
    if not page and not linked["Dashboard"]:
        yield from links.team(owner(_first(common, _TEAM_LABELS)), _first(common, _CLUSTER_LABELS))
    silence = _silence(group)
    if silence and links.may_lead_to(silence):
        yield MessageLink("Silence", silence)


def _unlinked(
    group: AlertmanagerGroup, links: MessageLinks, told: tuple[AlertmanagerAlert, ...]
) -> Iterator[MessageFact]:
    """The first address of a host that no setting names, as text without a link."""
    for text, key in _ADDRESSES.items():
        found = list(_annotated(key, group, told, links))
        if found and not any(map(links.may_lead_to, found)):
            yield MessageFact(text, found[0])
            return


def _annotated(
    key: str, group: AlertmanagerGroup, told: tuple[AlertmanagerAlert, ...], links: MessageLinks
) -> Iterator[str]:
    """Those that could be linked, each once: of all alerts, then of one."""
    urls = (group.common_annotations.get(key, ""), *(each.annotations.get(key, "") for each in told))
    return (found for url in dict.fromkeys(urls) if (found := _safe(_placed(url, links))))


def _placed(url: str, links: MessageLinks) -> str:
    """Fills in ``RUNBOOKS/`` and ``DASHBOARDS/``, the placeholders in gpucost's own rules."""
    for placeholder, base in ((RUNBOOKS, links.runbooks), (DASHBOARDS, links.dashboards)):
        if base and url.startswith(placeholder):
            return f"{base}/{url.removeprefix(placeholder)}"
    return url


def _silence(group: AlertmanagerGroup) -> str:
    """Alertmanager's form for a silence, filled in with the labels of the group; empty where it is over."""
    base = _safe(group.external_url)
    if not (base and group.is_firing and group.group_labels):
        return ""
    matchers = ",".join(f"{label}={json.dumps(value)}" for label, value in sorted(group.group_labels.items()))
    return _safe(f"{base.rstrip('/')}/#/silences/new?filter={quote('{' + matchers + '}', safe='')}")


def _safe(url: str) -> str:
    """``url`` where it may be linked; else empty."""
    return address(MessageLink("", url)) or ""


def with_alerts(finding: Notice, alerts: Sequence[AlertmanagerAlert]) -> Notice:
    """The notice of a finding with the alerts that fire about it. Without any it is unchanged."""
    if not alerts:
        return finding
    fires = sorted(alerts, key=lambda each: (each.starts_ms or 0, each.fingerprint))
    more = f", and {len(fires) - 1:,} more" if len(fires) > 1 else ""
    fact = MessageFact("Alert", f"{name(fires[0].labels.get('alertname', '') or 'without a name')}{more}")
    fingerprints = "\0".join(each.fingerprint for each in fires)
    return replace(
        finding,
        version=short_hash(finding.version, fingerprints),
        message=_with(finding.message, fact),
        full=None if finding.full is None else _with(finding.full, fact),
    )


def _with(message: NotificationMessage, fact: MessageFact) -> NotificationMessage:
    return replace(message, facts=(*message.facts, fact))
