"""Which labels the result of a PromQL expression can have, and where it asks for ones that it cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import promql_parser as promql

Labels = frozenset[str]
NONE: Labels = frozenset()
_RANKING = {"topk", "bottomk", "limitk"}


@dataclass
class Checked:
    """``selectors`` are all selectors, each with the functions and range that stand directly around it."""

    labels_of: Callable[[str], Labels]
    problems: list[str] = field(default_factory=list)
    selectors: list[Selected] = field(default_factory=list)

    def labels(self, expr: Any, around: tuple[str, ...] = (), span: timedelta | None = None) -> Labels:
        """The labels of the result of ``expr``; notes problems and selectors on the way."""
        match expr:
            case promql.VectorSelector():
                return self._selector(expr, around, span)
            case promql.MatrixSelector():
                return self._selector(expr.vector_selector, around, expr.range)
            case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
                return self.labels(expr.expr, around)
            case promql.Call():
                return self._call(expr)
            case promql.AggregateExpr():
                return self._aggregate(expr, around)
            case promql.BinaryExpr():
                return self._binary(expr)
        return NONE

    def _selector(self, selector: Any, around: tuple[str, ...], span: timedelta | None) -> Labels:
        matchers = {one.name for one in selector.matchers.matchers}
        if not selector.name:
            self.problems.append(f"a selector without the name of a metric: {selector}")
            return NONE
        known = self.labels_of(selector.name)
        for name in sorted(matchers - known):
            self.problems.append(f"{selector.name} has no label {name!r}")
        if selector.matchers.or_matchers:
            self.problems.append(f"{selector.name}: 'or' between matchers is not PromQL of Prometheus")
        self.selectors.append(Selected(selector.name, frozenset(matchers), around, span, selector.offset))
        return known

    def _call(self, call: Any) -> Labels:
        name = call.func.name
        of_arguments = [self.labels(argument, (name,)) for argument in call.args]
        if name in ("vector", "scalar", "time", "absent"):
            return NONE
        labels: Labels = max(of_arguments, key=len, default=NONE)
        if name in ("label_replace", "label_join"):
            texts = [one.val for one in call.args[1:]]
            sources = [texts[2]] if name == "label_replace" else texts[2:]
            self._must_have(labels, [one for one in sources if one], name)
            labels |= {texts[0]}
        return labels - {"le"} if name == "histogram_quantile" else labels

    def _aggregate(self, aggregate: Any, around: tuple[str, ...]) -> Labels:
        # One series of several that say the same, of which a function takes the range.
        is_collapsed = around == ("delta",) and str(aggregate.op) == "max"
        labels = self.labels(aggregate.expr, (*around, "max") if is_collapsed else ())
        if aggregate.param is not None:
            self.labels(aggregate.param)
        modifier = aggregate.modifier
        operation = str(aggregate.op)
        named = frozenset(modifier.labels) if modifier else NONE
        self._must_have(labels, sorted(named), operation)
        if operation in _RANKING:
            return labels
        if modifier and modifier.type == promql.AggModifierType.Without:
            return labels - named
        return named

    def _binary(self, binary: Any) -> Labels:
        left, right = self.labels(binary.lhs), self.labels(binary.rhs)
        operation, modifier = str(binary.op), binary.modifier
        matching = modifier.matching if modifier else None
        if matching and matching.type == promql.LabelModifierType.Include:
            for side in (left, right):
                self._must_have(side, sorted(matching.labels), f"on ({', '.join(matching.labels)})")
        if operation in ("and", "unless"):
            return left
        if operation == "or":
            return left | right
        if modifier and modifier.card == promql.VectorMatchCardinality.ManyToOne:
            self._must_have(right, modifier.group_labels, "group_left")
            return left | frozenset(modifier.group_labels)
        if modifier and modifier.card == promql.VectorMatchCardinality.OneToMany:
            self._must_have(left, modifier.group_labels, "group_right")
            return right | frozenset(modifier.group_labels)
        if matching and matching.type == promql.LabelModifierType.Include:
            return frozenset(matching.labels)
        return left or right

    def _must_have(self, labels: Labels, named: list[str], what: str) -> None:
        for name in named:
            if name not in labels:
                self.problems.append(f"{what}: no series here has the label {name!r}")


@dataclass(frozen=True)
class Selected:
    """A selector: metric, names of its matchers, the function directly around it, its range and offset."""

    metric: str
    matchers: frozenset[str]
    around: tuple[str, ...]
    span: timedelta | None
    offset: timedelta | None
