"""Answers of the advisor, made by hand: one of each kind, with all it may hold; and a folder to ask in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpucost.advisor.model.answers import (
    Advice,
    AdviceEvidence,
    AdviceSubject,
    Explanation,
    JobSuggestion,
    LayerAnswer,
    LayerVerdict,
    PodSetAnswer,
    PreemptionVictim,
    PriceEstimate,
    SchedulingDecision,
    SchedulingLayer,
    SuggestedChange,
    SuggestedChangeKind,
    WaitEstimate,
)
from gpucost.cluster.objects.kueue import FlavorResource
from gpucost.domain.money import NANO
from gpucost.domain.time import DAY_MS, HOUR_MS
from tests.cli.state_worlds import cluster

NOW = 1_792_800_000_000
"""2026-10-24T00:00:00Z."""
GPU = "nvidia.com/gpu"
NOMINAL = "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota"
SUBJECT = AdviceSubject("PyTorchJob", "team-nlp", "train-llm")
WAIT = WaitEstimate(3 * HOUR_MS, 9 * HOUR_MS, 168 * HOUR_MS, "run times of 40 jobs of team nlp", 40, 18, 20)
PRICE = PriceEstimate(98_320_000_000, "USD", 3 * HOUR_MS, 294_960_000_000, ("H100/on-demand@1a2b",))
VICTIM = PreemptionVictim(
    AdviceSubject("Job", "vision", "sweep"), "vision", 10, "InCohortReclamation", {GPU: 8}
)

OTHER_QUEUE = JobSuggestion(
    "other-queue",
    "queue research has 24 lendable GPUs of h100",
    SuggestedChange(
        SuggestedChangeKind.MANIFEST,
        "pytorchjob/train-llm",
        "metadata:\n  labels:\n    kueue.x-k8s.io/queue-name: research\n",
        (
            {
                "op": "replace",
                "path": "/metadata/labels/kueue.x-k8s.io~1queue-name",
                "value": "research",
            },
        ),
        "",
    ),
    SchedulingDecision.NOW,
    98 * NANO,
    caveat="its team pays",
)
RAISE = JobSuggestion(
    "raise-limit",
    "8 more GPUs of quota for queue ml",
    SuggestedChange(
        SuggestedChangeKind.CLUSTER,
        "clusterqueue/ml",
        "spec:\n  resourceGroups:\n  - flavors:\n    - name: h100\n      resources:\n"
        "      - name: nvidia.com/gpu\n        nominalQuota: 72\n",
        ({"op": "replace", "path": f"/{NOMINAL}", "value": "72"},),
        "kubectl patch clusterqueue ml --type=json -p '[…]'",
    ),
    SchedulingDecision.WAITS,
    wait=replace(WAIT, p50_ms=HOUR_MS // 3, p90_ms=None),
)

WAITS = Advice(
    SUBJECT,
    SchedulingDecision.WAITS,
    SchedulingLayer.QUOTA,
    "WaitingForQuota",
    "waits about 3 h (p90 9 h), then runs on 4 nodes",
    (
        "quota: ml lends no more: 56 of 64 GPUs of flavor h100 in use, 16 asked; 8 short",
        "placement: once quota is there, 4 of 6 free nodes of h100 fit it",
        "its priority is 0",
    ),
    "kueue",
    "Kueue 0.19.2",
    "ml",
    (
        PodSetAnswer(
            "worker", 4, {GPU: "h100", "cpu": "h100", "memory": "default"}, {"gpu-01": 2, "gpu-02": 2}
        ),
    ),
    {FlavorResource("h100", GPU): 16, FlavorResource("h100", "cpu"): 2500, FlavorResource("x", GPU): 0},
    1,
    3,
    wait=WAIT,
    price=PRICE,
    suggestions=(OTHER_QUEUE, RAISE),
    evidence=(AdviceEvidence("clusterqueue/ml", NOMINAL, "64", "its own quota"),),
    assumptions=("jobs of like names run as long as before",),
    drift=("the cluster runs Kueue v0.19.1",),
)
_BARE = Advice(
    SUBJECT, SchedulingDecision.NOW, SchedulingLayer.NONE, "", "runs now", (), "kueue", "Kueue 0.19.2"
)
ADVICE = {
    SchedulingDecision.NOW: replace(
        _BARE, victims=(VICTIM, replace(VICTIM, already_leaving=True)), price=PRICE, ahead=0
    ),
    SchedulingDecision.LATER: replace(
        _BARE,
        decision=SchedulingDecision.LATER,
        says="runs in 8 min, on nodes to be added",
        later_ms=8 * 60_000,
    ),
    SchedulingDecision.WAITS: WAITS,
    SchedulingDecision.NEVER: replace(
        _BARE,
        decision=SchedulingDecision.NEVER,
        layer=SchedulingLayer.PLACEMENT,
        reason="TooLarge",
        says="never runs: no node has 16 GPUs",
    ),
    SchedulingDecision.UNKNOWN: replace(
        _BARE,
        decision=SchedulingDecision.UNKNOWN,
        layer=SchedulingLayer.QUOTA,
        reason="OutOfScope",
        says="cannot be told: queue ml uses MultiKueue",
    ),
}

EXPLANATION = Explanation(
    replace(SUBJECT, uid="1"),
    SchedulingLayer.PLACEMENT,
    "2 of its 4 pods have no node",
    NOW - 3 * DAY_MS,
    (
        LayerAnswer(SchedulingLayer.QUOTA, LayerVerdict.PASSED, "admitted to queue ml", NOW - 4 * DAY_MS),
        LayerAnswer(
            SchedulingLayer.PLACEMENT,
            LayerVerdict.HOLDS,
            "minMember is 2 below 4 replicas, so half of the gang started and waits for the rest",
            NOW - 3 * DAY_MS,
            (AdviceEvidence("podgroup/train-llm", "spec.minMember", "2", "4 pods are needed"),),
        ),
        LayerAnswer(
            SchedulingLayer.DEVICE, LayerVerdict.UNKNOWN, "no node says how many GPUs it should have", None
        ),
        LayerAnswer(SchedulingLayer.RUNNING, LayerVerdict.NOT_REACHED, "", None),
    ),
    (RAISE,),
    WAITS,
    "Kueue 0.19.2",
    ("pods are read as of 2026-10-24",),
)

PRICES = """\
version: 1
currency: EUR
prices:
- name: h100
  model: H100
  per_hour: "2.50"
  source: a test
  retrieved: 2026-10-01
"""


def furnish(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in ``folder``, with a dump and prices there. Settings, ledger and kubeconfig of the person who
    runs the test stay out."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    for name in ("GPUCOST_CONFIG", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GPUCOST_PRICING__BOOK", str(folder / "prices.yaml"))
    (folder / "prices.yaml").write_text(PRICES, encoding="utf-8")
    objects = {"apiVersion": "v1", "kind": "List", "items": [*cluster()]}
    (folder / "state.json").write_text(json.dumps(objects), encoding="utf-8")
