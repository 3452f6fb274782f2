"""What a policy file may not say: refused with file, line, key, value and what is allowed."""

from __future__ import annotations

import pytest

from gpucost.charges.policy_file import PolicyBook
from gpucost.domain.errors import ConfigError
from gpucost.domain.time import Month
from tests.charges.worlds import book

QUOTA = "quotas: [{team: ads, model: H100, gpus: 4}]"
RESERVED = "{queue: q, model: L4, gpus: 1, cluster: c"
OCTOBER = Month(2026, 10).window


@pytest.mark.parametrize(
    ("text", "key", "value", "allowed"),
    [
        ("policies: [{base: usage}]", "policies[0].base", "usage", "use, nominal, larger or two_part"),
        ("policies: [{bse: use}]", "policies[0].bse", "unknown key", "base (did you mean this?)"),
        ("policies: [{borrowed_factor: -1}]", "policies[0].borrowed_factor", -1, "at least 0"),
        ("policies: [{mark_up: 101}]", "policies[0].mark_up", 101, "at most 100"),
        ("policies: [{base: two_part}]", "policies[0].fixed_part", "missing", "given with base two_part"),
        ("policies: [{fixed_part: 0.5}]", "policies[0].fixed_part", "given", "only there"),
        (
            f"policies: [{{base: nominal, idle_of_quota: platform}}]\n{QUOTA}",
            "policies[0].idle_of_quota", "platform", "owners pay their quota",
        ),
        (
            f"policies: [{{lent_credit: 0.5}}]\n{QUOTA}",
            "policies[0].lent_credit", "0.5", "nobody pays for the quota",
        ),
        (
            f"policies: [{{base: larger, borrowed_factor: 0.5, lent_credit: 0.6}}]\n{QUOTA}",
            "policies[0].lent_credit", "0.6", "at most 0.5: of a lent GPU-hour borrowers pay 0.5",
        ),
        ("policies: [{unknown: equally}]", "policies[0].unknown", "equally", "with access"),
        ("policies: [{overhead: by_use}]", "policies[0].overhead", "by_use", "overhead_teams"),
        ("policies: [{access: [ads, ads]}]", "policies[0].access[1]", "ads", "each name once"),
        ("policies: [{}, {}]", "policies[1]", "the same cluster and time", "one policy for a cluster"),
        ("policies: [{base: nominal}]", "policies[0].base", "nominal", "with quotas"),
        ("policies: [{idle_of_quota: owner}]", "policies[0].idle_of_quota", "owner", "with quotas"),
        ("policies: [{unknown: by_quota}]", "policies[0].unknown", "by_quota", "with quotas"),
        (
            "quotas: [{team: a, model: L4, gpus: 1}, {team: a, model: L4, gpus: 2, cluster: b}]",
            "quotas[1]", "the same quota and time", "at a time",
        ),
        (
            f"reservations: [{RESERVED}, valid_from: 2026-10-02}}, {RESERVED}, valid_from: 2026-09-05, "
            f"valid_to: 2026-09-06}}, {RESERVED}, valid_from: 2026-10-05}}]",
            "reservations[2]", "the same queue and time as reservations[0]", "one reservation of a queue",
        ),
        (
            "reservations: [{queue: q, model: L4, gpus: 1}]",
            "reservations[0].cluster", "missing", "the cluster",
        ),
        ("quotas: [{model: L4, gpus: 1}]", "quotas[0].team", "missing", "the team that pays"),
        ("quotas: [{model: L4, gpus: 1, shared: true}]", "quotas[0].cohort", "missing", "the cohort"),
        (
            "quotas: [{model: L4, gpus: 1, shared: true, cohort: c, queue: q}]",
            "quotas[0].queue", "q", "the quota is of the cohort itself",
        ),
        (
            "policies: [{discounts: [{percent: 5}]}]",
            "policies[0].discounts[0].capacity_type", "missing", "exactly one of",
        ),
        (
            "policies: [{discounts: [{percent: 5, queue: q, capacity_type: spot}]}]",
            "policies[0].discounts[0].capacity_type", "so is queue", "exactly one of",
        ),
        (
            "policies: [{discounts: [{queue: q, percent: 5}, {queue: [p, q], percent: 6}]}]",
            "policies[0].discounts[1].queue", "q", "each queue once",
        ),
        ("quotas_file: more.yaml", "quotas_file", "more.yaml", "no other file is read here"),
        ("cohorts: [{name: a, parent: b}, {name: b, parent: a}]", "cohorts[0].parent", "b", "a tree"),
        ("limits: [{team: a, floor: 2, cap: 1}]", "limits[0].cap", "1", "at least the floor, 2"),
        ("limits: [{team: a}]", "limits[0].floor", "missing", "a floor, a cap or both"),
        ("rates: [{from: USD, rate: 2}]", "currency", "missing", "the currency of the charges"),
        ("currency: EUR\nrates: [{from: USD, rate: 0}]", "rates[0].rate", "0", "above 0"),
    ],
)  # fmt: skip
def test_refused(text: str, key: str, value: object, allowed: str) -> None:
    with pytest.raises(ConfigError) as refused:
        book(text)
    assert refused.value.field == key
    assert str(value) in str(refused.value)
    assert allowed in refused.value.allowed
    assert str(refused.value).startswith("policy.yaml")


def test_policies_of_one_cluster_and_of_all_others_do_not_clash() -> None:
    both = book("policies: [{clusters: [lab], mark_up: 1}, {mark_up: 2}]")
    assert both.rule_at("lab", 0).mark_up == 10**9
    assert both.rule_at("prod", 0).mark_up == 2 * 10**9


def test_a_month_without_a_rate_for_all_of_it_is_refused() -> None:
    text = "currency: EUR\nrates: [{from: USD, rate: 0.9, valid_to: 2026-10-20}]"
    with pytest.raises(ConfigError, match="none holds at 2026-10-20T00:00:00Z"):
        book(text).currency_of("USD", OCTOBER)
    assert (
        book(f"{text[:-1]}, {{from: USD, rate: 1, valid_from: 2026-10-20}}]").currency_of("USD", OCTOBER)
        == "EUR"
    )
    assert book(text).currency_of("EUR", OCTOBER) == "EUR"
    with pytest.raises(ConfigError, match="from JPY to EUR"):
        book(text).currency_of("JPY", OCTOBER)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (QUOTA, "quotas[0].team"),
        ("limits: [{team: ads, cap: 1}]", "limits[0].team"),
        ("policies: [{access: [bio, ads]}]", "policies[0].access[1]"),
        ("policies: [{overhead_teams: [ads]}]", "policies[0].overhead_teams[0]"),
    ],
)
def test_a_team_that_nobody_knows_is_refused(text: str, key: str) -> None:
    found: PolicyBook = book(text)
    found.check_teams({"ads", "bio"})
    with pytest.raises(ConfigError) as refused:
        found.check_teams({"bio"})
    assert (refused.value.field, refused.value.value) == (key, "ads")


def beside(more: str):  # type: ignore[no-untyped-def]
    return lambda name: (f"version: 1\n{more}", f"there/{name}")


def test_quotas_of_a_file_beside_it_are_as_if_they_were_written() -> None:
    more = "quotas: [{team: bio, model: H100, gpus: 2, cohort: c}]\ncohorts: [{name: c, parent: d}]"
    text = f"version: 1\nname: a\npolicies: [{{idle_of_quota: owner}}]\n{QUOTA}\nquotas_file: q.yaml"
    joined = PolicyBook.parse(text, "policy.yaml", beside=beside(more))
    assert [each.team for each in joined.file.quotas] == ["ads", "bio"]
    assert joined.cohorts["c"].parent == "d"


@pytest.mark.parametrize(
    ("more", "file", "key"),
    [
        (
            "quotas: [{team: bio, model: L4, gpus: 1}, {team: ads, model: H100, gpus: 1}]",
            "there/q",
            "quotas[1]",
        ),
        ("cohorts: [{name: d}, {name: c}]", "there/q", "cohorts[1].name"),
        ("limits: []", "there/q", "limits"),
        ("cohorts: [{name: p, parent: c}]", "policy", "cohorts[0].parent"),
    ],
)
def test_what_two_files_say_must_fit(more: str, file: str, key: str) -> None:
    text = f"version: 1\nname: a\n{QUOTA}\ncohorts: [{{name: c, parent: p}}]\nquotas_file: q.yaml"
    with pytest.raises(ConfigError) as refused:
        PolicyBook.parse(text, "policy.yaml", beside=beside(more))
    assert (refused.value.field, str(refused.value).startswith(f"{file}.yaml")) == (key, True), refused.value
