"""Findings as they stand in the ledger, with the alerts about them, and the alerts that are about none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpucost.detectors.lifecycle import State
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, MINUTE_MS
from gpucost.ledger import FindingRecord, Ledger
from gpucost.notify.alertmanager import Alert, AlertGroup
from gpucost.notify.compose.finding import of_life
from gpucost.notify.compose.links import Links
from gpucost.notify.compose.together import with_alerts
from gpucost.notify.notices import Conversation, Kind, Notice
from gpucost.service.finding_records import is_readable, life_of
from gpucost.service.reporting import NO_CURRENCY
from gpucost.service.telling.alerts import AlertGroups, by_finding

_MARGIN_MS = DAY_MS
"""A finding is closed as of the start of an evaluation, which may have been before it was told."""
_ASK_AGAIN_MS = MINUTE_MS
MOST_ASKED = 1_000
"""Findings that are looked up in a turn because an alert names them; more are taken for somebody else's."""


@dataclass(frozen=True, slots=True)
class _Composed:
    """A finding as of one revision; ``notice`` is None where it is not to be told anew."""

    revision: int
    notice: Notice | None
    may_be_told: bool


class FindingNews:
    """Two sources of notices: of findings, and of alerts. Both raise LedgerError.

    What is muted, exempt or a rehearsal is not told, and neither is what somebody acknowledged before it was;
    what was told before is told when it is over.
    """

    def __init__(
        self,
        ledger: Ledger,
        links: Links,
        groups: AlertGroups,
        takes: Callable[[Notice], bool] = lambda _: True,
    ) -> None:
        """``takes`` says whether any route takes a notice."""
        self._ledger = ledger
        self._links = links
        self._groups = groups
        self._takes = takes
        self._untold: frozenset[int] = frozenset()
        self._composed: dict[int, _Composed] = {}
        self._named: dict[int, tuple[int, FindingRecord | None]] = {}

    def findings(self, now_ms: int, told: Sequence[Conversation]) -> Iterator[Notice]:
        """How findings stand, with the alerts about them."""
        open_now = [each for each in told if each.kind is Kind.FINDING and each.resolved_ms is None]
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
        """How groups of alerts stand that are about no finding which this gpucost tells."""
        self._look_up(self._groups.now(now_ms), now_ms)
        yield from self._groups.notices(now_ms, told, self._is_ours)

    def _look_up(self, groups: Sequence[AlertGroup], now_ms: int) -> None:
        """The findings that alerts name, also those that are long over: an alert may outlive its finding."""
        named = {alert.finding_id for group in groups for alert in group.alerts}
        before, self._named = self._named, {}
        for number in sorted(each for each in named if each is not None)[:MOST_ASKED]:
            at_ms, record = before.get(number, (None, None))
            if at_ms is None or (record is None and not 0 <= now_ms - at_ms < _ASK_AGAIN_MS):
                at_ms, record = now_ms, self._ledger.finding(EVERYTHING, number)
            self._named[number] = at_ms, record

    def _is_ours(self, alert: Alert) -> bool:
        """Whether it is one of gpucost's own about a finding of this ledger, anybody may use the label; and
        not one of a finding that no route takes."""
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
            # Another version's, which the detectors will close.
            return _Composed(record.revision, None, False)
        life = life_of(record)
        silent = life.state is State.MUTED or (life.state is State.OPEN and not life.speaks(now_ms))
        if silent:
            return _Composed(record.revision, None, False)
        notice = of_life(
            life,
            record_id=record.id,
            episode=record.episode,
            links=self._links,
            currency=self._ledger.currency or NO_CURRENCY,
        )
        return _Composed(record.revision, notice, life.state is State.OPEN)

    @staticmethod
    def _firing(record: FindingRecord, alerts: dict[int, list[Alert]]) -> Sequence[Alert]:
        return () if record.id is None or record.state is State.RESOLVED else alerts.get(record.id, ())
