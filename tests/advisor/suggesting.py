"""Questions with suggestions, and every suggestion carried out and asked about again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import yaml

from gpucost.advisor.advise import advise
from gpucost.advisor.model.answers import Advice, JobSuggestion, SuggestedChangeKind
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.suggest.patches import patched
from gpucost.advisor.wait.run_times import PastUse
from gpucost.cluster.objects.jobs import JobManifest
from gpucost.kube.manifests import read_manifests, reread
from tests.advisor import worlds
from tests.cluster.builders import GPU

QUEUE = "kueue.x-k8s.io/queue-name"
Document = dict[str, Any]


def knowledge(
    *objects: object, used: PastUse | None = None, prices: Any = None, **options: Any
) -> AdvisorContext:
    """Of ``worlds.state``."""
    hook = None if used is None else lambda _manifest: used
    return AdvisorContext(worlds.overview(*objects, **options), reread, prices, used=hook)


def job(
    pods: int = 1,
    gpus: int = 8,
    queue: str = "main",
    *,
    kind: str = "batch/v1/Job",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
    pod: Mapping[str, Any] | None = None,
) -> Document:
    """A Job of namespace ml; or a Volcano job with one task of so many pods. ``spec`` are more fields of its
    spec, ``pod`` of its pods' spec."""
    version, _, name = kind.rpartition("/")
    container = {"name": "main", "image": "train", "resources": {"limits": {GPU: gpus}}}
    ends = {} if kind.startswith("batch.volcano.sh") else {"restartPolicy": "Never"}
    template = {"spec": {**ends, "containers": [container], **deepcopy(dict(pod or {}))}}
    inside: Document = {"parallelism": pods, "completions": pods, "template": template}
    if version.startswith("batch.volcano.sh"):
        inside = {"tasks": [{"name": "worker", "replicas": pods, "template": template}]}
    metadata = {
        "name": "train",
        "namespace": "ml",
        "labels": {**({QUEUE: queue} if queue else {}), **(labels or {})},
        "annotations": dict(annotations or {}),
    }
    return {
        "apiVersion": version,
        "kind": name,
        "metadata": metadata,
        "spec": {**inside, **deepcopy(dict(spec or {}))},
    }


def read(document: Document) -> JobManifest:
    return read_manifests(yaml.safe_dump(document), "job.yaml", worlds.NOW).jobs[0]


def ask(document: Document, known: AdvisorContext) -> Advice:
    """With suggestions, each of which was carried out and asked about."""
    manifest = read(document)
    answer = advise(manifest, known)
    for each in answer.suggestions:
        if each.change.kind is SuggestedChangeKind.MANIFEST:
            check(manifest, known, each)
    return answer


def check(manifest: JobManifest, known: AdvisorContext, suggestion: JobSuggestion) -> None:
    """Its operations and its patch give the same manifest, of which the same is said."""
    document = patched(manifest.document, suggestion.change.operations)
    again = advise(known.read(manifest, document), known, with_suggestions=False)
    assert again.decision is suggestion.decision, suggestion
    price = again.price.per_hour if again.price is not None else None
    assert price == suggestion.price_per_hour
    assert merged(manifest.document, yaml.safe_load(suggestion.change.patch)) == document


def given(answer: Advice, rule: str) -> JobSuggestion:
    """The suggestion of a rule; fails where there is none."""
    found = [each for each in answer.suggestions if each.rule == rule]
    assert len(found) == 1, (rule, answer.decision, answer.says, [each.rule for each in answer.suggestions])
    return found[0]


def rules(answer: Advice) -> list[str]:
    return [each.rule for each in answer.suggestions]


def merged(before: Any, patch: Any) -> Any:
    """As the patch says it is meant: mappings are merged, lists of named things by their names."""
    if isinstance(before, Mapping) and isinstance(patch, Mapping):
        found = {key: value for key, value in before.items() if key not in patch or patch[key] is not None}
        for key, value in patch.items():
            if value is not None:
                found[key] = merged(before.get(key), value)
        return found
    if isinstance(before, list) and isinstance(patch, list) and before and _names(before) >= _names(patch):
        by_name = {_name(each): each for each in patch}
        return [merged(each, by_name[_name(each)]) if _name(each) in by_name else each for each in before]
    return patch


def _names(members: list[Any]) -> set[str]:
    return {_name(each) for each in members}


def _name(member: Any) -> str:
    if not isinstance(member, Mapping):
        return str(member)
    inner = member.get("metadata")
    own = inner.get("name") if isinstance(inner, Mapping) else None
    return str(member.get("name") or member.get("groupName") or own or member)


Edit = Callable[[Document], None]
