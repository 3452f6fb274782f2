"""What to do about a job that exists: suggestions for its manifest, as if it were submitted again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace

from gpucost.advisor.advise import advise_asking, ask_again
from gpucost.advisor.answers import Advice, ChangeKind, Decision, Suggestion
from gpucost.advisor.existing import Existing, asking_of
from gpucost.advisor.knowledge import Knowledge
from gpucost.advisor.suggest.case import RANK, is_clearly_less, is_longer, is_shorter
from gpucost.advisor.suggest.operations import patched
from gpucost.advisor.suggest.patching import merge_patch, operations
from gpucost.advisor.suggest.ranking import RULES, suggestions
from gpucost.advisor.suggest.switches import activation
from gpucost.cluster.kueue import WorkloadState
from gpucost.cluster.manifest import JobManifest
from gpucost.cluster.overview import Overview
from gpucost.domain.errors import InputError
from gpucost.domain.jobs import JobKind

_GANG = "gang"
"""Name of the rule: start whole or not at all."""
_SMALLER = frozenset(("min-count", "fewer-gpus-per-pod", "fewer-pods"))
"""Those after which the job does less at a time than it was made for."""


def actions(found: Existing, known: Knowledge, outlook: Advice) -> tuple[Suggestion, ...]:
    """Changes with which it would run if it were submitted again: it and its pods are taken out of the
    cluster, and its manifest is asked about. None where its manifest cannot be made from what is known.

    ``outlook`` is what is said of it as it stands, with what it holds already: only what is better than that
    is given. A Volcano job that has started in part, as its minimum lets it, is asked about with all its pods
    as the minimum: to start in part again is no help.

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
        suggested = (*gang, *_rebased(_suggested(whole, apart), whole, manifest))
    better = (each for each in suggested if _is_better(each, outlook))
    return tuple(sorted(better, key=_order)[:most])


def activations(found: Existing, known: Knowledge) -> tuple[Suggestion, ...]:
    """To let a deactivated workload queue again, with what the advisor says of it once it does. None where
    it is not deactivated, and where it would never run then either."""
    workload = found.workload
    is_off = workload is not None and workload.state is WorkloadState.INACTIVE
    if workload is None or not is_off or known.settings.most_suggestions < 1:
        return ()
    answer = advise_asking(asking_of(found, known), known)
    if answer.decision in (Decision.NEVER, Decision.UNKNOWN):
        return ()
    price = answer.price.per_hour if answer.price is not None else None
    says = f"set spec.active of Workload {workload.meta.name} to true, so that it queues again"
    caveat = "somebody, or Kueue itself, deactivated it for a reason: see what its Workload says first"
    change = activation(workload)
    return (Suggestion("activate", says, change, answer.decision, price, answer.wait, caveat),)


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
    waits = any(pod.is_unplaced for pod in found.pods)
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


def _is_better(suggestion: Suggestion, outlook: Advice) -> bool:
    """Sooner, or no later and cheaper without doing less at a time, or whole where it started in part."""
    if outlook.decision not in RANK:
        return True
    mine, now = RANK[suggestion.decision], RANK[outlook.decision]
    if mine != now:
        return mine < now or suggestion.rule == _GANG
    if suggestion.decision is not Decision.WAITS:
        return True
    if is_longer(suggestion.wait, outlook.wait):
        return False
    if suggestion.rule == _GANG or is_shorter(suggestion.wait, outlook.wait):
        return True
    if suggestion.rule in _SMALLER or suggestion.price_per_hour is None or outlook.price is None:
        return False
    return is_clearly_less(suggestion.price_per_hour, outlook.price.per_hour)


def _order(suggestion: Suggestion) -> tuple[int, bool, bool]:
    is_for_admins = suggestion.change.kind is ChangeKind.CLUSTER
    return RANK[suggestion.decision], suggestion.rule in _SMALLER, is_for_admins
