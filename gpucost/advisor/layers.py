"""What one layer says, before all layers are put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpucost.advisor.answers import Decision, Evidence, Layer, PodSetAnswer, Victim
from gpucost.advisor.kueue.results import Assigned
from gpucost.cluster.kueue import FlavorResource


@dataclass(frozen=True, slots=True)
class LayerResult:
    """``layer`` is the one that holds it, NONE where ``decision`` is NOW. ``says`` is the reason in a few
    words, without the job's name (``8 more nvidia.com/gpu needed in flavor h100``); ``why`` are lines of the
    form ``label: text``. ``others`` are workloads that get quota before it or with it, by uid.
    ``partly`` is what of it starts although not all does (``2 of its 3 pods``); then the rest is about the
    others, and ``pod_sets`` are those that start. The rest as in ``Advice``."""

    decision: Decision
    layer: Layer
    reason: str
    says: str
    why: tuple[str, ...] = ()
    queue: str = ""
    pod_sets: tuple[PodSetAnswer, ...] = ()
    borrowed: Mapping[FlavorResource, int] = field(default_factory=dict)
    level: int = 0
    ahead: int | None = None
    victims: tuple[Victim, ...] = ()
    later_ms: int | None = None
    until: str = ""
    """What it waits for where that is not the end of others: ``nodes are ready``. Nobody knows how long."""
    evidence: tuple[Evidence, ...] = ()
    assumptions: tuple[str, ...] = ()
    drift: tuple[str, ...] = ()
    partly: str = ""
    others: Mapping[str, tuple[Assigned, ...]] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()
    """Uids of workloads that leave before it starts: its victims, and those of others before it."""
