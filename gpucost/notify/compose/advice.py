"""A job that waits, and what would let it start earlier -> notice.

Only a suggestion that the advisor has tried on the changed job is told, and only where the job starts earlier
by it. The owning team reads the answer without the names of what others run.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucost.advisor.answers import Advice, ChangeKind, Decision, Layer, Suggestion, Wait
from gpucost.advisor.headline import about
from gpucost.advisor.redact import Reader, redact_advice
from gpucost.domain.time import iso
from gpucost.notify.compose.links import QUEUES, Links
from gpucost.notify.compose.owners import owner
from gpucost.notify.hashes import short_hash
from gpucost.notify.message import Fact, Link, Message, Section, Tone
from gpucost.notify.notices import Kind, Notice, Rank, Stage
from gpucost.reports.advice_words import after, outcome, per_hour
from gpucost.reports.display import name

MOST_REASONS = 5
_ORDER = (Decision.NOW, Decision.LATER, Decision.WAITS)
_WAITING = (Decision.LATER, Decision.WAITS, Decision.NEVER)


def advice_key(cluster: str, workload_uid: str) -> str:
    """The key of the conversation about one waiting workload."""
    return f"advice:{cluster}:{workload_uid}"


def best(advice: Advice) -> Suggestion | None:
    """The first suggestion by which it starts earlier; None where it does not wait, or there is none."""
    if advice.decision not in _WAITING:
        return None
    now = _start(advice.decision, advice.wait)
    return next((each for each in advice.suggestions if _start(each.decision, each.wait) < now), None)


def of_advice(
    advice: Advice,
    reader: Reader,
    written: object = (),
    *,
    cluster: str,
    workload_uid: str,
    team: str,
    since_ms: int,
    links: Links,
    currency: str = "",
) -> Notice | None:
    """None where no suggestion helps. ``reader`` is the owning team and ``written`` what it wrote (see
    ``redact_advice``); ``since_ms`` is since when it waits.

    Where only an administrator may know of what helps, it is the platform's notice, and not the team's.
    """
    whole = best(advice)
    if whole is None:
        return None
    own_advice = redact_advice(advice, reader, written)
    own, whose = best(own_advice), owner(team)
    full = _message(advice, whole, team, cluster, since_ms, links, currency)
    is_own = own is not None and bool(whose)
    message = (
        _message(own_advice, own, team, cluster, since_ms, links, currency)
        if own is not None and is_own
        else full
    )
    key = advice_key(cluster, workload_uid)
    return Notice(
        key=key,
        group=key,
        kind=Kind.ADVICE,
        stage=Stage.OPEN,
        rank=Rank.LOW,
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
    """It waits no longer: it runs since ``started_ms``, or, with None, left without a start."""
    key = advice_key(cluster, workload_uid)
    who = f"{name(namespace)}/{name(workload)}"
    waited = about(max(0, (ended_ms if started_ms is None else started_ms) - since_ms))
    happened = (
        f"It left after {waited} without a start." if started_ms is None else f"It runs, after {waited}."
    )
    return Notice(
        key=key,
        group=key,
        kind=Kind.ADVICE,
        stage=Stage.RESOLVED,
        rank=Rank.LOW,
        team=owner(team),
        cluster=cluster,
        since_ms=since_ms,
        version="over",
        message=Message(f"{who} waits no longer", happened, Tone.GOOD, footer="gpucost advisor"),
    )


def _start(decision: Decision, wait: Wait | None) -> tuple[int, float]:
    """Orders outcomes by when the job starts; never, and unknown, come last."""
    order = _ORDER.index(decision) if decision in _ORDER else len(_ORDER)
    p50_ms = None if wait is None or decision is not Decision.WAITS else wait.p50_ms
    is_known = p50_ms is not None or decision is not Decision.WAITS
    return order, (p50_ms or 0) if is_known else float("inf")


def _version(advice: Advice, suggestion: Suggestion) -> str:
    """Another one when it is held elsewhere, or something else helps; not when the wait moves on."""
    return short_hash(advice.decision, advice.layer, suggestion.rule, suggestion.change.patch)


# Words


def _message(
    advice: Advice,
    suggestion: Suggestion,
    team: str,
    cluster: str,
    since_ms: int,
    links: Links,
    currency: str,
) -> Message:
    who = f"{name(advice.subject.namespace)}/{name(advice.subject.name)}"
    whose = f" (team {name(team)})" if owner(team) else ""
    return Message(
        title=f"{who} could start earlier{whose}",
        summary=advice.says,
        tone=Tone.INFO,
        facts=tuple(_facts(advice, suggestion, team, cluster, since_ms, currency)),
        sections=tuple(_sections(advice, suggestion)),
        links=_links(advice, team, cluster, links),
        footer=f"gpucost advisor{f', {advice.rules}' if advice.rules else ''}",
    )


def _facts(
    advice: Advice, suggestion: Suggestion, team: str, cluster: str, since_ms: int, currency: str
) -> Iterator[Fact]:
    if owner(team):
        yield Fact("Team", name(team))
    yield Fact("Cluster", name(cluster))
    if advice.queue:
        yield Fact("Queue", name(advice.queue))
    yield Fact("Waits since", f"{iso(since_ms)[:16].replace('T', ' ')} UTC")
    if advice.layer is not Layer.NONE:
        reason = f" ({advice.reason})" if advice.reason else ""
        yield Fact("Held by", f"{advice.layer.value}{reason}")
    yield Fact("As it is", outcome(advice.decision, advice.wait))
    yield Fact("With the change", after(suggestion, currency))
    if advice.price is not None:
        yield Fact("Costs", per_hour(advice.price.per_hour, advice.price.currency))


def _sections(advice: Advice, suggestion: Suggestion) -> Iterator[Section]:
    change = suggestion.change
    who = "" if change.kind is ChangeKind.MANIFEST else f"For an administrator, in {change.target}.\n"
    mind = f"\nMind: {suggestion.caveat}" if suggestion.caveat else ""
    code = change.patch or change.command
    yield Section(title="What to change", text=f"{who}{suggestion.says}{mind}", code=code)
    reasons = advice.why[:MOST_REASONS]
    more = len(advice.why) - len(reasons)
    if reasons:
        rest = (f"and {more:,} more in gpucost explain",) if more else ()
        yield Section(title="Why it waits", items=(*reasons, *rest))


def _links(advice: Advice, team: str, cluster: str, links: Links) -> tuple[Link, ...]:
    queues = links.dashboard("Queues", QUEUES, {"cluster": cluster})
    job = links.job(advice.subject.namespace, advice.subject.name, cluster)
    return (*job, *queues, *links.team(owner(team), cluster))
