"""GPUs that are broken while pods hold them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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
from gpucost.detectors.detector_settings import ScopedSettings
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
from gpucost.detectors.rule_settings import UnhealthyAllocatedSettings
from gpucost.domain.buckets import Waste
from gpucost.settings.types import milliseconds

NAME = WastePattern.UNHEALTHY_ALLOCATED
LOST = "lost"


@dataclass(frozen=True)
class _Broken:
    """A GPU of a node that was broken in ``[start_ms, end_ms)``; an empty ``gpu``: it is unknown which
    one."""

    node: str
    gpu: str
    reasons: tuple[str, ...]
    start_ms: int
    end_ms: int

    @property
    def variant(self) -> str:
        return LOST if LOST in self.reasons else "xid"


@dataclass(frozen=True)
class _Hurt:
    """A broken GPU that a pod held, and how much of a GPU that is."""

    broken: _Broken
    row: AllocationPiece
    episode: WasteEpisode


def run(facts: DetectorFacts, settings: ScopedSettings[UnhealthyAllocatedSettings]) -> RuleDetection:
    """Nodes whose pods hold broken GPUs."""
    broken = list(_broken(facts, settings.default))
    by_node = pieces(facts.history.held, "node", {each.node for each in broken})
    users = _users(facts, {each.node for each in broken})
    hurt: dict[tuple[str, str], list[_Hurt]] = {}
    withheld: list[WithheldFinding] = []
    for each in broken:
        rows = [row for row in by_node.get(each.node, []) if _meets(row, each)]
        found = _hurt(facts, each, rows, users)
        if isinstance(found, str):
            subject = FindingSubject(SubjectKind.NODE, facts.cluster, each.node)
            withheld.append(WithheldFinding(NAME, subject, found))
        else:
            hurt.setdefault((each.node, each.variant), []).extend(found)
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
    names = ("node", "gpu", "start_ms", "end_ms", "reason")
    for node, gpu, start, end, reason in zip(*(health[name].tolist() for name in names), strict=True):
        start, end = max(start, window.start_ms), min(end, window.end_ms)
        if start < end and reason not in programs:
            rows.setdefault((node, gpu.partition("/")[0]), []).append((start, end, reason))
    for (node, gpu), found in sorted(rows.items()):
        for start, end in joined((a, b) for a, b, _ in found):
            reasons = {reason for a, b, reason in found if start <= a < end}
            yield _Broken(node, gpu, tuple(sorted(reasons)), start, end)


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
    facts: DetectorFacts, broken: _Broken, rows: Sequence[AllocationPiece], users: _Users
) -> list[_Hurt] | str:
    """The holders of the GPU, by what was measured on it: a pod keeps its GPUs as long as it lives. The
    reason as text where the holder is unknown."""
    found: list[_Hurt] = []
    for row in rows:
        gpus = users.get((row.node, row.pod_uid), ())
        mine = [gpu for gpu in gpus if broken.gpu and gpu.partition("/")[0] == broken.gpu]
        if mine and row.boards == row.boards:
            boards = min(1.0, row.boards * len(mine) / len(gpus))
            found += _claim(broken, row, boards)
    if found or not rows:
        return found
    pods = {row.pod_uid for row in rows}
    if broken.gpu and all(_is_measured(row, users) for row in rows):
        return []  # all that they hold is known, and this GPU is not part of it
    instant_ms = max(broken.start_ms, min(row.start_ms for row in rows))
    if len(pods) == 1 and boards_at(rows, instant_ms) >= _boards(facts, broken.node):
        return [hurt for row in rows for hurt in _claim(broken, row, 1.0)]
    name = f"GPU {broken.gpu}" if broken.gpu else "a GPU"
    return f"{name} of node {broken.node} is broken, but nothing says which pod holds it"


def _is_measured(row: AllocationPiece, users: _Users) -> bool:
    """Whether every unit that a pod holds was measured."""
    return len(users.get((row.node, row.pod_uid), ())) >= row.units


def _claim(broken: _Broken, row: AllocationPiece, boards: float) -> list[_Hurt]:
    episode = row.episode(Waste.UNAVAILABLE, broken.start_ms, broken.end_ms, boards)
    return [] if episode is None else [_Hurt(broken, row, episode)]


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
        f"{amount(len(gpus), 'GPU')} of node {node} broken ({', '.join(reasons)}) since {since(start_ms)}, "
        f"for "
        f"{lasting(end_ms - start_ms)}, and still held by {', '.join('/'.join(pod) for pod in pods)}.",
        (
            FindingEvidence(
                "broken GPUs", ", ".join(gpus), "", "gpucost_gpu_up, gpucost_gpu_xid_events_total"
            ),
            FindingEvidence(
                "what says so", ", ".join(reasons), "", "gpucost_gpu_up, gpucost_gpu_xid_events_total"
            ),
            FindingEvidence("held of them", round(boards, 3), "GPUs", "gpucost_pod_gpu_request"),
            *(FindingEvidence("held by", "/".join(pod), "", f"spec.nodeName={node}") for pod in pods),
        ),
        _action(node, [each.row for each in now], boards),
        "broken GPUs × time pods held them",
        team=teams.pop() if len(teams) == 1 else "",
        ended_ms=None if goes_on else end_ms,
        episodes=tuple(within(_apart(mine), facts.history.observed_parts(*stretch))),
        checked=(
            "no Xid that programs cause by themselves",
            "the pod that holds the GPU is known by what was measured on it",
        ),
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
        if each.broken.gpu or not any(
            one.pod_uid == own.pod_uid and one.start_ms < own.end_ms and one.end_ms > own.start_ms
            for one in named
        ):
            yield own
