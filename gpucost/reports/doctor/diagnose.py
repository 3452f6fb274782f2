"""From facts to a diagnosis. Pure: the same probe gives the same answer."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from gpucost.contract.kube_state import NODE_CREATED
from gpucost.contract.probe import OWN_STATE, ClusterProbe, Probe, Seen
from gpucost.domain.time import HOUR_MS, MINUTE_MS, SECOND_MS, Month, iso
from gpucost.domain.words import counted
from gpucost.reports.display import month_name, span_of_days
from gpucost.reports.doctor import settings
from gpucost.reports.doctor.facts import facts
from gpucost.reports.doctor.features import Case, judge
from gpucost.reports.doctor.model import ClusterDiagnosis, Diagnosis, Feature, Finding, Step, Verdict
from gpucost.reports.doctor.steps import first_whole, steps
from gpucost.reports.doctor.wanted import Wanted

_LOOKBACK_MS = 5 * MINUTE_MS
"""As far as Prometheus looks back for what is there now."""
_USES = (Feature.TEAMS, Feature.JOBS, Feature.BUSY)


def diagnose(probe: Probe, wanted: Wanted | None = None, program: Sequence[str] = ("gpucost",)) -> Diagnosis:
    """What ``probe`` is good for. ``program`` is how gpucost was called, for the command to run next."""
    known = [_cluster(probe, each, wanted or Wanted()) for each in probe.clusters]
    if not known:
        return _nothing(probe)
    can_tell = any(each.can_tell for each in known)
    most = max(known, key=lambda each: (each.can_tell, each.features[Feature.COST].verdict is Verdict.PART))
    told = _told(probe, most)
    others = [each.cluster for each in known if each.can_tell is not most.can_tell]
    if others:
        told += f" (of {most.cluster}; not of {', '.join(others[:4])})"
    elif len(known) > 1 and not can_tell:
        told += f" (of {most.cluster})"
    whole = probe.month if most.can_tell else _later(probe, most)
    month = whole or _running(probe, most)
    command = _command(program, probe.url, month) if month else ""
    if not can_tell and most.first_whole:
        mended = "what was before" if _goes_on(probe) else "that month"
        told += f". Nothing mends {mended}; the first whole month is {_named(probe, most.first_whole)}"
    helps = [at for at, step in enumerate(most.steps, 1) if Feature.COST in step.gains]
    return Diagnosis(
        url=probe.url,
        month=probe.month,
        can_tell=can_tell,
        sentence=f"{told}.",
        command=command,
        first=helps[0] if helps and not whole else 0,
        clusters=tuple(known),
        steps=most.steps,
        unread=probe.unread,
    )


def _cluster(probe: Probe, cluster: ClusterProbe, wanted: Wanted) -> ClusterDiagnosis:
    at_ms = probe.at_ms if cluster.at_ms is None else cluster.at_ms
    case = Case(cluster, probe.asked, wanted, at_ms)
    found = judge(case)
    seen, cost = case.state, found[Feature.COST]
    is_there = seen is not None and case.is_whole(seen) and cost.verdict in (Verdict.YES, Verdict.PART)
    # Of what is there no more, no month to come is whole.
    whole = first_whole(case) if at_ms == probe.now_ms else None
    return ClusterDiagnosis(
        cluster=cluster.cluster,
        can_tell=is_there,
        features=found,
        steps=_ordered(steps(case, found, probe)),
        facts=facts(case, probe),
        first_whole=None if whole is None else str(whole),
    )


def _ordered(found: Sequence[Step]) -> tuple[Step, ...]:
    """As they come, those that gain nothing last."""
    return tuple(sorted(found, key=lambda step: not step.gains))


def _told(probe: Probe, cluster: ClusterDiagnosis) -> str:
    name = month_name(Month.parse(probe.month))
    cost = cluster.features[Feature.COST]
    so_far = " so far" if _goes_on(probe) else ""
    if cluster.can_tell:
        return f"The cost of {name} can be told{so_far}{_but(cluster, cost)}"
    if cost.verdict is Verdict.PART:
        return f"The cost of {name} can be told in part only{_length(probe, cluster)}: {cost.why}"
    return f"The cost of {name} cannot be told: {cost.why}"


def _but(cluster: ClusterDiagnosis, cost: Finding) -> str:
    """What is to be known of it: the cost's own faults, else what it cannot be divided by."""
    if cost.verdict is not Verdict.YES:
        return f", with this to know: {cost.why}"
    lacking = [each.value for each in _USES if cluster.features[each].verdict is not Verdict.YES]
    return f"; missing, or in part only: {', '.join(lacking)}" if lacking else ""


def _goes_on(probe: Probe) -> bool:
    return probe.now_ms < Month.parse(probe.month).window.end_ms


def _length(probe: Probe, cluster: ClusterDiagnosis) -> str:
    """How much of a month that goes on is there: on a new stack it is little, and that is no fault."""
    lasted_ms = _lasted_ms(probe, cluster)
    return f", {_about(lasted_ms)} of it" if lasted_ms and _goes_on(probe) else ""


def _about(length_ms: int) -> str:
    """Rounded down: seconds, minutes up to two hours, then hours and days."""
    if length_ms < MINUTE_MS:
        return f"{length_ms // SECOND_MS} s"
    if length_ms < 2 * HOUR_MS:
        return f"{length_ms // MINUTE_MS} min"
    return span_of_days(length_ms - length_ms % HOUR_MS)


def _lasted_ms(probe: Probe, cluster: ClusterDiagnosis) -> int:
    """From the first to the last sample of the month; 0 where there is one scrape only."""
    found = _state(probe, cluster)
    lasted_ms = 0 if found is None else found.last_ms - found.first_ms
    return lasted_ms if lasted_ms > SECOND_MS else 0


def _state(probe: Probe, cluster: ClusterDiagnosis) -> Seen | None:
    """When there was in the month what says who held what."""
    kinds = _probed(probe, cluster).seen or {}
    return kinds.get("own") or kinds.get("state")


def _probed(probe: Probe, cluster: ClusterDiagnosis) -> ClusterProbe:
    return next(each for each in probe.clusters if each.cluster == cluster.cluster)


def _is_there_now(probe: Probe, cluster: ClusterDiagnosis) -> bool:
    return probe.at_ms == probe.now_ms and _probed(probe, cluster).has(OWN_STATE, NODE_CREATED)


def _running(probe: Probe, cluster: ClusterDiagnosis) -> str:
    """The running month, where a report has at least some minutes of it, and nothing of the month that is
    asked for if that is another."""
    if not _is_there_now(probe, cluster):
        return ""
    running = Month.of(probe.now_ms)
    if _goes_on(probe):
        is_part = cluster.features[Feature.COST].verdict is Verdict.PART
        return str(running) if is_part and _lasted_ms(probe, cluster) else ""
    pods = _probed(probe, cluster).pods
    is_told = pods is None or pods.with_uid == pods.pods
    is_later = _state(probe, cluster) is None and _has_begun(probe, running)
    return str(running) if is_told and is_later else ""


def _later(probe: Probe, cluster: ClusterDiagnosis) -> str:
    """The month that can be asked for instead, where its whole past is there."""
    if cluster.first_whole is None:
        return ""
    month = Month.parse(cluster.first_whole)
    is_fresh = _is_there_now(probe, cluster)
    keeps = not any(step.title == settings.retention("").title for step in cluster.steps)
    return cluster.first_whole if is_fresh and keeps and _has_begun(probe, month) else ""


def _named(probe: Probe, whole: str) -> str:
    """The month that can be told, and from when on it is over."""
    month = Month.parse(whole)
    over_ms = month.window.end_ms
    return whole if over_ms <= probe.now_ms else f"{whole}, over on {iso(over_ms)[:10]}"


def _has_begun(probe: Probe, month: Month) -> bool:
    """So long ago that what is there now was there in it."""
    return month.window.start_ms + _LOOKBACK_MS <= probe.now_ms


def _command(program: Sequence[str], url: str, month: str) -> str:
    return shlex.join((*program, "report", month, "--prometheus", url))


def _nothing(probe: Probe) -> Diagnosis:
    name = month_name(Month.parse(probe.month))
    scrapes = (
        f"it scrapes {counted(probe.targets, 'target')}, none of them kube-state-metrics or dcgm-exporter"
        if probe.targets
        else f"nothing that gpucost reads was there at {iso(probe.at_ms)}, nor in the month"
    )
    to_do = (settings.kube_state(), settings.dcgm())
    return Diagnosis(
        url=probe.url,
        month=probe.month,
        can_tell=False,
        sentence=f"The cost of {name} cannot be told: {scrapes}.",
        first=1,
        steps=to_do,
        unread=probe.unread,
    )
