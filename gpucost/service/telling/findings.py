"""Findings as they stand in the ledger, with the alerts about them, and the alerts that are about none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpucost.detectors.lifecycle import State
from gpucost.ledger import FindingRecord, Ledger
from gpucost.notify.alertmanager import Alert
from gpucost.notify.compose.finding import of_life
from gpucost.notify.compose.links import Links
from gpucost.notify.compose.together import with_alerts
from gpucost.notify.notices import Conversation, Kind, Notice
from gpucost.service.finding_records import is_readable, life_of
from gpucost.service.reporting import NO_CURRENCY
from gpucost.service.telling.alerts import AlertGroups, by_finding


@dataclass(frozen=True, slots=True)
class _Composed:
    """A finding as of one revision; ``notice`` is None where it is not to be told anew."""

    revision: int
    notice: Notice | None
    may_be_told: bool


class FindingNews:
    """The source of notices about findings and alerts. Raises LedgerError.

    What is muted, exempt or a rehearsal is not told, and neither is what somebody acknowledged before it was;
    what was told before is told when it is over.
    """

    def __init__(self, ledger: Ledger, links: Links, groups: AlertGroups) -> None:
        self._ledger = ledger
        self._links = links
        self._groups = groups
        self._composed: dict[int, _Composed] = {}

    def __call__(self, now_ms: int, told: Sequence[Conversation]) -> Iterator[Notice]:
        open_now = [each for each in told if each.kind is Kind.FINDING and each.resolved_ms is None]
        keys = {each.key for each in open_now}
        resolved_since_ms = min((each.posted_ms for each in open_now), default=now_ms)
        groups = self._groups.now(now_ms)
        alerts = by_finding(group for _, group in groups.values())
        composed: dict[int, _Composed] = {}
        for cluster in self._ledger.clusters():
            for record in self._ledger.live_findings(cluster, resolved_since_ms=resolved_since_ms):
                assert record.id is not None
                found = composed[record.id] = self._compose(record, now_ms)
                if found.notice is not None and (found.may_be_told or found.notice.key in keys):
                    yield with_alerts(found.notice, self._firing(record, alerts))
        self._composed = composed
        yield from self._groups.notices(groups.values(), frozenset(composed))

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
