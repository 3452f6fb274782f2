"""Meanings of the columns and words of ``gpucost state show``; docs/state-show.md has the same."""

from __future__ import annotations

from collections.abc import Mapping

WORDS: Mapping[str, str] = {
    "held": "GPU units that pods hold",
    "advertised": "what nodes offer to schedulers (allocatable)",
    "expected": "what their hardware and sharing settings should give; – where no node says",
    "missing": "expected and not advertised",
    "queue": "a ClusterQueue of Kueue, or a cohort where a slash follows; below it, indented, its members. "
    "Under Waiting, the one it is in or would go to, or a queue of Volcano",
    "flavor": "the ResourceFlavor, and the resource where it is not nvidia.com/gpu",
    "nominal": "quota of its own; – for a cohort without any, or a flavor that the queue no longer has",
    "reserved": "quota that workloads hold, whether their pods run yet or not",
    "used": "the part of it of workloads that are admitted; shown where it differs, or the screen is wide",
    "borrowed": "reserved above nominal, out of the cohort",
    "lendable": "what others can borrow of a queue now; of a cohort, what queues below it can still get; "
    "– outside any cohort",
    "pending": "workloads that wait for quota; of Volcano, PodGroups; of a gang, pods without a node",
    "GPUs": "units that these ask for",
    "oldest": "how long the longest of them has waited",
    "deserved": "a Volcano queue's share, guarantee its reserve, cap its limit (capability); – where not set",
    "allocated": "what Volcano gave to the queue and those below it",
    "wait": "since it is held by what holds it now: 45s, 12m, 3h05m, 4d02h",
    "pos": "place in the queue, from 1; blank where there is no order, or somebody holds it back",
    "job": "namespace/job; a name cut in the middle or at its end has …",
    "kind": "of the job, as its owner says",
    "team": "by the label or annotation that names it; – where none does",
    "held by": "the first layer that holds it, and the reason. quota: no quota, or an admission check is "
    "outstanding. placement: no nodes for its pods. device: nodes lack GPUs they should have, or its pods "
    "cannot start with theirs",
    "since": "how long the gang has been partial",
    "GPUs held": "units that its running pods hold in vain: without the others they can do nothing",
    "running": "pods of the gang that are bound to a node",
    "needs": "how many pods it needs at once",
    "gang": "namespace/name of the PodGroup, workload or job",
    "node": "one that advertises fewer units than expected",
    "product": "the GPU model by the node's labels",
    "pool": "the node pool by the node's labels",
    "resource": "name of the resource; what are not whole GPUs keeps it: 4 mig-1g.10gb",
    "state": "ready, not ready, cordoned",
    "count": "objects with the problem",
    "problem": "its code, as in gpucost_state_problems",
    "meaning": "of the code",
}
"""By the head of the column."""

SIGNS: Mapping[str, str] = {
    "blank": "0, or does not apply",
    "–": "not set, or there is none",
    "?": "not known: its collection could not be read, or is not in the dump",
}
