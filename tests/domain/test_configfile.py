"""Configuration files: what is wrong is named by file, line, key, value and what is allowed."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

import pytest
from pydantic import Field, ValidationError

from gpucost.domain.configfile import (
    MAX_CHARS,
    ConfigModel,
    Instant,
    NanoAmount,
    Text,
    Version,
    config_error,
    load_yaml,
)
from gpucost.domain.errors import ConfigError
from gpucost.domain.time import parse_instant


class Item(ConfigModel):
    name: Text = Field(description="text")
    price: NanoAmount = Field(0, description="an amount")
    when: Instant | None = Field(None, description="a day or an instant")
    kind: Literal["a", "b"] = Field("a", description="a or b")
    labels: dict[Text, Text] | None = Field(None, description="a mapping of texts")
    on: bool = Field(False, description="true or false")


class Document(ConfigModel):
    version: Version = Field(1, description="1")
    items: tuple[Item, ...] = Field((), description="a list of items")
    count: int | None = Field(None, ge=1, description="a whole number of at least 1")


def load(text: str) -> Document:
    return load_yaml(text, "some.yaml", Document)


def refusal(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert caught.value.file == "some.yaml"
    return caught.value


@pytest.mark.fault(37)
@pytest.mark.parametrize("written", ["6.88", "'6.88'", '"6.88"', "6.880", "6.880000000"])
def test_amounts_keep_what_was_written(written: str) -> None:
    [item] = load(f"items: [{{name: x, price: {written}}}]").items
    assert item.price == 6_880_000_000


@pytest.mark.fault(37)
def test_an_amount_no_float_could_hold() -> None:
    [item] = load("items: [{name: x, price: 999999999999.999999999}]").items
    assert item.price == 10**21 - 1


@pytest.mark.fault(37)
@pytest.mark.parametrize(
    "written",
    [".nan", ".inf", "-.inf", "1e3", "1.5e3", "-1", "0x10", "1_000.5", "1:30", "true", "[1]", "1.0000000001"],
)
def test_what_is_no_plain_amount_is_refused(written: str) -> None:
    error = refusal(f"items: [{{name: x, price: {written}}}]")
    assert error.field == "items[0].price"
    assert "plain decimal" in error.allowed


@pytest.mark.fault(67)
@pytest.mark.parametrize(
    ("text", "field", "line", "says"),
    [
        (
            "count: 1\nitmes: []",
            "itmes",
            2,
            "unknown key; allowed: items (did you mean this?), or another of: version",
        ),
        ("items:\n- name: a\n  pirce: 1", "items[0].pirce", 3, "price (did you mean this?)"),
        ("items:\n- name: a\n- price: 1", "items[1].name", 3, "missing; allowed: text"),
        ("count: 0", "count", 1, "0 is not allowed; allowed: a whole number of at least 1"),
        ("count: 1.5", "count", 1, "a whole number"),
        ("count: 007", "count", 1, "'007' is not allowed"),
        ("count: 0o17", "count", 1, "'0o17' is not allowed"),
        ("version: 2", "version", 1, "2 is not allowed; allowed: 1"),
        ("version: true", "version", 1, "True is not allowed"),
        ("items:\n- name: a\n  kind: c", "items[0].kind", 3, "'c' is not allowed; allowed: a or b"),
        ("items:\n- name: 5", "items[0].name", 2, "put quotes around it"),
        ("items:\n- name: ''", "items[0].name", 2, "1 to 253 characters"),
        ("items:\n- name: ' a'", "items[0].name", 2, "no blanks at the ends"),
        ('items:\n- name: "a\\nb"', "items[0].name", 2, "no control characters"),
        ('items:\n- name: "a\\u202eb"', "items[0].name", 2, "no control characters"),
        ('items:\n- name: "\\ud800"', "items[0].name", 2, "half of a surrogate pair"),
        ('"\\udfff": 1', "(top level)", 1, "half of a surrogate pair"),
        ("items:\n- name: a\n  on: yes", "items[0].on", 3, "'yes' is not allowed; allowed: true or false"),
        ("items:\n- name: a\n  when: 2026-02-30", "items[0].when", 3, "midnight UTC"),
        ("items:\n- name: a\n  when: 2026-10-01 12:00:00", "items[0].when", 3, "with a zone"),
        ("items:\n- name: a\n  labels:\n    b: 7", "items[0].labels.b", 4, "put quotes"),
        ("items: {}", "items", 1, "a list of items"),
        ("items: [a]", "items[0]", 1, "a mapping of name, price, when"),
        ("- 1", "(top level)", 1, "a mapping of version, items, count"),
        ("just text", "(top level)", 1, "a mapping of version, items, count"),
        ("count: 1\ncount: 2", "count", 2, "duplicate key; allowed: every key once"),
        ("items:\n- name: a\n  labels: {b: x, b: y}", "items[0].labels.b", 3, "duplicate key"),
        ("items:\n- &a {name: a}\n- *a", "items[1]", 2, "an alias"),
        ("items:\n- <<: {name: a}", "items[0]", 2, "no merge"),
        ("? [a]\n: 1", "(top level)", 1, "keys of plain text"),
        ("count: !!python/object/apply:os.getpid []", "count", 1, "plain YAML without tags"),
        ("count: !!python/name:os.getpid ''", "count", 1, "plain YAML without tags"),
        ("count: !!binary aGk=", "count", 1, "plain YAML without tags"),
        ("count: !mine 1", "count", 1, "plain YAML without tags"),
        ("items: [", "syntax", 1, "one YAML document"),
        ("a: b: c", "syntax", 1, "mapping values are not allowed here"),
        ("count: 1\n---\ncount: 2", "syntax", 2, "one YAML document"),
        ("count: 1\x00", "syntax", None, "one YAML document"),
        ("[" * 100_000, "syntax", None, "too deep"),
        ("#" * (MAX_CHARS + 1), "size", None, "at most 524,288 characters"),
    ],
)
def test_the_first_wrong_thing_is_named(text: str, field: str, line: int | None, says: str) -> None:
    error = refusal(text)
    assert (error.field, error.line) == (field, line)
    assert says in str(error)
    assert str(error).startswith(f"some.yaml:{line}: " if line else "some.yaml: ")
    assert "\n" not in str(error)


def test_of_two_wrong_things_the_one_further_up_is_named() -> None:
    assert refusal("wrong: 1\ncount: 0").field == "wrong"
    assert refusal("count: 0\nwrong: 1").field == "count"


def test_aliases_cannot_blow_a_file_up() -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
    assert refusal(bomb).value == "an alias"


def test_plain_values() -> None:
    document = load(
        """
version: 1
count: 12
items:
  - name: "12"
    price: 3
    when: 2026-10-01
    on: True
  - name: no
    when: 2026-10-01T02:00:00+02:00
    kind:
    labels: {1: one}
""".replace("    kind:\n", "")
    )
    first, second = document.items
    assert (document.count, first.name, first.price, first.on) == (12, "12", 3_000_000_000, True)
    assert first.when == second.when == parse_instant("2026-10-01T00:00:00Z")
    assert (second.name, second.labels) == ("no", {"1": "one"})
    assert load("") == load("# nothing\n") == Document()
    assert load("count:").count is None


def test_settings_from_elsewhere_are_explained_the_same_way() -> None:
    with pytest.raises(ValidationError) as caught:
        Document.model_validate({"count": Decimal("0.5")})
    error = config_error(caught.value, "environment", Document)
    assert str(error).startswith("environment: count: 0.5 is not allowed; allowed: a whole number")
