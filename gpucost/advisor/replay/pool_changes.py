"""Pools of nodes and their prices, with a change made in them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from operator import attrgetter
from typing import NamedTuple

from gpucost.advisor.replay.history_record import GuestNodes, PoolRecord
from gpucost.advisor.replay.what_if_change import WhatIfChange


class PriceStep(NamedTuple):
    """What a GPU-hour of a pool costs from an instant on, in nano-units; None where nobody knows. With a
    ``guest`` it is of those of its nodes that are of that other model, else of the others."""

    at_ms: int
    pool: str
    price: Fraction | None
    guest: str = ""


def changed_pools(
    pools: Mapping[str, PoolRecord], change: WhatIfChange, begin_ms: int
) -> tuple[dict[str, PoolRecord], tuple[PriceStep, ...]]:
    """The pools with the change made in them, and what they cost, ascending. All that it names is there."""
    found, prices = dict(pools), list[PriceStep]()
    told: list[tuple[str, int, int | None]] = []
    for each in change.nodes:
        since_ms, pool = change.since_ms(each, begin_ms), found[each.pool]
        if each.add:
            pool = replace(pool, steps=_added(pool.steps, since_ms, each.add))
        guest = each.model or "" if each.has_guests else ""
        if guest:
            pool = replace(pool, guests=(*pool.guests, GuestNodes(since_ms, each.add or 0, guest)))
        elif each.model is not None and since_ms <= begin_ms:
            pool = replace(pool, model=each.model)
        elif each.model is not None:
            pool = replace(pool, models=tuple(sorted([*pool.models, (since_ms, each.model)])))
        found[each.pool] = pool
        if each.price is not None or guest:
            nano = price_of(guest, pools, since_ms) if each.price is None else Fraction(each.price)
            prices.append(PriceStep(since_ms, each.pool, nano, guest))
            if not guest:
                told.append((each.pool, since_ms, None))
    for price in change.prices:
        since_ms = change.since_ms(price, begin_ms)
        for name, pool in found.items():
            if price.pool is None:
                spans = list(_spans_of_model(pool, price.model))
            else:
                spans = [(since_ms, None)] if name == price.pool else []
            spans = [
                (max(since_ms, from_ms), until_ms)
                for from_ms, until_ms in spans
                if until_ms is None or since_ms < until_ms
            ]
            prices += [PriceStep(from_ms, name, Fraction(price.gpu_hour)) for from_ms, _ in spans]
            told += [(name, *span) for span in spans]
            prices += [
                PriceStep(max(since_ms, each.since_ms), name, Fraction(price.gpu_hour), each.model)
                for each in pool.guests
                if price.model == each.model or price.pool == name
            ]
    return found, tuple(sorted([*_prices_of(pools, begin_ms, told), *prices], key=attrgetter("at_ms")))


def _prices_of(
    pools: Mapping[str, PoolRecord], begin_ms: int, told: Sequence[tuple[str, int, int | None]]
) -> Iterator[PriceStep]:
    """What the pools cost in the history, but where the change has ``told`` another price (of a pool, from
    and until)."""
    for name, pool in pools.items():
        yield PriceStep(begin_ms, name, pool.price)
        for at_ms, price in pool.later_prices:
            if not any(
                name == other and since_ms <= at_ms and (until_ms is None or at_ms < until_ms)
                for other, since_ms, until_ms in told
            ):
                yield PriceStep(at_ms, name, price)


def price_of(model: str, pools: Mapping[str, PoolRecord], at_ms: int) -> Fraction | None:
    """That of a pool of the history that is of it, then."""
    known = (each.price_at(at_ms) for each in pools.values() if each.model == model)
    return next((each for each in known if each is not None), None)


def _spans_of_model(pool: PoolRecord, model: str | None) -> Iterator[tuple[int, int | None]]:
    """From when until when its nodes are of a model; None: until the end."""
    steps = [(0, pool.model), *pool.models]
    ends = [at_ms for at_ms, _ in steps[1:]]
    for (at_ms, known), end_ms in zip(steps, [*ends, None], strict=True):
        if known == model:
            yield at_ms, end_ms


def _added(steps: Sequence[tuple[int, int]], since_ms: int, more: int) -> tuple[tuple[int, int], ...]:
    """With so many nodes more from an instant on, and never less than none."""
    edges = sorted({at_ms for at_ms, _ in steps} | {max(since_ms, steps[0][0])})
    found = []
    for edge in edges:
        nodes = [count for at_ms, count in steps if at_ms <= edge][-1]
        found.append((edge, max(0, nodes + more) if edge >= since_ms else nodes))
    return tuple(found)
