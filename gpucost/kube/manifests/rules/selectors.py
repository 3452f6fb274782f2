"""Label selectors (apimachinery v0.36.3, pkg/apis/meta/v1/validation: ValidateLabelSelector)."""

from __future__ import annotations

from collections.abc import Mapping

from gpucost.kube.manifests.rules.names import (
    QUALIFIED_RULE,
    VALUE_RULE,
    check_labels,
    check_name,
    is_label_value,
    is_qualified,
)
from gpucost.kube.parse.reading import Part

LISTED, BARE = ("In", "NotIn"), ("Exists", "DoesNotExist")


def check_selector(part: Part, key: str) -> None:
    """A selector, where it is there."""
    selector = part.part(key)
    check_labels(selector, "matchLabels")
    for each in selector.parts("matchExpressions"):
        check_operator(each, LISTED, BARE)
        check_name(each, "key", is_qualified, QUALIFIED_RULE, is_required=True)
        check_values(each)


def check_operator(expression: Part, listed: tuple[str, ...], bare: tuple[str, ...]) -> None:
    """That values are there where an operator takes them, and only there."""
    operator, values = expression.text("operator"), expression.texts("values")
    if operator in listed:
        if not values:
            expression.flaw("values", None, "values, where the operator is In or NotIn")
    elif operator in bare:
        if values:
            expression.flaw("values", list(values), "none, where the operator is Exists or DoesNotExist")
    else:
        expression.flaw(
            "operator", operator or None, f"a valid selector operator: {', '.join(listed + bare)}"
        )


def check_values(expression: Part) -> None:
    for index, value in enumerate(expression.texts("values")):
        if not is_label_value(value):
            expression.flaw(f"values[{index}]", value, VALUE_RULE)


def selects(selector: Part, labels: Mapping[str, str]) -> bool:
    """Whether it matches ``labels``; an empty one matches all, and one that makes no sense too."""
    if any(labels.get(key) != value for key, value in selector.labels("matchLabels").items()):
        return False
    return all(_holds(each, labels) for each in selector.parts("matchExpressions"))


def _holds(expression: Part, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression.text("key")), expression.texts("values")
    operator = expression.text("operator")
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    return (value is not None) == (operator == "Exists") if operator in BARE else True
