"""On random clusters: whatever is suggested is better, and comes true."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from gpucost.advisor.advise import advise
from gpucost.advisor.model.answers import SchedulingDecision, SuggestedChangeKind
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.suggest.candidates import RANK
from gpucost.cluster.objects.jobs import PriorityClass
from tests.advisor import worlds as w
from tests.advisor.suggesting import ask, job, knowledge, read

TAINT = w.taint("gpu", "yes")
POLICIES = ("Never", "LowerPriority")


def world(random: Random) -> AdvisorContext:
    """Three queues, perhaps of one cohort, two flavors, and nodes of which some are of no use."""
    flavors = ("h100", "a100")
    cohort = random.choice(("", "c"))
    queues = [
        w.queue(
            name,
            {flavor: random.choice((0, 4, 8, 16)) for flavor in flavors},
            cohort=cohort,
            cpu=random.choice((16, 256)),
            borrowing=random.choice((None, 0, 4)) if cohort else None,
            lending=random.choice((None, 0, 4)) if cohort else None,
            strict=random.random() < 0.3,
            within=random.choice(POLICIES),
            reclaim=random.choice((*POLICIES, "Any")),
            preference=random.choice(("", "PreemptionOverBorrowing")),
        )
        for name in ("ml", "b", "c")
    ]
    workloads = [
        w.workload(
            f"w{at}",
            random.choice(("ml", "b", "c")),
            random.choice((1, 2, 4, 8)),
            priority=random.randrange(3),
            holding=random.random() < 0.6,
            flavor=random.choice(flavors),
            created=1000 + at,
        )
        for at in range(random.randrange(7))
    ]
    nodes = [
        w.node(
            f"n{at}",
            random.choice((4, 8)),
            labels={"gpu": random.choice(flavors)},
            taints=(TAINT,) if random.random() < 0.3 else (),
            is_cordoned=random.random() < 0.2,
        )
        for at in range(random.randrange(1, 5))
    ]
    own = [
        w.flavor(name, {"gpu": name}, taints=(TAINT,) if random.random() < 0.3 else ()) for name in flavors
    ]
    classes = [PriorityClass(w.meta("high"), 10, of_kueue=True)]
    local = w.local_queue("spare", random.choice(("b", "c")), "ml")
    return knowledge(*queues, *workloads, *nodes, *own, local, priority_classes=classes)


def manifest(random: Random) -> dict[str, Any]:
    pod = {"nodeSelector": {"gpu": "h100"}} if random.random() < 0.4 else {}
    queue = random.choice(("main", "main", "mian", ""))
    return job(random.randrange(1, 5), random.choice((1, 2, 8, 16)), queue, pod=pod)


@pytest.mark.parametrize("seed", range(40))
def test_every_suggestion_is_better_and_comes_true(seed: int) -> None:
    random = Random(seed)
    known, document = world(random), manifest(random)
    answer = ask(document, known)
    assert len(answer.suggestions) <= known.settings.most_suggestions
    for each in answer.suggestions:
        assert each.decision in RANK
        assert each.says
        assert each.change.operations or each.change.command
        is_sooner = RANK[each.decision] < RANK[answer.decision]
        assert is_sooner or each.rule == "gang" or each.wait is not None, each
    decisions = [
        (each.change.kind is SuggestedChangeKind.CLUSTER, RANK[each.decision]) for each in answer.suggestions
    ]
    assert decisions == sorted(decisions)
    assert advise(read(document), known) == answer, "nothing of what was tried is left behind"


def test_the_clusters_are_worth_asking_about() -> None:
    """Most kinds are among what these worlds suggest."""
    found: dict[str, int] = {}
    for seed in range(40):
        random = Random(seed)
        known, document = world(random), manifest(random)
        answer = advise(read(document), known)
        assert answer.decision is not SchedulingDecision.UNKNOWN
        for each in answer.suggestions:
            found[each.rule] = found.get(each.rule, 0) + 1
    assert len(found) >= 8, found
