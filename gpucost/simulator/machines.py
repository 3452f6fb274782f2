"""The nodes of the simulated cluster as frames, and their state at any time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pandas as pd

from gpucost.attribution.frames import conform
from gpucost.contract.frames import CAPACITY, NODES
from gpucost.simulator.inventory import REGION, Node


def nodes_frame(cluster: str, nodes: Sequence[Node]) -> pd.DataFrame:
    """The nodes frame."""
    rows = [
        {
            "cluster": cluster,
            "node": node.name,
            "start_ms": node.start_ms,
            "end_ms": node.end_ms,
            "product": node.product,
            "boards": node.boards,
            "instance_type": node.instance_type,
            "capacity_type": node.capacity_type,
            "region": REGION,
            "zone": node.zone,
            "pool": node.pool,
            "labels": json.dumps({}, sort_keys=True),
        }
        for node in nodes
    ]
    return conform(pd.DataFrame(rows), NODES)


def capacity_frame(cluster: str, nodes: Sequence[Node]) -> pd.DataFrame:
    """The capacity frame: a row per offer and stretch without a change."""
    rows = [
        {
            "cluster": cluster,
            "node": node.name,
            "resource": offer.resource,
            "start_ms": start_ms,
            "end_ms": end_ms,
            "expected": offer.units,
            "capacity": offer.units,
            "allocatable": offer.units - lost,
            "replicas": offer.replicas,
            "schedulable": int(not cordoned),
        }
        for node in nodes
        for start_ms, end_ms, lost, cordoned in states(node)
        for offer in node.offers
    ]
    return conform(pd.DataFrame(rows), CAPACITY)


def states(node: Node) -> Iterator[tuple[int, int, int, bool]]:
    """(start, end, units lost, cordoned) of the stretches of a node's life."""
    cuts = sorted({node.start_ms, node.end_ms, *(t for s in node.spells for t in (s.start_ms, s.end_ms))})
    for start_ms, end_ms in pairwise(cuts):
        spells = [spell for spell in node.spells if spell.start_ms <= start_ms < spell.end_ms]
        yield start_ms, end_ms, sum(s.lost for s in spells), any(s.cordoned for s in spells)
