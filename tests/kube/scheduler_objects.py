"""Objects of a cluster that say how Kueue and Volcano are configured, and what is read of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucost.cluster.objects.scheduler_config import (
    INITIAL_SHARE,
    KueueConfig,
    SchedulerConfigs,
    SchedulerNames,
    VolcanoConfig,
)
from gpucost.kube.parse.scheduler_configs import (
    KUEUE_KEY,
    VOLCANO_KEY,
)
from tests.support.objects import metadata

Json = dict[str, Any]
SECRET = "hunter2"
KUEUE = """\
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
namespace: kueue-system
internalCertManagement:
  webhookSecretName: hunter2
fairSharing:
  preemptionStrategies: [LessThanInitialShare]
waitForPodsReady:
  timeout: 5m
  blockAdmission: true
resources:
  excludeResourcePrefixes: [example.com/]
  quotaCheckStrategy: IgnoreUndeclared
featureGates:
  PartialAdmission: false
integrations:
  frameworks: [batch/job, ray.io/rayjob]
multiKueue:
  clusterProfile: {credentialsProviders: [{name: x, execConfig: {env: [{name: TOKEN, value: hunter2}]}}]}
"""
READ = KueueConfig(
    "v0.19.2",
    fair_sharing=True,
    strategies=(INITIAL_SHARE,),
    gates={"PriorityBoost": True, "PartialAdmission": False},
    block_admission=True,
    excluded_prefixes=("example.com/",),
    ignores_undeclared=True,
    frameworks=("batch/job", "ray.io/rayjob"),
    is_read=True,
)
VOLCANO = """\
# The chart's, with reclaim.
actions: "enqueue, allocate, reclaim, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
- plugins:
  - name: overcommit
    arguments:
      overcommit-factor: 1.5
  - name: capacity
    enabledHierarchy: true
"""
READ_VOLCANO = VolcanoConfig(
    "v1.15.1",
    actions=("enqueue", "allocate", "reclaim", "backfill"),
    tiers=(("priority", "gang"), ("overcommit", "capacity")),
    arguments={
        "gang": {"enablePreemptable": "false"},
        "overcommit": {"overcommit-factor": "1.5"},
        "capacity": {"enabledHierarchy": "true"},
    },
    is_read=True,
)


def config_map(name: str, key: str, text: str) -> Json:
    namespace, _, own = name.partition("/")
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(own, namespace, uid=f"uid-{own}"),
        "data": {key: text, "other": SECRET},
    }


def deployment(name: str, image: str, *args: str, labels: Mapping[str, str] | None = None) -> Json:
    namespace, _, own = name.partition("/")
    container = {
        "name": "manager",
        "image": image,
        "args": [*args, f"--token={SECRET}"],
        "env": [{"name": "TOKEN", "value": SECRET}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**metadata(own, namespace, uid=f"uid-{own}"), "labels": dict(labels or {})},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [container]}}},
        "status": {"replicas": 1},
    }


NAMES = SchedulerNames()
OBJECTS = [
    config_map(NAMES.kueue_config, KUEUE_KEY, KUEUE),
    config_map(NAMES.volcano_config, VOLCANO_KEY, VOLCANO),
    deployment(
        NAMES.kueue_manager,
        "hunter2.example.com:5000/mirror/kueue:v0.19.2@sha256:0123",
        "--zap-log-level=2",
        "--feature-gates=PriorityBoost=true,PartialAdmission=true",
    ),
    deployment(NAMES.volcano_scheduler, "docker.io/volcanosh/vc-scheduler:v1.15.1"),
]
BOTH = SchedulerConfigs(READ, READ_VOLCANO)
