"""Notices about a finding: whose it is, what it costs, the one thing to do, and the page with the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from gpucost.advisor.model.answers import about
from gpucost.detectors.engine.lifecycle import FindingLife, FindingLifeState
from gpucost.detectors.findings import (
    Finding,
    FindingSeverity,
    SubjectKind,
    WastePattern,
)
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.compose.wording import (
    brief,
    cost,
    gpu_hours,
    owner,
    sentence,
)
from gpucost.notify.message import MessageFact, MessageLink, MessageSection, MessageTone, NotificationMessage
from gpucost.notify.notices import Notice, NoticeKind, NoticeRank, NoticeStage, short_hash
from gpucost.reports.base.display import name, trimmed
from gpucost.reports.base.values import CostAmount
from gpucost.reports.waste.recommendations import FindingView, daily_nano, view_for

NO_PRICE = "no price"
TITLES: Mapping[WastePattern, str] = {
    WastePattern.IDLE_ALLOCATION: "Idle allocation",
    WastePattern.OVERSIZED_REQUEST: "Oversized request",
    WastePattern.FRAGMENTATION: "Fragmentation",
    WastePattern.GANG_STALL: "Gang stall",
    WastePattern.MONOPOLY: "Single-tenant monopoly",
    WastePattern.QUOTA_STARVATION: "Quota starvation",
    WastePattern.NOT_ADVERTISED: "GPUs that are not advertised",
    WastePattern.RESERVED_UNUSED: "Reserved but unused quota",
    WastePattern.PREEMPTION_WASTE: "Preemption waste",
    WastePattern.CPU_ONLY_PODS: "Pods without GPUs on nodes with GPUs",
    WastePattern.TOPOLOGY_SPREAD: "Jobs in more topology domains than they need",
    WastePattern.UNHEALTHY_ALLOCATED: "Unhealthy GPUs that are allocated",
    WastePattern.NVLINK_DOMAIN: "GPUs stranded in NVLink domains",
}
"""Names of the anti-patterns, as in the pages of docs/detectors/."""
_TONES: Mapping[FindingSeverity, MessageTone] = {
    FindingSeverity.INFO: MessageTone.INFO,
    FindingSeverity.CRITICAL: MessageTone.CRITICAL,
}


def finding_key(cluster: str, fingerprint: str, episode: int) -> str:
    """The key of the conversation about one episode of a finding."""
    return f"finding:{cluster}:{fingerprint}:{episode}"


def of_life(
    life: FindingLife,
    *,
    record_id: int | None,
    episode: int,
    links: MessageLinks,
    currency: str,
    total: CostAmount | None = None,
) -> Notice:
    """The notice of a finding in its present state. ``record_id`` is its number in the ledger; ``total`` its
    waste so far according to the waste ledger; without it, the waste of its last day is given.

    Whether it may be sent at all (muted, exempt, of a backtest) is decided elsewhere: ``FindingLife.speaks``.
    """
    draft, team = life.finding.draft, owner(life.finding.draft.team)
    about_all = _FindingWords(life, record_id, links, currency, total, EVERYTHING)
    about_own = _FindingWords(life, record_id, links, currency, total, Scope(frozenset((draft.team,))))
    cluster = draft.subject.cluster
    return Notice(
        key=finding_key(cluster, life.fingerprint, episode),
        group=f"finding:{cluster}:{life.fingerprint}",
        kind=NoticeKind.FINDING,
        stage=NoticeStage.RESOLVED if life.state is FindingLifeState.RESOLVED else NoticeStage.OPEN,
        rank=NoticeRank(life.finding.severity.value),
        team=team,
        cluster=cluster,
        since_ms=life.since_ms,
        version=version(life),
        message=about_own.message() if team else about_all.message(),
        full=about_all.message() if team and draft.team_view is not None else None,
        acknowledged=life.state is FindingLifeState.ACKNOWLEDGED,
        name=draft.pattern.value,
        costs_nano=_costs_nano(life.finding),
    )


def _costs_nano(finding: Finding) -> int | None:
    """What it costs a day: at its rate of now, or what it wasted in its last day, whichever is more."""
    known = [nano for nano in (daily_nano(finding), finding.wasted.nano) if nano is not None]
    return max(known) if known else None


def version(life: FindingLife) -> str:
    """Changes when something is worth an update: its state, severity, the change to make, how many GPUs it is
    about, and its waste whenever that has doubled. Not with each figure that moves with the clock."""
    finding = life.finding
    hours_doubled = int(max(0.0, finding.wasted.gpu_hours)).bit_length()
    boards = round(finding.boards_now, 2)
    parts = (life.state, finding.severity, finding.draft.action.patch, str(boards), str(hours_doubled))
    return short_hash(*parts)


class _FindingWords:
    """The message, for a reader with ``scope``."""

    def __init__(
        self,
        life: FindingLife,
        record_id: int | None,
        links: MessageLinks,
        currency: str,
        total: CostAmount | None,
        scope: Scope,
    ) -> None:
        self._life = life
        self._record_id = record_id
        self._links = links
        self._currency = currency
        self._total = total
        self._said: FindingView = view_for(life.finding.draft, scope)

    @property
    def _is_over(self) -> bool:
        return self._life.state is FindingLifeState.RESOLVED

    def message(self) -> NotificationMessage:
        finding = self._life.finding
        title = title_of(finding)
        return NotificationMessage(
            title=f"Resolved: {title}" if self._is_over else title,
            summary=self._over() if self._is_over else brief(sentence(self._said.summary)),
            tone=MessageTone.GOOD if self._is_over else _TONES.get(finding.severity, MessageTone.WARNING),
            facts=() if self._is_over and self._total is not None else (self._amount(finding),),
            sections=() if self._is_over else tuple(self._sections()),
            links=self._link(),
            footer="gpucost" if self._record_id is None else f"gpucost findings show {self._record_id}",
        )

    def _over(self) -> str:
        closed_ms = self._life.closed_at_ms
        length = "" if closed_ms is None else f" after {about(max(0, closed_ms - self._life.since_ms))}"
        if self._total is None:
            return f"Over{length}."
        if self._total.nano is None:
            return f"Over{length}. It wasted {gpu_hours(self._total.board_ms)}, which have no price."
        spent = cost(self._total.nano, self._currency)
        return f"Over{length}. It wasted {gpu_hours(self._total.board_ms)}, which cost {spent}."

    def _amount(self, finding: Finding) -> MessageFact:
        """What it costs at its rate of now; without one, what it wasted in its last day."""
        wasted = finding.wasted
        known = " (acknowledged)" if self._life.state is FindingLifeState.ACKNOWLEDGED else ""
        if not self._is_over and finding.boards_now > 0:
            daily = daily_nano(finding)
            now = f"{_boards(finding.boards_now)} {'GPU' if finding.boards_now == 1 else 'GPUs'} now"
            spent = NO_PRICE if daily is None else f"{cost(daily, self._currency)} a day"
            return MessageFact("Costs", f"{spent}, {now}{known}")
        what = "Wasted" if wasted.counted else "About"
        rest = "" if wasted.counted else ": shown, and in no sum"
        spent = NO_PRICE if wasted.nano is None else cost(wasted.nano, self._currency)
        return MessageFact(f"{what} in its last day", f"{spent}, {gpu_hours(wasted.board_ms)}{rest}{known}")

    def _sections(self) -> Iterator[MessageSection]:
        """The change; its patch and the evidence stand on the page."""
        if self._said.action.text:
            yield MessageSection(text=f"What to do: {brief(self._said.action.text)}")

    def _link(self) -> tuple[MessageLink, ...]:
        draft, links = self._life.finding.draft, self._links
        return (
            links.finding(self._record_id)
            or links.subject(draft.subject)
            or links.team(draft.team, draft.subject.cluster)
            or links.runbook(draft.pattern)
        )


def title_of(finding: Finding) -> str:
    """``Idle allocation: train-7 (team nlp)``."""
    draft = finding.draft
    whose = f" (team {name(draft.team)})" if draft.team and draft.subject.kind is not SubjectKind.TEAM else ""
    what = f"team {name(draft.team)}" if draft.subject.kind is SubjectKind.TEAM else name(draft.subject.name)
    return f"{TITLES[draft.pattern]}: {what}{whose}"


def _number(value: float) -> str:
    """With as many decimals as matter, at most four; a dash for anything but a number."""
    if isinstance(value, int):
        return f"{value:,}"
    return trimmed(f"{value:,.4f}") if math.isfinite(value) else "–"


def _boards(boards: float) -> str:
    """With two decimals, and more only where they would be 0: smaller parts of a GPU do not matter."""
    rounded = round(boards, 2)
    return trimmed(f"{rounded:,.2f}") if rounded else _number(boards)
