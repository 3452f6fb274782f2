"""Objects without what no figure needs and nobody should pass on.

Of each kind those fields stay that a parser of ``gpucost.kube.parse`` reads (``kept_kinds``); of its
annotations those that link it to others or name its owner; of messages those that are shown to people. All
else goes, also what is not known yet: environments, commands, arguments, images, volumes, configurations. Of
Kueue and Volcano themselves what says how they decide stays (``kept_schedulers``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from gpucost.cluster.ownership import LINKS, OwnerKeys
from gpucost.kube.dumps.kept import Keep, Kept, each, fields, named_values, only, plain
from gpucost.kube.dumps.kept_kinds import KINDS
from gpucost.kube.dumps.kept_pods import WRITERS
from gpucost.kube.dumps.kept_schedulers import CONFIG_MAP
from gpucost.kube.parse.pods import POD_ANNOTATIONS

ANNOTATIONS = frozenset(
    {
        *LINKS,
        *POD_ANNOTATIONS,
        *OwnerKeys().all,
        "kubeflow-resource-stopped",
        "kueue.x-k8s.io/job-min-parallelism",
    }
)
"""Names of the annotations that always stay."""

_KINDS = {**KINDS, ("", "ConfigMap"): CONFIG_MAP}
_METADATA: Kept = {
    **dict.fromkeys(("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp"), plain),
    "deletionGracePeriodSeconds": plain,
    "labels": named_values,
    "ownerReferences": each(fields("apiVersion", "kind", "name", "uid", "controller")),
}


def scrubbed(found: Mapping[str, Any], annotations: frozenset[str] = frozenset()) -> dict[str, Any]:
    """A copy of an object, which says its apiVersion and kind; ``annotations`` are further ones to keep.

    Of a kind that no parser reads only the metadata stays.
    """
    api_version, kind = found.get("apiVersion"), found.get("kind")
    group = api_version.rpartition("/")[0] if isinstance(api_version, str) else ""
    kept: dict[str, Any] = _object(group, kind if isinstance(kind, str) else "", annotations)(found)
    return kept


@lru_cache(maxsize=256)
def _object(group: str, kind: str, annotations: frozenset[str]) -> Keep:
    of_kind = WRITERS if (group, kind) == ("", "Pod") else {}
    metadata = fields(annotations=only(ANNOTATIONS | annotations), **_METADATA, **of_kind)
    return fields("apiVersion", "kind", metadata=metadata, **_KINDS.get((group, kind), {}))
