"""A finding's life -> notice: what and whom, since when, what it costs, and the one thing to do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from gpucost.advisor.headline import about
from gpucost.detectors.findings import Evidence, Finding, Pattern, Severity, Subject, SubjectKind
from gpucost.detectors.lifecycle import Life, State
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.notify.compose.amounts import cost, gpu_hours, instant, sentence
from gpucost.notify.compose.links import Links
from gpucost.notify.compose.owners import owner
from gpucost.notify.hashes import short_hash
from gpucost.notify.message import Fact, Link, Message, Section, Tone
from gpucost.notify.notices import Kind, Notice, Rank, Stage
from gpucost.reports.display import counted, name, trimmed
from gpucost.reports.to_do import daily_nano
from gpucost.reports.told import Told, told
from gpucost.reports.values import Amount

MOST_EVIDENCE = 8
_LONG = 60
NO_PRICE = "no price"
TITLES: Mapping[Pattern, str] = {
    Pattern.IDLE_ALLOCATION: "Idle allocation",
    Pattern.OVERSIZED_REQUEST: "Oversized request",
    Pattern.FRAGMENTATION: "Fragmentation",
    Pattern.GANG_STALL: "Gang stall",
    Pattern.MONOPOLY: "Single-tenant monopoly",
    Pattern.QUOTA_STARVATION: "Quota starvation",
    Pattern.NOT_ADVERTISED: "GPUs that are not advertised",
    Pattern.RESERVED_UNUSED: "Reserved but unused quota",
    Pattern.PREEMPTION_WASTE: "Preemption waste",
    Pattern.CPU_ONLY_PODS: "Pods without GPUs on nodes with GPUs",
    Pattern.TOPOLOGY_SPREAD: "Jobs in more topology domains than they need",
    Pattern.UNHEALTHY_ALLOCATED: "Unhealthy GPUs that are allocated",
}
"""Names of the anti-patterns, as the pages in docs/detectors/ have them."""
_SUBJECTS: Mapping[SubjectKind, str] = {
    SubjectKind.CLUSTER: "Cluster",
    SubjectKind.TEAM: "",  # stands in its own line anyway
    SubjectKind.QUEUE: "Queue",
    SubjectKind.JOB: "Job",
    SubjectKind.NODE: "Node",
}
_TONES: Mapping[Severity, Tone] = {Severity.INFO: Tone.INFO, Severity.CRITICAL: Tone.CRITICAL}


def finding_key(cluster: str, fingerprint: str, episode: int) -> str:
    """The key of the conversation about one episode of a finding."""
    return f"finding:{cluster}:{fingerprint}:{episode}"


def of_life(
    life: Life,
    *,
    record_id: int | None,
    episode: int,
    links: Links,
    currency: str,
    total: Amount | None = None,
) -> Notice:
    """How the finding stands. ``record_id`` is its number in the ledger; ``total`` what it wasted in all, as
    far as the waste ledger knows; without it, what is known is its last day.

    Whether it may be told at all (muted, exempt, a rehearsal) is not asked here: ``Life.speaks``.
    """
    draft, team = life.finding.draft, owner(life.finding.draft.team)
    about_all = _Words(life, record_id, links, currency, total, EVERYTHING)
    about_own = _Words(life, record_id, links, currency, total, Scope(frozenset((draft.team,))))
    cluster = draft.subject.cluster
    return Notice(
        key=finding_key(cluster, life.fingerprint, episode),
        group=f"finding:{cluster}:{life.fingerprint}",
        kind=Kind.FINDING,
        stage=Stage.RESOLVED if life.state is State.RESOLVED else Stage.OPEN,
        rank=Rank(life.finding.severity.value),
        team=team,
        cluster=cluster,
        since_ms=life.since_ms,
        version=version(life),
        message=about_own.message() if team else about_all.message(),
        full=about_all.message() if team and draft.team_view is not None else None,
        acknowledged=life.state is State.ACKNOWLEDGED,
        name=draft.pattern.value,
    )


def version(life: Life) -> str:
    """Another one when something is worth an update: its state, severity, the change to make, how many GPUs
    it is about, and what it wasted whenever that has doubled. Not each figure that moves with the clock."""
    finding = life.finding
    hours_doubled = int(max(0.0, finding.wasted.gpu_hours)).bit_length()
    boards = round(finding.boards_now, 2)
    parts = (life.state, finding.severity, finding.draft.action.patch, str(boards), str(hours_doubled))
    return short_hash(*parts)


class _Words:
    """The message, for who sees ``scope``."""

    def __init__(
        self,
        life: Life,
        record_id: int | None,
        links: Links,
        currency: str,
        total: Amount | None,
        scope: Scope,
    ) -> None:
        self._life = life
        self._record_id = record_id
        self._links = links
        self._currency = currency
        self._total = total
        self._said: Told = told(life.finding.draft, scope)

    @property
    def _is_over(self) -> bool:
        return self._life.state is State.RESOLVED

    def message(self) -> Message:
        finding = self._life.finding
        title = title_of(finding)
        return Message(
            title=f"Resolved: {title}" if self._is_over else title,
            summary=self._over() if self._is_over else sentence(self._said.summary),
            tone=Tone.GOOD if self._is_over else _TONES.get(finding.severity, Tone.WARNING),
            facts=tuple(self._facts()),
            sections=() if self._is_over else tuple(self._sections()),
            links=self._all_links(),
            footer=f"gpucost, {finding.draft.pattern.value}"
            + ("" if self._record_id is None else f"; all of it: gpucost findings show {self._record_id}"),
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

    def _facts(self) -> Iterator[Fact]:
        life, finding = self._life, self._life.finding
        draft = finding.draft
        if draft.team:
            yield Fact("Team", name(draft.team))
        kind = _SUBJECTS[draft.subject.kind]
        if kind:
            yield Fact(kind, _shown(draft.subject))
        if kind != "Cluster":
            yield Fact("Cluster", name(draft.subject.cluster))
        yield Fact("Since", instant(life.since_ms))
        if self._is_over and life.closed_at_ms is not None:
            yield Fact("Until", instant(life.closed_at_ms))
        if life.state is State.ACKNOWLEDGED:
            yield Fact("State", "acknowledged")
        yield from self._amounts(finding)
        yield Fact("Severity", finding.severity.value)

    def _amounts(self, finding: Finding) -> Iterator[Fact]:
        if self._is_over and self._total is not None:
            yield Fact("Wasted in all", self._spent(self._total.board_ms, self._total.nano))
            return
        wasted = finding.wasted
        what = "Wasted" if wasted.counted else "About"
        rest = "" if wasted.counted else ": shown, and in no sum"
        yield Fact(f"{what} (its last day)", self._spent(wasted.board_ms, wasted.nano) + rest)
        if not self._is_over and finding.boards_now > 0:
            daily = daily_nano(finding)
            now = f"{_boards(finding.boards_now)} {'GPU' if finding.boards_now == 1 else 'GPUs'} now"
            spent = NO_PRICE if daily is None else f"{cost(daily, self._currency)} a day at its rate of now"
            yield Fact("Costs", f"{spent}, {now}")

    def _spent(self, board_ms: int, nano: int | None) -> str:
        return f"{gpu_hours(board_ms)}, {NO_PRICE if nano is None else cost(nano, self._currency)}"

    def _sections(self) -> Iterator[Section]:
        action = self._said.action
        yield Section(title="What to do", text=action.text, code=action.patch)
        # Lists of names, such as those of GPUs, say least to somebody who reads on a phone.
        ordered = sorted(self._said.evidence, key=lambda each: len(str(each.value)) > _LONG)
        items = [_item(each) for each in ordered[:MOST_EVIDENCE]]
        more = len(ordered) - len(items)
        if more:
            items.append(f"and {counted(more, 'more number')} in the finding")
        if items:
            yield Section(title="Evidence", items=tuple(items))

    def _all_links(self) -> tuple[Link, ...]:
        draft, links = self._life.finding.draft, self._links
        subject = draft.subject
        team = links.team(draft.team, subject.cluster)
        # Renderers leave out from the end what is too much.
        return (
            *links.finding(self._record_id),
            *links.runbook(draft.pattern),
            *links.subject(subject),
            *team,
        )


def title_of(finding: Finding) -> str:
    """``Idle allocation: train-7 (team nlp)``."""
    draft = finding.draft
    whose = f" (team {name(draft.team)})" if draft.team and draft.subject.kind is not SubjectKind.TEAM else ""
    what = f"team {name(draft.team)}" if draft.subject.kind is SubjectKind.TEAM else name(draft.subject.name)
    return f"{TITLES[draft.pattern]}: {what}{whose}"


def _shown(subject: Subject) -> str:
    parts = [part for part in (subject.namespace, subject.name) if part]
    return "/".join(map(name, parts))


def _item(found: Evidence) -> str:
    value = found.value if isinstance(found.value, str) else _number(found.value)
    return f"{found.name}: {value}{f' {found.unit}' if found.unit else ''}"


def _number(value: float) -> str:
    """With the decimals that tell it from others, at most four; a dash for what is no number."""
    if isinstance(value, int):
        return f"{value:,}"
    return trimmed(f"{value:,.4f}") if math.isfinite(value) else "–"


def _boards(boards: float) -> str:
    """With two decimals, and more only where they would be 0: nobody counts GPUs by the ten thousandth."""
    rounded = round(boards, 2)
    return trimmed(f"{rounded:,.2f}") if rounded else _number(boards)
