"""A job among all others in the next session: whether it is let in, who else is, and the queues then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpucost.advisor.volcano.amounts import minus
from gpucost.advisor.volcano.enqueue import Line, PlaceOf
from gpucost.advisor.volcano.gang import Gang
from gpucost.advisor.volcano.queues import Queues, Refusal, reserved
from gpucost.advisor.volcano.session import World


@dataclass(frozen=True)
class Entry:
    """``refused`` is why the job is not let in. ``asking`` is it as it is then, ``others`` are the other jobs
    that are let in with it, ``queues`` all queues then: to be copied before they are changed. Where it is
    refused, ``others`` are those let in before it, and ``queues`` are as they were before them."""

    refused: Refusal | None
    asking: Gang
    others: Sequence[Gang]
    queues: Queues


def queues_before(gang: Gang, world: World) -> Queues:
    """The queues while it waits to be let in. To be copied."""
    if _is_known(gang, world) or (not gang.uid and gang.queue in world.before.present):
        return world.before
    return world.queues_of([*_others(gang, world), gang], gang.uid)


def enter(gang: Gang, world: World) -> Entry:
    """Of a job that is new nothing is worked out again that does not depend on it."""
    if _is_known(gang, world):
        return _of_known(gang, world)
    others = _others(gang, world)
    if "enqueue" not in world.config.actions:
        return _among(gang, world, others)
    before = queues_before(gang, world)
    own = world.gangs.get(gang.uid)
    votes = world.votes(before, world.reserved if own is None else minus(world.reserved, reserved(own)))
    place_of = PlaceOf(world.config, world.total, before)
    line = world.line
    if before is not world.before:
        line = Line.of(others, world.votes(before, votes.promised), place_of)
    if not gang.is_pending:
        return _among(gang, world, line.let_in())
    refused, let_in = line.with_one(gang, place_of(gang), votes)
    if refused is not None:
        return Entry(refused, gang, let_in, before)
    return _among(gang, world, let_in)


def _of_known(gang: Gang, world: World) -> Entry:
    entered: Mapping[str, Gang] = world.entered
    if gang.is_pending and gang.uid not in entered:
        votes = world.votes(world.before)
        let_in = world.line.before(gang.uid)
        for each in let_in:
            votes.let_in(each)
        return Entry(votes.ask(gang), gang, let_in, world.before)
    others = [each for uid, each in entered.items() if uid != gang.uid]
    return Entry(None, entered.get(gang.uid, gang), others, world.after)


def _among(gang: Gang, world: World, let_in: Sequence[Gang]) -> Entry:
    asking = replace(gang, phase="Inqueue") if gang.is_pending else gang
    others = [world.as_let_in(each) for each in let_in]
    now = {each.uid: each for each in others}
    if not gang.uid and now.keys() == world.entered.keys():
        return Entry(None, asking, others, world.joined(world.after, asking))
    waiting = [now.get(each.uid, each) for each in _others(gang, world)]
    return Entry(None, asking, others, world.queues_of([*waiting, asking], gang.uid))


def _is_known(gang: Gang, world: World) -> bool:
    """Whether it is one of the snapshot, as it is there."""
    return bool(gang.uid) and world.gangs.get(gang.uid) is gang


def _others(gang: Gang, world: World) -> list[Gang]:
    return [each for each in world.pending if not gang.uid or each.uid != gang.uid]
