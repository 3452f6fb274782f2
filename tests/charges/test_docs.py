"""The page of charges: its policies load, and it names every key and every kind of charge."""

from __future__ import annotations

import re
from pathlib import Path

from gpucost.charges.cell_charges import ChargeKind
from gpucost.charges.policy_file import (
    ChargePolicy,
    ExchangeRate,
    PolicyBook,
    PolicyFile,
    PoolQuota,
    QuotaCohort,
    SpreadRule,
    TeamLimit,
)
from gpucost.charges.quota_history import QueueReservation
from gpucost.reports.charges.charge_statements import CHARGE_WORDS

PAGE = (Path(__file__).parents[2] / "docs" / "charges.md").read_text("utf-8")


def test_the_policies_of_the_page_load() -> None:
    examples = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(examples) == 2
    plain, lending = (PolicyBook.parse(text, "page.yaml") for text in examples)
    assert plain.file.policies == ()
    assert [each.team for each in lending.file.quotas] == ["vision", "language"]


def test_every_key_and_value_is_on_the_page() -> None:
    models = (PolicyFile, ChargePolicy, PoolQuota, QuotaCohort, QueueReservation, ExchangeRate, TeamLimit)
    keys = {field.alias or name for model in models for name, field in model.model_fields.items()}
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert keys - named == set()
    assert {rule.value for rule in SpreadRule} - named == set()


def test_every_kind_of_charge_is_on_the_page() -> None:
    assert set(CHARGE_WORDS) == set(ChargeKind)
    table = PAGE.partition("**Money.**")[2]
    assert [words for words in CHARGE_WORDS.values() if words.partition(":")[0] not in table] == []
