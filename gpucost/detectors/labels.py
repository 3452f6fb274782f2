"""Kubernetes labels of what findings are about: an exemption may stand in one (lifecycle.EXEMPT_LABEL)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from gpucost.cluster.overview import Overview
from gpucost.detectors.findings import Draft, Evidence, SubjectKind
from gpucost.detectors.lifecycle import EXEMPT_LABEL


class Labels:
    """Labels of jobs and nodes, as the state of now knows them."""

    def __init__(self, overview: Overview) -> None:
        self._overview = overview

    def of(self, draft: Draft) -> Mapping[str, str]:
        """Of a job its own labels, and those of its pods where it has none; of a node the node's."""
        subject = draft.subject
        if subject.kind is SubjectKind.NODE:
            node = self._overview.state.node_by_name.get(subject.name)
            return {} if node is None else _exempting(node.labels)
        if subject.kind is SubjectKind.JOB:
            return self._of_job.get(subject.uid, {})
        return {}

    @cached_property
    def _of_job(self) -> Mapping[str, Mapping[str, str]]:
        state, ownership = self._overview.state, self._overview.ownership
        found: dict[str, dict[str, str]] = {}
        for pod in state.pods.values():
            if labels := _exempting(pod.meta.labels):
                found.setdefault(ownership.of(pod).job.uid, {}).update(labels)
        for uid, job in state.jobs.items():
            if labels := _exempting(job.meta.labels):
                found[uid] = {**found.get(uid, {}), **labels}
        return found


def _exempting(labels: Mapping[str, str]) -> dict[str, str]:
    """The one that counts: a tenant may write thousands."""
    return {EXEMPT_LABEL: labels[EXEMPT_LABEL]} if EXEMPT_LABEL in labels else {}


def labelled(drafts: Sequence[Draft], overview: Overview | None) -> list[Draft]:
    """Drafts with the labels of their subjects, where somebody watches; a rule's own stay."""
    if overview is None:
        return list(drafts)
    labels = Labels(overview)
    return [replace(draft, labels={**labels.of(draft), **_exempting(draft.labels or {})}) for draft in drafts]


def finite(draft: Draft) -> Draft:
    """A draft without numbers that are none: no text of them can be read back."""
    view = draft.team_view
    if view is not None:
        draft = replace(draft, team_view=replace(view, evidence=_finite(view.evidence)))
    return replace(draft, evidence=_finite(draft.evidence))


def _finite(evidence: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    return tuple(
        replace(each, value="not known", unit="")
        if isinstance(each.value, float) and not math.isfinite(each.value)
        else each
        for each in evidence
    )
