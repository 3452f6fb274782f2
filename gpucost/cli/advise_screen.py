"""The screen of ``gpucost advise``: the answer in the first line, the why below it, then what to change."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from gpucost.advisor.answers import Advice, Decision, Layer, PodSetAnswer, Victim
from gpucost.advisor.headline import about, seconds
from gpucost.cli.advise_parts import (
    MOST_ROWS,
    Look,
    evidence_lines,
    headline,
    labelled,
    price_texts,
    quantity,
    some,
    suggestion_lines,
    wait_texts,
)
from gpucost.cluster.kueue import FlavorResource
from gpucost.reports.advice_words import per_hour
from gpucost.reports.display import counted, visible

_LABELLED = re.compile(r"([a-z][a-z ]{1,9}): (?=\S)")
"""A line of the why may say what it is about: ``quota: ml lends no more``."""
_RUNS = (Decision.NOW, Decision.LATER, Decision.WAITS)


def advice_lines(advice: Advice, look: Look) -> Iterator[Text]:
    """All of one answer. What is not known is said so, or left out."""
    width = look.width
    hourly = "" if advice.price is None else f" · {per_hour(advice.price.per_hour, advice.price.currency)}"
    yield from headline(advice.subject, f"{advice.says}{hourly}", width)
    if advice.layer is not Layer.NONE:
        reason = f" ({advice.reason})" if advice.reason else ""
        yield from labelled("held by", [f"{advice.layer.value}{reason}"], width)
    told: dict[str, list[str]] = {}
    for label, text in map(_split, advice.why):
        told.setdefault(label, []).append(text)
    for label, texts in told.items():
        yield from labelled(label, texts, width)
    for label, texts in facts(advice).items():
        if texts and label not in told:
            yield from labelled(label, texts, width)
    yield from evidence_section(advice, width)
    yield from remarks(advice.rules or advice.scheduler, advice.drift, advice.assumptions, width)
    yield from suggestion_lines(advice.suggestions, look)


def _split(line: str) -> tuple[str, str]:
    found = _LABELLED.match(line)
    return (found[1], line[found.end() :]) if found else ("why", line)


def facts(advice: Advice) -> Mapping[str, list[str]]:
    """What the answer knows in figures, by label; a label of the why says the same in better words. What
    never runs gets nothing and costs nothing, whatever was found on the way."""
    will_run = advice.decision in _RUNS
    starts = []
    if advice.later_ms is not None and advice.decision is Decision.NOW:
        starts = [f"within {seconds(advice.later_ms)}, once what is preempted has stopped"]
    elif advice.later_ms is not None:
        starts = [f"in about {about(advice.later_ms)}, when nodes are there"]
    return {
        "gets": [_pod_set(each) for each in advice.pod_sets] if will_run else [],
        "borrows": _borrowed(advice.borrowed or {}, advice.level) if will_run else [],
        "evicts": _victims(advice.victims) if will_run else [],
        "starts": starts,
        "ahead": _ahead(advice) if will_run else [],
        "wait": _wait(advice),
        "price": _price(advice) if will_run else [],
    }


def evidence_section(advice: Advice, width: int) -> Iterator[Text]:
    if advice.evidence:
        yield Text("  evidence", "dim")
        yield from evidence_lines(advice.evidence, width, 4)


def remarks(rules: str, drift: Sequence[str], assumptions: Sequence[str], width: int) -> Iterator[Text]:
    """By which rules, what of the cluster differs from them, and what was taken for granted."""
    for label, texts in (("rules", [rules]), ("differs", drift), ("assumed", assumptions)):
        yield from labelled(label, filter(None, texts), width, "dim") if any(texts) else ()


def _pod_set(found: PodSetAnswer) -> str:
    """``main: 4 pods, flavor h100 (nvidia.com/gpu); 2 on gpu-01, 2 on gpu-02``."""
    by_flavor: dict[str, list[str]] = {}
    for resource, flavor in found.flavors.items():
        by_flavor.setdefault(flavor, []).append(resource)
    parts = [counted(found.count, "pod")]
    parts += [f"flavor {visible(flavor)} ({some(resources)})" for flavor, resources in by_flavor.items()]
    nodes = [f"{count:,} on {visible(node, 253)}" for node, count in found.nodes.items()]
    return f"{visible(found.name)}: {', '.join(parts)}{f'; {some(nodes)}' if nodes else ''}"


def _borrowed(borrowed: Mapping[FlavorResource, int], level: int) -> list[str]:
    where = f", lent {counted(level, 'level')} up in the cohorts" if level else ""
    return [
        f"{quantity(key.resource, amount)} of flavor {visible(key.flavor)}{where}"
        for key, amount in sorted(borrowed.items())
        if amount
    ]


def _victims(victims: tuple[Victim, ...]) -> list[str]:
    """One a line, and how many more there are."""
    shown = victims if len(victims) <= MOST_ROWS + 1 else victims[:MOST_ROWS]
    lines = [_victim(each) for each in shown]
    rest = len(victims) - len(shown)
    return [*lines, f"and {rest:,} more (--format json has them)"] if rest else lines


def _victim(found: Victim) -> str:
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


def _ahead(advice: Advice) -> list[str]:
    if advice.ahead is None:
        return []
    queue = f" in queue {visible(advice.queue)}" if advice.queue else ""
    return [f"{'nobody' if not advice.ahead else counted(advice.ahead, 'workload')}{queue}"]


def _wait(advice: Advice) -> list[str]:
    if advice.wait is not None:
        return [*wait_texts(advice.wait)]
    return ["unknown"] if advice.decision is Decision.WAITS else []


def _price(advice: Advice) -> list[str]:
    return ["unknown"] if advice.price is None else [*price_texts(advice.price)]
