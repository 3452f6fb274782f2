"""Answers of the advisor, made by hand: one of each kind, with all it may hold; and a folder to ask in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpucost.advisor.answers import (
    Advice,
    Change,
    ChangeKind,
    Decision,
    Evidence,
    Explanation,
    Layer,
    LayerAnswer,
    PodSetAnswer,
    Price,
    Subject,
    Suggestion,
    Verdict,
    Victim,
    Wait,
)
from gpucost.cluster.kueue import FlavorResource
from gpucost.domain.money import NANO
from gpucost.domain.time import DAY_MS, HOUR_MS
from tests.cli.state_worlds import cluster

NOW = 1_792_800_000_000
"""2026-10-24T00:00:00Z."""
GPU = "nvidia.com/gpu"
NOMINAL = "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota"
SUBJECT = Subject("PyTorchJob", "team-nlp", "train-llm")
WAIT = Wait(3 * HOUR_MS, 9 * HOUR_MS, 168 * HOUR_MS, "run times of 40 jobs of team nlp", 40, 18, 20)
PRICE = Price(98_320_000_000, "USD", 3 * HOUR_MS, 294_960_000_000, ("H100/on-demand@1a2b",))
VICTIM = Victim(Subject("Job", "vision", "sweep"), "vision", 10, "InCohortReclamation", {GPU: 8})

OTHER_QUEUE = Suggestion(
    "other-queue",
    "queue research has 24 lendable GPUs of h100",
    Change(
        ChangeKind.MANIFEST,
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
    Decision.NOW,
    98 * NANO,
    caveat="its team pays",
)
RAISE = Suggestion(
    "raise-limit",
    "8 more GPUs of quota for queue ml",
    Change(
        ChangeKind.CLUSTER,
        "clusterqueue/ml",
        "spec:\n  resourceGroups:\n  - flavors:\n    - name: h100\n      resources:\n"
        "      - name: nvidia.com/gpu\n        nominalQuota: 72\n",
        ({"op": "replace", "path": f"/{NOMINAL}", "value": "72"},),
        "kubectl patch clusterqueue ml --type=json -p '[…]'",
    ),
    Decision.WAITS,
    wait=replace(WAIT, p50_ms=HOUR_MS // 3, p90_ms=None),
)

WAITS = Advice(
    SUBJECT,
    Decision.WAITS,
    Layer.QUOTA,
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
    evidence=(Evidence("clusterqueue/ml", NOMINAL, "64", "its own quota"),),
    assumptions=("jobs of like names run as long as before",),
    drift=("the cluster runs Kueue v0.19.1",),
)
_BARE = Advice(SUBJECT, Decision.NOW, Layer.NONE, "", "runs now", (), "kueue", "Kueue 0.19.2")
ADVICE = {
    Decision.NOW: replace(
        _BARE, victims=(VICTIM, replace(VICTIM, already_leaving=True)), price=PRICE, ahead=0
    ),
    Decision.LATER: replace(
        _BARE, decision=Decision.LATER, says="runs in 8 min, on nodes to be added", later_ms=8 * 60_000
    ),
    Decision.WAITS: WAITS,
    Decision.NEVER: replace(
        _BARE,
        decision=Decision.NEVER,
        layer=Layer.PLACEMENT,
        reason="TooLarge",
        says="never runs: no node has 16 GPUs",
    ),
    Decision.UNKNOWN: replace(
        _BARE,
        decision=Decision.UNKNOWN,
        layer=Layer.QUOTA,
        reason="OutOfScope",
        says="cannot be told: queue ml uses MultiKueue",
    ),
}

EXPLANATION = Explanation(
    replace(SUBJECT, uid="1"),
    Layer.PLACEMENT,
    "2 of its 4 pods have no node",
    NOW - 3 * DAY_MS,
    (
        LayerAnswer(Layer.QUOTA, Verdict.PASSED, "admitted to queue ml", NOW - 4 * DAY_MS),
        LayerAnswer(
            Layer.PLACEMENT,
            Verdict.HOLDS,
            "minMember is 2 below 4 replicas, so half of the gang started and waits for the rest",
            NOW - 3 * DAY_MS,
            (Evidence("podgroup/train-llm", "spec.minMember", "2", "4 pods are needed"),),
        ),
        LayerAnswer(Layer.DEVICE, Verdict.UNKNOWN, "no node says how many GPUs it should have", None),
        LayerAnswer(Layer.RUNNING, Verdict.NOT_REACHED, "", None),
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
    """Work in ``folder``, with a dump and prices there. Settings, ledger and kubeconfig of whoever runs the
    test stay out."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    for name in ("GPUCOST_CONFIG", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GPUCOST_PRICING__BOOK", str(folder / "prices.yaml"))
    (folder / "prices.yaml").write_text(PRICES, encoding="utf-8")
    objects = {"apiVersion": "v1", "kind": "List", "items": [*cluster()]}
    (folder / "state.json").write_text(json.dumps(objects), encoding="utf-8")
