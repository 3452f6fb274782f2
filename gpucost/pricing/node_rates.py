"""The price in force on a node of a cluster as it is now, and how many GPUs a request takes of it."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from gpucost.cluster.objects.nodes import Node
from gpucost.domain.errors import InputError
from gpucost.domain.gpu import ResourceCatalog, parse_product
from gpucost.domain.rates import NodeFacts, Rate
from gpucost.domain.time import Window
from gpucost.pricing.price_book import PriceBook


def rate_on(node: Node, cluster: str, prices: PriceBook, at_ms: int) -> tuple[Rate | None, str]:
    """The rate of a GPU on ``node`` of ``cluster`` at ``at_ms``; without one, why there is none."""
    facts = NodeFacts(
        cluster,
        node.meta.name,
        parse_product(node.product).model,
        node.boards,
        node.instance_type,
        node.capacity_type,
        node.region,
        node.zone,
        node.pool,
        node.labels,
    )
    span = prices.rates(facts, Window(at_ms, at_ms + 1))[0]
    return span.rate, span.reason


def boards_on(
    node: Node, requests: Mapping[str, int], catalog: ResourceCatalog
) -> tuple[Fraction | None, str]:
    """GPUs that ``requests`` take on ``node``, as a fraction where they ask for parts of a GPU; None where it
    is not known what part that is, and why."""
    total = Fraction(0)
    for resource, amount in requests.items():
        if not catalog.is_gpu(resource):
            continue
        try:
            unit = catalog.unit(resource, node.product, node.replicas.get(resource, 1))
        except InputError:
            return None, f"nobody knows what part of a GPU {resource} is on node {node.meta.name}"
        total += unit.share * amount
    return total, ""
