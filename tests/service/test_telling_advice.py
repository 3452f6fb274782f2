"""News about jobs that wait: sent after a while, in words of the owning team, asked rarely, and ended."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from gpucost.advisor.model.answers import AdviceSubject, Explanation, SchedulingLayer
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.wait.run_times import PastRun, RunTimes
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.state import ClusterState
from gpucost.domain.time import HOUR_MS, MINUTE_MS
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.notices import Conversation, Notice, NoticeKind, NoticeStage
from gpucost.service.notifications.advice import AGAIN_MS, WAITED_MS, AdviceNotices
from tests.api.advisor_worlds import SmallEngine, StillCluster, advice, advising, state
from tests.cluster import builders
from tests.cluster.builders import T0

KEY = "advice:c:"


@dataclass
class Explainer(SmallEngine):
    """Explains workloads too; ``helps`` says whether a change would."""

    helps: bool = True
    histories: list[RunTimes] = field(default_factory=list)

    def explain(self, kind: str, namespace: str, name: str, known: AdvisorContext) -> Explanation | None:
        self.histories.append(known.run_times)
        self.asked.append((name, True))
        found = advice(AdviceSubject(kind, namespace, name, f"{name}-uid"))
        actions = found.suggestions if self.helps else ()
        return Explanation(
            found.subject, SchedulingLayer.QUOTA, found.says, T0, (), actions, found, found.rules
        )


def waits(name: str, namespace: str, admitted_ms: int | None = None, *over: str) -> Workload:
    team = {"ml": "research", "cv": "vision"}[namespace]
    conditions = {each: builders.condition(True, each, "", T0) for each in over}
    return builders.workload(
        name,
        builders.pod_set(gpus=8),
        queue="main",
        namespace=namespace,
        labels={"team": team},
        admitted_ms=admitted_ms,
        conditions=conditions,
    )


def cluster(*workloads: Workload) -> ClusterState:
    return replace(state(), workloads={each.meta.uid: each for each in workloads})


MINE, THEIRS = waits("mine-wl", "ml"), waits("their-secret", "cv")


class World:
    """An advisor over a still cluster, and the source of news over it."""

    def __init__(self, helps: bool = True) -> None:
        self.engine = Explainer(helps=helps)
        self.watched = StillCluster(cluster(MINE, THEIRS))
        self.advising = advising(self.engine, self.watched)
        self.news = AdviceNotices(self.advising, MessageLinks(), lambda: "USD")

    def at(self, now_ms: int, *told: Conversation) -> dict[str, Notice]:
        return {each.key: each for each in self.news(now_ms, told)}

    def become(self, *workloads: Workload) -> None:
        self.watched.found = cluster(*workloads)
        self.watched.version += 1
        self.advising.refresh()


def told(workload: Workload) -> Conversation:
    key = f"{KEY}{workload.meta.uid}"
    return Conversation("room", key, key, NoticeKind.ADVICE, "", "1", T0 + HOUR_MS)


def test_who_waits_long_enough_is_told_what_would_help() -> None:
    world = World()
    assert world.at(T0 + WAITED_MS - 1) == {}
    found = world.at(T0 + WAITED_MS)
    assert set(found) == {f"{KEY}{MINE.meta.uid}", f"{KEY}{THEIRS.meta.uid}"}
    mine = found[f"{KEY}{MINE.meta.uid}"]
    assert (mine.kind, mine.stage, mine.cluster, mine.since_ms) == (
        NoticeKind.ADVICE,
        NoticeStage.OPEN,
        "c",
        T0,
    )
    assert "asks 4 GPUs" in str(mine.message)


def test_the_owning_team_reads_no_name_of_another() -> None:
    mine = World().at(T0 + WAITED_MS)[f"{KEY}{MINE.meta.uid}"]
    assert mine.team == "research"
    assert "their-secret" not in str(mine.message)
    assert "their-secret" in str(mine.full)


def test_it_rests_on_the_history_of_the_owning_team() -> None:
    world = World()
    world.advising._history = RunTimes([PastRun("vision", "their-secret", 8, HOUR_MS)] * 3)
    world.become(MINE, THEIRS)
    assert len(world.at(T0 + WAITED_MS)) == 2
    bases = {each.like("vision", "their-secret", 8).basis for each in world.engine.histories}
    assert bases == {
        "3 ended runs on 5-8 GPUs",
        "3 ended runs of team vision named their-secret on 5-8 GPUs",
    }


def test_what_is_nobodys_is_told_to_those_who_see_all() -> None:
    world = World()
    world.become(replace(MINE, meta=replace(MINE.meta, labels={})))
    (notice,) = world.at(T0 + WAITED_MS).values()
    assert (notice.team, notice.full) == ("", None)


def test_it_is_asked_again_only_after_hours() -> None:
    world = World()
    for minutes in range(0, 60, 10):
        assert len(world.at(T0 + WAITED_MS + minutes * MINUTE_MS)) == 2
    assert len(world.engine.asked) == 2
    world.at(T0 + WAITED_MS + AGAIN_MS)
    assert len(world.engine.asked) == 4


def test_nothing_is_told_where_nothing_helps() -> None:
    assert World(helps=False).at(T0 + WAITED_MS) == {}


@pytest.mark.parametrize(
    "after", [(), (waits("mine-wl", "ml", T0 + HOUR_MS),), (waits("mine-wl", "ml", None, "Finished"),)]
)
def test_it_is_over_when_the_job_waits_no_longer(after: tuple[Workload, ...]) -> None:
    world = World()
    world.at(T0 + WAITED_MS)
    world.become(THEIRS, *after)
    found = world.at(T0 + 2 * HOUR_MS, told(MINE), told(THEIRS))
    assert found[f"{KEY}{MINE.meta.uid}"].stage is NoticeStage.RESOLVED
    assert found[f"{KEY}{THEIRS.meta.uid}"].stage is NoticeStage.OPEN


def test_without_a_current_state_nothing_is_over() -> None:
    world = World()
    world.watched.is_current = False
    assert world.at(T0 + 2 * HOUR_MS, told(MINE)) == {}


def test_conversations_about_another_cluster_are_left_alone() -> None:
    other = replace(told(MINE), key="advice:d:some-uid", group="advice:d:some-uid")
    assert "advice:d:some-uid" not in World().at(T0 + HOUR_MS, other)
