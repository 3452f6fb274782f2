"""What is refused of a manifest: what the API server would refuse (``rules``), and what nobody can mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from gpucost.cluster.objects import Flaw
from gpucost.cluster.pods import PodSet
from gpucost.domain.configfile import is_name
from gpucost.domain.errors import shorten
from gpucost.domain.jobs import JobKind
from gpucost.kube.manifests.fields import OBJECT, SPECS, TEMPLATE_AT
from gpucost.kube.manifests.rules.kinds import OF_KUBERNETES, PATCHES, judged
from gpucost.kube.manifests.rules.names import VALUE_RULE, is_label_value
from gpucost.kube.manifests.rules.schemas import misspelt
from gpucost.kube.parse.reading import Part

MOST_PODS = 1_000_000
MOST_POD_SETS = 1_000
MOST_FLAWS = 20
_SHOWN_RULE = "1 to 253 characters, no control characters, no blanks at the ends"
_COUNTS = frozenset(
    ("replicas", "parallelism", "minAvailable", "minReplicas", "numOfHosts", "numNodes", "size", "minMember")
)
_SHOWN = frozenset(
    ("groupName", "priorityClass", "priorityClassName", "queue", "resourceClaimName", "schedulerName")
)
"""Fields whose text is shown in answers."""
_BY_NAME = frozenset(("annotations", "labels", "limits", "matchLabels", "nodeSelector", "requests"))
_TEMPLATES = frozenset(("leaderTemplate", "submitterPodTemplate", "template", "workerTemplate"))
_POD_SETS = frozenset(
    {
        *("replicatedJobs", "tasks", "workerGroupSpecs", "jaxReplicaSpecs", "mpiReplicaSpecs"),
        *("paddleReplicaSpecs", "pytorchReplicaSpecs", "tfReplicaSpecs", "xgbReplicaSpecs"),
    }
)
_WITH_POD_SETS = ("rayClusterSpec", "rayClusterConfig")
_INNER = frozenset(("containers", "replicatedJobs", "template"))


class Found(NamedTuple):
    """A mapping in a document, and the way to it."""

    path: str
    value: dict[str, Any]


def below(document: Mapping[str, Any]) -> Iterator[Found]:
    """Every mapping but those in patches of other objects and in the status, the document first."""
    waiting: list[tuple[str, Any]] = [("", dict(document))]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            yield Found(path, value)
            inside = [(_at(path, key), each) for key, each in value.items() if key not in PATCHES]
        else:
            inside = [(f"{path}[{index}]", each) for index, each in enumerate(value)]
        waiting += [each for each in reversed(inside) if isinstance(each[1], (dict, list))]


def pod_templates(document: Mapping[str, Any]) -> list[Found]:
    """What has a pod spec with containers: pod templates, and pods themselves."""
    found = []
    for each in below(document):
        spec = each.value.get("spec")
        if isinstance(spec, dict) and "containers" in spec:
            found.append(each)
    return found


def examined(document: Mapping[str, Any], kind: JobKind) -> tuple[dict[str, Any], list[Flaw]]:
    """The document as the API server would hold it, and what is wrong with it: at most ``MOST_FLAWS``, and
    the rules of the API server only where nothing else is."""
    found = list(islice(_flaws(document, kind), MOST_FLAWS))
    if found:
        return dict(document), found
    root = Part(document)
    return judged(root, dict(document), kind), root.flaws


def too_many(document: Mapping[str, Any]) -> list[Flaw]:
    """Lists of pod sets too long to look at more closely."""
    spec = document.get("spec")
    own = spec if isinstance(spec, dict) else {}
    inside = [("spec", own), *((f"spec.{key}", own[key]) for key in _WITH_POD_SETS if key in own)]
    for path, holder in inside:
        for key, value in holder.items() if isinstance(holder, dict) else ():
            is_long = isinstance(value, (dict, list)) and len(value) > MOST_POD_SETS
            if is_long and key in _POD_SETS:
                return [_too_many(f"{path}.{key}", len(value))]
    return []


def _too_many(path: str, count: int) -> Flaw:
    return Flaw(path, f"{count:,} pod sets", f"at most {MOST_POD_SETS:,} pod sets in one job")


def flaws_of_pod_sets(kind: JobKind, pod_sets: tuple[PodSet, ...], templates: int) -> Iterator[Flaw]:
    """``templates`` is how many pod templates with containers the manifest has."""
    at = TEMPLATE_AT[kind]
    if len(pod_sets) > MOST_POD_SETS:
        yield _too_many(at, len(pod_sets))
        return
    needed = 1 if kind is JobKind.LEADER_WORKER_SET else len(pod_sets)
    if templates < max(needed, 1):
        value = f"{templates} of {needed} with containers" if needed > 1 else "missing"
        yield Flaw(at, value, "a pod template with containers for each")
    pods = sum(each.count for each in pod_sets)
    if pods > MOST_PODS:
        yield Flaw("spec", f"{pods:,} pods", f"at most {MOST_PODS:,} pods in one job")
    names = [each.name for each in pod_sets]
    for name in dict.fromkeys(names):
        if not (name and is_label_value(name)):
            yield _flaw(f"{at} (a name in it)", name, VALUE_RULE)
    if len(set(names)) < len(names):
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        yield _flaw(f"{at} (a name in it)", twice, "each name once")


def _flaws(document: Mapping[str, Any], kind: JobKind) -> Iterator[Flaw]:
    for key, needed in (("metadata", "an object with a name"), ("spec", "an object")):
        if not isinstance(document.get(key), dict):
            yield _flaw(key, document.get(key), needed)
            return
    for each in below(document):
        yield from _plain(each)
    if kind not in OF_KUBERNETES:
        for at, key, fields in (("", "", OBJECT), ("spec", "spec", SPECS[kind])):
            value = document[key] if key else document
            unknown = [each for each in value if each not in fields.read and each not in fields.other]
            for name, close in misspelt(unknown, fields.read, ""):
                if close:
                    yield Flaw(_at(at, name), "unknown field", close)
        for each in below(document):
            for key in _TEMPLATES.intersection(each.value):
                yield from _without_containers(_at(each.path, key), each.value[key])


def _plain(found: Found) -> Iterator[Flaw]:
    """Counts that nobody means, and text that is no name."""
    for key, value in found.value.items():
        if not is_name(key):
            yield _flaw(found.path or "(top level)", key, f"keys of {_SHOWN_RULE}")
        elif key in _COUNTS and type(value) is int and value > MOST_PODS:
            yield _flaw(_at(found.path, key), value, f"at most {MOST_PODS:,}")
        elif key in _SHOWN and isinstance(value, str) and value and not is_name(value):
            yield _flaw(_at(found.path, key), value, _SHOWN_RULE)


def _without_containers(path: str, template: object) -> Iterator[Flaw]:
    spec = template.get("spec") if isinstance(template, dict) else None
    if isinstance(spec, dict) and not _INNER.intersection(spec):
        yield Flaw(f"{path}.spec.containers", "missing", "at least one container")


def _at(path: str, key: str) -> str:
    if path.rpartition(".")[2] in _BY_NAME:
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def _flaw(field: str, value: object, allowed: str) -> Flaw:
    return Flaw(field, "missing" if value is None else shorten(value), allowed)
