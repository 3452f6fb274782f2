"""What the advisor answers: types, and its first line; the same for the terminal, the API, chat and the
webhook.

``Advice`` and ``Explanation`` are whole answers; ``LayerResult`` is that of one layer, before all layers are
put together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gpucost.advisor.model.cycle_results import PodSetFlavors
from gpucost.cluster.objects.kueue import FlavorResource
from gpucost.cluster.objects.metadata import Resources
from gpucost.cluster.objects.pods import PREEMPTED_BY_SCHEDULER
from gpucost.domain.errors import InputError
from gpucost.domain.time import DAY_MS, MINUTE_MS, SECOND_MS

_MOST_NAMED = 2
REST = "; the rest "
"""Between what starts of a job and what becomes of the others."""
STARTS_WITH = "starts with "
"""Before what starts of a gang whose minimum is below its size."""


class SchedulingDecision(StrEnum):
    """What happens if it is submitted now, and nothing else changes."""

    NOW = "now"
    """Runs now; with ``victims``, once these have left."""
    LATER = "later"
    """Fits after a known delay: nodes that an autoscaler adds."""
    WAITS = "waits"
    """Until others end."""
    NEVER = "never"
    """Whatever other jobs end: something has to be changed."""
    UNKNOWN = "unknown"
    """Out of scope of the rules, or too little is known: ``says`` gives the reason."""


class SchedulingLayer(StrEnum):
    """The layers of the scheduling stack, from the outside in."""

    QUOTA = "quota"
    PLACEMENT = "gang and placement"
    DEVICE = "device"
    RUNNING = "running"
    NONE = "none"
    """Nothing holds it."""


@dataclass(frozen=True, slots=True)
class AdviceSubject:
    """The job an answer is about. ``uid`` is empty for one that is not submitted."""

    kind: str
    namespace: str
    name: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class AdviceEvidence:
    """One fact an answer rests on: ``object`` as ``kind/name`` (``clusterqueue/ml``), ``field`` in it as a
    path (``spec.resourceGroups[0].flavors[0].resources[0].nominalQuota``), the value that stands there, and
    what it means here."""

    object: str
    field: str
    value: str
    meaning: str


@dataclass(frozen=True, slots=True)
class PreemptionVictim:
    """A workload that would have to leave, or a pod. ``reason`` is Kueue's word (InClusterQueue,
    InCohortReclamation, InCohortFairSharing, InCohortReclaimWhileBorrowing), Volcano's action (preempt,
    reclaim), or of pods that of kube-scheduler (PreemptionByScheduler); ``units`` are the GPU units it would
    give back. ``already_leaving`` was evicted before. ``priority`` is None where it is redacted. ``node`` is
    that of a pod, ``grace_ms`` how long it may still take to stop, None where that is not known."""

    subject: AdviceSubject
    queue: str
    priority: int | None
    reason: str
    units: Resources
    already_leaving: bool = False
    node: str = ""
    grace_ms: int | None = None

    @property
    def is_of_scheduler(self) -> bool:
        """Whether it is a pod that kube-scheduler preempts."""
        return self.reason == PREEMPTED_BY_SCHEDULER


@dataclass(frozen=True, slots=True)
class PodSetAnswer:
    """What one pod set gets: ``count`` pods (below what was asked after partial admission), the flavor of
    each resource, and how many pods on which node (empty: no placement was found, or none looked for)."""

    name: str
    count: int
    flavors: Mapping[str, str]
    nodes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WaitRange:
    """Quantiles of a wait, in milliseconds; None: beyond the horizon. Raises InputError for negatives."""

    p10_ms: int | None
    p50_ms: int | None
    p90_ms: int | None

    def __post_init__(self) -> None:
        for name in ("p10_ms", "p50_ms", "p90_ms"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InputError(name, value, "milliseconds, 0 or more")


@dataclass(frozen=True, slots=True)
class WaitEstimate:
    """How long it waits, in milliseconds from now; None: longer than was simulated (``horizon_ms``).

    ``basis`` says in a sentence what run times it rests on. ``held`` and ``given`` say how many of the ranges
    given so far held the truth, and how many there were; None and 0 where they were not counted. One wait in
    ten should end before ``p10_ms``. ``simulated`` is the range of the simulation alone, before it was
    corrected by the outcomes of the ``learnt_from`` waits predicted before; None where nothing was simulated.
    """

    p50_ms: int | None
    p90_ms: int | None
    horizon_ms: int
    basis: str
    samples: int
    held: int | None = None
    given: int = 0
    p10_ms: int | None = None
    simulated: WaitRange | None = None
    learnt_from: int = 0


@dataclass(frozen=True, slots=True)
class PriceEstimate:
    """Nano-units of ``currency``. ``run_ms`` is the run time it is expected to have (the median of similar
    jobs), None without history; then ``for_run`` is None too. ``rates`` names where prices are from."""

    per_hour: int
    currency: str
    run_ms: int | None
    for_run: int | None
    rates: tuple[str, ...]


class SuggestedChangeKind(StrEnum):
    """Who can carry out a change."""

    MANIFEST = "manifest"
    """The author of the job: ``patch`` is for its manifest."""
    CLUSTER = "cluster"
    """An administrator: ``patch`` is for ``target``."""


@dataclass(frozen=True, slots=True)
class SuggestedChange:
    """A change as it can be carried out: ``patch`` in YAML, merged into ``target`` (``kind/name``), and the
    same as RFC 6902 operations; ``command`` carries it out."""

    kind: SuggestedChangeKind
    target: str
    patch: str
    operations: tuple[Mapping[str, Any], ...]
    command: str


@dataclass(frozen=True, slots=True)
class JobSuggestion:
    """``rule`` names the kind (``other-queue``); ``decision`` and ``wait`` are the advisor's answer for the
    changed job or cluster: a suggestion that does not help is never given. ``price_per_hour`` is in
    nano-units of ``currency``, which is empty without a price."""

    rule: str
    says: str
    change: SuggestedChange
    decision: SchedulingDecision
    price_per_hour: int | None = None
    wait: WaitEstimate | None = None
    caveat: str = ""
    currency: str = ""

    @classmethod
    def of(cls, rule: str, says: str, change: SuggestedChange, answer: Advice, caveat: str) -> JobSuggestion:
        """The suggestion whose changed job or cluster has this ``answer``."""
        price, currency = (
            (None, "") if answer.price is None else (answer.price.per_hour, answer.price.currency)
        )
        return cls(rule, says, change, answer.decision, price, answer.wait, caveat, currency)


SEARCH_STOPPED = "suggestions stopped"
"""How the assumption begins that says that the search for suggestions was cut short."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One answer. ``says`` is the first line for a person; ``why`` the lines below it, in order.

    ``layer`` is the first that holds it (NONE: nothing does). ``reason`` is one word for programs: those of
    Kueue's granular reasons for quota, else gpucost's own. ``rules`` names the rule set and its version;
    ``drift`` what of the cluster differs. ``assumptions`` are what was taken for granted. ``borrowed`` is
    quota beyond the queue's own, ``level`` how high in the tree it is lent. ``ahead`` is how many workloads
    stand before it in its queue. ``later_ms`` is the delay until nodes are there, or, of one that runs now,
    what the pods that kube-scheduler preempts for it may take to stop; None where that is not known.
    ``victims`` of one that waits are pods that leave for a part of it.
    """

    subject: AdviceSubject
    decision: SchedulingDecision
    layer: SchedulingLayer
    reason: str
    says: str
    why: tuple[str, ...]
    scheduler: str
    rules: str
    queue: str = ""
    pod_sets: tuple[PodSetAnswer, ...] = ()
    borrowed: Mapping[FlavorResource, int] | None = None
    level: int = 0
    ahead: int | None = None
    victims: tuple[PreemptionVictim, ...] = ()
    wait: WaitEstimate | None = None
    later_ms: int | None = None
    price: PriceEstimate | None = None
    suggestions: tuple[JobSuggestion, ...] = ()
    evidence: tuple[AdviceEvidence, ...] = ()
    assumptions: tuple[str, ...] = ()
    drift: tuple[str, ...] = ()


class LayerVerdict(StrEnum):
    """What a layer says of a job that exists."""

    PASSED = "passed"
    HOLDS = "holds it"
    NOT_REACHED = "not reached"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LayerAnswer:
    """One step of the walk. ``since_ms`` is since when it is so, None where that is not recorded."""

    layer: SchedulingLayer
    verdict: LayerVerdict
    says: str
    since_ms: int | None
    evidence: tuple[AdviceEvidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """The walk through the layers for one job; ``layer`` is the first that holds it, or DEVICE where its pods
    find no nodes because nodes lack devices that they should have. ``advice`` is what the
    advisor says of it now, where it waits for quota or nodes; ``actions`` what to do, first things first.
    ``rules`` and ``drift`` as in ``Advice``, empty where no scheduler's rules were asked."""

    subject: AdviceSubject
    layer: SchedulingLayer
    says: str
    since_ms: int | None
    steps: tuple[LayerAnswer, ...]
    actions: tuple[JobSuggestion, ...] = ()
    advice: Advice | None = None
    rules: str = ""
    assumptions: tuple[str, ...] = ()
    drift: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerResult:
    """``layer`` is the one that holds it, NONE where ``decision`` is NOW. ``says`` is the reason in a few
    words, without the job's name (``8 more nvidia.com/gpu needed in flavor h100``); ``why`` are lines of the
    form ``label: text``. ``others`` are workloads that get quota before it or with it, by uid.
    ``partly`` is what of it starts although not all does (``2 of its 3 pods``); then the rest is about the
    others, and ``pod_sets`` are those that start. The rest as in ``Advice``."""

    decision: SchedulingDecision
    layer: SchedulingLayer
    reason: str
    says: str
    why: tuple[str, ...] = ()
    queue: str = ""
    pod_sets: tuple[PodSetAnswer, ...] = ()
    borrowed: Mapping[FlavorResource, int] = field(default_factory=dict)
    level: int = 0
    ahead: int | None = None
    victims: tuple[PreemptionVictim, ...] = ()
    later_ms: int | None = None
    until: str = ""
    """What it waits for where that is not the end of others: ``nodes are ready``, and how long that takes is
    not known; or the time at which Kueue tries it again."""
    evidence: tuple[AdviceEvidence, ...] = ()
    assumptions: tuple[str, ...] = ()
    drift: tuple[str, ...] = ()
    partly: str = ""
    others: Mapping[str, tuple[PodSetFlavors, ...]] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()
    """Uids of workloads that leave before it starts: its victims, and those of others before it."""


def headline(found: LayerResult, wait: WaitEstimate | None) -> str:
    """What happens, and the reason: ``waits about 3 h (p90 9 h): asks 16 …``."""
    match found.decision:
        case SchedulingDecision.NOW:
            return _now(found)
        case SchedulingDecision.LATER:
            return f"starts in about {about(found.later_ms or 0)}: {found.says}"
        case SchedulingDecision.WAITS:
            partly = f"{found.partly}{REST}" if found.partly else ""
            waits = f"waits until {found.until}" if found.until else _waits(wait)
            return f"{partly}{waits}: {found.says}"
        case SchedulingDecision.NEVER if found.partly:
            return f"{found.partly}{REST}never runs as it is: {found.says}"
        case SchedulingDecision.NEVER:
            return f"never runs as it is: {found.says}"
        case _:
            return f"unknown: {found.says}"


def about(span_ms: int) -> str:
    """A span that is known roughly: ``20 min``, ``1 h 40 min``, ``5 h 30 min``, ``2 d 4 h``."""
    minutes = max(1, -(-span_ms // MINUTE_MS))
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 10 * 60:
        step = 10 if minutes < 3 * 60 else 30
        hours, rest = divmod((minutes + step // 2) // step * step, 60)
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    hours = round(minutes / 60)
    if span_ms < 2 * DAY_MS:
        return f"{hours} h"
    return f"{hours // 24} d {hours % 24} h" if hours % 24 else f"{hours // 24} d"


def _now(found: LayerResult) -> str:
    nodes = sorted({node for each in found.pod_sets for node in each.nodes})
    where = ""
    if nodes:
        more = len(nodes) - _MOST_NAMED
        named = ", ".join(nodes[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
        where = f" on {len(nodes):,} node{'s' if len(nodes) > 1 else ''} ({named})"
    runs = found.partly or "runs now"
    pods = [each for each in found.victims if each.is_of_scheduler]
    if pods:
        stop = (
            ""
            if found.later_ms is None
            else f", which ha{_of(pods, 's', 've')} {seconds(found.later_ms)} to stop"
        )
        where += f" by preempting {pods_named(pods)}{stop}"
    count = len(found.victims) - len(pods)
    if count:
        who = f"{count:,} workloads are" if count > 1 else "1 workload is"
        return f"{runs}{where}, once {who} preempted for it"
    borrows = ", on borrowed quota" if found.borrowed else ""
    says = f": {found.says}" if found.says and found.layer is SchedulingLayer.NONE else ""
    return f"{runs}{where}{borrows}{says}"


def pods_named(pods: Sequence[PreemptionVictim]) -> str:
    """``2 pods of lower priority (team-a/x, team-b/y)``."""
    names = [f"{each.subject.namespace}/{each.subject.name}" for each in pods[:_MOST_NAMED]]
    more = f" and {len(pods) - _MOST_NAMED:,} more" if len(pods) > _MOST_NAMED else ""
    return f"{len(pods):,} pod{_of(pods, '', 's')} of lower priority ({', '.join(names)}{more})"


def seconds(span_ms: int) -> str:
    """A span that was configured to the second: ``30 s``; from two minutes on as ``about``."""
    whole = -(-span_ms // SECOND_MS)
    return f"{whole} s" if whole < 2 * MINUTE_MS // SECOND_MS else about(span_ms)


def _of(pods: Sequence[PreemptionVictim], one: str, more: str) -> str:
    return one if len(pods) == 1 else more


def _waits(wait: WaitEstimate | None) -> str:
    if wait is None:
        return "waits"
    if wait.p50_ms is None:
        return f"waits longer than {about(wait.horizon_ms)}"
    return f"waits about {about(wait.p50_ms)} ({bounds(wait)})"


def bounds(wait: WaitEstimate) -> str:
    """``p10 1 h, p90 9 h``; what is past the horizon as longer than that."""
    early = "" if wait.p10_ms is None else f"p10 {about(wait.p10_ms)}, "
    late = f"longer than {about(wait.horizon_ms)}" if wait.p90_ms is None else about(wait.p90_ms)
    return f"{early}p90 {late}"
