"""Notices of findings, with the alerts about them, and of alerts that are about no finding.

Groups of alerts are read from the ledger as Alertmanager sent them last.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpucost.detectors.engine.lifecycle import FindingLifeState
from gpucost.domain.errors import InputError
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, MINUTE_MS
from gpucost.ledger.db.records import FindingRecord
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.stores.notifications import KEPT_MS
from gpucost.notify.alertmanager import MOST_ALERTS, AlertmanagerAlert, AlertmanagerGroup, decoded, parse
from gpucost.notify.compose.alert import alert_key, forgotten, of_group, with_alerts
from gpucost.notify.compose.finding import of_life
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.notices import Conversation, Notice, NoticeKind, short_hash
from gpucost.service.detection.finding_records import is_readable, life_of
from gpucost.service.reporting.report_service import NO_CURRENCY

logger = logging.getLogger(__name__)


def keep(ledger: Ledger, content: bytes) -> AlertmanagerGroup:
    """Store what Alertmanager sent, before the response. Raises InputError naming the field, and LedgerError;
    nothing is stored then."""
    payload = decoded(content)
    group = parse(payload)
    # Alerts beyond the limit are not stored either.
    payload |= {"alerts": payload["alerts"][:MOST_ALERTS], "truncatedAlerts": group.truncated}
    # As it was parsed: what JSON can express and a database cannot is written as an escape.
    text = json.dumps(payload, ensure_ascii=True, separators=(",", ":"))
    ledger.keep_alert_group(short_hash(group.group_key), text, firing=group.is_firing)
    return group


@dataclass
class _Read:
    """A group as it was sent at ``received_ms``; None where this version cannot read it."""

    received_ms: int
    group: AlertmanagerGroup | None
    rest: AlertmanagerGroup | None = None
    notice: Notice | None = None


class AlertNotices:
    """The groups of the last days. A group is read again only when it was sent again."""

    def __init__(self, ledger: Ledger, links: MessageLinks) -> None:
        self._ledger = ledger
        self._links = links
        self._read: dict[str, _Read] = {}
        self._at_ms: int | None = None

    def now(self, now_ms: int) -> list[AlertmanagerGroup]:
        """The groups at ``now_ms``. One that cannot be read is left out. Raises LedgerError.

        The ledger is asked once for an instant: findings and alerts of a turn come from the same groups.
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
        self, now_ms: int, told: Iterable[Conversation], is_told: Callable[[AlertmanagerAlert], bool]
    ) -> Iterator[Notice]:
        """Notices of the groups without the alerts that belong to findings (``is_told``), and of groups that
        Alertmanager has not sent for so long that their state is unknown."""
        for _, read in sorted(self._read.items()):
            notice = self._notice(read, is_told)
            if notice is not None:
                yield notice
        for each in told:
            is_open = each.kind is NoticeKind.ALERT and each.resolved_ms is None
            is_old = max(each.posted_ms, each.updated_ms or 0) < now_ms - KEPT_MS
            if is_open and is_old and each.key.removeprefix(alert_key("")) not in self._read:
                yield forgotten(each.key, each.team, each.posted_ms)

    def _notice(self, read: _Read, is_told: Callable[[AlertmanagerAlert], bool]) -> Notice | None:
        if read.group is None:
            return None
        rest = read.group.without(is_told)
        if read.notice is None or rest != read.rest:
            read.rest = rest
            read.notice = of_group(rest, self._links, received_ms=read.received_ms)
        return read.notice


def by_finding(
    groups: Iterable[AlertmanagerGroup], is_about_one: Callable[[AlertmanagerAlert], bool]
) -> dict[int, list[AlertmanagerAlert]]:
    """The alerts that fire about each finding."""
    found: dict[int, list[AlertmanagerAlert]] = {}
    for group in groups:
        for alert in group.firing:
            if alert.finding_id is not None and is_about_one(alert):
                found.setdefault(alert.finding_id, []).append(alert)
    return found


def _parsed(key: str, content: str) -> AlertmanagerGroup | None:
    try:
        return parse(json.loads(content))
    except (InputError, ValueError, RecursionError) as error:
        logger.warning("alert group %s cannot be read, and is left out: %s", key, type(error).__name__)
        return None


_MARGIN_MS = DAY_MS
"""A finding is closed as of the start of an evaluation, which may lie before it was sent."""
_ASK_AGAIN_MS = MINUTE_MS
MOST_ASKED = 1_000
"""Findings that are looked up in a turn because an alert names them; alerts beyond that count as foreign."""


@dataclass(frozen=True, slots=True)
class _Composed:
    """A finding as of one revision; ``notice`` is None where no new notice is due."""

    revision: int
    notice: Notice | None
    may_be_told: bool


class FindingNotices:
    """Two sources of notices: of findings, and of alerts. Both raise LedgerError.

    A finding that is muted, exempt or of a backtest is not sent, nor one that was acknowledged before it was
    sent; one that was sent is also sent when it is over.
    """

    def __init__(
        self,
        ledger: Ledger,
        links: MessageLinks,
        groups: AlertNotices,
        takes: Callable[[Notice], bool] = lambda _: True,
        is_told: Callable[[AlertmanagerAlert], bool] = lambda _: False,
    ) -> None:
        """``takes`` says whether any route takes a notice, ``is_told`` whether an alert is told as something
        else than a finding."""
        self._ledger = ledger
        self._links = links
        self._groups = groups
        self._takes = takes
        self._is_told = is_told
        self._untold: frozenset[int] = frozenset()
        self._composed: dict[int, _Composed] = {}
        self._named: dict[int, tuple[int, FindingRecord | None]] = {}

    def findings(self, now_ms: int, told: Sequence[Conversation]) -> Iterator[Notice]:
        """Notices of findings in their current state, with the alerts about them."""
        open_now = [each for each in told if each.kind is NoticeKind.FINDING and each.resolved_ms is None]
        keys = {each.key for each in open_now}
        since_ms = min((each.posted_ms for each in open_now), default=now_ms) - _MARGIN_MS
        groups = self._groups.now(now_ms)
        self._look_up(groups, now_ms)
        alerts = by_finding(groups, self._is_ours)
        composed: dict[int, _Composed] = {}
        untold: set[int] = set()
        for cluster in self._ledger.clusters():
            for record in self._ledger.live_findings(cluster, resolved_since_ms=since_ms):
                assert record.id is not None
                found = composed[record.id] = self._compose(record, now_ms)
                if found.notice is not None and (found.may_be_told or found.notice.key in keys):
                    if found.notice.key not in keys and not self._takes(found.notice):
                        untold.add(record.id)
                    yield with_alerts(found.notice, self._firing(record, alerts))
        self._composed, self._untold = composed, frozenset(untold)

    def alerts(self, now_ms: int, told: Sequence[Conversation]) -> Iterator[Notice]:
        """Notices of groups of alerts that are about no finding for which this service sends notices."""
        self._look_up(self._groups.now(now_ms), now_ms)
        yield from self._groups.notices(
            now_ms, told, lambda alert: self._is_ours(alert) or self._is_told(alert)
        )

    def _look_up(self, groups: Sequence[AlertmanagerGroup], now_ms: int) -> None:
        """The findings that alerts name, also those that ended long ago: an alert may outlive its finding."""
        named = {alert.finding_id for group in groups for alert in group.alerts}
        before, self._named = self._named, {}
        for number in sorted(each for each in named if each is not None)[:MOST_ASKED]:
            at_ms, record = before.get(number, (None, None))
            if at_ms is None or (record is None and not 0 <= now_ms - at_ms < _ASK_AGAIN_MS):
                at_ms, record = now_ms, self._ledger.finding(EVERYTHING, number)
            self._named[number] = at_ms, record

    def _is_ours(self, alert: AlertmanagerAlert) -> bool:
        """Whether it is one of gpucost's own about a finding of this ledger, since any rule may use the
        label, and a route takes that finding."""
        number = alert.finding_id
        record = None if number is None else self._named.get(number, (0, None))[1]
        if record is None or number in self._untold or alert.labels.get("pattern") != record.pattern:
            return False
        return alert.labels.get("cluster", record.cluster) == record.cluster

    def _compose(self, record: FindingRecord, now_ms: int) -> _Composed:
        assert record.id is not None
        before = self._composed.get(record.id)
        if before is not None and before.revision == record.revision and record.exempt_until_ms is None:
            return before
        if not is_readable(record):
            # Written by another version; the detectors will close it.
            return _Composed(record.revision, None, False)
        life = life_of(record)
        silent = life.state is FindingLifeState.MUTED or (
            life.state is FindingLifeState.OPEN and not life.speaks(now_ms)
        )
        if silent:
            return _Composed(record.revision, None, False)
        notice = of_life(
            life,
            record_id=record.id,
            episode=record.episode,
            links=self._links,
            currency=self._ledger.currency or NO_CURRENCY,
        )
        return _Composed(record.revision, notice, life.state is FindingLifeState.OPEN)

    @staticmethod
    def _firing(
        record: FindingRecord, alerts: dict[int, list[AlertmanagerAlert]]
    ) -> Sequence[AlertmanagerAlert]:
        return (
            ()
            if record.id is None or record.state is FindingLifeState.RESOLVED
            else alerts.get(record.id, ())
        )
