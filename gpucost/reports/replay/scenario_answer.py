"""The answer of a replay as data: how well the baseline repeats what happened, then each scenario beside it.

A figure of a scenario is compared with the replay in which nothing is changed, never with reality. Its
difference is told apart only where it is larger than the error of the baseline in that figure (the replay
less what happened) and its bootstrap interval leaves out 0. Intervals are of 90 %: jobs of the group are
drawn anew, the same in both, from a seed. ``scenario_figures`` works it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from gpucost.domain.buckets import Waste
from gpucost.domain.time import Window


@dataclass(frozen=True, slots=True)
class WaitFigures:
    """Of jobs that came in the window. Who had not started when it ended waited until then. ``soon`` is the
    share that started within five minutes, ``pending_board_ms`` the GPUs that were waited for, times time.
    """

    jobs: int
    started: int
    p50_ms: int
    p90_ms: int
    p99_ms: int
    mean_ms: int
    soon: Fraction | None
    pending_board_ms: int


@dataclass(frozen=True, slots=True)
class WaitDifference:
    """A figure less that of the baseline, with its interval. ``error_ms`` is how far the baseline is from
    what happened, None where nobody knows. Not ``told``: not told apart."""

    ms: int
    low_ms: int
    high_ms: int
    error_ms: int | None
    told: bool


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """A team, a queue, or all. ``preempted_board_ms`` are runs that have to be done again; ``starved`` and
    ``fragmented`` stood free while its jobs waited that would have fitted, or that did not. Amounts of money
    are None without a price; ``charged_nano`` by the charge policy, ``contracts_nano`` by contracts."""

    kind: str
    name: str
    waits: WaitFigures
    board_ms: int
    preempted_board_ms: int
    starved_board_ms: int
    fragmented_board_ms: int
    evictions: int
    nominal_board_ms: int | None
    borrowed_board_ms: int | None
    lent_board_ms: int | None
    nano: int | None
    charged_nano: int | None
    contracts_nano: int | None
    p50: WaitDifference | None = None
    p90: WaitDifference | None = None
    p99: WaitDifference | None = None
    mean: WaitDifference | None = None
    nano_difference: int | None = None


@dataclass(frozen=True, slots=True)
class WasteBuckets:
    """The capacity by bucket of the waste ledger, in its order. ``unknown`` is what was held and kept: no
    replay knows whether it was used."""

    preempted_board_ms: int
    starved_board_ms: int
    fragmented_board_ms: int
    no_demand_board_ms: int
    unknown_board_ms: int

    @property
    def by_bucket(self) -> dict[Waste, int]:
        return {
            each: getattr(self, f"{each}_board_ms") for each in Waste if hasattr(self, f"{each}_board_ms")
        }


@dataclass(frozen=True, slots=True)
class ClusterAnswer:
    """``fragmentation`` is the part of the free GPU time that was on nodes in use, None without nodes.
    ``jain`` is of use over quota by queue. ``slowdown`` is the mean of (wait + run) / run."""

    capacity_board_ms: int
    held_board_ms: int
    unallocated_board_ms: int
    over_board_ms: int
    utilisation: Fraction | None
    waste: WasteBuckets
    fragmentation: Fraction | None
    jain: Fraction | None
    slowdown: Fraction | None
    capacity_nano: int | None
    unallocated_nano: int | None
    kept_nano: int | None
    unpriced_board_ms: int
    conservation_board_ms: int
    conservation_nano: int


@dataclass(frozen=True, slots=True)
class ChangedJob:
    """One of the jobs whose wait changed most: what held it before and after (layers as ``gpucost explain``
    names them), and who held most of its pool's GPUs while it waited."""

    uid: str
    name: str
    team: str
    queue: str
    gpus: int
    created: str
    wait_before_ms: int
    wait_after_ms: int
    layer_before: str
    layer_after: str
    held_by_before: str
    held_by_after: str


@dataclass(frozen=True, slots=True)
class RestlessAnswer:
    """Preemption that had no rest: all after ``at`` is missing in the scenario."""

    at: str
    pairs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """From ``start`` on, a day (of windows shorter than a week an hour): GPU time that was held, that was
    waited for by jobs which had not started, and that there was."""

    start: str
    held_board_ms: int
    waiting_board_ms: int
    capacity_board_ms: int


@dataclass(frozen=True, slots=True)
class ScenarioAnswer:
    """One scenario. ``groups`` are all, then queues, then teams. ``closed`` are waits of the closed loop,
    where they differ, with the number of jobs that never came."""

    name: str
    cluster: ClusterAnswer
    groups: tuple[GroupAnswer, ...]
    jobs: tuple[ChangedJob, ...]
    remarks: tuple[str, ...]
    restless: RestlessAnswer | None
    closed: Mapping[str, WaitFigures]
    closed_missing: int
    timeline: tuple[TimelineStep, ...] = ()

    def group(self, kind: str, name: str) -> GroupAnswer | None:
        return next((each for each in self.groups if (each.kind, each.name) == (kind, name)), None)


@dataclass(frozen=True, slots=True)
class BaselineError:
    """The replay with nothing changed, beside what happened, of jobs of which both are known. ``order`` is
    the share of neighbours, by recorded start, that start in the same order. Amounts of money that were
    recorded are those of the ledger: of what pods held, and of all GPU time; None without one."""

    jobs: int
    exact: int
    start_p50_ms: int
    start_p90_ms: int
    start_mean_ms: int
    order: Fraction | None
    recorded: WaitFigures
    replayed: WaitFigures
    recorded_evictions: int
    replayed_evictions: int
    recorded_board_ms: int
    replayed_board_ms: int
    recorded_held_nano: int | None = None
    replayed_held_nano: int | None = None
    recorded_capacity_nano: int | None = None
    replayed_capacity_nano: int | None = None


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """``baseline`` is None where nobody knows what happened. The first of ``scenarios`` changes nothing.
    ``rules`` says what decides."""

    history: str
    cluster: str
    window: Window
    currency: str
    rules: str
    jobs: int
    seed: int
    baseline: BaselineError | None
    scenarios: tuple[ScenarioAnswer, ...]
    limits: tuple[str, ...]
