"""What a job costs per hour where it would run, and for a run as long as those of similar jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

from gpucost.advisor.estimate.placement_layer import parts_of
from gpucost.advisor.model.answers import LayerResult, PriceEstimate
from gpucost.advisor.placement.pod_demand import PlacementDemand
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.request.scheduling_request import SchedulingRequest
from gpucost.cluster.objects.nodes import Node
from gpucost.domain.time import HOUR_MS, SECOND_MS
from gpucost.pricing.node_rates import boards_on, rate_on

NO_BOOK = "price: unknown, there is no price book"


def price_of(
    asking: SchedulingRequest, found: LayerResult, known: AdvisorContext
) -> tuple[PriceEstimate | None, tuple[str, ...]]:
    """GPU-hours of its GPUs at the price in force on the nodes it gets, or, without any, on the first node
    that its pods may use; else None, and lines that say why.

    The rest of a node's price follows its GPUs, as in the reports; pods without GPUs cost nothing here.
    """
    if known.prices is None:
        return None, (NO_BOOK,)
    if asking.unknown:
        return None, ("price: unknown, as not all that it asks for is known",)
    per_hour, currency, rates = Fraction(0), known.prices.currency, dict[str, None]()
    for node, requests, count in _uses(asking, found, known):
        if node is None:
            return None, ("price: unknown, some of its GPUs would be on nodes that are not there yet",)
        boards, why = boards_on(node, requests, known.overview.catalog)
        if boards is None:
            return None, (f"price: unknown, {why}",)
        if not boards:
            continue
        rate, why = rate_on(node, known.cluster, known.prices, known.state.at_ms)
        if rate is None:
            return None, (f"price: unknown, {why}",)
        per_hour += boards * count * rate.nano_per_board_hour
        rates[rate.rate_id] = None
    if not rates:
        return None, ("price: it asks for no GPUs",)
    run_ms = _run_ms(asking, known)
    nano = round(per_hour)
    for_run = None if run_ms is None else round(per_hour * run_ms / HOUR_MS)
    return PriceEstimate(nano, currency, run_ms, for_run, tuple(rates)), ()


def _uses(
    asking: SchedulingRequest, found: LayerResult, known: AdvisorContext
) -> Iterator[tuple[Node | None, Mapping[str, int], int]]:
    """Node, what one pod asks, and how many pods; a set without nodes on the first that admits it. None for
    pods with GPUs of which no node is known."""
    for part in parts_of(known, asking, found if found.pod_sets else None):
        wanted = part.wanted[0]
        nodes = part.given.nodes if part.given is not None else {}
        real = {name: count for name, count in nodes.items() if name in known.state.node_by_name}
        for name, count in sorted(real.items()):
            yield known.state.node_by_name[name], wanted.asks.requests, count
        left = part.count - sum(real.values())
        first = None if real else _first(wanted, known)
        if left and (first is not None or _asks_gpus(wanted, known)):
            yield first, wanted.asks.requests, left


def _asks_gpus(wanted: PlacementDemand, known: AdvisorContext) -> bool:
    return any(known.overview.catalog.is_gpu(name) for name in wanted.asks.requests)


def _first(wanted: PlacementDemand, known: AdvisorContext) -> Node | None:
    """The first node by name that admits its pods and has as many of its GPUs, whether or not
    they are held now."""
    base, asks = known.rooms.base, wanted.asks
    gpus = {name: amount for name, amount in asks.requests.items() if known.overview.catalog.is_gpu(name)}
    admitting = (base.nodes[at] for at in base.admits(asks))
    able = [
        node
        for node in admitting
        if all(node.allocatable.get(name, 0) >= amount for name, amount in gpus.items())
    ]
    return min(able, key=lambda node: node.meta.name, default=None)


def _run_ms(asking: SchedulingRequest, known: AdvisorContext) -> int | None:
    median = known.run_times.like(asking.team, asking.subject.name, asking.gpus).median_ms()
    if median is None or asking.deadline_s is None:
        return median
    return min(median, asking.deadline_s * SECOND_MS)
