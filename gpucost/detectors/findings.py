"""The results of detectors: findings with evidence, waste and one action, and findings that were withheld."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from gpucost.domain.buckets import Waste
from gpucost.domain.time import HOUR_MS, Window


class WastePattern(StrEnum):
    """The anti-patterns; a rule's module and its settings have the same name."""

    IDLE_ALLOCATION = "idle_allocation"
    OVERSIZED_REQUEST = "oversized_request"
    FRAGMENTATION = "fragmentation"
    GANG_STALL = "gang_stall"
    MONOPOLY = "monopoly"
    QUOTA_STARVATION = "quota_starvation"
    NOT_ADVERTISED = "not_advertised"
    RESERVED_UNUSED = "reserved_unused"
    PREEMPTION_WASTE = "preemption_waste"
    CPU_ONLY_PODS = "cpu_only_pods"
    TOPOLOGY_SPREAD = "topology_spread"
    UNHEALTHY_ALLOCATED = "unhealthy_allocated"
    NVLINK_DOMAIN = "nvlink_domain"

    @property
    def alert(self) -> str:
        """The name of its alert, which is also that of its runbook: ``GpuCostIdleAllocation``."""
        return "GpuCost" + "".join(word.capitalize() for word in self.value.split("_"))


class FindingSeverity(StrEnum):
    """By the waste of a finding in 24 hours: below 1 GPU-hour, 1, 8, 24, and 5 % of the cluster."""

    INFO = "info"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        return list(FindingSeverity).index(self)


class SubjectKind(StrEnum):
    CLUSTER = "cluster"
    TEAM = "team"
    QUEUE = "queue"
    JOB = "job"
    NODE = "node"


@dataclass(frozen=True, slots=True, order=True)
class FindingSubject:
    """The subject of a finding. ``uid`` distinguishes subjects of the same name; empty where the name is
    enough."""

    kind: SubjectKind
    cluster: str
    name: str
    namespace: str = ""
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class FindingEvidence:
    """One number or fact. ``shown_by`` is the query, or the object and field, where a reader can check it."""

    name: str
    value: float | int | str
    unit: str = ""
    shown_by: str = ""


@dataclass(frozen=True, slots=True)
class FindingAction:
    """One thing to do. ``patch`` is YAML or a command, ready to be used as written; empty where the change
    needs a person's judgement. ``frees_boards`` is how many GPUs it frees; None where it is not known for
    how many GPUs a unit of quota stands."""

    text: str
    patch: str = ""
    frees_boards: float | None = 0.0


@dataclass(frozen=True, slots=True)
class WasteEpisode:
    """A claim on GPU time for the waste ledger: ``boards`` GPUs, or parts of them, in ``[start, end)``.

    It claims time that pod ``pod_uid`` held on ``node``, or, with an empty ``pod_uid``, time in which
    ``resource`` had no holder there. ``boards`` None: all there are. ``gpus`` are the GPUs or MIG instances
    (``GPU/instance``) that it is about, each for an equal part, where they are known. Two episodes may claim
    the same time; ``resolve`` gives every GPU-second to one of them.
    """

    waste: Waste
    cluster: str
    node: str
    pod_uid: str
    start_ms: int
    end_ms: int
    boards: float | None = None
    resource: str = ""
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ViewTime:
    """GPU time in ``[start, end)`` that a view shows and no finding counts, spread evenly over it.

    ``board_ms`` is in GPU milliseconds. Its price is the mean over the GPUs of ``nodes``, or of the whole
    cluster if empty.
    """

    start_ms: int
    end_ms: int
    board_ms: float
    nodes: tuple[str, ...] = ()

    def within(self, window: Window) -> ViewTime:
        """The part of it that lies in a window."""
        start, end = max(self.start_ms, window.start_ms), min(self.end_ms, window.end_ms)
        if (start, end) == (self.start_ms, self.end_ms):
            return self
        part = max(0, end - start) / (self.end_ms - self.start_ms)
        return replace(self, start_ms=start, end_ms=max(start, end), board_ms=self.board_ms * part)


@dataclass(frozen=True, slots=True)
class TeamView:
    """The text for the owning team, where a finding names other tenants: their jobs, pods, namespaces, teams,
    or totals that are not the team's own."""

    summary: str
    evidence: tuple[FindingEvidence, ...]
    action: FindingAction


@dataclass(frozen=True, slots=True)
class FindingDraft:
    """A finding of a rule, before overlapping claims are settled.

    ``team`` is the team that could act on it, empty for the platform team. ``ended_ms`` is None while it goes
    on. ``episodes`` become its waste. ``formula`` says in words how waste follows from the evidence. ``view``
    is GPU time that is shown but counted by no finding (unused quota, efficiency below target); rules with a
    ``view`` have no episodes. ``checked`` are the guards that were evaluated and did not hold it back.
    ``queue`` and ``namespace`` decide which overrides of settings and exemptions apply. ``team_view`` is None
    where ``team`` may see all of it. ``boards_now`` is the present number of GPUs of a view; None for drafts
    with episodes, and for views without such a number.
    """

    pattern: WastePattern
    variant: str
    subject: FindingSubject
    since_ms: int
    summary: str
    evidence: tuple[FindingEvidence, ...]
    action: FindingAction
    formula: str
    team: str = ""
    queue: str = ""
    user: str = ""
    ended_ms: int | None = None
    episodes: tuple[WasteEpisode, ...] = ()
    view: tuple[ViewTime, ...] | None = None
    checked: tuple[str, ...] = ()
    labels: Mapping[str, str] | None = None
    """Kubernetes labels of the subject, where known: one of them may exempt it."""
    at_least: FindingSeverity = FindingSeverity.INFO
    team_view: TeamView | None = None
    boards_now: float | None = None

    @property
    def view_ms(self) -> int | None:
        """All GPU time of the view; None if the draft is not a view."""
        return None if self.view is None else round(sum(each.board_ms for each in self.view))

    @property
    def fingerprint(self) -> str:
        """Equal for the same anti-pattern of the same subject, whenever it is found and by whichever
        process."""
        subject = self.subject
        parts = (self.pattern, self.variant, subject.kind, subject.cluster, subject.namespace)
        text = "\0".join((*parts, subject.uid or subject.name))
        # Half a surrogate pair is not a character, and yet a name may contain one.
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class WithheldFinding:
    """A finding that a rule did not report, and why: a guard, or too little data. ``because`` completes "not
    found, because …" in words for people. With an empty ``variant`` it stands for all variants of the rule.
    """

    pattern: WastePattern
    subject: FindingSubject
    because: str
    lacks_data: bool = False
    variant: str = ""


@dataclass(frozen=True, slots=True)
class RuleDetection:
    """The result of one rule for one set of facts."""

    drafts: tuple[FindingDraft, ...] = ()
    withheld: tuple[WithheldFinding, ...] = ()


@dataclass(frozen=True, slots=True)
class FindingWaste:
    """GPU time and money. ``nano`` is None where any part has no price. ``counted``: whether it is in the
    waste ledger under this finding; else it is a view, and must not be added up."""

    board_ms: int
    nano: int | None
    formula: str
    counted: bool

    @property
    def gpu_hours(self) -> float:
        return self.board_ms / HOUR_MS


@dataclass(frozen=True, slots=True)
class Finding:
    """A draft with its waste in the last 24 hours, and its present waste per hour.

    ``nano_per_hour`` is None without a price, and where no GPUs are claimed now.
    """

    draft: FindingDraft
    severity: FindingSeverity
    wasted: FindingWaste
    boards_now: float
    nano_per_hour: int | None

    @property
    def fingerprint(self) -> str:
        return self.draft.fingerprint

    @property
    def goes_on(self) -> bool:
        return self.draft.ended_ms is None
