"""PromQL, built by functions only: names are checked, values escaped, and nothing is parsed back.

Values come from pods and labels, so they may hold quotes, braces or regular expressions; here, and only
here, they become literals. Ranges are in milliseconds.

An expression that can also be worked out from samples (``sample_expressions``) carries what it means, as its
``form``; it is made with the text, so that the two say the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

from gpucost.domain.errors import InputError

_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
_WORD = re.compile(r"[a-z][a-z_]*\Z")
_REGEX_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class LabelMatcher:
    """``operator`` is =, !=, =~ or !~; a pattern matches the whole value."""

    label: str
    operator: str
    value: str


@dataclass(frozen=True, slots=True)
class SeriesSelector:
    """The series that all of these match; the name of the metric is the label ``__name__``."""

    matchers: tuple[LabelMatcher, ...]


@dataclass(frozen=True, slots=True)
class RangeFunction:
    """A function of the samples of the last ``range_ms`` of each series."""

    function: str
    selector: SeriesSelector
    range_ms: int


@dataclass(frozen=True, slots=True)
class LatestValue:
    """The latest sample of each series that has not ended, as a selector alone means at an instant."""

    selector: SeriesSelector


@dataclass(frozen=True, slots=True)
class LabelTaken:
    """The series with ``label`` set to the value of ``source``, where that is not empty."""

    inner: QueryForm
    label: str
    source: str


@dataclass(frozen=True, slots=True)
class LabelGiven:
    """The series, all with this value of ``label``."""

    inner: QueryForm
    label: str
    value: str


@dataclass(frozen=True, slots=True)
class SeriesAggregation:
    """``operator`` over series equal in ``labels``, or in all but these."""

    operator: str
    labels: tuple[str, ...]
    is_without: bool
    inner: QueryForm


@dataclass(frozen=True, slots=True)
class ValueBound:
    """The points above ``threshold``."""

    inner: QueryForm
    threshold: int


@dataclass(frozen=True, slots=True)
class SeriesJoin:
    """The points of ``left`` where any series of ``right`` with equal ``labels`` has one too."""

    left: QueryForm
    right: QueryForm
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SeriesUnion:
    """The points of the first of ``parts`` that has any with these labels, but for the name."""

    parts: tuple[QueryForm, ...]


@dataclass(frozen=True, slots=True)
class SeriesDifference:
    """The points of ``left`` that differ from those of the same series of ``right``."""

    left: QueryForm
    right: QueryForm


QueryForm: TypeAlias = (
    LabelMatcher
    | SeriesSelector
    | RangeFunction
    | LatestValue
    | LabelTaken
    | LabelGiven
    | SeriesAggregation
    | ValueBound
    | SeriesJoin
    | SeriesUnion
    | SeriesDifference
    | None
)
"""What an expression means; None where only a server can tell its value."""


class PromQL(str):
    """An expression or matcher made by this module; the client takes nothing else."""

    __slots__ = ("form",)
    form: QueryForm

    def __new__(cls, text: str, form: QueryForm = None) -> Self:
        found = super().__new__(cls, text)
        found.form = form
        return found


def metric_name(name: str, field: str = "metric") -> str:
    """``name`` if Prometheus allows it as a metric name, else InputError."""
    if _METRIC.match(name) is None:
        raise InputError(field, name, "a metric name: letters, digits, _ and :, not starting with a digit")
    return name


def label_name(name: str, field: str = "label") -> str:
    """``name`` if Prometheus allows it as a label name, else InputError."""
    if _LABEL.match(name) is None:
        raise InputError(field, name, "a label name: letters, digits and _, not starting with a digit")
    return name


def equals(label: str, value: str) -> PromQL:
    """The matcher ``label="value"``; an empty value matches series without the label."""
    return _matcher(label, "=", value)


def other_than(label: str, value: str) -> PromQL:
    """The matcher ``label!="value"``; an empty value matches series with the label."""
    return _matcher(label, "!=", value)


def one_of(label: str, values: Sequence[str]) -> PromQL:
    """A matcher for any of the literal ``values``."""
    return _matcher(label, "=~", any_of(values))


def none_of(label: str, values: Sequence[str]) -> PromQL:
    """A matcher for all but the literal ``values``, also where the label is not there."""
    return _matcher(label, "!~", any_of(values))


def one_of_or_like(label: str, values: Sequence[str], prefixes: Sequence[str]) -> PromQL:
    """A matcher for any of the literal ``values``, and for all that begins with one of ``prefixes``."""
    begun = [_REGEX_SPECIAL.sub(r"\\\1", prefix) + ".*" for prefix in prefixes]
    return _matcher(label, "=~", "|".join(([any_of(values)] if values else []) + begun))


def named_like(prefix: str, matchers: Sequence[PromQL] = ()) -> PromQL:
    """The series of all metrics whose names begin with ``prefix``."""
    return _selector("", (_matcher("__name__", "=~", metric_name(prefix) + ".+"), *matchers))


def select(names: str | Sequence[str], matchers: Sequence[PromQL] = ()) -> PromQL:
    """The series of one metric, or of several."""
    if isinstance(names, str):
        return _selector(metric_name(names), matchers)
    return _selector("", (one_of("__name__", [metric_name(name) for name in names]), *matchers))


def selecting(form: SeriesSelector) -> PromQL:
    """The selector that means ``form``."""
    return _selector("", [_matcher(each.label, each.operator, each.value) for each in form.matchers])


def over_time(function: str, selector: PromQL, range_ms: int, offset_ms: int = 0) -> PromQL:
    """``function(selector[range] offset …)``, such as ``last_over_time`` or ``increase``."""
    offset, form = (f" offset {offset_ms}ms" if offset_ms else ""), selector.form
    is_plain = not offset_ms
    told = RangeFunction(function, form, range_ms) if is_plain and isinstance(form, SeriesSelector) else None
    return PromQL(f"{_word(function)}({samples(selector, range_ms)}{offset})", told)


def over_instants(function: str, expression: PromQL, range_ms: int, every_ms: int) -> PromQL:
    """``function(expression[range:every])`` over instants after the range's start: multiples of ``every``.

    The start itself belongs to the range before, though Prometheus below version 3 would count it twice.
    """
    if range_ms <= 1 or every_ms <= 0:
        raise InputError("range", (range_ms, every_ms), "at least two milliseconds, in steps of one or more")
    return PromQL(f"{_word(function)}(({expression})[{range_ms - 1}ms:{every_ms}ms])")


def samples(selector: PromQL, range_ms: int) -> PromQL:
    """The raw samples of the last ``range_ms``."""
    if range_ms <= 0:
        raise InputError("range", range_ms, "a positive number of milliseconds")
    return PromQL(f"{selector}[{range_ms}ms]")


def by(operator: str, labels: Sequence[str], expression: PromQL) -> PromQL:
    form = _aggregation(operator, labels, False, expression)
    return PromQL(f"{_word(operator)} by ({_names(labels)}) ({expression})", form)


def without(operator: str, labels: Sequence[str], expression: PromQL) -> PromQL:
    form = _aggregation(operator, labels, True, expression)
    return PromQL(f"{_word(operator)} without ({_names(labels)}) ({expression})", form)


def tagged(expression: PromQL, label: str, value: str) -> PromQL:
    """The same series with ``label`` set, so that a union can tell its parts apart."""
    replacement = value.replace("$", "$$")
    inner = _value(expression)
    form = LabelGiven(inner, label, value) if inner else None
    return PromQL(f'label_replace({expression},"{label_name(label)}",{_quote(replacement)},"","")', form)


def taken(expression: PromQL, label: str, source: str) -> PromQL:
    """The same series with ``label`` set to the value of ``source``, where the series has one."""
    inner = _value(expression)
    form = LabelTaken(inner, label, source) if inner else None
    text = f'label_replace({expression},"{label_name(label)}","$1","{label_name(source)}","(.+)")'
    return PromQL(text, form)


def union(*expressions: PromQL) -> PromQL:
    forms = tuple(_value(each) for each in expressions)
    form = SeriesUnion(forms) if all(forms) else None
    return PromQL(" or ".join(f"({expression})" for expression in expressions), form)


def union_by(labels: Sequence[str], *expressions: PromQL) -> PromQL:
    """The union of the expressions; series are the same if equal in ``labels``, and in the name if it is
    among them."""
    if len(expressions) == 1:
        return expressions[0]
    return PromQL(f" or on ({_names(labels)}) ".join(f"({expression})" for expression in expressions))


def differing(left: PromQL, right: PromQL) -> PromQL:
    """The series of ``left`` whose value is not that of the same series of ``right``."""
    of_left, of_right = _value(left), _value(right)
    form = SeriesDifference(of_left, of_right) if of_left and of_right else None
    return PromQL(f"({left}) != ({right})", form)


def differing_within(left: PromQL, right: PromQL, labels: Sequence[str]) -> PromQL:
    """The series of ``left`` whose value is not that of the one series of ``right`` with equal ``labels``."""
    return PromQL(f"({left}) != on ({_names(labels)}) group_left () ({right})")


def above(expression: PromQL, threshold: int) -> PromQL:
    inner = _value(expression)
    form = ValueBound(inner, threshold) if inner else None
    return PromQL(f"({expression}) > {threshold}", form)


def below(expression: PromQL, threshold: int) -> PromQL:
    return PromQL(f"({expression}) < {threshold}")


def highest(expression: PromQL, number: int) -> PromQL:
    """The ``number`` series with the highest values."""
    return PromQL(f"topk({number}, {expression})")


def minus(left: PromQL, right: PromQL) -> PromQL:
    """The difference of the series that both have, by equal labels."""
    return PromQL(f"({left}) - ({right})")


def times(left: PromQL, right: PromQL, labels: Sequence[str]) -> PromQL:
    """Each series of ``left`` times the one series of ``right`` with equal ``labels``."""
    return PromQL(f"({left}) * on ({_names(labels)}) group_left () ({right})")


def divided(left: PromQL, right: PromQL, labels: Sequence[str]) -> PromQL:
    """Each series of ``left`` by the one series of ``right`` with equal ``labels``."""
    return PromQL(f"({left}) / on ({_names(labels)}) group_left () ({right})")


def instead(left: PromQL, right: PromQL, labels: Sequence[str]) -> PromQL:
    """Each series of ``left`` with the value of the one series of ``right`` with equal ``labels``."""
    return PromQL(f"0 * ({left}) + on ({_names(labels)}) group_left () ({right})")


def zero(expression: PromQL) -> PromQL:
    """The same series, all 0."""
    return PromQL(f"0 * ({expression})")


def where(left: PromQL, right: PromQL) -> PromQL:
    """The series of ``left`` that ``right`` has too, by equal labels."""
    return PromQL(f"({left}) and ({right})")


def where_any(left: PromQL, right: PromQL, labels: Sequence[str]) -> PromQL:
    """The series of ``left`` with the ``labels`` of a series of ``right``."""
    of_left, of_right = _value(left), _value(right)
    form = SeriesJoin(of_left, of_right, tuple(labels)) if of_left and of_right else None
    return PromQL(f"({left}) and on ({_names(labels)}) ({right})", form)


def not_zero(expression: PromQL) -> PromQL:
    return PromQL(f"({expression}) != 0")


def instants(expression: PromQL) -> PromQL:
    """The instants of each series' samples, in seconds; of anything but a plain selector, the evaluation
    time."""
    return PromQL(f"timestamp({expression})")


def always() -> PromQL:
    """One series without labels that is there at every instant."""
    return PromQL("vector(1)")


def not_negative(expression: PromQL) -> PromQL:
    return PromQL(f"({expression}) >= 0")


def except_where(left: PromQL, right: PromQL, labels: Sequence[str]) -> PromQL:
    """The series of ``left`` without those whose ``labels`` are those of a series of ``right``."""
    return PromQL(f"({left}) unless on ({_names(labels)}) ({right})")


def within(expression: PromQL, range_ms: int) -> PromQL:
    """The series whose value is an instant, in seconds, less than ``range_ms`` before the evaluation."""
    return PromQL(f"({expression}) > (time() - {range_ms / 1000!r})")


def _matcher(label: str, operator: str, value: str) -> PromQL:
    name = label if label == "__name__" else label_name(label)
    return PromQL(f"{name}{operator}{_quote(value)}", LabelMatcher(name, operator, value))


def any_of(values: Sequence[str]) -> str:
    """The pattern of any of these literal values."""
    return "|".join(_REGEX_SPECIAL.sub(r"\\\1", value) for value in values)


def _selector(name: str, matchers: Sequence[PromQL]) -> PromQL:
    forms = [each.form for each in matchers]
    told = [form for form in forms if isinstance(form, LabelMatcher)]
    of_name = [LabelMatcher("__name__", "=", name)] if name else []
    form = SeriesSelector((*of_name, *told)) if len(told) == len(forms) else None
    return PromQL(f"{name}{{{','.join(matchers)}}}", form)


def _value(expression: PromQL) -> QueryForm:
    """The form of its values; None where only a server can tell them."""
    form = expression.form
    return LatestValue(form) if isinstance(form, SeriesSelector) else form


def _aggregation(operator: str, labels: Sequence[str], is_without: bool, inner: PromQL) -> QueryForm:
    form = _value(inner)
    return SeriesAggregation(operator, tuple(labels), is_without, form) if form else None


def _names(labels: Sequence[str]) -> str:
    return ",".join(name if name == "__name__" else label_name(name) for name in labels)


def _word(word: str) -> str:
    if _WORD.match(word) is None:
        raise InputError("PromQL function", word, "lower-case letters and _")
    return word


def _quote(value: str) -> str:
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    escaped = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", escaped)
    return f'"{escaped}"'
