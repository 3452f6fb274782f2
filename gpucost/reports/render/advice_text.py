"""The outcome of a job and its cost per hour, in the words that every screen and message uses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from gpucost.advisor.model.answers import (
    SEARCH_STOPPED,
    Advice,
    JobSuggestion,
    PodSetAnswer,
    PreemptionVictim,
    PriceEstimate,
    SchedulingDecision,
    WaitEstimate,
    about,
    bounds,
    seconds,
)
from gpucost.cluster.objects.kueue import FlavorResource
from gpucost.domain.money import NANO, plain
from gpucost.reports.base.display import counted, gib, money, price, trimmed, visible

MOST_ROWS = 6
"""Most entries of a list in one line or section; the number of the rest is shown."""
_BYTES = ("memory", "ephemeral-storage")
_GPU = "nvidia.com/gpu"
_LABELLED = re.compile(r"([a-z][a-z ]{1,9}): (?=\S)")
"""A reason may begin with its topic: ``quota: ml lends no more``."""
_RUNS = (SchedulingDecision.NOW, SchedulingDecision.LATER, SchedulingDecision.WAITS)


def after(suggestion: JobSuggestion, currency: str) -> str:
    """The advisor's prediction for the changed manifest: ``now, USD 98.32/h``."""
    words = outcome(suggestion.decision, suggestion.wait)
    hourly = suggestion.price_per_hour
    return words if hourly is None or not currency else f"{words}, {per_hour(hourly, currency)}"


def outcome(decision: SchedulingDecision, wait: WaitEstimate | None) -> str:
    """``now``, ``waits about 3 h (p90 9 h)``."""
    if decision is not SchedulingDecision.WAITS:
        return decision.value
    return "waits" if wait is None else f"waits {range_of(wait)}"


def range_of(wait: WaitEstimate) -> str:
    """``about 3 h (p10 1 h, p90 9 h)``; beyond the horizon, as longer than that."""
    if wait.p50_ms is None:
        early = "" if wait.p10_ms is None else f" (p10 {about(wait.p10_ms)})"
        return f"longer than {about(wait.horizon_ms)}{early}, which is as far as was simulated"
    return f"about {about(wait.p50_ms)} ({bounds(wait)})"


def per_hour(nano: int, currency: str) -> str:
    """``USD 98.32/h``."""
    return f"{amount(nano, currency)}/h"


def amount(nano: int, currency: str) -> str:
    """Two decimals; more where these would show an amount above 0 as 0."""
    shown = money(nano)
    return f"{currency} {price(nano) if nano and not shown.strip('-0.') else shown}"


def wait_texts(wait: WaitEstimate) -> Iterator[str]:
    """The range, what it is based on, and how often such ranges held."""
    basis = f"; {wait.basis}" if wait.basis else ""
    yield f"{range_of(wait)}, from {counted(wait.samples, 'simulation')} of the queue{basis}"
    if wait.held is not None and wait.given:
        yield f"{wait.held:,} of {counted(wait.given, 'range')} given so far held"
    else:
        yield "how often such ranges held is not known here"


def price_texts(price: PriceEstimate) -> Iterator[str]:
    """Per hour with its source, without versions of rates; for the run, if its length is known."""
    names = dict.fromkeys(rate.partition("@")[0] for rate in price.rates)
    rates = f"; prices from {some([*names])}" if names else ""
    yield f"{per_hour(price.per_hour, price.currency)}{rates}"
    if price.run_ms is not None and price.for_run is not None:
        whole = amount(price.for_run, price.currency)
        yield f"{whole} for a run of {about(price.run_ms)}, the median of like jobs"
    else:
        yield "for the whole run unknown: no history says how long like jobs run"


def pod_set_text(found: PodSetAnswer) -> str:
    """``main: 4 pods, flavor h100 (nvidia.com/gpu); 2 on gpu-01, 2 on gpu-02``."""
    by_flavor: dict[str, list[str]] = {}
    for resource, flavor in found.flavors.items():
        by_flavor.setdefault(flavor, []).append(resource)
    parts = [counted(found.count, "pod")]
    parts += [f"flavor {visible(flavor)} ({some(resources)})" for flavor, resources in by_flavor.items()]
    nodes = [f"{count:,} on {visible(node, 253)}" for node, count in found.nodes.items()]
    return f"{visible(found.name)}: {', '.join(parts)}{f'; {some(nodes)}' if nodes else ''}"


def borrowed_texts(borrowed: Mapping[FlavorResource, int], level: int) -> list[str]:
    """``8 GPUs of flavor h100, lent 1 level up in the cohorts``, for each flavor and resource."""
    where = f", lent {counted(level, 'level')} up in the cohorts" if level else ""
    return [
        f"{quantity(key.resource, amount)} of flavor {visible(key.flavor)}{where}"
        for key, amount in sorted(borrowed.items())
        if amount
    ]


def victim_texts(victims: tuple[PreemptionVictim, ...]) -> list[str]:
    """One a line, and how many more there are."""
    shown = victims if len(victims) <= MOST_ROWS + 1 else victims[:MOST_ROWS]
    lines = [_victim(each) for each in shown]
    rest = len(victims) - len(shown)
    return [*lines, f"and {rest:,} more (--format json has them)"] if rest else lines


def _victim(found: PreemptionVictim) -> str:
    units = " and ".join(quantity(resource, amount) for resource, amount in sorted(found.units.items()))
    frees = f", frees {units}" if units else ""
    leaving = ", is leaving already" if found.already_leaving else ""
    who = visible(f"{found.subject.namespace}/{found.subject.name}", 253)
    queue = f" of queue {visible(found.queue)}" if found.queue else ""
    kind, reason = visible(found.subject.kind), visible(found.reason)
    priority = "" if found.priority is None else f", priority {found.priority:,}"
    node = f" on {visible(found.node, 253)}" if found.node else ""
    grace = "" if found.grace_ms is None else f", has {seconds(found.grace_ms)} to stop"
    return f"{who} ({kind}){node}{queue}{priority}{frees}: {reason}{leaving}{grace}"


def quantity(resource: str, amount: int) -> str:
    """An amount in Kueue's units in words: ``16 GPUs``, ``4 mig-1g.10gb``, ``2.5 cpu``."""
    if resource == _GPU:
        return counted(amount, "GPU")
    if resource == "cpu":
        return f"{trimmed(plain(amount * NANO // 1000))} cpu"
    if resource in _BYTES:
        return f"{gib(amount >> 20)} of {resource}"
    return f"{amount:,} {visible(resource.rpartition('/')[2])}"


def some(texts: Sequence[str], where_else: str = "--format json") -> str:
    """At most ``MOST_ROWS`` of them, and how many more there are."""
    shown = texts if len(texts) <= MOST_ROWS + 1 else texts[:MOST_ROWS]
    rest = len(texts) - len(shown)
    return ", ".join(shown) + (f" and {rest:,} more ({where_else} has them)" if rest else "")


def reasons(advice: Advice) -> Mapping[str, list[str]]:
    """Why, by the topic that a reason begins with; ``why`` where it has none."""
    told: dict[str, list[str]] = {}
    for line in advice.why:
        found = _LABELLED.match(line)
        label, text = (found[1], line[found.end() :]) if found else ("why", line)
        told.setdefault(label, []).append(text)
    return told


def advice_facts(advice: Advice) -> Mapping[str, list[str]]:
    """The figures of the answer, by label; a reason with the same label replaces them. A job that never runs
    gets nothing and costs nothing, whatever was found on the way."""
    will_run = advice.decision in _RUNS
    starts = []
    if advice.later_ms is not None and advice.decision is SchedulingDecision.NOW:
        starts = [f"within {seconds(advice.later_ms)}, once what is preempted has stopped"]
    elif advice.later_ms is not None:
        starts = [f"in about {about(advice.later_ms)}, when nodes are there"]
    return {
        "gets": [pod_set_text(each) for each in advice.pod_sets] if will_run else [],
        "borrows": borrowed_texts(advice.borrowed or {}, advice.level) if will_run else [],
        "evicts": victim_texts(advice.victims) if will_run else [],
        "starts": starts,
        "ahead": _ahead(advice) if will_run else [],
        "wait": _wait(advice),
        "price": _price(advice) if will_run else [],
    }


def _ahead(advice: Advice) -> list[str]:
    if advice.ahead is None:
        return []
    queue = f" in queue {visible(advice.queue)}" if advice.queue else ""
    return [f"{'nobody' if not advice.ahead else counted(advice.ahead, 'workload')}{queue}"]


def _wait(advice: Advice) -> list[str]:
    if advice.wait is not None:
        return [*wait_texts(advice.wait)]
    return ["unknown"] if advice.decision is SchedulingDecision.WAITS else []


def _price(advice: Advice) -> list[str]:
    return ["unknown"] if advice.price is None else [*price_texts(advice.price)]


def search_note(assumptions: Sequence[str]) -> str:
    """That the search for changes was cut short, for beside the changes; empty where it was not."""
    found = next((each for each in assumptions if each.startswith(SEARCH_STOPPED)), None)
    if found is None:
        return ""
    after = found.removeprefix(SEARCH_STOPPED)
    return f"The search for changes stopped{after}: there may be others. Asked again, it may get further."
