"""GPUs of NVLink domains that are free and of no use to who waits, since ComputeDomains have the other trays.

Which trays these are, and why, is worked out in ``inputs.stranded_trays``; the rule claims them, one finding
for each clique and cause, names who has the trays and who waits, and says where the former would fit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from gpucost.detectors.allocation_pieces import (
    LEAST_COVERAGE,
    amount,
    board_ms,
    hours,
    joined,
    lasting,
    since,
)
from gpucost.detectors.findings import (
    FindingAction,
    FindingDraft,
    FindingEvidence,
    FindingSubject,
    RuleDetection,
    SubjectKind,
    WasteEpisode,
    WastePattern,
    WithheldFinding,
)
from gpucost.detectors.inputs.detector_facts import DetectorFacts
from gpucost.detectors.inputs.schedulability import PodNodeFitter
from gpucost.detectors.inputs.stranded_trays import (
    StrandedDemand,
    StrandedStretch,
    StrandingCause,
    stranded,
)
from gpucost.detectors.rule_settings import NvlinkDomainSettings, ScopedSettings
from gpucost.domain.buckets import Waste
from gpucost.domain.time import HOUR_MS
from gpucost.settings.types import milliseconds

NAME = WastePattern.NVLINK_DOMAIN
_MOST_NAMED = 10
_NO_CLIQUE = "nodes without a clique"
_WHY = {
    "rest": "ComputeDomains have the other trays, and it needs more of one clique than is left",
    "taken_trays": "these trays belong to ComputeDomains already, and a tray is in one only",
}


def run(facts: DetectorFacts, settings: ScopedSettings[NvlinkDomainSettings]) -> RuleDetection:
    """The stranded part of each clique, by cause."""
    found, after_ms = stranded(facts.history), milliseconds(settings.default.after)
    drafts: list[FindingDraft] = []
    withheld = list(_unseen(facts, found, after_ms))
    unfit = _unfit(facts, found)
    withheld += [
        WithheldFinding(NAME, subject, because) for subject, because in dict.fromkeys(unfit.values())
    ]
    groups: dict[tuple[str, StrandingCause], list[StrandedStretch]] = defaultdict(list)
    for each in found.stretches:
        if each.row not in unfit:
            groups[each.clique, each.cause].append(each)
    for (clique, cause), stretches in sorted(groups.items()):
        if _length_ms(stretches) < after_ms:
            continue
        subject = _subject(facts, clique, cause)
        start_ms, end_ms = stretches[0].start_ms, max(each.end_ms for each in stretches)
        if facts.history.coverage(start_ms, end_ms) < LEAST_COVERAGE:
            because = "parts of the time in which it was stranded were not observed"
            withheld.append(WithheldFinding(NAME, subject, because, lacks_data=True, variant=cause.value))
        else:
            drafts.append(_draft(facts, found.demand, subject, stretches))
    return RuleDetection(tuple(drafts), tuple(withheld))


def _length_ms(stretches: Sequence[StrandedStretch]) -> int:
    return sum(end - start for start, end in joined((each.start_ms, each.end_ms) for each in stretches))


def _subject(facts: DetectorFacts, clique: str, cause: StrandingCause) -> FindingSubject:
    uid = f"nvlink/{clique}/{cause.value}"
    return FindingSubject(SubjectKind.CLUSTER, facts.cluster, clique or _NO_CLIQUE, uid=uid)


def _unseen(facts: DetectorFacts, found: StrandedDemand, after_ms: int) -> Iterator[WithheldFinding]:
    """Jobs that wait for channels in a cluster of which no tray is known."""
    if found.trays:
        return
    rows = found.demand
    waits = rows.groupby(["namespace", "job", "job_uid"]).agg(
        start=("start_ms", "min"), end=("end_ms", "max")
    )
    for (namespace, job, uid), (start, end) in zip(waits.index, waits.to_numpy().tolist(), strict=True):
        if end - start >= after_ms:
            subject = FindingSubject(SubjectKind.JOB, facts.cluster, job, namespace, uid)
            because = "it needs channels of a ComputeDomain, and no node is known to have one"
            yield WithheldFinding(NAME, subject, because, lacks_data=True)


def _unfit(facts: DetectorFacts, found: StrandedDemand) -> Mapping[int, tuple[FindingSubject, str]]:
    """Jobs that wait now, by their rows, of which no pod finds a node with room for all that it asks for,
    though nodes have GPUs enough: whoever has the trays is not in their way."""
    if facts.overview is None:
        return {}
    fitter = PodNodeFitter(facts.overview)
    stuck: dict[str, str] = {}
    for row in {each.row for each in found.stretches if each.end_ms >= facts.now_ms}:
        job_uid, resource = (str(found.demand.at[row, name]) for name in ("job_uid", "resource"))
        fit = fitter.of(job_uid, resource, 1)
        if fit is not None and not fit.fits and fit.lacking:
            lacked, nodes = fit.lacking[0]
            stuck[job_uid] = (
                f"{amount(nodes, 'node')} with GPUs enough for one of its pods lack {lacked} for it"
            )
    rows = found.demand[found.demand["job_uid"].isin([*stuck])]
    names = ("namespace", "job", "job_uid")
    return {
        int(row): (FindingSubject(SubjectKind.JOB, facts.cluster, job, namespace, uid), stuck[uid])
        for row, namespace, job, uid in zip(rows.index, *(rows[name].tolist() for name in names), strict=True)
    }


def _draft(
    facts: DetectorFacts, demand: pd.DataFrame, subject: FindingSubject, stretches: Sequence[StrandedStretch]
) -> FindingDraft:
    cause, clique = stretches[0].cause, stretches[0].clique
    end_ms = max(each.end_ms for each in stretches)
    start_ms = min(each.start_ms for each in stretches)
    last = max(stretches, key=lambda each: (each.end_ms, each.start_ms))
    episodes = tuple(_episodes(facts, demand, stretches))
    waiting = _names(demand.loc[sorted({each.row for each in stretches})])
    holders, trays, reserved = _reserved(facts, clique, last.end_ms - 1)
    is_over = end_ms < facts.now_ms
    now = sum(each.boards or 0.0 for each in episodes if each.end_ms >= facts.now_ms)
    return FindingDraft(
        pattern=NAME,
        variant=cause.value,
        subject=subject,
        since_ms=start_ms,
        ended_ms=end_ms if is_over else None,
        summary=(
            f"{hours(board_ms(episodes))} of NVLink domain {subject.name} were free since {since(start_ms)} "
            f"and of no use to {waiting}: {_WHY[cause.value]}."
        ),
        evidence=(
            FindingEvidence("who waits", waiting, "", "gpucost_workload_pod_set_domain_channel"),
            FindingEvidence("trays that it needs at once", last.needed, "trays"),
            FindingEvidence("trays that it could have", last.open_, "trays", "free channels and GPUs"),
            FindingEvidence("trays of the domain", trays, "trays", "nvidia.com/gpu.clique"),
            FindingEvidence(
                "of them in ComputeDomains", reserved, "trays", "gpucost_node_compute_domain_reserved"
            ),
            FindingEvidence("who has them", holders, "", "gpucost_node_compute_domain_reserved"),
            FindingEvidence("stranded", round(board_ms(episodes) / HOUR_MS, 3), "GPU-hours"),
        ),
        action=_action(facts, last, holders, now),
        formula="Sum over time of the free GPUs that the waiting job would use on trays of the domain, up to "
        "what it asks for; none is counted for two jobs.",
        episodes=episodes,
        checked=(
            f"stranded for {lasting(_length_ms(stretches))}",
            "without ComputeDomains of others it would fit",
            "it does not fit into another NVLink domain",
        ),
    )


def _episodes(
    facts: DetectorFacts, demand: pd.DataFrame, stretches: Sequence[StrandedStretch]
) -> Iterator[WasteEpisode]:
    resources = demand["resource"].to_dict()
    for each in stretches:
        resource = str(resources[each.row])
        for node, units in each.claims:
            share = facts.history.shares.get((facts.cluster, node, resource))
            if share is not None:
                place = (facts.cluster, node, "", each.start_ms, each.end_ms)
                yield WasteEpisode(Waste.STRANDED, *place, float(units * share), resource)


def _names(rows: pd.DataFrame) -> str:
    names = sorted(
        {f"{namespace}/{job}" for namespace, job in zip(rows["namespace"], rows["job"], strict=True)}
    )
    more = f" and {len(names) - _MOST_NAMED} more" if names[_MOST_NAMED:] else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _reserved(facts: DetectorFacts, clique: str, at_ms: int) -> tuple[str, int, int]:
    """Who has trays of a clique, how many trays it has, and how many of them are reserved."""
    frame = facts.history.frames.domains
    here = frame[(frame["clique"] == clique) & (frame["start_ms"] <= at_ms) & (frame["end_ms"] > at_ms)]
    taken = here[here["reserved"] == 1]
    counts = taken.groupby(["namespace", "job", "domain"])["node"].nunique()
    who = [
        f"{namespace}/{job} ({amount(trays, 'tray')})" if job else f"{domain} ({amount(trays, 'tray')})"
        for (namespace, job, domain), trays in zip(counts.index, counts.tolist(), strict=True)
    ]
    more = f" and {len(who) - _MOST_NAMED} more" if who[_MOST_NAMED:] else ""
    return ", ".join(who[:_MOST_NAMED]) + more, here["node"].nunique(), taken["node"].nunique()


def _action(facts: DetectorFacts, last: StrandedStretch, holders: str, now: float) -> FindingAction:
    if last.cause is StrandingCause.TAKEN_TRAYS:
        return FindingAction(
            "Let jobs in ComputeDomains ask for all GPUs of a tray: a tray is in one ComputeDomain only, "
            f"whatever the pod on it leaves free. Here: {holders}.",
            frees_boards=now,
        )
    other = _elsewhere(facts, last)
    where = f"into {other}, which has room for them" if other else "together, into one domain"
    return FindingAction(
        f"Put small ComputeDomains {where}, so that whole domains stay free for those that need them: by a "
        "required pod affinity, or Kueue's topology request, with nvidia.com/gpu.clique, when they start "
        f"next. Here: {holders}.",
        frees_boards=now,
    )


def _elsewhere(facts: DetectorFacts, last: StrandedStretch) -> str:
    """Another clique with as many trays free as ComputeDomains have here; empty where there is none."""
    frame, at_ms = facts.history.frames.domains, last.end_ms - 1
    here = frame[(frame["start_ms"] <= at_ms) & (frame["end_ms"] > at_ms) & (frame["clique"] != "")]
    wanted = here[(here["clique"] == last.clique) & (here["reserved"] == 1)]["node"].nunique()
    held = facts.history.frames.allocations
    busy = set(held[(held["start_ms"] <= at_ms) & (held["end_ms"] > at_ms)]["node"].tolist())
    empty = here[(here["reserved"] == 0) & (here["clique"] != last.clique) & ~here["node"].isin(busy)]
    rooms = empty.groupby("clique")["node"].nunique()
    fitting = rooms[rooms >= max(wanted, 1)]
    return str(fitting.sort_values(kind="stable").index[0]) if len(fitting) else ""
