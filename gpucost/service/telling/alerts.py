"""Groups of alerts as Alertmanager sent them last, out of the ledger."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gpucost.domain.errors import InputError
from gpucost.ledger import Ledger
from gpucost.ledger.alert_groups import KEPT_MS
from gpucost.notify.alertmanager import MOST_ALERTS, Alert, AlertGroup, decoded, parse
from gpucost.notify.compose.alert import alert_key, forgotten, of_group
from gpucost.notify.compose.links import Links
from gpucost.notify.hashes import short_hash
from gpucost.notify.notices import Conversation, Kind, Notice

logger = logging.getLogger(__name__)


def keep(ledger: Ledger, content: bytes) -> AlertGroup:
    """Store what Alertmanager sent, before anybody thanks it. Raises InputError naming the field, and
    LedgerError; nothing is stored then."""
    payload = decoded(content)
    group = parse(payload)
    # Those that are not read are not kept either.
    payload |= {"alerts": payload["alerts"][:MOST_ALERTS], "truncatedAlerts": group.truncated}
    # As it was understood: what JSON can say and a database cannot is written as an escape.
    text = json.dumps(payload, ensure_ascii=True, separators=(",", ":"))
    ledger.keep_alert_group(short_hash(group.group_key), text, firing=group.is_firing)
    return group


@dataclass
class _Read:
    """A group as it was sent at ``received_ms``; None where this version cannot read it."""

    received_ms: int
    group: AlertGroup | None
    rest: AlertGroup | None = None
    notice: Notice | None = None


class AlertGroups:
    """The groups of the last days. What was read once is read again only when it was sent again."""

    def __init__(self, ledger: Ledger, links: Links) -> None:
        self._ledger = ledger
        self._links = links
        self._read: dict[str, _Read] = {}
        self._at_ms: int | None = None

    def now(self, now_ms: int) -> list[AlertGroup]:
        """What they say. One that cannot be read is left out. Raises LedgerError.

        The ledger is asked once for an instant: findings and alerts of a turn are told from the same groups.
        """
        if now_ms != self._at_ms:
            self._read_anew(now_ms)
        return [read.group for _, read in sorted(self._read.items()) if read.group is not None]

    def _read_anew(self, now_ms: int) -> None:
        times = self._ledger.alert_group_times(since_ms=now_ms - KEPT_MS)
        kept = {key: read for key, read in self._read.items() if times.get(key) == read.received_ms}
        for key, (content, received_ms) in self._ledger.alert_groups(times.keys() - kept.keys()).items():
            kept[key] = _Read(received_ms, _parsed(key, content))
        self._read, self._at_ms = kept, now_ms

    def notices(
        self, now_ms: int, told: Iterable[Conversation], is_told: Callable[[Alert], bool]
    ) -> Iterator[Notice]:
        """Of what is left without the alerts that are told with their findings, and of groups that were not
        heard of for so long that nobody knows."""
        for _, read in sorted(self._read.items()):
            notice = self._notice(read, is_told)
            if notice is not None:
                yield notice
        for each in told:
            is_open = each.kind is Kind.ALERT and each.resolved_ms is None
            is_old = max(each.posted_ms, each.updated_ms or 0) < now_ms - KEPT_MS
            if is_open and is_old and each.key.removeprefix(alert_key("")) not in self._read:
                yield forgotten(each.key, each.team, each.posted_ms)

    def _notice(self, read: _Read, is_told: Callable[[Alert], bool]) -> Notice | None:
        if read.group is None:
            return None
        rest = read.group.without(is_told)
        if read.notice is None or rest != read.rest:
            read.rest = rest
            read.notice = of_group(rest, self._links, received_ms=read.received_ms)
        return read.notice


def by_finding(groups: Iterable[AlertGroup], is_about_one: Callable[[Alert], bool]) -> dict[int, list[Alert]]:
    """The alerts that fire about each finding."""
    found: dict[int, list[Alert]] = {}
    for group in groups:
        for alert in group.firing:
            if alert.finding_id is not None and is_about_one(alert):
                found.setdefault(alert.finding_id, []).append(alert)
    return found


def _parsed(key: str, content: str) -> AlertGroup | None:
    try:
        return parse(json.loads(content))
    except (InputError, ValueError, RecursionError) as error:
        logger.warning("alert group %s cannot be read, and is left out: %s", key, type(error).__name__)
        return None
