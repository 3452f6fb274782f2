"""What to do about a job that exists: suggestions for its manifest, as if it were submitted again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace

from gpucost.advisor.advise import ask_again
from gpucost.advisor.answers import ChangeKind, Suggestion
from gpucost.advisor.existing import Existing
from gpucost.advisor.knowledge import Knowledge
from gpucost.advisor.suggest.case import RANK
from gpucost.advisor.suggest.operations import patched
from gpucost.advisor.suggest.patching import merge_patch, operations
from gpucost.advisor.suggest.ranking import RULES, suggestions
from gpucost.cluster.manifest import JobManifest
from gpucost.cluster.overview import Overview
from gpucost.domain.errors import InputError
from gpucost.domain.jobs import JobKind

_GANG, _IN_PART = "gang", "min-count"
"""Names of rules: start whole or not at all; start in part."""
_SMALLER = frozenset((_IN_PART, "fewer-gpus-per-pod", "fewer-pods"))
"""Those after which the job does less at a time than it was made for."""


def actions(found: Existing, known: Knowledge) -> tuple[Suggestion, ...]:
    """Changes with which it would run if it were submitted again: it and its pods are taken out of the
    cluster, and its manifest is asked about. None where its manifest cannot be made from what is known.

    A Volcano job that has started in part, as its minimum lets it, is asked about with all its pods as the
    minimum: to start in part again is no help.

    The soonest come first; of those that do equally well, those that leave the job what it is before smaller
    jobs, and then those for whoever submits it before those for administrators.
    """
    manifest = _manifest(found, known)
    if manifest is None:
        return ()
    most = known.settings.most_suggestions
    all_of_them = replace(known.settings, most_suggestions=len(RULES) if most else 0)
    apart = replace(without(found, known), settings=all_of_them)
    suggested = _suggested(manifest, apart)
    whole = _started_whole(found, manifest, known)
    if whole is not None:
        gang = [each for each in suggested if each.rule == _GANG]
        rest = [each for each in _suggested(whole, apart) if each.rule != _IN_PART]
        suggested = (*gang, *_rebased(rest, whole, manifest))
    return tuple(sorted(suggested, key=_order)[:most])


def without(found: Existing, known: Knowledge) -> Knowledge:
    """The cluster without a job: as if it had never been submitted."""
    state = known.state
    pods, own = {each.meta.uid for each in found.pods}, {each.meta.uid for each in found.workloads}
    groups = {each.meta.uid for each in found.groups}
    left = replace(
        state,
        pods={uid: pod for uid, pod in state.pods.items() if uid not in pods},
        workloads={uid: each for uid, each in state.workloads.items() if uid not in own},
        pod_groups={uid: each for uid, each in state.pod_groups.items() if uid not in groups},
    )
    overview = known.overview
    return replace(known, overview=Overview(left, overview.catalog, overview.owner_keys))


def _manifest(found: Existing, known: Knowledge) -> JobManifest | None:
    if found.object is None or known.write is None or known.read_new is None:
        return None
    try:
        return known.read_new(known.write(found.object, found.workload, found.of_volcano))
    except InputError:
        return None


def _suggested(manifest: JobManifest, known: Knowledge) -> tuple[Suggestion, ...]:
    return suggestions(manifest, ask_again(manifest, known, True), known, ask_again)


def _started_whole(found: Existing, manifest: JobManifest, known: Knowledge) -> JobManifest | None:
    """With all its pods as its minimum; None where that is so already, and where none or all of them run."""
    job = manifest.job
    bound = sum(pod.is_bound for pod in found.pods)
    waits = any(pod.bound_ms is None and not pod.has_ended for pod in found.pods)
    has_started = job.job_kind is JobKind.VOLCANO_JOB and bound and waits
    if not has_started or job.gang_size is None or job.gang_size >= job.pods_wanted:
        return None
    document = deepcopy(dict(manifest.document))
    document["spec"]["minAvailable"] = job.pods_wanted
    return known.read(manifest, document)


def _rebased(found: Sequence[Suggestion], on: JobManifest, onto: JobManifest) -> Iterator[Suggestion]:
    """Changes of one manifest as changes of the other, from which that was made."""
    for each in found:
        if each.change.kind is ChangeKind.MANIFEST:
            after = patched(on.document, each.change.operations)
            change = replace(
                each.change,
                patch=merge_patch(onto.document, after),
                operations=tuple(operations(onto.document, after)),
            )
            yield replace(each, change=change)
        else:
            yield each


def _order(suggestion: Suggestion) -> tuple[int, bool, bool]:
    is_for_admins = suggestion.change.kind is ChangeKind.CLUSTER
    return RANK[suggestion.decision], suggestion.rule in _SMALLER, is_for_admins
