"""What a team's key sees of others, by the real rules: in random clusters no name of theirs, and whether a
name is taken makes no difference to the answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from fastapi.testclient import TestClient

from gpucost.advisor.advise import advise
from gpucost.advisor.explanation.job_explanation import explain
from gpucost.advisor.model.redaction import OTHERS
from gpucost.advisor.model.settings import AdvisorSettings
from gpucost.advisor.wait.run_times import PastRun, RunTimes
from gpucost.api.app import create_app
from gpucost.api.webhook.adviser import AdmissionAdviser
from gpucost.attribution.teams import TeamRules
from gpucost.cluster.objects.jobs import PriorityClass
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.metadata import StatusCondition
from gpucost.cluster.objects.scheduler_config import VolcanoConfig
from gpucost.cluster.objects.state import ClusterState
from gpucost.domain.time import HOUR_MS
from gpucost.kube.manifests import manifest_of, reread
from gpucost.kube.manifests.writer import document_of
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.usage.run_history import JobUse
from gpucost.service.advisor.advisor_service import AdvisorEngine, AdvisorService
from gpucost.service.advisor.run_history import PastUses
from tests.advisor import worlds
from tests.advisor.test_advise import H100
from tests.advisor.volcano_worlds import queue as volcano_queue
from tests.advisor.worlds import GPU, NOW
from tests.api.advisor_worlds import StillCluster
from tests.api.conftest import SETTINGS, Clients
from tests.cluster import builders
from tests.pricing.books import book, price
from tests.service.worlds import Clock

RESEARCH, VISION = {"team": "research"}, {"team": "zqvision"}
SECRET = "zq"
"""In all that is called anything by others, and in nothing else."""
JOBS = ("zq-merger-20261020-x7k2p", "zqzephyr", "zq.codename.v3-b6", "zqtrain-llm-5-q9w3z")
GONE = "zqgone-train-20261019-x9k2p"
SPACE = "zqlab-space"
URL = "/v1/advisor/advice"
SEEDS = range(6)

Edit = Callable[[dict[str, Any], str], None]


def kueue_job(name: str, space: str, team: dict[str, str], *, gpus: int, pods: int, **more: Any) -> list[Any]:
    """A Job, its Workload, and its pods where it holds quota."""
    owner = builders.job(
        name,
        namespace=space,
        labels={**team, "kueue.x-k8s.io/queue-name": "main"},
        pod_sets=(worlds.pod_set("main", pods, gpus),),
        uid=f"{space}-{name}",
        is_suspended=not more.get("holding", False),
    )
    node = more.pop("on", "")
    found: Workload = worlds.workload(f"job-{name}-a1b2c", "ml", gpus, pods, namespace=space, **more)
    meta = replace(found.meta, labels=team, owner=owner.as_owner)
    if not more.get("holding"):
        said = f"couldn't assign flavors: Pending the preemption of {GONE} and zqlab-space/{GONE}"
        waits = {"QuotaReserved": StatusCondition(False, "Pending", said, NOW - HOUR_MS)}
        found = replace(found, conditions=waits)
    bound = [
        builders.pod(
            f"{name}-{at}",
            gpus,
            namespace=space,
            uid=f"{space}-{name}-{at}",
            labels=team,
            owner=owner,
            **({"node": node, "bound_ms": NOW - HOUR_MS} if node else {}),
        )
        for at in range(pods if more.get("holding") else 0)
    ]
    return [owner, replace(found, meta=meta), *bound]


def volcano_job(name: str, space: str, team: dict[str, str], pods: int) -> list[Any]:
    rest = {"phase": "Inqueue", "queue": "default", "min_resources": {GPU: pods}}
    group = builders.pod_group(name, pods, rest=rest, namespace=space, labels=team, created_ms=NOW - HOUR_MS)
    named = {"scheduling.k8s.io/group-name": name}
    its = [
        builders.pod(
            f"{name}-{at}",
            8,
            namespace=space,
            labels=team,
            annotations=named,
            unschedulable=f"0/4 nodes are available: 4 Insufficient {GPU}. waits for pod {GONE}",
        )
        for at in range(pods)
    ]
    return [group, *its]


def cluster(seed: int) -> ClusterState:
    """A queue that two teams use, full or nearly; one of research waits, and others of both."""
    random = Random(seed)
    queue = worlds.queue(
        "ml",
        random.choice((16, 24, 32)),
        strict=random.random() < 0.5,
        within=random.choice(("Never", "LowerPriority", "LowerOrNewerEqualPriority")),
    )
    objects: list[Any] = [
        queue,
        worlds.local_queue("main", "ml", SPACE),
        builders.namespace("ml", RESEARCH, uid="namespace/ml"),
        builders.namespace(SPACE, VISION, uid=f"namespace/{SPACE}"),
        *(worlds.node(f"n{at}", product=H100, boards=8) for at in range(4)),
        volcano_queue("default"),
    ]
    for at, name in enumerate(JOBS):
        holding = at < 2 or random.random() < 0.4
        objects += kueue_job(
            *(name, SPACE, VISION),
            gpus=random.choice((4, 8)),
            pods=1,
            holding=holding,
            on=f"n{at}" if holding else "",
            priority=random.choice((-1, 0, 3)),
            created=random.randrange(3_000, 9_000),
        )
    objects += kueue_job("mine", "ml", RESEARCH, gpus=8, pods=random.choice((1, 2, 4)), created=2_000)
    objects += volcano_job("zqgang-ahead-x7k2p", SPACE, VISION, random.choice((2, 4)))
    objects += volcano_job("my-gang", "ml", RESEARCH, 4)
    return worlds.state(*objects, volcano=VolcanoConfig(is_read=True))


def history() -> RunTimes:
    """Each of the others' jobs took its own time; research has runs of ``mine`` alone."""
    theirs = (
        PastRun("zqvision", name, gpus, (5 + at) * HOUR_MS, owner="zqvision")
        for at, name in enumerate(JOBS)
        for gpus in (4, 8, 16)
        for _ in range(5)
    )
    return RunTimes([*theirs, *(PastRun("research", "mine", 8, 2 * HOUR_MS) for _ in range(9))])


def advising(seed: int) -> AdvisorService:
    return advising_of(cluster(seed))


def advising_of(state: ClusterState) -> AdvisorService:
    known = AdvisorService(
        StillCluster(state),
        AdvisorEngine(advise, explain, manifest_of, reread, document_of),
        TeamRules.default(),
        prices=book(price("2.50")),
        settings=AdvisorSettings(samples=3),
    )
    known._history = history()
    known.refresh()
    return known


@pytest.fixture(params=SEEDS)
def clients(request: pytest.FixtureRequest, ledger: Ledger) -> Clients:
    return Clients(create_app(ledger, SETTINGS, now=Clock(), advising=advising(request.param)))


def manifest(name: str = "train", pods: int = 2, gpus: int = 8) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "resources": {"limits": {GPU: gpus}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "ml", "labels": {"kueue.x-k8s.io/queue-name": "main"}},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


def volcano_manifest(name: str = "train", pods: int = 4) -> dict[str, Any]:
    template = manifest()["spec"]["template"]
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {
            "schedulerName": "volcano",
            "queue": "default",
            "minAvailable": pods,
            "tasks": [{"name": "worker", "replicas": pods, "template": template}],
        },
    }


def answer(client: TestClient, document: dict[str, Any]) -> str:
    response = client.post(URL, json={"manifest": document})
    assert response.status_code == 200, response.text
    return response.text


def answers(client: TestClient) -> Iterator[str]:
    for gpus, pods in ((8, 1), (8, 4), (4, 2), (16, 1)):
        yield answer(client, manifest(pods=pods, gpus=gpus))
    yield answer(client, volcano_manifest())
    for path in ("Job/ml/mine", "Pod/ml/my-gang-0"):
        response = client.get(f"/v1/explain/{path}")
        assert response.status_code == 200, response.text
        yield response.text


@pytest.mark.fault(47)
def test_no_name_of_others_is_in_an_answer(clients: Clients) -> None:
    assert any(SECRET in text for text in answers(clients.fin)), "there is something to tell"
    for text in answers(clients.ada):
        assert SECRET not in text, json.dumps(json.loads(text), indent=1)


def _selector(document: dict[str, Any], guess: str) -> None:
    document["spec"]["template"]["spec"]["nodeSelector"] = {guess: "x"}


def _team(document: dict[str, Any], guess: str) -> None:
    document["metadata"]["labels"]["team"] = "zqvision"
    document["metadata"]["name"] = guess


def _name(document: dict[str, Any], guess: str) -> None:
    document["metadata"]["name"] = guess


def _queue(document: dict[str, Any], guess: str) -> None:
    document["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = guess


def _class(document: dict[str, Any], guess: str) -> None:
    document["spec"]["template"]["spec"]["priorityClassName"] = guess


def _annotation(document: dict[str, Any], guess: str) -> None:
    document["metadata"]["annotations"] = {"note": f"{guess} {SPACE}/{guess}"}


def _toleration(document: dict[str, Any], guess: str) -> None:
    document["spec"]["template"]["spec"]["tolerations"] = [{"key": guess, "operator": "Exists"}]


@pytest.mark.fault(47)
@pytest.mark.parametrize("edit", [_selector, _team, _name, _queue, _class, _annotation, _toleration])
def test_an_answer_does_not_tell_whether_a_name_is_taken(edit: Edit, ledger: Ledger) -> None:
    client = Clients(create_app(ledger, SETTINGS, now=Clock(), advising=advising(1))).ada

    def asked(guess: str) -> str:
        document = manifest()
        edit(document, guess)
        return answer(client, document)

    for taken in (JOBS[0], SPACE):
        free = taken.replace("zq", "zx")
        assert asked(taken).replace(taken, free) == asked(free).replace(taken, free)


@pytest.mark.fault(47)
@pytest.mark.parametrize("scheduler", ["kueue", "volcano"])
def test_who_is_ahead_is_not_named_because_the_name_was_guessed(scheduler: str, ledger: Ledger) -> None:
    ahead = "zqhead-x7k2p"
    nodes = [worlds.node(f"n{at}", product=H100, boards=8) for at in range(2)]
    spaces = builders.namespace("ml", RESEARCH, uid="namespace/ml"), builders.namespace(SPACE, VISION)
    objects: list[Any] = [volcano_queue("default"), *volcano_job(ahead, SPACE, VISION, 2)]
    asked_for = volcano_manifest(pods=1)
    if scheduler == "kueue":
        objects = [worlds.queue("ml", 16, strict=True), worlds.local_queue("main", "ml", SPACE)]
        objects += kueue_job("held", "ml", RESEARCH, gpus=8, pods=1, holding=True, on="n0")
        objects += kueue_job(ahead, SPACE, VISION, gpus=8, pods=2)
        ahead, asked_for = f"job-{ahead}-a1b2c", manifest(pods=1)
    found = advising_of(worlds.state(*nodes, *spaces, *objects, volcano=VolcanoConfig(is_read=True)))
    clients = Clients(create_app(ledger, SETTINGS, now=Clock(), advising=found))
    assert ahead in answer(clients.fin, asked_for)
    for guess in (ahead, f"{SPACE}/{ahead}", ahead.replace("zq", "zx")):
        asked_for["metadata"]["annotations"] = {"note": guess}
        text = answer(clients.ada, asked_for)
        assert SECRET not in text
        assert OTHERS in text


@pytest.mark.fault(47)
def test_whom_kube_scheduler_would_preempt_is_named_to_their_team_alone(ledger: Ledger) -> None:
    """A victim of another team is reported as a fact: a pod leaves, from which node, what it holds, how long
    that takes; neither its name, namespace, priority nor uid."""
    spaces = builders.namespace("ml", RESEARCH, uid="namespace/ml"), builders.namespace(SPACE, VISION)
    pods = [
        replace(
            builders.pod(name, 8, namespace=space, node=node, priority=-7, labels=team, uid=f"uid-{name}"),
            grace_ms=45_000,
        )
        for name, space, node, team in (
            ("mine-0", "ml", "n0", RESEARCH),
            ("zqzephyr-0", SPACE, "n1", VISION),
        )
    ]
    state = worlds.state(
        *(worlds.node(f"n{at}", product=H100, boards=8) for at in range(2)),
        *(*spaces, *pods),
        priority_classes=[PriorityClass(worlds.meta("high"), 1000)],
    )
    clients = Clients(create_app(ledger, SETTINGS, now=Clock(), advising=advising_of(state)))
    asked_for = manifest()
    del asked_for["metadata"]["labels"]
    asked_for["spec"]["template"]["spec"]["priorityClassName"] = "high"
    whole, own = (json.loads(answer(each, asked_for)) for each in (clients.fin, clients.ada))
    assert [each["subject"]["name"] for each in whole["victims"]] == ["mine-0", "zqzephyr-0"]
    assert "zqlab-space/zqzephyr-0" in whole["says"]
    assert SECRET not in json.dumps(own)
    assert own["decision"] == "now"
    assert f"(ml/mine-0, {OTHERS}), which have 45 s to stop" in own["says"]
    mine, theirs = own["victims"]
    assert (mine["subject"]["name"], mine["priority"]) == ("mine-0", -7)
    assert theirs["subject"] == {"kind": "Pod", "namespace": "", "name": OTHERS, "uid": ""}
    assert (theirs["priority"], theirs["node"], theirs["units"], theirs["grace_ms"]) == (
        *(None, "n1"),
        *({GPU: 8}, 45_000),
    )
    for guess in ("zqlab-space/zqzephyr-0", "zxlab-space/zxzephyr-0"):
        asked_for["metadata"]["annotations"] = {"note": f"{guess} {guess.replace('/', ' ')}"}
        assert json.loads(answer(clients.ada, asked_for))["says"] == own["says"], "guessing tells nothing"


def test_waits_rest_on_ones_own_runs_and_on_all(ledger: Ledger) -> None:
    found = advising(0)
    clients = Clients(create_app(ledger, SETTINGS, now=Clock(), advising=found))
    own, whole = (json.loads(answer(each, manifest()))["wait"] for each in (clients.ada, clients.fin))
    assert "zqvision" in whole["basis"]
    assert " ended runs on " in own["basis"] or " ended runs of all teams" in own["basis"]
    informed = found.informed()
    assert informed.tenants.teams_of_namespace("ml") == {"research"}
    assert informed.tenants.teams_of_namespace("nowhere") == frozenset()


def used_by_others() -> PastUses:
    """Runs of the others in the namespace of research: little memory, and few of the SMs."""
    runs = [
        JobUse(
            *("zqvision", "ml", f"zqcodename-{at}", f"u{at}", "H100", 6_144, 81_559.0, 0.1, 1.0, 1.0),
            *(NOW - (at + 1) * HOUR_MS, NOW - at * HOUR_MS),
        )
        for at in range(1, 5)
    ]
    return PastUses({("ml", "zqcodename-*"): runs})


@pytest.mark.fault(47)
def test_what_runs_of_others_used_is_told_to_nobody_else(ledger: Ledger) -> None:
    """Also in a namespace that both use, and by the names of their jobs."""
    mig = "nvidia.com/mig-1g.10gb"
    found = advising_of(
        worlds.state(
            *(worlds.queue("ml", 1, resources={mig: 4}), worlds.workload("held", "ml", holding=True)),
            builders.namespace("ml", RESEARCH, uid="namespace/ml"),
            worlds.node("n1", 1, more={mig: 7}),
        )
    )
    found.learnt.have_used(used_by_others())
    found.refresh()
    clients = Clients(create_app(ledger, SETTINGS, now=Clock(), advising=found))
    whole, own = (answer(each, manifest("zqcodename-7", 1, 1)) for each in (clients.fin, clients.ada))
    assert "they took 6.4 GB and 10% of the SMs at most" in whole
    assert "a slice" not in own


@pytest.mark.fault(47)
def test_the_webhook_knows_the_history_of_its_namespace_alone() -> None:
    found, told = advising(0), list[str]()
    found.learnt.have_used(used_by_others())
    found.refresh()

    def tell(outcome: Any, more: bool) -> bool:
        told.extend(outcome.warnings)
        return more

    asked: list[Any] = []
    engine = found.engine

    def spy(manifest: Any, known: Any, with_suggestions: bool = True) -> Any:
        asked.append(known)
        return engine.advise(manifest, known, with_suggestions)

    found.engine = replace(engine, advise=spy)
    document = manifest()
    document["metadata"]["labels"]["team"] = "zqvision"
    AdmissionAdviser(found)(document, float("inf"), tell)
    assert told
    assert asked
    assert not [text for text in told if SECRET in text]
    for known in asked:
        assert known.used(manifest_of(manifest("zqcodename-7"), "", NOW, "default")) is None
        run_times = known.run_times
        assert run_times.like("zqvision", JOBS[0], 4).basis == "20 ended runs on 3-4 GPUs"
        own = run_times.like("research", "mine", 8)
        assert own.basis == "9 ended runs of team research named mine on 5-8 GPUs"
