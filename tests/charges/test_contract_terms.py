"""Contract files that are wrong are refused whole: file, line, key, value and what is allowed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpucost.charges.contract_terms import ContractBook, ContractTerms
from gpucost.domain.errors import ConfigError
from tests.charges.contract_worlds import HEAD, TEAMS, book_of

TERM = "start: 2026-10-01T00:00:00Z, end: 2026-11-01T00:00:00Z"
GOOD = f"id: r, kind: reservation, gpus: 8, price: 2, {TERM}"
ACCOUNTS = f"{HEAD}accounts: [{{name: a1, clusters: [prod]}}]\n"


def refusal(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        ContractBook.parse(text, "contracts.yaml", TEAMS)
    assert caught.value.file == "contracts.yaml"
    return caught.value


def row(*contracts: str, head: str = HEAD) -> str:
    return f"{head}contracts:\n" + "".join(f"- {{{contract}}}\n" for contract in contracts)


def other(text: str, name: str = "s") -> str:
    return f"id: {name}, kind: reservation, gpus: 8, price: 2, {text}"


WRONG = [
    (HEAD, "contracts", "missing"),
    (f"{HEAD}contracts: []", "contracts", "a list of at least one"),
    (row(GOOD, head="version: 1\ncurrency: EURO\n"), "currency", "ISO 4217"),
    (row(f"{GOOD}, gpu: 3"), "contracts[0].gpu", "unknown key; allowed: gpus (did you mean this?)"),
    (row(f"{GOOD}, kind: lease"), "contracts[0].kind", "duplicate key"),
    (row(GOOD.replace("reservation", "lease")), "contracts[0].kind", "'lease' is not allowed"),
    (row(GOOD.replace("00:00:00Z,", "00:00:00,")), "contracts[0].start", "RFC 3339 with a zone"),
    (row(GOOD.replace("2026-11-01T00:00:00Z", "2026-11-01")), "contracts[0].end", "RFC 3339 with a zone"),
    (row(GOOD.replace("2026-11-01", "2026-09-01")), "contracts[0].end", "after start, 2026-10-01T00:00:00Z"),
    (row(f"{GOOD}, owner: visoin"), "contracts[0].owner", "shared, or a team: language, speech, vision"),
    (row(f"{GOOD}, owner: __nobody__"), "contracts[0].owner", "no team's name begins with __"),
    (row(f"{GOOD}, unused: owner"), "contracts[0].unused", "by_use or platform: the contract is shared"),
    (row(f"{GOOD}, scope: {{accounts: [a2]}}"), "contracts[0].scope.accounts", "there is none"),
    (
        row(f"{GOOD}, scope: {{accounts: [a2]}}", head=ACCOUNTS),
        "contracts[0].scope.accounts",
        "an account of the file: a1",
    ),
    (
        row(f"{GOOD}, scope: {{accounts: [a1], clusters: [test]}}", head=ACCOUNTS),
        "contracts[0].scope",
        "covers nothing; allowed: clusters and pools that its accounts pay for",
    ),
    (row(f"{GOOD}, scope: {{clusters: []}}"), "contracts[0].scope.clusters", "an empty list"),
    (row(f"{GOOD}, scope: {{models: [H100-MIG-1g.10gb]}}"), "contracts[0].scope.models[0]", "a whole GPU"),
    (row(GOOD.replace("gpus: 8", "gpus: 0")), "contracts[0].gpus", "at least 1"),
    (row(f"{GOOD}, gpu_hours: 5"), "contracts[0].gpu_hours", "exactly one of gpus, gpu_hours and spend"),
    (row(GOOD.replace("gpus: 8, ", "")), "contracts[0].gpus", "exactly one of gpus, gpu_hours and spend"),
    (
        row(GOOD.replace("gpus: 8", 'gpu_hours: "0.000000001"')),
        "contracts[0].gpu_hours",
        "whole milliseconds",
    ),
    (row(GOOD.replace("price: 2, ", "")), "contracts[0].upfront", "upfront, recurring, or price"),
    (row(f"{GOOD}, upfront: 5"), "contracts[0].price", "a price, or upfront and recurring"),
    (row(f"{GOOD}, residual: 5"), "contracts[0].residual", "at most upfront"),
    (row(f"{GOOD}, percent_off: 5"), "contracts[0].percent_off", "only spend"),
    (row(f"{GOOD}, take_or_pay: 101"), "contracts[0].take_or_pay", "at most 100"),
    (
        row(f"id: s, kind: savings_plan, gpus: 5, price: 2, {TERM}"),
        "contracts[0].spend",
        "a savings plan commits an amount",
    ),
    (
        row(f"id: s, kind: savings_plan, spend: 5, {TERM}"),
        "contracts[0].price",
        "exactly one of price and percent_off",
    ),
    (
        row(f"id: s, kind: reservation, spend: 5, price: 1, {TERM}"),
        "contracts[0].spend",
        "reservation commits GPUs",
    ),
    (
        row(f"id: s, kind: owned, gpu_hours: 5, upfront: 1, {TERM}"),
        "contracts[0].gpus",
        "the number of GPUs that were bought",
    ),
    (
        row(f"id: s, kind: owned, gpus: 5, upfront: 9, residual: 3, spread: cash, {TERM}"),
        "contracts[0].residual",
        "cash is what is paid",
    ),
    (
        row(f"id: s, kind: reservation, gpus: 5, upfront: 9, residual: 3, {TERM}"),
        "contracts[0].residual",
        "only owned hardware",
    ),
    (
        row(
            f"id: b, kind: capacity_block, gpus: 8, {TERM}, upfront: 1, "
            "recurring: [{amount: 1, every: day}]"
        ),
        "contracts[0].recurring",
        "a capacity block is paid whole",
    ),
    (
        row(f"id: s, kind: reservation, gpus: 5, {TERM}, recurring: [{{amount: 1, every: week}}]"),
        "contracts[0].recurring[0].every",
        "hour, day (24 hours) or month",
    ),
    (row(f"id: s, kind: spot, gpus: 5, {TERM}"), "contracts[0].gpus", "spot commits nothing"),
    (row(GOOD, GOOD), "contracts[1].id", "contracts[0] has it already"),
    (row(f"{GOOD}, planned: true, per: month"), "contracts[0].per", "hour or day"),
    (
        row(f"{GOOD}, changes: [{{at: 2026-10-05T00:00:00Z, spend: 3}}]"),
        "contracts[0].changes[0].spend",
        "a change of gpus",
    ),
    (
        row(f"{GOOD}, changes: [{{at: 2026-11-05T00:00:00Z, gpus: 3}}]"),
        "contracts[0].changes[0].at",
        "before 2026-11-01T00:00:00Z",
    ),
    (
        row(f"{GOOD}, per: term, changes: [{{at: 2026-10-05T00:00:00Z, gpus: 3}}]"),
        "contracts[0].changes",
        "it is that of the whole term",
    ),
    (
        row(
            f"id: o, kind: owned, gpus: 8, upfront: 9, spread: term, {TERM}, "
            "changes: [{at: 2026-10-05T00:00:00Z, end: 2026-12-01T00:00:00Z}]"
        ),
        "contracts[0].spread",
        "would change months that are over",
    ),
]


@pytest.mark.parametrize(("text", "key", "says"), WRONG, ids=lambda part: str(part)[-40:])
def test_a_wrong_file_says_what_to_change(text: str, key: str, says: str) -> None:
    found = refusal(text)
    assert found.field == key
    assert says in str(found)
    assert str(found).startswith("contracts.yaml:")


def test_an_owner_that_does_not_exist_is_named_with_its_line() -> None:
    found = refusal(row(GOOD, other(f"owner: sales, order: 1, {TERM}").replace("2026", "2027")))
    assert str(found) == (
        "contracts.yaml:5: contracts[1].owner: 'sales' is not allowed; "
        "allowed: shared, or a team: language, speech, vision"
    )


OVERLAPS = [
    ("", ""),
    ("order: 1, ", ""),
    ("order: 3, ", "order: 3, "),
    ("scope: {models: [H100, L40S]}, ", "scope: {clusters: [prod], models: [L40S]}, "),
]


@pytest.mark.parametrize(("one", "two"), OVERLAPS)
def test_contracts_that_cover_the_same_use_need_an_order(one: str, two: str) -> None:
    found = refusal(row(other(f"{one}{TERM}"), other(f"{two}{TERM}", "t")))
    assert found.field == "contracts[1].order"
    assert "t in contracts[1] and s in contracts[0] cover the same use at the same time" in str(found)
    assert "order in both, two different numbers" in str(found)


APART = [
    ("order: 2, ", "order: 1, "),
    ("scope: {clusters: [prod]}, ", "scope: {clusters: [test]}, "),
    ("scope: {models: [H100]}, ", "scope: {clusters: [test], models: [L40S]}, "),
    ("scope: {capacity_types: [spot]}, ", ""),
    ("planned: true, ", ""),
]


@pytest.mark.parametrize(("one", "two"), APART)
def test_contracts_that_cannot_meet_need_none(one: str, two: str) -> None:
    assert len(book_of(other(f"{one}{TERM}"), other(f"{two}{TERM}", "t")).file.contracts) == 2


def test_one_that_follows_another_needs_no_order() -> None:
    november = TERM.replace("2026-11-01", "2026-12-01").replace("2026-10-01", "2026-11-01")
    assert len(book_of(other(TERM), other(november, "t")).in_force) == 2


def test_a_change_of_the_end_makes_them_overlap() -> None:
    november = TERM.replace("2026-11-01", "2026-12-01").replace("2026-10-01", "2026-11-01")
    longer = "changes: [{at: 2026-10-05T00:00:00Z, end: 2026-11-02T00:00:00Z}], "
    assert refusal(row(other(longer + TERM), other(november, "t"))).field == "contracts[1].order"


def test_accounts_are_the_clusters_and_pools_that_they_pay_for() -> None:
    head = (
        f"{HEAD}accounts: [{{name: a1, clusters: [prod], pools: [p5]}}, "
        "{name: a2, clusters: [prod], pools: [p4]}]\n"
    )
    one, two = "scope: {accounts: [a1]}, ", "scope: {accounts: [a2]}, "
    assert len(book_of(other(one + TERM), other(two + TERM, "t"), head=head).file.contracts) == 2
    both = "scope: {accounts: [a1, a2]}, "
    assert refusal(row(other(one + TERM), other(both + TERM, "t"), head=head)).field == "contracts[1].order"


def test_the_example_of_the_page_is_valid_and_every_key_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs" / "contracts.md").read_text("utf-8")
    [example] = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    book = ContractBook.parse(example, "docs/contracts.md", TEAMS)
    assert {terms.kind for terms in book.file.contracts} >= {"savings_plan", "reservation", "owned", "spot"}
    rows = "".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", rows)) == set(ContractTerms.model_fields)
