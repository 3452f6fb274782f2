"""Price books that are wrong stop the start: file, line, key, value and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.configfile import ConfigModel
from gpucost.domain.errors import ConfigError
from gpucost.pricing.price_book import (
    BookFile,
    Discount,
    PriceBook,
    first_clash,
)
from gpucost.pricing.price_rows import (
    Commitment,
    HostPrice,
    HostWeights,
    ListPrice,
    NodeMatch,
    OwnedHardware,
)

HEAD = "version: 1\ncurrency: USD\n"
ROW = "source: s, retrieved: 2026-11-21"
DOCS = Path(__file__).parents[2] / "docs" / "prices.md"


def refusal(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        PriceBook.parse(text, "prices.yaml")
    assert caught.value.file == "prices.yaml"
    return caught.value


def row(fields: str) -> str:
    return f"{HEAD}prices:\n- {{{fields} {ROW}}}\n"


H = "model: H100, per_hour: 1, "
P5 = "model: H100, per: instance, per_hour: 1, "
WEIGHTS = "weights: {gpu: 1, vcpu: 1, gib: 1}"
NODE = "model: H100, gpus: 8, purchase: 1, "
COMMITTED = "model: H100, amount: 1, "

WRONG = [
    ("currency: USD", "version", "missing"),
    ("version: 1", "currency", "missing; allowed: a currency code of ISO 4217"),
    ("version: 2\ncurrency: USD", "version", "2 is not allowed"),
    (HEAD, "prices", "at least one row"),
    (HEAD + "prices: []", "prices", "at least one row"),
    (HEAD + "price: []", "price", "unknown key; allowed: prices (did you mean this?)"),
    (HEAD + "stale_after_days: 0", "stale_after_days", "days, 1 to 3650"),
    (HEAD + "assume_capacity_type: ondemand", "assume_capacity_type", "'ondemand' is not allowed"),
    (row(H) + "discounts: [{name: d, percent: 101}]", "discounts[0].percent", "above 0, at most 100"),
    (row(H) + "discounts: [{name: d, percent: 0}]", "discounts[0].percent", "above 0"),
    (row(H) + "discounts: [{percent: 5}]", "discounts[0].name", "missing"),
]
WRONG_PRICES = [
    ("instance_tpye: p5, per_hour: 1,", "instance_tpye", "unknown key; allowed: instance_type (did you"),
    ("model: H100, per_houre: 1,", "per_houre", "unknown key; allowed: per_hour (did you"),
    ("per_hour: 1,", "instance_type", "missing; allowed: an instance_type, or a model"),
    ("model: H100,", "per_hour", "missing; allowed: exactly one of per_hour and per_month"),
    (H + "per_month: 1,", "per_hour", "both are given"),
    (P5, "gpus", "missing; allowed: the number of GPUs"),
    (H + "per: node,", "per", "'node' is not allowed; allowed: instance or gpu"),
    (H + "gpus: 8,", "gpus", "only where per: instance"),
    (P5 + "gpus: 0,", "gpus", "1 to 1024"),
    (P5 + "gpus: 8.0,", "gpus", "1 to 1024"),
    (H + "capacity_type: Spot,", "capacity_type", "on-demand, spot, reserved or owned"),
    ("model: H100-MIG-1g.10gb, per_hour: 1,", "model", "a whole GPU, such as H100"),
    ("model: H100-SHARED, per_hour: 1,", "model", "a whole GPU"),
    (H + "labels: {},", "labels", "at least one label"),
    (H + "labels: {rack: 7},", "labels.rack", "put quotes around it"),
    (H + "region: 7,", "region", "put quotes around it"),
    (H + "dated: no,", "dated", "true, or false"),
    (H + "valid_from: soon,", "valid_from", "midnight UTC"),
    (H + "valid_from: 2026-10-01T00:00:00,", "valid_from", "with a zone"),
    (H + "valid_from: 2026-10-02, valid_to: 2026-10-02,", "valid_to", "after valid_from, 2026-10-02T00:00"),
    (H + "host: {vcpu: 1, gib: 1, " + WEIGHTS + "},", "host", "only where per: instance"),
    (P5 + "gpus: 8, host: {vcpu: 1, gib: 1},", "host.weights", "missing"),
    (
        P5 + "gpus: 8, host: {vcpu: 1, gib: 1, weights: {gpu: 0, vcpu: 1, gib: 1}},",
        "host.weights.gpu",
        "above 0",
    ),
    (H + "source: 5,", "source", "duplicate key"),
]
WRONG_ROWS = [
    ("prices", "model: H100, per_hour: 1000000.01, " + ROW, "", "up to 1,000,000 per GPU-hour"),
    ("prices", H + "retrieved: 2026-11-21", ".source", "missing"),
    ("prices", H + "source: s", ".retrieved", "missing"),
    ("prices", H + "source: s, retrieved: 2026-02-29", ".retrieved", "a day of the calendar"),
    (
        "prices",
        H + "source: s, retrieved: 20261121",
        ".retrieved",
        "20261121 is not allowed; allowed: the day",
    ),
    ("owned", NODE + ROW, ".months", "missing"),
    ("owned", NODE + "months: 0, " + ROW, ".months", "1 to 240"),
    ("owned", NODE + "months: 1, residual: 2, " + ROW, ".residual", "at most the purchase price"),
    ("owned", NODE + "months: 1, power_watts: 9, " + ROW, ".kwh_price", ": 0 is not allowed"),
    ("owned", NODE + "months: 1, kwh_price: 9, " + ROW, ".power_watts", "together, or neither"),
    ("owned", NODE + "months: 1, power_watts: -1, kwh_price: 9, " + ROW, ".power_watts", "whole watts"),
    ("owned", NODE + "months: 1, pue: 0.9, " + ROW, ".pue", "1 to 5"),
    ("commitments", COMMITTED + "period: week, gpu_hours: 1, " + ROW, ".period", "hour, day or month"),
    ("commitments", COMMITTED + "period: day, gpu_hours: 0, " + ROW, ".gpu_hours", "at least 1"),
    ("commitments", COMMITTED + "period: day, gpu_hours: 1.5, " + ROW, ".gpu_hours", "whole number"),
]


@pytest.mark.fault(67)
@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        *WRONG,
        *((row(fields), f"prices[0].{key}", says) for fields, key, says in WRONG_PRICES),
        *((f"{HEAD}{part}:\n- {{{row_}}}", f"{part}[0]{key}", says) for part, row_, key, says in WRONG_ROWS),
    ],
)
def test_what_is_wrong_is_named(text: str, field: str, says: str) -> None:
    error = refusal(text)
    assert error.field == field
    assert says in str(error)
    assert str(error).startswith("prices.yaml")


@pytest.mark.fault(37)
@pytest.mark.parametrize("code", ["USX", "XXX", "XAU", "DEM", "usd", "US", "BTC"])
def test_a_currency_must_be_money_in_use(code: str) -> None:
    assert refusal(f"version: 1\ncurrency: {code}").field == "currency"


@pytest.mark.fault(37)
def test_a_book_has_one_currency() -> None:
    error = refusal(row(H + "currency: EUR,"))
    assert (error.field, error.value) == ("prices[0].currency", "EUR")
    assert "one book, one currency" in error.allowed
    assert PriceBook.parse(row(H + "currency: USD,"), "p").currency == "USD"


@pytest.mark.fault(37)
@pytest.mark.parametrize(
    "amount", [".nan", ".inf", "-.inf", "1e2", "-0.01", "'6,88'", "1.0000000001", "1000000000001"]
)
def test_amounts_that_are_no_money_are_refused(amount: str) -> None:
    error = refusal(row(f"model: H100, per_hour: {amount},"))
    assert error.field == "prices[0].per_hour"
    assert "plain decimal" in error.allowed


@pytest.mark.fault(34, 67)
@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("model: H100", "model: H100"),
        ("model: H100", "model: NVIDIA-H100-80GB-HBM3"),
        ("model: H100, region: eu", "model: H100, pool: a"),
        ("model: H100, valid_to: 2026-10-02", "model: H100, valid_from: 2026-10-01"),
        ("instance_type: p5, labels: {a: x}", "instance_type: p5, labels: {b: x}"),
        ("instance_type: p5, model: H100", "instance_type: p5, region: eu"),
    ],
)
def test_rows_that_cannot_be_told_apart_are_refused_and_both_named(one: str, two: str) -> None:
    rows = f"- {{{one}, per_hour: 1, {ROW}}}\n- {{{two}, per_hour: 2, {ROW}}}\n"
    error = refusal(f"{HEAD}prices:\n{rows}")
    assert (error.field, error.line) == ("prices[1]", 5)
    assert "in prices[1]" in str(error.value)
    assert "in prices[0]" in str(error.value)


@pytest.mark.fault(34)
@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("model: H100", "model: H200"),
        ("model: H100", "instance_type: p5"),
        ("model: H100", "model: H100, region: eu"),
        ("model: H100, region: eu", "model: H100, region: us"),
        ("model: H100, region: eu, pool: a", "model: H100, region: us, zone: z"),
        ("model: H100, valid_to: 2026-10-01", "model: H100, valid_from: 2026-10-01"),
        ("instance_type: p5, model: H100", "instance_type: p5, model: A10"),
        ("instance_type: p5, labels: {a: x}", "instance_type: p5, labels: {a: y}"),
    ],
)
def test_rows_that_can_be_told_apart_are_accepted(one: str, two: str) -> None:
    rows = f"- {{{one}, per_hour: 1, {ROW}}}\n- {{{two}, per_hour: 2, {ROW}}}\n"
    assert len(PriceBook.parse(f"{HEAD}prices:\n{rows}", "p").rows) == 2


@pytest.mark.fault(34)
def test_list_owned_and_committed_rows_compete_for_the_same_nodes() -> None:
    owned = f"owned:\n- {{model: H100, gpus: 8, purchase: 1, months: 1, {ROW}}}\n"
    error = refusal(row(H) + owned)
    assert error.field == "owned[0]"
    assert "prices[0]" in str(error.value)


@pytest.mark.fault(34)
def test_two_discounts_for_the_same_nodes_are_refused() -> None:
    discounts = (
        "discounts:\n- {name: a, percent: 1, region: eu}\n- {name: b, percent: 2, model: H100, zone: z}\n"
    )
    assert len(PriceBook.parse(row(H) + discounts, "p").file.discounts) == 2
    clash = discounts + "- {name: c, percent: 2, pool: p}\n"
    assert refusal(row(H) + clash).field == "discounts[2]"


MODELS: list[type[ConfigModel]] = [
    BookFile,
    ListPrice,
    OwnedHardware,
    Commitment,
    Discount,
    HostPrice,
    HostWeights,
]


@pytest.mark.parametrize("model", MODELS)
def test_every_key_says_what_is_allowed_and_is_documented(model: type[ConfigModel]) -> None:
    page = DOCS.read_text(encoding="utf-8")
    for name, field in model.model_fields.items():
        assert field.description, name
        assert f"`{name}`" in page or f"{name}:" in page, name


def test_the_examples_of_the_page_are_valid_books() -> None:
    blocks = DOCS.read_text(encoding="utf-8").split("```yaml\n")[1:]
    books = [PriceBook.parse(block.split("```")[0], "docs/prices.md") for block in blocks]
    assert len(books) == 4
    assert {type(priced).__name__ for book in books for priced in book.rows} == {
        "ListPrice",
        "OwnedHardware",
        "Commitment",
    }
    assert yaml.safe_load(blocks[0].split("```")[0])["currency"] == "USD"


ROWS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "instance_type": st.sampled_from("xy"),
            "model": st.sampled_from(["H100", "T4"]),
            "region": st.sampled_from("ab"),
            "pool": st.sampled_from("ab"),
            "valid_from": st.integers(1, 6),
            "valid_to": st.integers(7, 9),
        },
    ).map(lambda fields: NodeMatch(**fields)),
    max_size=7,
)


@pytest.mark.fault(34)
@given(ROWS)
def test_a_clash_is_two_equally_specific_rows_and_a_node_that_fits_both(rows: list[NodeMatch]) -> None:
    expected = [
        (n, m)
        for n, row in enumerate(rows)
        for m, other in enumerate(rows[:n])
        if row.rank == other.rank
        and row.coincides(other)
        and row.fits(both := other.constraints | row.constraints)
        and other.fits(both)
    ]
    assert first_clash(rows) == min(expected, default=None)
