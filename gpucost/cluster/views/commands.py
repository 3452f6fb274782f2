"""Commands and patches for people to run, safe whatever a name in them contains.

Among them are lines of YAML and commands that change what a queue may use, ready to be used as written.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

_PLAIN_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LONGEST_NAME = 253


def kubectl(*arguments: str) -> str:
    """A command line with every argument quoted where necessary."""
    return shlex.join(("kubectl", *arguments))


def is_plain(name: str) -> bool:
    """Whether Kubernetes could have given an object that name: a label or metric may contain anything."""
    return len(name) <= _LONGEST_NAME and _PLAIN_NAME.fullmatch(name) is not None


_API_VERSION = "kueue.x-k8s.io/v1beta2"
CLUSTER_QUEUES = "clusterqueues.v1beta2.kueue.x-k8s.io"
COHORTS = "cohorts.v1beta2.kueue.x-k8s.io"
VOLCANO_QUEUES = "queues.scheduling.volcano.sh"


def quota_lines(
    queue: str,
    flavor: str,
    resource: str,
    fields: Mapping[str, float],
    now: Mapping[str, float] | None = None,
) -> str:
    """A ClusterQueue's quota of one flavor and resource: the lines to change, the rest of it stays. ``now``
    are the present values, where known; NaN and infinity: not set."""
    known = now or {}
    amounts = "".join(
        f"\n        {name}: {_amount(value)}{_was(known[name]) if name in known else ''}"
        for name, value in fields.items()
    )
    return (
        f"# {kubectl('edit', CLUSTER_QUEUES, queue)}\n"
        f"apiVersion: {_API_VERSION}\n"
        "kind: ClusterQueue\n"
        "metadata:\n"
        f"  name: {json.dumps(queue)}\n"
        "spec:\n"
        "  resourceGroups:\n"
        "  - flavors:\n"
        f"    - name: {json.dumps(flavor)}\n"
        "      resources:\n"
        f"      - name: {json.dumps(resource)}{amounts}"
    )


def cluster_queue_patch(queue: str, **fields: object) -> str:
    """The command that sets fields of a ClusterQueue's spec (v1beta2)."""
    patch = json.dumps({"spec": fields}, separators=(",", ":"))
    return kubectl("patch", CLUSTER_QUEUES, queue, "--type=merge", "-p", patch)


def json_patch(collection: str, name: str, operations: Sequence[Mapping[str, Any]]) -> str:
    """The command that changes an object by RFC 6902."""
    patch = json.dumps(operations, separators=(",", ":"))
    return kubectl("patch", collection, name, "--type=json", "-p", patch)


def volcano_patch(queue: str, field: str, resource: str, amount: float) -> str:
    """The command that sets an amount of a Volcano queue."""
    patch = json.dumps({"spec": {field: {resource: _amount(amount)}}}, separators=(",", ":"))
    return kubectl("patch", VOLCANO_QUEUES, queue, "--type=merge", "-p", patch)


def _was(value: float) -> str:
    return f"  # now {value:g}" if isfinite(value) else "  # now not set"


def _amount(value: float) -> int | str:
    """As a Kubernetes quantity."""
    return int(value) if value == int(value) else json.dumps(f"{value:g}")
