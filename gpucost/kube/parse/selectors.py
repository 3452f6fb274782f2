"""Label selectors (kubernetes, apimachinery, meta/v1 LabelSelector)."""

from __future__ import annotations

from gpucost.cluster.pods import Requirement
from gpucost.kube.parse.reading import MOST_FLAWS, Part

_WRITTEN = {"In": "{key} in ({values})", "NotIn": "{key} notin ({values})", "DoesNotExist": "!{key}"}
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def label_selector(part: Part, key: str) -> tuple[Requirement, ...] | None:
    """Requirements of the selector at ``key`` that must all hold; an empty one has none, and matches all.

    None, which matches nothing, where there is no selector, and with a flaw where any of it makes no sense:
    what is left would match more than was meant.
    """
    if key not in part:
        return None
    flaws_before = len(part.flaws)
    selector = part.part(key)
    labels = sorted(selector.labels("matchLabels").items())
    exact = [Requirement(label, "In", (value,)) for label, value in labels]
    read = (*exact, *(_requirement(each) for each in selector.parts("matchExpressions")))
    return read if len(part.flaws) == flaws_before < MOST_FLAWS else None


def as_text(requirements: tuple[Requirement, ...]) -> str:
    """As kubectl writes selectors: ``zone=a,rack in (r1,r2),!cordoned``."""
    return ",".join(map(_as_text, requirements))


def _requirement(expression: Part) -> Requirement:
    operator = expression.text("operator")
    if operator not in _OPERATORS:
        expression.flaw("operator", expression.raw("operator"), ", ".join(_OPERATORS))
    return Requirement(expression.text("key"), operator, expression.texts("values"))


def _as_text(requirement: Requirement) -> str:
    key, operator, values = requirement.key, requirement.operator, requirement.values
    if operator == "In" and len(values) == 1:
        return f"{key}={values[0]}"
    return _WRITTEN.get(operator, "{key}").format(key=key, values=",".join(values))
