"""GPUs that are broken while pods hold them.

Exporters say of GPUs that they are broken, statuses of pods say it of the units of the pod. The status names
the holder; nothing else of it counts where an exporter says the same GPU is broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from gpucost.cluster.views.commands import kubectl
from gpucost.detectors.allocation_pieces import (
    NOT_MADE_AGAIN,
    AllocationPiece,
    amount,
    boards_at,
    by_its_owner,
    joined,
    lasting,
    pieces,
    since,
    with_names,
    within,
)
from gpucost.detectors.findings import (
    FindingAction,
    FindingDraft,
    FindingEvidence,
    FindingSubject,
    RuleDetection,
    SubjectKind,
    WasteEpisode,
    WastePattern,
    WithheldFinding,
)
from gpucost.detectors.inputs.detector_facts import DetectorFacts
from gpucost.detectors.rule_settings import ScopedSettings, UnhealthyAllocatedSettings
from gpucost.domain.buckets import Waste
from gpucost.domain.gpu import ShareMethod
from gpucost.settings.types import milliseconds

NAME = WastePattern.UNHEALTHY_ALLOCATED
LOST = "lost"
REPORTED = "reported_unhealthy"
_METHODS = frozenset(ShareMethod)


@dataclass(frozen=True)
class _Broken:
    """A GPU of a node that was broken in ``[start_ms, end_ms)``; an empty ``gpu``: it is unknown which one.
    Where the status of a pod says so, ``units`` of a ``resource`` of the pod ``told_by``."""

    node: str
    gpu: str
    reasons: tuple[str, ...]
    start_ms: int
    end_ms: int
    told_by: str = ""
    resource: str = ""
    units: float = 1.0

    @property
    def variant(self) -> str:
        if self.told_by:
            return "reported"
        return LOST if LOST in self.reasons else "xid"


@dataclass(frozen=True)
class _Hurt:
    """A broken GPU that a pod held, and how much of a GPU that is."""

    broken: _Broken
    row: AllocationPiece
    episode: WasteEpisode


def run(facts: DetectorFacts, settings: ScopedSettings[UnhealthyAllocatedSettings]) -> RuleDetection:
    """Nodes whose pods hold broken GPUs."""
    broken, told = list(_broken(facts, settings.default)), list(_told(facts))
    by_node = pieces(facts.history.held, "node", {each.node for each in (*broken, *told)})
    told_of = _by_node(told)
    users = _users(facts, {each.node for each in broken})
    hurt: dict[tuple[str, str], list[_Hurt]] = {}
    withheld: list[WithheldFinding] = []
    for each in broken:
        rows = [row for row in by_node.get(each.node, []) if _meets(row, each)]
        found = _hurt(facts, each, rows, users, told_of.get(each.node, ()))
        if isinstance(found, str):
            subject = FindingSubject(SubjectKind.NODE, facts.cluster, each.node)
            withheld.append(WithheldFinding(NAME, subject, found))
        else:
            hurt.setdefault((each.node, each.variant), []).extend(found)
    known: dict[str, list[_Hurt]] = {}
    for (node, _), claims in hurt.items():
        known.setdefault(node, []).extend(claims)
    for each in told:
        rows = [row for row in by_node.get(each.node, []) if row.pod_uid == each.told_by]
        left = list(_left(_of_status(each, rows), known.get(each.node, ())))
        hurt.setdefault((each.node, each.variant), []).extend(left)
    drafts: list[FindingDraft] = []
    for (node, variant), claims in hurt.items():
        for stretch in _stretches(claims, milliseconds(settings.default.after)):
            if not facts.history.observed_parts(*stretch):
                coverage = facts.history.coverage(*stretch)
                because = f"the cluster was observed for only {coverage:.0%} of the time a GPU seemed broken"
                subject = FindingSubject(SubjectKind.NODE, facts.cluster, node)
                withheld.append(WithheldFinding(NAME, subject, because, lacks_data=True))
            else:
                drafts.append(_draft(facts, node, variant, stretch, claims))
    return RuleDetection(tuple(drafts), tuple(withheld))


def _broken(facts: DetectorFacts, settings: UnhealthyAllocatedSettings) -> Iterator[_Broken]:
    """Stretches of each GPU, whatever the reasons, merged."""
    window, health = facts.history.window, facts.history.frames.health
    programs = {f"xid_{code}" for code in settings.programs_xids}
    rows: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
    health = health[health["pod_uid"] == ""]
    names = ("node", "gpu", "start_ms", "end_ms", "reason")
    for node, gpu, start, end, reason in zip(*(health[name].tolist() for name in names), strict=True):
        start, end = max(start, window.start_ms), min(end, window.end_ms)
        if start < end and reason not in programs:
            rows.setdefault((node, gpu.partition("/")[0]), []).append((start, end, reason))
    for (node, gpu), found in sorted(rows.items()):
        for start, end in joined((a, b) for a, b, _ in found):
            reasons = {reason for a, b, reason in found if start <= a < end}
            yield _Broken(node, gpu, tuple(sorted(reasons)), start, end)


def _told(facts: DetectorFacts) -> Iterator[_Broken]:
    """What statuses of pods say, pod by pod."""
    window, health = facts.history.window, facts.history.frames.health
    health = health[(health["pod_uid"] != "") & (health["units"] > 0)]
    names = ("node", "gpu", "start_ms", "end_ms", "pod_uid", "resource", "units")
    rows = sorted(zip(*(health[name].tolist() for name in names), strict=True))
    for node, gpu, start, end, pod_uid, resource, units in rows:
        start, end = max(start, window.start_ms), min(end, window.end_ms)
        if start < end:
            yield _Broken(node, gpu, (REPORTED,), start, end, pod_uid, resource, units)


def _by_node(found: Sequence[_Broken]) -> Mapping[str, Sequence[_Broken]]:
    by_node: dict[str, list[_Broken]] = {}
    for each in found:
        by_node.setdefault(each.node, []).append(each)
    return by_node


def _meets(row: AllocationPiece, broken: _Broken) -> bool:
    return row.start_ms < broken.end_ms and row.end_ms > broken.start_ms


_Users = Mapping[tuple[str, str], tuple[str, ...]]
"""By node and pod: the GPUs it used at any time; a MIG instance counts as its GPU."""


def _users(facts: DetectorFacts, nodes: set[str]) -> _Users:
    series = facts.history.activity.series
    here = series[series["node"].isin(list(nodes))]
    found: dict[tuple[str, str], list[str]] = {}
    for node, uid, gpu in zip(
        here["node"].tolist(), here["pod_uid"].tolist(), here["gpu"].tolist(), strict=True
    ):
        found.setdefault((node, uid), []).append(gpu)
    return {key: tuple(gpus) for key, gpus in found.items()}


def _hurt(
    facts: DetectorFacts,
    broken: _Broken,
    rows: Sequence[AllocationPiece],
    users: _Users,
    told: Sequence[_Broken],
) -> list[_Hurt] | str:
    """The holders of the GPU, by the pods whose status says that it is broken, else by what was measured on
    it: a pod keeps its GPUs as long as it lives. The reason as text where the holder is unknown. A GPU
    without a name is that of the status which says that one is broken then, and nothing is claimed here."""
    found: list[_Hurt] = []
    same = [each for each in told if each.start_ms < broken.end_ms and each.end_ms > broken.start_ms]
    of_pods = {each.told_by: each for each in same if each.gpu == broken.gpu and broken.gpu}
    for row in rows:
        status = of_pods.get(row.pod_uid)
        if status is not None:
            its_boards = _boards_of_status(status, row, rows)
            found += [] if its_boards is None else _claim(broken, row, its_boards)
            continue
        gpus = users.get((row.node, row.pod_uid), ())
        mine = [gpu for gpu in gpus if broken.gpu and gpu.partition("/")[0] == broken.gpu]
        if mine and row.boards == row.boards:
            boards = min(1.0, row.boards * len(mine) / len(gpus))
            found += _claim(broken, row, boards)
    if found or not rows or (same and not broken.gpu):
        return found
    pods = {row.pod_uid for row in rows}
    if broken.gpu and all(_is_measured(row, users) for row in rows):
        return []  # all that they hold is known, and this GPU is not part of it
    instant_ms = max(broken.start_ms, min(row.start_ms for row in rows))
    if len(pods) == 1 and boards_at(rows, instant_ms) >= _boards(facts, broken.node):
        return [hurt for row in rows for hurt in _claim(broken, row, 1.0)]
    name = f"GPU {broken.gpu}" if broken.gpu else "a GPU"
    return f"{name} of node {broken.node} is broken, but nothing says which pod holds it"


def _of_status(told: _Broken, rows: Sequence[AllocationPiece]) -> Iterator[_Hurt]:
    """What a pod's own status says, of its own ``rows``."""
    for row in rows:
        boards = _boards_of_status(told, row, rows) if _meets(row, told) else None
        if boards is not None:
            yield from _claim(told, row, boards)


def _boards_of_status(told: _Broken, row: AllocationPiece, rows: Sequence[AllocationPiece]) -> float | None:
    """GPUs of ``row`` that are among the broken units; None for none, and where a unit's share is not known.

    A divided device has a resource of its own (``ShareMethod``). Of a pod that has whole devices as well, the
    broken ones are taken to be among those.
    """
    if row.boards != row.boards:
        return None
    if row.resource == told.resource:
        return row.boards * min(1.0, told.units / max(row.units, 1))
    if row.resource.removeprefix(f"{told.resource}.") not in _METHODS:
        return None
    beside = (
        each
        for each in rows
        if each.pod_uid == row.pod_uid and each.resource == told.resource and _meets(each, told)
    )
    has_whole = any(each.start_ms < row.end_ms and each.end_ms > row.start_ms for each in beside)
    return None if has_whole else row.boards


def _left(found: Iterable[_Hurt], known: Sequence[_Hurt]) -> Iterator[_Hurt]:
    """What statuses say beyond what exporters do. Time in which the pod is claimed for the same GPU by name
    is left out; a claim on a GPU of the pod that either of the two does not name is taken off."""
    for each in found:
        own, boards = each.episode, each.episode.boards or 0.0
        others = [
            other
            for other in known
            if (other.episode.pod_uid, other.episode.resource) == (own.pod_uid, own.resource)
            and other.episode.start_ms < own.end_ms
            and other.episode.end_ms > own.start_ms
            and (other.broken.gpu == each.broken.gpu or not (other.broken.gpu and each.broken.gpu))
        ]
        spans = (span for other in others for span in (other.episode.start_ms, other.episode.end_ms))
        cuts = sorted({own.start_ms, own.end_ms, *(at for at in spans if own.start_ms < at < own.end_ms)})
        for start, end in pairwise(cuts):
            now = [o for o in others if o.episode.start_ms < end and o.episode.end_ms > start]
            is_same = any(other.broken.gpu and other.broken.gpu == each.broken.gpu for other in now)
            left = 0.0 if is_same else boards - sum(other.episode.boards or 0.0 for other in now)
            if left > 0:
                yield replace(each, episode=replace(own, start_ms=start, end_ms=end, boards=left))


def _is_measured(row: AllocationPiece, users: _Users) -> bool:
    """Whether every unit that a pod holds was measured."""
    return len(users.get((row.node, row.pod_uid), ())) >= row.units


def _claim(broken: _Broken, row: AllocationPiece, boards: float) -> list[_Hurt]:
    """Of the GPU by name, where all that the pod has of it is broken: of one that is cut or shared, a status
    may be about some units only."""
    episode = row.episode(Waste.UNAVAILABLE, broken.start_ms, broken.end_ms, boards)
    if episode is None:
        return []
    is_whole = not broken.told_by or row.boards >= row.units or broken.units >= row.units
    gpus = (broken.gpu,) if broken.gpu and is_whole else ()
    return [_Hurt(broken, row, replace(episode, gpus=gpus))]


def _boards(facts: DetectorFacts, node: str) -> float:
    """How many GPUs a node has; 1 where that is unknown."""
    nodes = facts.history.frames.nodes
    found = nodes.loc[nodes["node"] == node, "boards"]
    return max(1.0, float(found.max())) if len(found) else 1.0


def _stretches(claims: Sequence[_Hurt], least_ms: int) -> list[tuple[int, int]]:
    spans = joined((each.episode.start_ms, each.episode.end_ms) for each in claims)
    return [(start, end) for start, end in spans if end - start >= least_ms]


def _draft(
    facts: DetectorFacts,
    node: str,
    variant: str,
    stretch: tuple[int, int],
    claims: Sequence[_Hurt],
) -> FindingDraft:
    start_ms, end_ms = stretch
    mine = [each for each in claims if start_ms <= each.episode.start_ms < end_ms]
    goes_on = end_ms >= facts.now_ms
    gpus = sorted({each.broken.gpu or "unnamed" for each in mine})
    # GPUs without a name: as many units as a status says at most, pod by pod; one where an exporter says it.
    unnamed: dict[str, float] = {}
    for each in mine:
        if not each.broken.gpu:
            by = each.broken.told_by
            unnamed[by] = max(unnamed.get(by, 0.0), each.broken.units)
    broken = len(set(gpus) - {"unnamed"}) + sum(unnamed.values())
    series = _STATUS if variant == "reported" else _EXPORTERS
    reasons = sorted({reason for each in mine for reason in each.broken.reasons})
    now = [each for each in mine if each.episode.end_ms >= end_ms]
    boards = sum(each.episode.boards or 0.0 for each in now)
    pods = sorted({(each.row.namespace, each.row.pod) for each in now})
    teams = {each.row.team for each in mine}
    return FindingDraft(
        NAME,
        variant,
        FindingSubject(SubjectKind.NODE, facts.cluster, node),
        start_ms,
        f"{amount(broken, 'GPU')} of node {node} broken ({', '.join(reasons)}) since {since(start_ms)}, "
        f"for "
        f"{lasting(end_ms - start_ms)}, and still held by {', '.join('/'.join(pod) for pod in pods)}.",
        (
            FindingEvidence("broken GPUs", ", ".join(gpus), "", series),
            FindingEvidence("what says so", ", ".join(reasons), "", series),
            FindingEvidence("held of them", round(boards, 3), "GPUs", "gpucost_pod_gpu_request"),
            *(FindingEvidence("held by", "/".join(pod), "", f"spec.nodeName={node}") for pod in pods),
        ),
        _action(node, [each.row for each in now], boards),
        "broken GPUs × time pods held them",
        team=teams.pop() if len(teams) == 1 else "",
        ended_ms=None if goes_on else end_ms,
        episodes=tuple(within(_apart(mine), facts.history.observed_parts(*stretch))),
        checked=_CHECKED_STATUS if variant == "reported" else _CHECKED_EXPORTERS,
    )


_EXPORTERS = "gpucost_gpu_up, gpucost_gpu_xid_events_total"
_STATUS = "gpucost_pod_gpu_unhealthy"
_CHECKED_EXPORTERS = (
    "no Xid that programs cause by themselves",
    "the pod that holds the GPU is known by what was measured on it",
)
_CHECKED_STATUS = (
    "the kubelet says which pod holds it",
    "no exporter says the same of the same GPU then",
)


def _action(node: str, rows: Sequence[AllocationPiece], boards: float) -> FindingAction:
    """The node is cordoned, and pods that are recreated elsewhere are deleted; others are left to their
    owners."""
    again = sorted({(row.namespace, row.pod) for row in rows if row.job_kind not in NOT_MADE_AGAIN})
    bare = sorted({f"{row.namespace}/{row.pod}" for row in rows if row.job_kind in NOT_MADE_AGAIN})
    text = f"Take no new work on {node}" + (", and let its pods start elsewhere." if again else ".")
    if bare:
        text = f"{text.rstrip('.')}. {by_its_owner(bare)}."
    lines = (kubectl("cordon", node), *(kubectl("-n", space, "delete", "pod", pod) for space, pod in again))
    return with_names(
        FindingAction(text, "\n".join(lines), boards), node, *(name for pod in again for name in pod)
    )


def _apart(claims: Sequence[_Hurt]) -> Iterator[WasteEpisode]:
    """Without claims on an unnamed GPU where the same pod's GPU is named: they are the same."""
    named = [each.episode for each in claims if each.broken.gpu]
    for each in claims:
        own = each.episode
        if (
            each.broken.gpu
            or each.broken.told_by
            or not any(
                one.pod_uid == own.pod_uid and one.start_ms < own.end_ms and one.end_ms > own.start_ms
                for one in named
            )
        ):
            yield own
