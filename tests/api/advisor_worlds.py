"""A small cluster of two teams, an advisor over it, and reviews of jobs: for tests of routes and webhook.

The engine is a small one that says what a test wants; what surrounds it is real.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpucost.advisor.model.answers import (
    Advice,
    AdviceEvidence,
    AdviceSubject,
    Explanation,
    JobSuggestion,
    LayerAnswer,
    LayerVerdict,
    PreemptionVictim,
    SchedulingDecision,
    SchedulingLayer,
    SuggestedChange,
    SuggestedChangeKind,
)
from gpucost.advisor.request.context import AdvisorContext
from gpucost.api.webhook.adviser import AdmissionAdviser
from gpucost.api.webhook.deadline_queue import ReviewTask
from gpucost.attribution.teams import TeamRules
from gpucost.cluster.objects.jobs import JobManifest, JobObject, Namespace
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.domain.errors import InputError
from gpucost.service.advisor.advisor_service import AdvisorEngine, AdvisorService
from tests.cluster import builders
from tests.cluster.builders import GPU, T0

TOKEN = "a-token-of-the-webhook"
OWN = AdviceSubject("Workload", "ml", "mine-wl", "mine-wl-uid")
FOREIGN = AdviceSubject("Workload", "cv", "their-secret", "their-secret-uid")


def state() -> ClusterState:
    """Team research works in ``ml``, team vision in ``cv``; ``shared`` has jobs of both."""
    research, vision = {"team": "research"}, {"team": "vision"}
    jobs = (
        builders.job("mine", namespace="ml", labels=research),
        builders.job("their-secret-job", namespace="cv", labels=vision),
        builders.job("ours", namespace="shared", labels=research),
        builders.job("theirs-too", namespace="shared", labels=vision),
    )
    workloads = (
        builders.workload("mine-wl", queue="main", namespace="ml", labels=research),
        builders.workload("their-secret", queue="main", namespace="cv", labels=vision),
    )
    spaces = tuple(Namespace(builders.meta(name, "")) for name in ("ml", "cv", "shared"))
    spaces += (Namespace(builders.meta("fresh", "", labels=research)),)
    return ClusterState(
        T0,
        jobs={each.meta.uid: each for each in jobs},
        workloads={each.meta.uid: each for each in workloads},
        namespaces={each.meta.uid: each for each in spaces},
        nodes={"node-1-uid": builders.node("node-1")},
    )


def advice(subject: AdviceSubject) -> Advice:
    """It waits, would displace one job of each team, and says so in every field that has words."""
    there = f"{FOREIGN.namespace}/{FOREIGN.name}"
    to_admin = SuggestedChange(
        SuggestedChangeKind.CLUSTER, f"workload/{FOREIGN.name}", "spec: {}", (), f"kubectl delete {there}"
    )
    to_author = SuggestedChange(
        SuggestedChangeKind.MANIFEST, f"job/{subject.name}", "spec: {}", (), "kubectl apply -f job.yaml"
    )
    return Advice(
        subject,
        SchedulingDecision.WAITS,
        SchedulingLayer.QUOTA,
        "InsufficientQuota",
        f"waits ~3h (p90 9h): queue ml-queue has 8 of 64 GPUs left, behind {FOREIGN.name}",
        (f"{there} runs longest", "queue ml-queue lends 4 GPUs"),
        "kueue",
        "kueue 0.19.2",
        queue="ml-queue",
        victims=tuple(
            PreemptionVictim(each, "ml-queue", 0, "InClusterQueue", {GPU: 8}) for each in (OWN, FOREIGN)
        ),
        suggestions=(
            JobSuggestion(
                "smaller", "asks 4 GPUs: runs now", to_author, SchedulingDecision.NOW, 9_500_000_000
            ),
            JobSuggestion("evict", f"end {FOREIGN.name}", to_admin, SchedulingDecision.NOW),
        ),
        evidence=(
            AdviceEvidence(f"workload/{there}", "spec.priority", "7", "goes before it"),
            AdviceEvidence("clusterqueue/ml-queue", "status", "8", f"{FOREIGN.name} has the others"),
        ),
        assumptions=(f"{FOREIGN.name} runs to its end",),
    )


def manifest_of(document: Mapping[str, Any], place: str, at_ms: int, namespace: str) -> JobManifest:
    """Of a Job with one container."""
    del at_ms
    metadata = document.get("metadata")
    if document.get("kind") != "Job" or not isinstance(metadata, dict):
        raise InputError("kind", document.get("kind"), "Job")
    spec = document["spec"]["template"]["spec"]
    gpus = int(spec["containers"][0].get("resources", {}).get("limits", {}).get(GPU, 0))
    job = builders.job(
        str(metadata["name"]),
        namespace=str(metadata.get("namespace") or namespace),
        pod_sets=(builders.pod_set(gpus=gpus),),
    )
    return JobManifest(job, document=document, place=place)


def reread(manifest: JobManifest, document: Mapping[str, Any]) -> JobManifest:
    return manifest_of(document, manifest.place, T0, manifest.namespace)


@dataclass
class SmallEngine:
    """``says`` makes the advice of a subject; ``asked`` holds what came in."""

    says: Callable[[AdviceSubject], Advice] = advice
    asked: list[tuple[str, bool]] = field(default_factory=list)

    def advise(self, manifest: JobManifest, known: AdvisorContext, with_suggestions: bool = True) -> Advice:
        del known
        self.asked.append((manifest.name, with_suggestions))
        found = self.says(AdviceSubject("Job", manifest.namespace, manifest.name))
        return found if with_suggestions else replace(found, suggestions=())

    def explain(self, kind: str, namespace: str, name: str, known: AdvisorContext) -> Explanation | None:
        jobs: list[JobObject] = [
            each
            for each in known.overview.state.jobs.values()
            if (each.kind, each.meta.namespace, each.meta.name) == (kind, namespace, name)
        ]
        if not jobs:
            return None
        found = advice(AdviceSubject(kind, namespace, name, jobs[0].meta.uid))
        step = LayerAnswer(SchedulingLayer.QUOTA, LayerVerdict.HOLDS, found.says, T0, found.evidence)
        return Explanation(
            found.subject,
            SchedulingLayer.QUOTA,
            found.says,
            T0,
            (step,),
            found.suggestions,
            found,
            found.rules,
        )

    @property
    def engine(self) -> AdvisorEngine:
        return AdvisorEngine(self.advise, self.explain, manifest_of, reread)


@dataclass
class StillCluster:
    """A watched cluster in which nothing happens."""

    found: ClusterState = field(default_factory=state)
    is_current: bool = True
    version: int = 1
    taken: int = 0
    cluster: str = "c"

    def overview(self, cluster: str) -> ClusterOverview | None:
        assert cluster == self.cluster
        self.taken += 1
        return ClusterOverview(self.found) if self.is_current else None


def advising(engine: SmallEngine | None = None, watched: StillCluster | None = None) -> AdvisorService:
    """An advisor that knows its state; its threads do not run."""
    found = AdvisorService(watched or StillCluster(), (engine or SmallEngine()).engine, TeamRules.default())
    found.refresh()
    return found


def ever_current(found: AdvisorService) -> AdvisorService:
    """For worlds of whole modules: however slow their tests are, the state is not too old to answer from."""
    found.monotonic = lambda: found._checked_s
    return found


def working(found: AdvisorService) -> Callable[[ReviewTask], None]:
    """The work of a desk in this process, without a process in between."""
    adviser = AdmissionAdviser(found)

    def work(task: ReviewTask) -> None:
        assert task.review.document is not None
        adviser(task.review.document, task.until_s, lambda outcome, more: task.tell(outcome) and more)

    return work


def job(name: str = "train", gpus: int = 8, namespace: str = "") -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {GPU: gpus}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


def review(document: Any = None, uid: Any = "0d4a-uid", **request: Any) -> dict[str, Any]:
    """An AdmissionReview, as API servers write it. Keywords replace parts of its request."""
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": uid,
            "kind": {"group": "batch", "version": "v1", "kind": "Job"},
            "namespace": "ml",
            "operation": "CREATE",
            "object": job() if document is None else document,
            "dryRun": False,
            **request,
        },
    }


def body(document: Any = None, **request: Any) -> bytes:
    return json.dumps(review(document, **request)).encode()
