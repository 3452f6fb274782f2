"""How much of a GPU a unit that a pod holds is: a whole one, a MIG slice, one of several replicas."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import NamedTuple

from gpucost.attribution.frames import ClusterFrames
from gpucost.contract.frames import ALLOCATIONS
from gpucost.domain.errors import InputError
from gpucost.domain.gpu import WHOLE, ResourceCatalog, ShareBasis, is_shared_resource
from gpucost.telemetry.evidence.frame_rows import FrameRow

_NODE, _RESOURCE, _START, _END = (
    ALLOCATIONS.column_names.index(name) for name in ("node", "resource", "start_ms", "end_ms")
)


class UnitSize(NamedTuple):
    """``gpus`` are those of a unit, None where that is not known. ``is_handed_out``: an inner scheduler can
    count such units as GPUs; else they are shares of GPUs that others have, too."""

    gpus: Fraction | None
    is_handed_out: bool = True


class UnitSizes:
    """Sizes by what the nodes of one cluster had when a pod's row began, by the rules of attribution."""

    def __init__(
        self,
        frames: ClusterFrames | None = None,
        catalog: ResourceCatalog | None = None,
        basis: ShareBasis = ShareBasis.COMPUTE,
    ) -> None:
        """Without ``frames`` a unit is what its name alone says."""
        self._catalog, self._basis = catalog or ResourceCatalog(), basis
        self._products: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        self._replicas: dict[tuple[str, str], list[tuple[int, int, int]]] = defaultdict(list)
        self._known: dict[tuple[str, str, int], UnitSize] = {}
        if frames is None:
            return
        nodes, counts = frames.nodes, frames.capacity
        for node, start, end, product in zip(
            *(nodes[name].tolist() for name in ("node", "start_ms", "end_ms", "product")), strict=True
        ):
            self._products[node].append((start, end, product))
        columns = ("node", "resource", "start_ms", "end_ms", "replicas")
        for node, resource, start, end, replicas in zip(
            *(counts[name].tolist() for name in columns), strict=True
        ):
            self._replicas[node, resource].append((start, end, replicas))

    def of(self, row: FrameRow) -> UnitSize:
        """Of a row of frames.ALLOCATIONS."""
        node, resource, start_ms, end_ms = (row[at] for at in (_NODE, _RESOURCE, _START, _END))
        key = str(node), str(resource), int(str(start_ms))
        if key not in self._known:
            self._known[key] = self._of(*key, int(str(end_ms)))
        return self._known[key]

    def _of(self, node: str, resource: str, start_ms: int, end_ms: int) -> UnitSize:
        is_part = is_shared_resource(resource) or self._catalog.shares.get(resource, WHOLE) != WHOLE
        product = next((p for a, b, p in self._products[node] if a < end_ms and b > start_ms), "")
        counts = self._replicas[node, resource]
        replicas = next((n for a, b, n in counts if a < end_ms and b > start_ms), 1)
        try:
            gpus: Fraction | None = self._catalog.unit(resource, product, replicas, self._basis).share
        except InputError:
            gpus = None
        return UnitSize(gpus, not is_part)
