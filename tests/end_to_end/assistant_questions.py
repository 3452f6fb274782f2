"""Ten questions of people, the calls of tools that answer them, and the transcript of docs/mcp.md.

A question names what of the answer is shown, and makes the sentence that answers it of the answer alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeAlias

Shown: TypeAlias = "bool | dict[str, Shown] | tuple[int, Shown]"
"""What is shown of a value: all of it, some keys, or the first entries of a list."""

MONTH = "2026-10"
AMOUNT: Shown = {"cost": True, "gpu_hours": True}
MANIFEST = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {
        "name": "tune-lora",
        "namespace": "vision",
        "labels": {"kueue.x-k8s.io/queue-name": "vision"},
    },
    "spec": {
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                "containers": [
                    {
                        "name": "main",
                        "image": "registry.example.com/tune:1",
                        "resources": {"limits": {"nvidia.com/gpu": 8}},
                    }
                ],
            }
        }
    },
}


@dataclass(frozen=True, slots=True)
class AssistantQuestion:
    """``says`` makes the sentence of the ``answer`` of the tool."""

    text: str
    tool: str
    arguments: Mapping[str, Any]
    shown: Shown
    says: Callable[[Any], str]


def money(text: str) -> str:
    return f"{Decimal(text):,.2f}"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _pays_most(found: Any) -> str:
    first, held = found["teams"][0]["row"], found["totals"]["held"]
    return (
        f"{first['group']['team']}: {money(first['held']['cost'])} of {money(held['cost'])} "
        f"{found['currency']} ({percent(first['share_of_cost'])})."
    )


def _why_more(found: Any) -> str:
    comparison, (change,) = found["comparison"], found["provenance"]["price_changes"]
    assert comparison["previous_covered"] == comparison["covered"] == 1
    before, after = money(change["previous_price"]), money(change["price"])
    largest = "; ".join(
        f"{money(each['cost'])} {found['currency']} of {each['team']} by {each['kind'].replace('_', ' ')}"
        for each in found["causes"][:3]
    )
    return (
        f"It did not. The largest causes: {largest}. Within October the price of an {change['model']} "
        f"changed, from {before} to {after} {found['currency']} an hour on {change['at'][:10]}."
    )


def _own_bill(found: Any) -> str:
    (line,), budget = found["lines"], found["budget"]
    return (
        f"{money(found['charged'])} {found['currency']}, for {money(line['gpu_hours'])} GPU-hours "
        f"{line['why'].partition(',')[0]}: {percent(budget['part'])} of its budget of "
        f"{money(budget['monthly'])}. {money(found['avoidable']['cost'])} of it could have been avoided."
    )


def _waits(found: Any) -> str:
    since = datetime.fromtimestamp(found["since_ms"] / 1000, UTC)
    now = found["advice"]["says"]
    return f"Since {since:%d %B %Y}, {found['says']}. Nor would it start by waiting: it {now}."


def _change_first(found: Any) -> str:
    first = found["findings"][0]
    counted = "" if first["wasted"]["counted"] else ", which is shown and not added to the waste"
    return (
        f"{first['action']['text']} {first['summary']} In the last day that was "
        f"{money(first['wasted']['cost'])} {found['currency']}{counted}."
    )


def _complete(found: Any) -> str:
    provenance = found["provenance"]
    (cluster,), (gap,) = provenance["clusters"], provenance["unobserved"]
    return (
        f"Nearly: every hour is there and {cluster['observed'] * 100:.2f} % of the time was observed; "
        f"{gap['unobserved_ms'] // 60_000} minutes after {gap['span']['start']} were not. The month is "
        f"{provenance['state']}, and not closed."
    )


def _lends(found: Any) -> str:
    assert found["loans"]
    told = []
    for loan in found["loans"]:
        lenders = " and ".join(each["name"] for each in loan["lenders"])
        told.append(f"{lenders} lends {loan['borrower']} {loan['borrowed']} units of {loan['flavor']}")
    return f"As of {found['at']}: {'; '.join(told)}."


def _one_job(found: Any) -> str:
    busy, held = found["utilisation"]["busy"], found["held"]
    return (
        f"{money(held['cost'])} {found['currency']} for {money(held['gpu_hours'])} GPU-hours. "
        f"Its GPUs were busy {percent(busy['mean'])} of the time, as far as that was measured: "
        f"{percent(busy['coverage'])} of it. What is not known is not called idle."
    )


def _of_language(found: Any) -> str:
    told = ", ".join(f"{row['group']['user']} ({money(row['total']['cost'])})" for row in found["rows"])
    whole = money(found["total"]["cost"])
    return f"{told}, of {whole} {found['currency']}; {found['row_count']} people in all."


def _would_run(found: Any) -> str:
    price = found["price"]
    cost = "at a price that is not known" if price is None else f"for {money(price['per_hour'])} an hour"
    return f"It {found['says']}; {cost}{'' if price is None else ' in ' + price['currency']}."


QUESTIONS = (
    AssistantQuestion(
        "Who pays most in October?",
        "report",
        {"month": MONTH, "parts": ["totals", "teams"], "top": 3},
        {
            "currency": True,
            "totals": {"held": AMOUNT},
            "teams": (3, {"row": {"group": True, "held": AMOUNT, "share_of_cost": True}}),
        },
        _pays_most,
    ),
    AssistantQuestion(
        "Why did October cost more than September?",
        "report",
        {"month": MONTH, "parts": ["comparison", "causes", "provenance"]},
        {
            "comparison": True,
            "causes": (3, {"team": True, "kind": True, "model": True, "cost": True, "gpu_hours": True}),
            "provenance": {"price_changes": True},
        },
        _why_more,
    ),
    AssistantQuestion(
        "I am in vision. What do we pay, and why?",
        "statement",
        {"month": MONTH, "team": "vision", "top": 3},
        {"currency": True, "charged": True, "lines": True, "budget": True, "avoidable": AMOUNT},
        _own_bill,
    ),
    AssistantQuestion(
        "Why does our job too-big wait?",
        "explain",
        {"kind": "Job", "namespace": "robotics", "name": "too-big"},
        {"layer": True, "says": True, "since_ms": True, "advice": {"decision": True, "says": True}},
        _waits,
    ),
    AssistantQuestion(
        "What shall we change first?",
        "findings",
        {"limit": 1},
        {
            "currency": True,
            "findings": (1, {"id": True, "summary": True, "action": True, "wasted": True, "since": True}),
        },
        _change_first,
    ),
    AssistantQuestion(
        "Is the data of October complete?",
        "report",
        {"month": MONTH, "parts": ["provenance", "problems"]},
        {
            "provenance": {
                "state": True,
                "closed_at": True,
                "clusters": (1, {"cluster": True, "windows": True, "missing_ms": True, "observed": True}),
                "unobserved": True,
            }
        },
        _complete,
    ),
    AssistantQuestion("What does Kueue lend to whom?", "queues", {}, {"at": True, "loans": True}, _lends),
    AssistantQuestion(
        "What did chat-70b cost, and does it use its GPUs?",
        "job",
        {"name": "chat-70b", "top": 3},
        {
            "currency": True,
            "job_uid": True,
            "held": AMOUNT,
            "utilisation": {"busy": {"mean": True, "coverage": True, "observed_gpu_hours": True}},
        },
        _one_job,
    ),
    AssistantQuestion(
        "Who in the team language used most?",
        "allocations",
        {"window": MONTH, "group_by": "user", "filters": {"team": "language"}, "limit": 3},
        {
            "currency": True,
            "row_count": True,
            "rows": (3, {"group": True, "total": AMOUNT}),
            "total": AMOUNT,
        },
        _of_language,
    ),
    AssistantQuestion(
        "Would this job of 8 GPUs run now, and what would it cost?",
        "advise",
        {"manifest": MANIFEST, "suggestions": False},
        {"decision": True, "says": True, "queue": True, "pod_sets": True, "price": True, "wait": True},
        _would_run,
    ),
)


def part_of(value: Any, shown: Shown) -> Any:
    """What is shown of a value. Raises KeyError for what is not there."""
    if isinstance(shown, bool):
        return value
    if isinstance(shown, tuple):
        most, inner = shown
        return [part_of(each, inner) for each in value[:most]]
    return {name: part_of(value[name], inner) for name, inner in shown.items()}


def transcript(answers: list[Mapping[str, Any]]) -> str:
    """The section of the page: ``answers`` are the structured contents, in the order of the questions."""
    blocks = (
        "\n".join(_told(n, question, found))
        for n, (question, found) in enumerate(zip(QUESTIONS, answers, strict=True), start=1)
    )
    return "\n\n".join(blocks) + "\n"


def _told(n: int, question: AssistantQuestion, found: Mapping[str, Any]) -> Iterator[str]:
    answer = found["answer"]
    yield f"### {n}. {question.text}\n"
    yield f"`{question.tool}`:\n\n```json call\n{json.dumps(question.arguments)}\n```\n"
    yield f"```json\n{_lines(part_of(answer, question.shown))}\n```\n"
    left = [each for each in found["more"] if each["ask"] is None or "parts" not in each["ask"]]
    if left:
        told = ", ".join(f"{each['shown']} of {_all(each)} `{each['what']}`" for each in left)
        yield f"`more` says that this is {told}.\n"
    yield f"> {question.says(answer)}"


def _all(left: Mapping[str, Any]) -> str:
    return "more" if left["all"] is None else str(left["all"])


def _lines(value: Mapping[str, Any]) -> str:
    """A line for each key at the top, and for each entry of a list there."""
    lines = []
    for name, each in value.items():
        if isinstance(each, list) and each and isinstance(each[0], dict):
            inner = ",\n".join(f"    {json.dumps(row, ensure_ascii=False)}" for row in each)
            lines.append(f"  {json.dumps(name)}: [\n{inner}\n  ]")
        else:
            lines.append(f"  {json.dumps(name)}: {json.dumps(each, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}"
