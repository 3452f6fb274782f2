"""PromQL from hostile values: the parser must find the selectors that were meant, and those alone."""

from __future__ import annotations

import promql_parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.errors import InputError
from gpucost.telemetry.prometheus.promql import (
    above,
    by,
    differing,
    differing_within,
    equals,
    except_where,
    label_name,
    metric_name,
    minus,
    not_negative,
    one_of,
    over_time,
    samples,
    select,
    tagged,
    taken,
    union,
    where,
    within,
    without,
    zero,
)

# What Kubernetes cannot hold, and Prometheus neither: surrogates.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
HOSTILE = ['x"} or vector(1) #', "\\", '\\"', "a\nb", ".*", "a|b", "$1", "\x00", "{{", "'", "`", "\u202e"]


def selectors(expression: object) -> list[promql_parser.VectorSelector]:
    """Every vector selector in a parsed expression."""
    if isinstance(expression, promql_parser.VectorSelector):
        return [expression]
    children = [getattr(expression, name, None) for name in ("expr", "lhs", "rhs", "vector_selector", "vs")]
    children += list(getattr(expression, "args", None) or [])
    return [found for child in children if child is not None for found in selectors(child)]


def matchers(text: str) -> list[tuple[str, str]]:
    (selector,) = selectors(promql_parser.parse(text))
    assert not selector.matchers.or_matchers
    return [(matcher.name, matcher.value) for matcher in selector.matchers.matchers]


@pytest.mark.fault(51)
@given(TEXT | st.sampled_from(HOSTILE))
def test_a_value_stays_one_literal(value: str) -> None:
    expression = over_time("last_over_time", select("up", [equals("team", value)]), 60_000)
    assert matchers(expression) == [("team", value)]


@pytest.mark.fault(51)
@given(st.lists(TEXT | st.sampled_from(HOSTILE), min_size=1, max_size=4))
def test_alternatives_stay_one_matcher_of_literals(values: list[str]) -> None:
    ((name, pattern),) = matchers(select("up", [one_of("team", values)]))
    assert name == "team"
    # Undo what was escaped for the regular expression: the alternatives must be the values themselves.
    parts, literal = [""], False
    for character in pattern:
        if not literal and character == "\\":
            literal = True
            continue
        if not literal and character == "|":
            parts.append("")
        else:
            assert literal or character not in ".+*?()[]{}^$"
            parts[-1] += character
        literal = False
    assert parts == values


@pytest.mark.fault(51)
@given(TEXT | st.sampled_from(HOSTILE))
def test_a_tag_stays_one_literal(value: str) -> None:
    expression = tagged(select("up"), "signal", value)
    assert matchers(expression) == []


@pytest.mark.fault(51)
@pytest.mark.parametrize("name", ["", "a b", "a{", "1a", "ä", "a-b", 'a"', "a\n", "__name__{"])
def test_names_are_checked(name: str) -> None:
    for attempt in (
        lambda: metric_name(name),
        lambda: label_name(name),
        lambda: select(name),
        lambda: select([name, "up"]),
        lambda: equals(name, "x"),
        lambda: by("sum", [name], select("up")),
        lambda: by(name, ["x"], select("up")),
        lambda: over_time(name, select("up"), 1),
    ):
        with pytest.raises(InputError):
            attempt()


def test_ranges_are_positive() -> None:
    with pytest.raises(InputError, match="range"):
        samples(select("up"), 0)


def test_every_builder_gives_promql() -> None:
    up, down = select("up"), select(["down", "out"], [equals("a", "b")])
    for expression in (
        by("sum", ("__name__", "x"), down),
        by("max", (), up),
        without("max", ("replica",), over_time("increase", up, 1500)),
        above(union(up, tagged(down, "t", "v")), 1),
        differing(by("max", ("x",), up), by("min", ("x",), up)),
        differing_within(by("max", ("x", "y"), up), by("min", ("x",), up), ("x",)),
        minus(over_time("last_over_time", up, 1500, 3000), zero(up)),
        where(up, above(not_negative(down), 0)),
        taken(up, "pod", "exported_pod"),
        except_where(up, within(by("max", ("x",), down), 1500), ("x",)),
    ):
        assert selectors(promql_parser.parse(expression))
