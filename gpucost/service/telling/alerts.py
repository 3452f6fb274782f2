"""Groups of alerts as Alertmanager sent them last, out of the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from gpucost.domain.errors import InputError, Remark
from gpucost.ledger import Ledger
from gpucost.ledger.alert_groups import KEPT_MS
from gpucost.notify.alertmanager import Alert, AlertGroup, parse
from gpucost.notify.compose.alert import of_group
from gpucost.notify.compose.links import Links
from gpucost.notify.hashes import short_hash
from gpucost.notify.notices import Notice


def keep(ledger: Ledger, content: bytes) -> AlertGroup:
    """Store what Alertmanager sent, before anybody thanks it. Raises InputError naming the field, and
    LedgerError; nothing is stored then."""
    try:
        text = content.decode("utf-8")
        group = parse(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise InputError("body", Remark("not JSON"), "the payload of Alertmanager's webhook") from error
    ledger.keep_alert_group(short_hash(group.group_key), text)
    return group


class AlertGroups:
    """The groups of the last days. What was read once is read again only when it was sent again."""

    def __init__(self, ledger: Ledger, links: Links) -> None:
        self._ledger = ledger
        self._links = links
        self._read: dict[str, tuple[int, AlertGroup]] = {}

    def now(self, now_ms: int) -> Mapping[str, tuple[int, AlertGroup]]:
        """By key: when it came, and what it says. Raises LedgerError."""
        kept = self._ledger.alert_groups(since_ms=now_ms - KEPT_MS)
        before = self._read
        self._read = {
            key: before[key]
            if key in before and before[key][0] == received_ms
            else (received_ms, parse(json.loads(content)))
            for key, (content, received_ms) in kept.items()
        }
        return self._read

    def notices(self, groups: Iterable[tuple[int, AlertGroup]], findings: frozenset[int]) -> Iterator[Notice]:
        """Of what is left without the alerts about ``findings``, which are told with them."""
        for received_ms, group in groups:
            yield of_group(group.without(findings), self._links, received_ms=received_ms)


def by_finding(groups: Iterable[AlertGroup]) -> dict[int, list[Alert]]:
    """The alerts that fire about each finding."""
    found: dict[int, list[Alert]] = {}
    for group in groups:
        for alert in group.firing:
            if alert.finding_id is not None:
                found.setdefault(alert.finding_id, []).append(alert)
    return found
