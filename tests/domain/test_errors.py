"""Errors say what was wrong and what would do, in one line, and survive a process boundary."""

from __future__ import annotations

import pickle

import pytest

from gpucost.domain.errors import (
    ConfigError,
    ErrorRemark,
    GpuCostError,
    InputError,
    LedgerConflict,
    PartialResponse,
    SourceTimeout,
    shorten,
)
from gpucost.domain.rates import MAX_NANO_PER_BOARD_HOUR, Rate
from gpucost.domain.scope import EVERYTHING, Scope


def test_an_input_error_names_field_value_and_what_is_allowed() -> None:
    error = InputError("window", "2026-13", "YYYY-MM")
    assert str(error) == "window: '2026-13' is not allowed; allowed: YYYY-MM"


def test_a_config_error_names_file_and_line() -> None:
    assert (
        str(ConfigError("p.yaml", "currency", 5, "USD", 3))
        == "p.yaml:3: currency: 5 is not allowed; allowed: USD"
    )
    assert (
        str(ConfigError("p.yaml", "a", ErrorRemark("missing"), "text")) == "p.yaml: a: missing; allowed: text"
    )


@pytest.mark.parametrize(
    "error",
    [
        InputError("f", 1, "2"),
        ConfigError("p.yaml", "f", ErrorRemark("unknown key"), "g", 7),
        PartialResponse("half", ("store down",)),
        SourceTimeout("late"),
        LedgerConflict("two values"),
    ],
)
def test_errors_survive_a_process_boundary(error: GpuCostError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__


def test_values_in_messages_are_short_and_printable() -> None:
    assert shorten("a\x1b[31m\n") == r"'a\x1b[31m\n'"
    assert len(shorten("x" * 10_000)) == 120


@pytest.mark.parametrize("nano", [-1, MAX_NANO_PER_BOARD_HOUR + 1])
def test_a_rate_has_bounds(nano: int) -> None:
    with pytest.raises(InputError, match=r"r1\.nano_per_board_hour"):
        Rate("r1", nano, "USD", 0, "model", "list", "2026-11-21")


def test_a_scope_sees_its_teams_or_everything() -> None:
    assert EVERYTHING.sees_all
    assert not Scope(frozenset()).sees_all
