"""Amounts in sentences, lists and charts of the faces for people: which words stand at which number."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tests.cli.named_amounts import Name, Printed, amounts_in

N, P = r"([<>]?[\d,]+(?:\.\d+)?)", r"([<>]?[\d,.]+%)"
Rule = tuple[str, tuple[Name | None, ...]]
"""A pattern, and the name of each of its groups; ``{n}`` in a name is the text of group n, None a key."""

_DAY = r"\d{4}-\d\d-\d\d"
_BUCKET = "Unusable|Gang stall|Preempted|Idle|Oversized|Starved|Fragmented|No demand|In use|Unknown"
ALL, WASTED = ("team", "all"), ("wasted",)
_CAUSE = rf"[−+]{N} (?:USD )?([\w-]+) ?: "
CAUSES: tuple[Rule, ...] = (
    (
        rf"{_CAUSE}{N} GPU-hours (?:less|more)",
        (("cause", "{2}", "hours", "cost"), None, ("cause", "{2}", "hours", "gpu-hours")),
    ),
    (
        rf"{_CAUSE}idle (?:rose|fell), {N} GPU-hours (?:less|more)",
        (("cause", "{2}", "idle", "cost"), None, ("cause", "{2}", "idle", "gpu-hours")),
    ),
    (rf"{_CAUSE}(?:dearer|cheaper) models", (("cause", "{2}", "models", "cost"), None)),
    (rf"{_CAUSE}(\S+) cost (?:less|more) an hour", (("cause", "{2}", "price", "{3}", "cost"), None, None)),
    (
        rf"{_CAUSE}a (?:longer|shorter) span, in days: {N} before, {N} now",
        (("cause", "{2}", "span", "cost"), None, *(("cause", "{2}", "span", at) for at in ("before", "now"))),
    ),
)
MONTH: tuple[Rule, ...] = (
    (
        rf"{N} USD for {N} GPU-hours held by {N} jobs",
        ((*ALL, "cost"), (*ALL, "gpu-hours"), (*ALL, "jobs")),
    ),
    (rf"[−+]{N} USD, [−+]{P} against the month before", ((*ALL, "change in cost"), (*ALL, "change"))),
    (rf"Against the month before [−+]{P} [−+]{N} USD", ((*ALL, "change"), (*ALL, "change in cost"))),
    *CAUSES,
    (
        rf"memory {P} \({P}\), at most {N} GiB of a GPU; {N} kWh, {N} W per GPU \({P}\)",
        (
            *((*ALL, "memory", part) for part in ("memory", "seen", "peak")),
            *((*ALL, "energy", part) for part in ("energy", "watts", "seen")),
        ),
    ),
    (
        rf"{N} USD (?:wasted: )?{N} GPU-hours(?: wasted)?, {P} of capacity",
        ((*WASTED, "cost"), (*WASTED, "gpu-hours"), (*WASTED, "of capacity")),
    ),
    (rf"at most {P}, on ([\d-]+)", (("day", "{2}", "wasted"), None)),
    (
        rf"Of {N} windows: {N} final, {N} provisional until more is known, {N} not looked at",
        (None, ("windows", "final"), ("windows", "provisional"), ("windows", "missing")),
    ),
    (
        rf"held was busy {P} of the time \({P} of it observed\)",
        (("held busy", "busy"), ("held busy", "seen")),
    ),
    (
        rf"Unknown: {N} h held, and not measured; {N} h not observed at all",
        (("held, and not measured", "gpu-hours"), ("capacity", "not observed", "gpu-hours")),
    ),
    (rf"jobs add up to {N}, of {N}", (("teams' jobs",), (*ALL, "jobs"))),
    (
        rf"Teams held {P} of {N} GPU-hours. {N} GPU-hours, worth {N} USD, were free",
        (
            ("capacity", "held", "of capacity"),
            ("capacity", "capacity", "gpu-hours"),
            *(("capacity", "unallocated", of) for of in ("gpu-hours", "cost")),
        ),
    ),
    (
        rf"Held by teams {N} USD {N} GPU-hours, {N} jobs",
        (*(("capacity", "held", of) for of in ("cost", "gpu-hours")), (*ALL, "jobs")),
    ),
    (
        rf"Unallocated {N} USD {P} of capacity",
        (("capacity", "unallocated", "cost"), ("capacity", "unallocated", "of capacity")),
    ),
    (rf"Busy while held {P} seen for {P}", ((*ALL, "busy", "busy"), (*ALL, "busy", "seen"))),
    (rf"{P} of the month is in the ledger", (("in the ledger",),)),
    (rf"observed {P}, missing", (("observed",),)),
    (rf"measured by (\w+) \({N} GPU-hours held", (None, ("share basis", "{1}", "gpu-hours"))),
    (rf"Beside it, {N} GPU-hours were held beyond", (("what", "overcommitted", "gpu-hours"),)),
    (
        rf"^(held|unallocated|unavailable|not observed): {N} GPU-hours, {P}",
        (None, ("capacity", "{1}", "gpu-hours"), ("capacity", "{1}", "of capacity")),
    ),
    (rf"^({_DAY}), ([A-Z][a-z ]+): {N} GPU-hours", (None, None, ("day", "{1}", "{2}", "gpu-hours"))),
    (rf"^({_DAY}), ([a-z ]+): {N} USD", (None, None, ("day", "{1}", "team", "{2}", "cost"))),
    (rf"^([a-z ]+) ({_BUCKET}): {N} GPU-hours", (None, None, ("team", "{1}", "{2}", "gpu-hours"))),
)
TO_DO: tuple[Rule, ...] = (
    (
        rf"{N} USD a day at its rate of now;? {N} USD in its last day.*?finding (\d+)",
        (("finding", "{3}", "a day at its rate of now"), ("finding", "{3}", "in its last day"), None),
    ),
    (
        rf"and \d+ more jobs of \S+: {N} USD a day at their rate of now; findings (\d+(?:, \d+)*)",
        (("findings", "{2}", "a day at their rate of now"), None),
    ),
)
WEEK: tuple[Rule, ...] = (
    (r"Why it changed(?:, \d+ of \d+)?(?: -+)?", ()),
    *CAUSES,
    (
        rf"The clusters cost USD {N} in week \d+, {P} \w+ than the week before; (?:most of all .*?; )?"
        rf"{P} of the cost was wasted; "
        rf"{P} was not measured",
        (
            ("capacity", "capacity", "cost"),
            None,
            (*WASTED, "of the cost"),
            ("bucket", "Unknown", "of the cost"),
        ),
    ),
    (
        rf"Capacity USD {N}, {N} GPU-hours",
        (("capacity", "capacity", "cost"), ("capacity", "capacity", "gpu-hours")),
    ),
    (
        rf"Held by teams USD {N}, {N} GPU-hours",
        (("capacity", "held", "cost"), ("capacity", "held", "gpu-hours")),
    ),
    (
        rf"Week before USD {N}, {N} GPU-hours",
        (("week before", "cost"), ("week before", "gpu-hours")),
    ),
    (
        rf"Budget {P} of USD {N}, the week's part of USD {N} a month of \d+ teams with a budget; "
        rf"they held USD {N}",
        tuple(("budget", of) for of in ("used", "of the week", "of the month", "held")),
    ),
    (
        rf"Wasted USD {N} \({P} of the cost\), {N} GPU-hours",
        ((*WASTED, "cost"), (*WASTED, "of the cost"), (*WASTED, "gpu-hours")),
    ),
    (
        rf"({_BUCKET}):? USD {N} \({P} of the cost\), {N} GPU-hours",
        (None, *(("bucket", "{1}", of) for of in ("cost", "of the cost", "gpu-hours"))),
    ),
    (rf"Busy {P}; use was measured for {P} of what", (("held busy", "busy"), ("held busy", "seen"))),
    (
        rf"held was busy {P} of the time \({P} of it observed\)",
        (("held busy", "busy"), ("held busy", "seen")),
    ),
    (
        rf"(\w+): USD {N} \({P} of it wasted\), {N} GPU-hours",
        (None, *(("team", "{1}", of) for of in ("cost", "wasted of cost", "gpu-hours"))),
    ),
    (
        rf"\S+/(\S+) \([^)]*\): USD {N}, {N} GPU-hours, busy {P}",
        (
            None,
            ("job", "{1}", "cost"),
            ("job", "{1}", "gpu-hours"),
            ("job", "{1}", "busy", "busy"),
        ),
    ),
    (
        rf"\S+/(\S+) of (\w+), (\w+): USD {N}, {N} GPU-hours; is over",
        (None, None, None, *(("job", "{1}", "{3}", "{2}", of) for of in ("cost", "gpu-hours"))),
    ),
    (
        rf"\d\. (\w+ \S+?)(?: of \S+)?: (?:USD {N} a day at its rate of now|no amount).*?"
        rf"It wasted {N} USD in its last day",
        (
            None,
            ("finding of", "{1}", "a day at its rate of now"),
            ("finding of", "{1}", "in its last day"),
        ),
    ),
    (rf"more teams?: USD {N}, {N} GPU-hours", (("more teams", "cost"), ("more teams", "gpu-hours"))),
    (rf"Costliest jobs, \d+ of {N}", (("jobs",),)),
    (rf"Use was measured for {P} of what was held", (("held busy", "seen"),)),
    (
        rf"{P} of the week is in the ledger; the clusters? (?:was|were) watched for {P} of that",
        (("in the ledger",), ("observed",)),
    ),
    (rf"^([A-Z][a-z][a-z]) [^A-Za-z]+ {N} h$", (None, ("day", "{1}", "gpu-hours"))),
    (rf"^(\w[\w ]*?) +[█▓▒░#=+?-]+ +USD {N}$", (None, ("team", "{1}", "cost"))),
)


def told_of(text: str, rules: Sequence[Rule], scope: str) -> tuple[list[Printed], str]:
    """(what the rules find, what is left of the text). Names of findings have no scope."""
    found: list[Printed] = []

    def take(match: re.Match[str], names: tuple[Name | None, ...]) -> str:
        for group, name in zip(match.groups(), names, strict=True):
            if name is not None and group is not None:
                whole = tuple(re.sub(r"\{(\d)\}", lambda at: _key(match[int(at[1])]), part) for part in name)
                found.append((whole if whole[0].startswith("finding") else (scope, *whole), group))
        return " "

    for pattern, names in rules:
        text = re.sub(pattern, lambda match, names=names: take(match, names), text, flags=re.MULTILINE)
    return found, text


def _key(text: str) -> str:
    return text.replace(",", "")


def unwalked(text: str) -> Iterator[str]:
    """The lines in which an amount is left."""
    for line in text.splitlines():
        if amounts_in(line):
            yield line.strip()


def flat(text: str) -> str:
    return " ".join(text.split())
