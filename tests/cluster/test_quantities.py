"""Quantities of Kubernetes, read exactly and rounded as Kueue rounds them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpucost.cluster.objects.metadata import (
    MOST,
    amount,
    base_units,
    parse_quantity,
    readable,
)
from gpucost.domain.errors import InputError


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ("0", 0),
        ("8", 8),
        ("+8", 8),
        ("500m", Fraction(1, 2)),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("2.", 2),
        ("1u", Fraction(1, 1_000_000)),
        ("1n", Fraction(1, 1_000_000_000)),
        ("2k", 2000),
        ("3M", 3_000_000),
        ("1G", 10**9),
        ("1T", 10**12),
        ("1P", 10**15),
        ("1E", 10**18),
        ("1Ki", 1024),
        ("1.5Gi", 3 * 2**29),
        ("1Ei", 2**60),
        ("1e3", 1000),
        ("1E3", 1000),
        ("25e-1", Fraction(5, 2)),
    ],
)
def test_a_quantity_is_read_exactly(text: str, exact: Fraction) -> None:
    assert parse_quantity(text) == exact


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "1\n",
            "\t1",
            "one",
            "-1",
            "1.2.3",
            "1mm",
            "1ki",
            "1K",
            "1e",
            "1e+",
            "1ei",
            "1Ki5",
            "0x10",
        ),
        *("0x10", "1_0", "١", "1 Gi", "1e99999999999999999999"),
    ],
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        (" 1Gi", 2**30),
        ("1 ", 1),
        ("\xa01", 1),
        ("+1", 1),
        ("-0", 0),
        ("1.", 1),
        (".5", Fraction(1, 2)),
        *((each, 0) for each in (".", "+", "-", "Gi", "m", "e5", "k", "E")),
        ("0" * 5000 + "1", 1),
    ],
)
def test_what_the_api_server_takes_is_taken(text: str, exact: Fraction) -> None:
    """All of it was accepted by kube-apiserver 1.36.3."""
    assert parse_quantity(text) == exact


@pytest.mark.parametrize("text", ["1e400", "1e9223372036854775807", "9" * 100_000, "1" * 5000 + ".5Ei"])
def test_what_is_beyond_all_counting_is_cheap_and_the_most(text: str) -> None:
    assert amount("memory", parse_quantity(text)) == MOST
    assert amount("memory", parse_quantity("1e-400")) == 1


DIGITS, LETTERS, DECIMAL, BINARY = "0123456789", "eEinumkKMGTP", "n u m k M G T P E", "Ki Mi Gi Ti Pi Ei"


def scanned(text: str) -> Fraction | None:
    """As apimachinery's scanner goes over it, one character after another; None for an error."""
    rest = text.strip(" \xa0")
    if not rest:
        return None
    sign, rest = (-1 if rest[0] == "-" else 1), rest[1:] if rest[0] in "+-" else rest
    whole, rest = taken(rest, DIGITS)
    part = ""
    if rest.startswith("."):
        part, rest = taken(rest[1:], DIGITS)
    letters, rest = taken(rest, LETTERS)
    inner = rest[:1] if rest[:1] in ("+", "-") else ""
    power, rest = taken(rest[len(inner) :], DIGITS)
    if rest:
        return None
    factor = scale(letters, inner, power)
    if factor is None:
        return None
    return sign * (Fraction(int(whole or 0)) + Fraction(int(part or 0), 10 ** len(part))) * factor


def taken(text: str, characters: str) -> tuple[str, str]:
    end = next((at for at, each in enumerate(text) if each not in characters), len(text))
    return text[:end], text[end:]


def scale(letters: str, inner: str, power: str) -> Fraction | None:
    if letters in ("e", "E") and power:
        return Fraction(10) ** int(inner + power)
    if inner or power:
        return None
    if not letters:
        return Fraction(1)
    if letters in DECIMAL.split():
        return Fraction(10) ** (3 * DECIMAL.split().index(letters) - (9 if letters in ("n", "u", "m") else 6))
    return Fraction(1024) ** (BINARY.split().index(letters) + 1) if letters in BINARY.split() else None


@settings(max_examples=3000, deadline=None)
@given(st.text("0123456789.+-eEinumkKMGTP ", max_size=9))
@example("1Ki")
@example("1e5i")
@example(".")
def test_quantities_are_those_of_a_scanner_of_characters(text: str) -> None:
    expected = scanned(text)
    if expected is None or expected < 0:
        with pytest.raises(InputError):
            parse_quantity(text)
    elif expected < 10**60 and (not expected or expected > Fraction(1, 10**60)):
        assert parse_quantity(text) == expected
    else:
        parse_quantity(text)


@pytest.mark.parametrize(
    ("resource", "text", "units"),
    [
        ("cpu", "500m", 500),
        ("cpu", "2", 2000),
        ("cpu", "1u", 1),  # rounded up
        ("memory", "1Gi", 2**30),
        ("memory", "1500m", 2),
        ("nvidia.com/gpu", "8", 8),
        ("memory", "100E", MOST),
        ("cpu", "1e40", MOST),
    ],
)
def test_amounts_are_in_kueues_units(resource: str, text: str, units: int) -> None:
    assert amount(resource, parse_quantity(text)) == units


def test_base_units_are_cores_and_whole_units() -> None:
    assert base_units("cpu", 1500) == 1.5
    assert base_units("memory", 1500) == 1500


@pytest.mark.parametrize(
    ("resource", "amount_", "text"),
    [
        ("cpu", 215_000, "215"),
        ("cpu", 1_250_500, "1,250.5"),
        ("cpu", 1, "0.001"),
        ("cpu", 0, "0"),
        ("memory", 3_076_270_325_760, "2,865Gi"),
        ("memory", 2**44, "16Ti"),
        ("memory", 3_000_000_000_000, "2.73Ti"),
        ("memory", 1000, "1,000"),
        ("memory", 0, "0"),
        ("ephemeral-storage", 10 * 2**30, "10Gi"),
        ("hugepages-2Mi", 2**21, "2Mi"),
        ("nvidia.com/gpu", 2048, "2,048"),
    ],
)
def test_amounts_for_people(resource: str, amount_: int, text: str) -> None:
    assert readable(resource, amount_) == text


@given(st.text(max_size=40))
def test_any_text_is_a_quantity_or_an_input_error(text: str) -> None:
    try:
        exact = parse_quantity(text)
    except InputError:
        return
    assert exact >= 0


@given(st.integers(0, MOST), st.sampled_from(["", "m", "Ki", "G"]))
def test_amounts_are_never_rounded_down(number: int, suffix: str) -> None:
    exact = parse_quantity(f"{number}{suffix}")
    rounded = amount("memory", exact)
    assert rounded == MOST or 0 <= rounded - exact < 1
