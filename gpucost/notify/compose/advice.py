"""Notices about a waiting job, and a change by which it would start earlier.

Only a suggestion that the advisor has tried on the changed job is used, and only where the job starts earlier
by it. The owning team reads the answer without the names of other teams' work.
"""

from __future__ import annotations

from shlex import quote

from gpucost.advisor.model.answers import (
    Advice,
    AdviceSubject,
    JobSuggestion,
    SchedulingDecision,
    SuggestedChangeKind,
    WaitEstimate,
    about,
)
from gpucost.advisor.model.redaction import AnswerReader, redact_advice
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.compose.wording import brief, owner, sentence
from gpucost.notify.message import MessageFact, MessageSection, MessageTone, NotificationMessage
from gpucost.notify.notices import Notice, NoticeKind, NoticeRank, NoticeStage, short_hash
from gpucost.reports.base.display import name
from gpucost.reports.render.advice_text import after

_ORDER = (SchedulingDecision.NOW, SchedulingDecision.LATER, SchedulingDecision.WAITS)
_WAITING = (SchedulingDecision.LATER, SchedulingDecision.WAITS, SchedulingDecision.NEVER)


def advice_key(cluster: str, workload_uid: str) -> str:
    """The key of the conversation about one waiting workload."""
    return f"advice:{cluster}:{workload_uid}"


def best(advice: Advice) -> JobSuggestion | None:
    """The first suggestion by which it starts earlier; None where it does not wait, or there is none."""
    if advice.decision not in _WAITING:
        return None
    now = _start(advice.decision, advice.wait)
    return next((each for each in advice.suggestions if _start(each.decision, each.wait) < now), None)


def of_advice(
    advice: Advice,
    reader: AnswerReader,
    written: object = (),
    *,
    cluster: str,
    workload_uid: str,
    team: str,
    since_ms: int,
    links: MessageLinks,
    currency: str = "",
) -> Notice | None:
    """None where no suggestion helps. ``reader`` is the owning team and ``written`` what it wrote (see
    ``redact_advice``); ``since_ms`` is the start of its wait.

    Where only an administrator may see what helps, it is the platform's notice, and not the team's.
    """
    whole = best(advice)
    if whole is None:
        return None
    own_advice = redact_advice(advice, reader, written)
    own, whose = best(own_advice), owner(team)
    full = _message(advice, whole, team, cluster, links, currency)
    is_own = own is not None and bool(whose)
    message = (
        _message(own_advice, own, team, cluster, links, currency) if own is not None and is_own else full
    )
    key = advice_key(cluster, workload_uid)
    return Notice(
        key=key,
        group=key,
        kind=NoticeKind.ADVICE,
        stage=NoticeStage.OPEN,
        rank=NoticeRank.LOW,
        team=whose if is_own else "",
        cluster=cluster,
        since_ms=since_ms,
        version=_version(advice, whole),
        message=message,
        full=None if message == full else full,
    )


def over(
    *,
    cluster: str,
    workload_uid: str,
    team: str,
    since_ms: int,
    started_ms: int | None,
    ended_ms: int,
    namespace: str,
    workload: str,
) -> Notice:
    """It waits no longer: it runs since ``started_ms``, or, with None, left without starting."""
    key = advice_key(cluster, workload_uid)
    who = f"{name(namespace)}/{name(workload)}"
    waited = about(max(0, (ended_ms if started_ms is None else started_ms) - since_ms))
    happened = (
        f"It left after {waited} without a start." if started_ms is None else f"It runs, after {waited}."
    )
    return Notice(
        key=key,
        group=key,
        kind=NoticeKind.ADVICE,
        stage=NoticeStage.RESOLVED,
        rank=NoticeRank.LOW,
        team=owner(team),
        cluster=cluster,
        since_ms=since_ms,
        version="over",
        message=NotificationMessage(
            f"{who} waits no longer", happened, MessageTone.GOOD, footer="gpucost advisor"
        ),
    )


def _start(decision: SchedulingDecision, wait: WaitEstimate | None) -> tuple[int, float]:
    """Orders outcomes by when the job starts; never, and unknown, come last."""
    order = _ORDER.index(decision) if decision in _ORDER else len(_ORDER)
    p50_ms = None if wait is None or decision is not SchedulingDecision.WAITS else wait.p50_ms
    is_known = p50_ms is not None or decision is not SchedulingDecision.WAITS
    return order, (p50_ms or 0) if is_known else float("inf")


def _version(advice: Advice, suggestion: JobSuggestion) -> str:
    """Changes when the cause of the wait changes, or something else helps; not when the
    predicted wait does."""
    return short_hash(advice.decision, advice.layer, suggestion.rule, suggestion.change.patch)


# Words


def _message(
    advice: Advice,
    suggestion: JobSuggestion,
    team: str,
    cluster: str,
    links: MessageLinks,
    currency: str,
) -> NotificationMessage:
    who = f"{name(advice.subject.namespace)}/{name(advice.subject.name)}"
    whose = f" (team {name(team)})" if owner(team) else ""
    return NotificationMessage(
        title=f"{who} could start earlier{whose}",
        summary=brief(advice.says),
        tone=MessageTone.INFO,
        facts=(MessageFact("With the change", after(suggestion, currency)),),
        sections=(_section(suggestion),),
        links=links.waiting(advice.subject.kind, advice.subject.namespace, advice.subject.name, cluster),
        footer=_command(advice.subject),
    )


def _command(subject: AdviceSubject) -> str:
    what, where = (quote(name(each)) for each in (f"{subject.kind}/{subject.name}", subject.namespace))
    return f"gpucost explain {what} -n {where}"


def _section(suggestion: JobSuggestion) -> MessageSection:
    """The change in words; its patch stands on the page."""
    change = suggestion.change
    who = (
        "What to change: "
        if change.kind is SuggestedChangeKind.MANIFEST
        else f"For an administrator, in {change.target}: "
    )
    mind = f" Mind: {suggestion.caveat}" if suggestion.caveat else ""
    return MessageSection(text=brief(f"{who}{sentence(suggestion.says)}{mind}"))
