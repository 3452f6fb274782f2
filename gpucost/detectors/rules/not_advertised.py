"""Nodes that take work and advertise fewer GPUs than they have."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.views.commands import kubectl
from gpucost.detectors.allocation_pieces import (
    LEAST_COVERAGE,
    AllocationPiece,
    amount,
    lasting,
    pieces,
    since,
    with_names,
)
from gpucost.detectors.findings import (
    FindingAction,
    FindingDraft,
    FindingEvidence,
    FindingSeverity,
    FindingSubject,
    RuleDetection,
    SubjectKind,
    WasteEpisode,
    WastePattern,
    WithheldFinding,
)
from gpucost.detectors.inputs.detector_facts import DetectorFacts
from gpucost.detectors.rule_settings import NotAdvertisedSettings, ScopedSettings
from gpucost.domain.buckets import Waste
from gpucost.settings.types import milliseconds

NAME = WastePattern.NOT_ADVERTISED
_NEGLIGIBLE = 1e-9
_MIG_STATE, _UPGRADE_STATE = "nvidia.com/mig.config.state", "nvidia.com/gpu-driver-upgrade-state"
_SHOWN_LABELS = (
    "nvidia.com/gpu.count",
    "nvidia.com/gpu.product",
    "nvidia.com/mig.strategy",
    "nvidia.com/mig.config",
    "nvidia.com/cuda.driver-version.full",
    "nvidia.com/gpu.sharing-strategy",
)
_PLUGIN = "device-plugin"
_PLUGIN_LABEL = "app=nvidia-device-plugin-daemonset"


class _Count(NamedTuple):
    """One row of the capacity frame. ``units`` is the number that should be there: what hardware and settings
    should give, or the most the node had so far."""

    start_ms: int
    end_ms: int
    resource: str
    units: int
    allocatable: int
    schedulable: int


class _Missing(NamedTuple):
    """``units`` of a resource that should be there and are not, and the GPUs they stand for; ``should`` is
    the number of units that should be there."""

    boards: float
    units: int
    should: int


class _MissingUnits(NamedTuple):
    """A node in ``[start_ms, end_ms)``: what is missing by resource, and GPUs it advertises and has."""

    start_ms: int
    end_ms: int
    missing: Mapping[str, _Missing]
    advertised: float
    has: float

    @property
    def boards(self) -> float:
        return sum(each.boards for each in self.missing.values())


@dataclass(frozen=True)
class _MissingInterval:
    """Consecutive stretches of one node in each of which something was missing."""

    node: str
    looks: tuple[_MissingUnits, ...]
    start_ms: int
    product: str

    @property
    def end_ms(self) -> int:
        return self.looks[-1].end_ms

    @property
    def last(self) -> _MissingUnits:
        return self.looks[-1]

    @property
    def resources(self) -> tuple[str, ...]:
        return tuple(sorted({resource for look in self.looks for resource in look.missing}))


def run(facts: DetectorFacts, settings: ScopedSettings[NotAdvertisedSettings]) -> RuleDetection:
    """Nodes that advertise none of their GPUs, or fewer than they have."""
    own = settings.default
    drafts: list[FindingDraft] = []
    withheld: list[WithheldFinding] = []
    stretches = list(_stretches(facts, own))
    held = pieces(facts.history.held, "node", {each.node for each in stretches})
    for stretch in stretches:
        because = _guard(facts, stretch)
        if because is not None:
            subject = FindingSubject(SubjectKind.NODE, facts.cluster, stretch.node)
            withheld.append(WithheldFinding(NAME, subject, because[0], because[1]))
        else:
            drafts.append(_draft(facts, stretch, held.get(stretch.node, [])))
    return RuleDetection(tuple(drafts), tuple(withheld))


def _stretches(facts: DetectorFacts, settings: NotAdvertisedSettings) -> Iterator[_MissingInterval]:
    """Intervals that lasted long enough, after the node's first minutes."""
    suspects = _suspects(facts)
    known = _known(facts, suspects)
    for node, counts in suspects.items():
        about = known.get(node)
        ready_ms = _created_ms(facts, node, about) + milliseconds(settings.node_age)
        open_: list[_MissingUnits] = []
        for look in (*_looks(facts, node, counts, about), None):
            if look is not None and look.missing and (not open_ or open_[-1].end_ms == look.start_ms):
                open_.append(look)
                continue
            if open_:
                start_ms = max(open_[0].start_ms, ready_ms)
                if open_[-1].end_ms - start_ms >= milliseconds(settings.after):
                    looks = tuple(each for each in open_ if each.end_ms > start_ms)
                    yield _MissingInterval(node, looks, start_ms, about.product if about else "")
            open_ = [look] if look is not None and look.missing else []


def _suspects(facts: DetectorFacts) -> dict[str, list[_Count]]:
    """All counts of the nodes that ever advertise less of a resource than they should, in order of time."""
    frame = _with_units(facts.history.frames.capacity)
    known = (frame["allocatable"] >= 0) & (frame["schedulable"] == 1)
    short = frame.loc[known & (frame["allocatable"] < frame["units"]), "node"].unique()
    rows = frame[frame["node"].isin(short)]
    window = facts.history.window
    found: dict[str, list[_Count]] = {}
    names = ("node", "start_ms", "end_ms", "resource", "units", "allocatable", "schedulable")
    for node, start, end, *rest in zip(*(rows[name].tolist() for name in names), strict=True):
        start, end = max(start, window.start_ms), min(end, window.end_ms)
        if start < end:
            found.setdefault(node, []).append(_Count(start, end, *rest))
    return found


def _with_units(capacity: pd.DataFrame) -> pd.DataFrame:
    """With ``units``: the number a node should have of a resource, the most expected or seen until then."""
    ordered = capacity.sort_values(["node", "resource", "start_ms"], kind="stable")
    ordered = ordered.assign(units=np.maximum(ordered["expected"], ordered["capacity"]))
    return ordered.assign(units=ordered.groupby(["node", "resource"], observed=True)["units"].cummax())


class _Known(NamedTuple):
    """The facts of the nodes frame about a node: its creation, the most GPUs it had, its last product."""

    start_ms: int
    boards: int
    product: str


def _known(facts: DetectorFacts, names: Collection[str]) -> dict[str, _Known]:
    nodes = facts.history.frames.nodes
    rows = nodes[nodes["node"].isin(list(names))].sort_values("start_ms", kind="stable")
    found: dict[str, _Known] = {}
    columns = ("node", "start_ms", "boards", "product")
    for node, start_ms, boards, product in zip(*(rows[name].tolist() for name in columns), strict=True):
        before = found.get(node, _Known(start_ms, boards, product))
        found[node] = _Known(before.start_ms, max(before.boards, boards), product)
    return found


def _created_ms(facts: DetectorFacts, node: str, known: _Known | None) -> int:
    """When the node was created, 0 where it existed before the first observation."""
    if facts.overview is not None and node in facts.overview.state.node_by_name:
        return facts.overview.state.node_by_name[node].meta.created_ms
    is_new = known is not None and known.start_ms > facts.history.window.start_ms
    return known.start_ms if known is not None and is_new else 0


def _looks(
    facts: DetectorFacts, node: str, counts: Sequence[_Count], known: _Known | None
) -> Iterator[_MissingUnits]:
    """Stretches in which all counts of a node stay the same.

    GPUs are compared: a resource that was renamed, shared or sliced differently is not missing while others
    stand for the same GPUs.
    """
    most = float(known.boards) if known is not None and known.boards > 0 else None
    seen = 0.0
    cuts = sorted({edge for each in counts for edge in (each.start_ms, each.end_ms)})
    for start, end in pairwise(cuts):
        here = [each for each in counts if each.start_ms <= start < each.end_ms]
        shares = {
            each.resource: float(facts.history.shares.get((facts.cluster, node, each.resource), 0))
            for each in here
        }
        advertised = sum(shares[each.resource] * max(0, each.allocatable) for each in here)
        seen = max(seen, advertised, *(shares[each.resource] * each.units for each in here), 0.0)
        room = (seen if most is None else most) - advertised
        missing: dict[str, _Missing] = {}
        for each in here:
            if not each.schedulable or each.allocatable < 0 or not shares[each.resource]:
                continue
            boards = min(room, shares[each.resource] * (each.units - each.allocatable))
            if boards > _NEGLIGIBLE:
                room -= boards
                missing[each.resource] = _Missing(boards, round(boards / shares[each.resource]), each.units)
        yield _MissingUnits(
            start, end, missing, advertised, advertised + sum(each.boards for each in missing.values())
        )


def _guard(facts: DetectorFacts, stretch: _MissingInterval) -> tuple[str, bool] | None:
    """Why it is not a finding, and whether that is a lack of data."""
    coverage = facts.history.coverage(stretch.start_ms, stretch.end_ms)
    if coverage < LEAST_COVERAGE:
        return (
            f"the cluster was observed for only {coverage:.0%} of the time the GPUs seemed to be missing",
            True,
        )
    node = _node_now(facts, stretch)
    if node is None:
        return None
    if node.labels.get(_MIG_STATE) == "pending":
        return f"the node is being sliced anew ({_MIG_STATE} is pending)", False
    upgrade = node.labels.get(_UPGRADE_STATE, "")
    if upgrade not in ("", "upgrade-done"):
        return f"its driver is being upgraded ({_UPGRADE_STATE} is {upgrade})", False
    return None


def _node_now(facts: DetectorFacts, stretch: _MissingInterval) -> Node | None:
    if facts.overview is None or stretch.end_ms < facts.now_ms:
        return None
    return facts.overview.state.node_by_name.get(stretch.node)


def _draft(facts: DetectorFacts, stretch: _MissingInterval, held: Sequence[AllocationPiece]) -> FindingDraft:
    last = stretch.last
    variant = "none" if last.advertised <= _NEGLIGIBLE else "fewer"
    goes_on = stretch.end_ms >= facts.now_ms
    waiting = _waiting(facts, stretch)
    node = _node_now(facts, stretch)
    plugins = _plugins(facts, node)
    is_urgent = variant == "none" and waiting > 0
    have = (
        f"{last.advertised:g} of its {amount(last.has, 'GPU')}" if variant == "fewer" else "none of its GPUs"
    )
    return FindingDraft(
        NAME,
        variant,
        FindingSubject(SubjectKind.NODE, facts.cluster, stretch.node),
        stretch.start_ms,
        f"Node {stretch.node} is Ready and advertises {have} since {since(stretch.start_ms)}, for "
        f"{lasting(stretch.end_ms - stretch.start_ms)}: {amount(last.boards, 'GPU')} nobody can be given"
        + (f", while {amount(waiting, 'pod')} wait for them." if is_urgent else "."),
        (
            FindingEvidence("should have", round(last.has, 3), "GPUs", "gpucost_node_gpu_expected"),
            FindingEvidence(
                "advertises", round(last.advertised, 3), "GPUs", f"node {stretch.node}: status.allocatable"
            ),
            FindingEvidence(
                "missing", ", ".join(f"{each.units} {key}" for key, each in sorted(last.missing.items()))
            ),
            FindingEvidence("pods that wait for such GPUs", waiting, "pods", "gpucost_pod_gpu_waiting"),
            *_labels(node),
            *_states(plugins),
        ),
        _action(stretch, plugins),
        "GPUs the node should have − GPUs it advertises or pods still hold, × time",
        ended_ms=None if goes_on else stretch.end_ms,
        episodes=tuple(_episodes(facts, stretch, held)),
        labels=node.labels if node is not None else None,
        checked=(
            "the node is Ready and not cordoned, and no newcomer",
            "GPUs are counted whole, whatever they are shared or sliced into",
            "no MIG reconfiguration and no driver upgrade is under way",
        ),
        at_least=FindingSeverity.HIGH if is_urgent else FindingSeverity.INFO,
    )


def _waiting(facts: DetectorFacts, stretch: _MissingInterval) -> int:
    """Pods that waited for the missing units when these were last seen missing."""
    demand = facts.history.frames.demand
    here = demand[(demand["start_ms"] < stretch.end_ms) & (demand["end_ms"] >= stretch.end_ms)]
    here = here[here["resource"].isin(stretch.resources)]
    asked = zip(here["products"].tolist(), here["pods"].tolist(), strict=True)
    return sum(pods for products, pods in asked if not products or stretch.product in products.split("|"))


def _episodes(
    facts: DetectorFacts, stretch: _MissingInterval, held: Sequence[AllocationPiece]
) -> Iterator[WasteEpisode]:
    """The missing units without a holder: pods keep the GPUs they have when a node stops advertising them."""
    for look in stretch.looks:
        start_ms = max(look.start_ms, stretch.start_ms)
        for resource, missing in look.missing.items():
            mine = [each for each in held if each.resource == resource]
            mine = [each for each in mine if each.start_ms < look.end_ms and each.end_ms > start_ms]
            edges = {edge for each in mine for edge in (each.start_ms, each.end_ms)}
            inner = (edge for edge in edges if start_ms < edge < look.end_ms)
            for a, b in pairwise(sorted({start_ms, look.end_ms, *inner})):
                taken = sum(each.units for each in mine if each.start_ms <= a < each.end_ms)
                units = min(missing.units, max(0, missing.should - taken))
                if units:
                    boards = missing.boards * units / missing.units
                    place = (facts.cluster, stretch.node, "", a, b)
                    yield WasteEpisode(Waste.UNAVAILABLE, *place, boards, resource)


def _plugins(facts: DetectorFacts, node: Node | None) -> list[Pod]:
    """The pods of device plugins on the node, by name: they advertise its GPUs."""
    if facts.overview is None or node is None:
        return []
    here = facts.overview.state.pods_by_node.get(node.meta.name, [])
    return sorted((pod for pod in here if _PLUGIN in pod.meta.name), key=lambda pod: pod.meta.name)


def _labels(node: Node | None) -> Iterator[FindingEvidence]:
    for label in _SHOWN_LABELS:
        if node is not None and label in node.labels:
            yield FindingEvidence(label, node.labels[label], "", f"node {node.meta.name}: metadata.labels")


def _states(plugins: Sequence[Pod]) -> Iterator[FindingEvidence]:
    for pod in plugins:
        where = f"pod {pod.meta.namespace}/{pod.meta.name}: status"
        yield FindingEvidence(f"pod {pod.meta.name}", pod.stuck or pod.phase.value, "", where)


def _action(stretch: _MissingInterval, plugins: Sequence[Pod]) -> FindingAction:
    text = (
        f"Restart the device plugin on {stretch.node}; if that does not help, restart its kubelet, and if "
        f"the "
        "driver does not answer either, drain the node and reboot it."
    )
    if plugins:
        pod = plugins[0].meta
        command = kubectl("-n", pod.namespace, "delete", "pod", pod.name)
        return with_names(FindingAction(text, command, stretch.last.boards), pod.namespace, pod.name)
    selector = f"--field-selector=spec.nodeName={stretch.node}"
    patch = kubectl("-n", "gpu-operator", "delete", "pod", "-l", _PLUGIN_LABEL, selector)
    is_nvidia = any("nvidia.com/" in resource for resource in stretch.resources)
    return with_names(FindingAction(text, patch if is_nvidia else "", stretch.last.boards), stretch.node)
