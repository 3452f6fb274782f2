"""Charges by hand: every amount here is worked out in the test's docstring, at two dollars a GPU-hour."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gpucost.charges.capacity_cells import CapacityCell
from gpucost.charges.charge_account import ChargeAccount, charges
from gpucost.charges.quota_balance import balance
from gpucost.domain.buckets import Bucket
from gpucost.domain.money import NANO
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Window, iso
from tests.charges.worlds import START_MS, book, cell, free, held, row

PLATFORM = "__platform__"
QUOTAS = """
quotas:
  - {team: ads, model: H100, gpus: 6, cohort: all}
  - {team: bio, model: H100, gpus: 2, cohort: all}
"""


def lines(found: ChargeAccount) -> dict[tuple[str, str], tuple[Fraction, Fraction]]:
    """GPU-hours and dollars by team and kind; the platform only where it keeps something."""
    assert (found.difference.board_ms, found.difference.nano) == (0, 0)
    return {
        (team, kind.value): (Fraction(each.board_ms, HOUR_MS), Fraction(each.nano, NANO))
        for team, kinds in found.by_team().items()
        for kind, each in kinds.items()
        if each.board_ms or each.nano
    }


def charged(text: str, *rows: object, weights: dict[str, Fraction] | None = None):  # type: ignore[no-untyped-def]
    return lines(charges([cell(*rows)], book(text, weights), "USD"))  # type: ignore[arg-type]


def test_the_plain_policy_charges_use_and_keeps_the_rest() -> None:
    """3 GPU-hours of ads cost 6, 5 idle ones 10, one unavailable 2."""
    found = charged("", held("ads", 3), free(5), row(Bucket.UNAVAILABLE, 1))
    assert found == {
        ("ads", "used"): (3, 6),
        (PLATFORM, "nobodys_idle"): (5, 10),
        (PLATFORM, "unavailable"): (1, 2),
    }


def test_slurms_rule_for_a_reservation() -> None:
    """A reservation of R = 10 GPUs for H = 1 hour, of which U = 4 GPU-hours were used, and k = 3 accounts:
    each bears (R x H - U) / k = 2 GPU-hours, also the account that used nothing."""
    policy = "policies: [{idle_of_nobody: equally, access: [ads, bio, chem]}]"
    found = charged(policy, held("ads", 3), held("bio", 1), free(6))
    assert {team: found[team, "nobodys_idle"] for team in ("ads", "bio", "chem")} == dict.fromkeys(
        ("ads", "bio", "chem"), ((10 * 1 - 4) // 3, 4)
    )
    assert found["ads", "used"] == (3, 6)
    assert not [key for key in found if key[0] == PLATFORM]


def test_borrowed_quota_is_lent_by_its_owner() -> None:
    """ads has 6 and uses 1, bio has 2 and uses 5: bio borrows 3, all lent by ads, of whose quota 2 stand
    idle.

    By default a lent GPU-hour is paid once: bio pays 6 for it, ads pays 6 and gets 6 back.
    """
    found = charged(f"policies: [{{idle_of_quota: owner}}]{QUOTAS}", held("ads", 1), held("bio", 5), free(2))
    assert found == {
        ("ads", "used"): (1, 2),
        ("ads", "reserved_idle"): (2, 4),
        ("ads", "quota_lent"): (3, 6),
        ("ads", "lent_credit"): (-3, -6),
        ("bio", "used"): (2, 4),
        ("bio", "borrowed"): (3, 6),
    }


def test_a_credit_below_what_borrowers_pay_is_earned_by_the_platform() -> None:
    """Twenty idle reserved GPUs of which others use eleven, at 3 dollars an hour for a day: the owner pays 20
    x 24 x 3 = 1,440 for them, and two thirds of the price of the lent ones come back: 11 x 24 x 2 = 528."""
    text = """
policies: [{idle_of_quota: owner, lent_credit: 0.666666667}]
quotas:
  - {team: ads, model: H100, gpus: 20, cohort: all}
  - {team: bio, model: H100, gpus: 0, cohort: all}
"""
    three = {"price": 3 * NANO}
    hour = cell(row(Bucket.HELD, 11, team="bio", job="j", **three), row(Bucket.UNALLOCATED, 9, **three))
    day = [
        CapacityCell.of(
            hour.cluster,
            hour.model,
            type(hour.window)(START_MS + n * HOUR_MS, START_MS + (n + 1) * HOUR_MS),
            [
                type(each)(
                    each.bucket, each.team, each.queue, each.namespace, each.job, each.job_uid,
                    each.capacity_type, each.first_ms + n * HOUR_MS, each.last_ms + n * HOUR_MS,
                    each.board_ms, each.nano,
                )
                for each in hour.rows
            ],
        )
        for n in range(24)
    ]  # fmt: skip
    found = lines(charges(day, book(text), "USD"))
    assert found["ads", "quota_lent"][1] + found["ads", "reserved_idle"][1] == 1_440
    assert round(found["ads", "lent_credit"][1], 2) == -528
    assert found["bio", "borrowed"] == (264, 792)
    assert round(found[PLATFORM, "quota_lent"][1], 2) == 528 - 792


@pytest.mark.parametrize(
    ("policy", "ads", "bio", "kept"),
    [
        ("base: use", 2, 10, 4),
        ("base: nominal", 12, 4, 0),
        ("base: nominal, borrowed_factor: 1", 12 - 6, 10, 0),
        ("base: larger", 12 - 6, 10, 0),
        ("base: larger, lent_credit: 0", 12, 10, -6),
        # Half of the price on quota: ads 1/2 x 12 + 1/2 x 2, bio 1/2 x 4 + 1/2 x 10.
        ("base: two_part, fixed_part: 0.5", 7, 7, 2),
        ("base: use, borrowed_factor: 0.5", 2, 7, 7),
        ("base: use, mark_up: 10", Fraction(22, 10), 11, Fraction(28, 10)),
        ("base: use, overhead_teams: [ads]", 0, 10, 6),
        ("base: use, overhead_teams: [ads], overhead: by_use", 0, 12, 4),
        ("base: use, idle_of_nobody: by_quota", 2, 10, 4),
    ],
)
def test_bases_and_factors(policy: str, ads: Fraction, bio: Fraction, kept: Fraction) -> None:
    """ads has 6 and uses 1, bio has 2 and uses 5, 2 GPUs are idle: 16 dollars. By use 2 and 10; by quota 12
    and 4. Nothing is idle that is in no quota."""
    found = charged(f"policies: [{{{policy}}}]{QUOTAS}", held("ads", 1), held("bio", 5), free(2))
    sums = {
        team: sum(cost for (of, _), (_, cost) in found.items() if of == team)
        for team in ("ads", "bio", PLATFORM)
    }
    assert sums == {"ads": ads, "bio": bio, PLATFORM: kept}
    assert sum(sums.values()) == 16


def test_more_quota_than_there_is_never_exceeds_the_invoice() -> None:
    """Quota of 8 on 4 GPUs, of which one is broken: 3 GPUs are there, dealt 6 : 2, at 2 dollars."""
    found = charged(
        f"policies: [{{base: nominal}}]{QUOTAS}", held("ads", 1), free(2), row(Bucket.UNAVAILABLE, 1)
    )
    own = {team: sum(cost for (of, _), (_, cost) in found.items() if of == team) for team in ("ads", "bio")}
    assert own == {"ads": Fraction(9, 2), "bio": Fraction(3, 2)}
    assert found[PLATFORM, "unavailable"] == (1, 2)


def test_quota_changes_at_its_millisecond() -> None:
    """4 GPUs until 00:34:56.789, then 1: 4 x 2,096,789 + 1 x 1,503,211 ms of quota, none of it used."""
    text = """
policies: [{base: nominal}]
quotas:
  - {team: ads, model: H100, gpus: 4, valid_to: "2026-10-01T00:34:56.789Z"}
  - {team: ads, model: H100, gpus: 1, valid_from: "2026-10-01T00:34:56.789Z"}
"""
    found = charges([cell(free(4))], book(text), "USD")
    idle = found.by_team()["ads"]
    assert {kind.value: each.board_ms for kind, each in idle.items()} == {
        "reserved_idle": 4 * 2_096_789 + 1_503_211
    }
    assert found.difference.nano == 0


def test_a_policy_that_changes_inside_a_window_holds_to_its_instant() -> None:
    """By use until 00:15, then idle time is spread: a quarter of the 10 dollars is kept."""
    text = """
policies:
  - {valid_to: "2026-10-01T00:15:00Z"}
  - {valid_from: "2026-10-01T00:15:00Z", idle_of_nobody: by_use}
"""
    found = charged(text, held("ads", 3), free(5))
    assert found == {
        ("ads", "used"): (3, 6),
        ("ads", "nobodys_idle"): (Fraction(15, 4), Fraction(15, 2)),
        (PLATFORM, "nobodys_idle"): (Fraction(5, 4), Fraction(5, 2)),
    }


def test_use_is_within_the_quota_moment_by_moment() -> None:
    """bio has 2: 4 GPUs for half an hour are 2 GPU-hours, as much as its quota, and half is borrowed."""
    found = charged(
        f"policies: [{{idle_of_quota: owner}}]{QUOTAS}",
        held("bio", 4, 0, 30),
        free(4, 0, 30),
        free(8, 30, 60),
    )
    assert (found["bio", "used"], found["bio", "borrowed"]) == ((1, 2), (1, 2))
    assert found["bio", "reserved_idle"] == (1, 2)
    assert found["ads", "quota_lent"] == (1, 2)


def test_lending_limits_and_cohorts_above() -> None:
    """chem borrows 6. Its own cohort has bio with 1 idle; above, ads may lend 2 of 8: 3 are lent, and 3 come
    from capacity in nobody's quota."""
    text = """
policies: [{idle_of_quota: owner}]
quotas:
  - {team: ads, model: H100, gpus: 8, cohort: left, lending_limit: 2}
  - {team: bio, model: H100, gpus: 1, cohort: right}
  - {team: chem, model: H100, gpus: 0, cohort: right}
cohorts:
  - {name: left, parent: root}
  - {name: right, parent: root}
"""
    found = charged(text, held("chem", 6), free(6))
    assert found["bio", "quota_lent"] == (1, 2)
    assert found["ads", "quota_lent"] == (2, 4)
    assert found["ads", "reserved_idle"] == (6, 12)
    assert not [key for key in found if key[1] == "nobodys_idle"]


def test_discounts_floors_caps_and_another_currency() -> None:
    """At 0.5 euros a dollar: ads 3 euros, less 20 % of the 1 on spot = 2.80, raised to 4; bio 5, cut to 1."""
    text = """
currency: EUR
rates: [{from: USD, rate: 0.5}]
policies: [{discounts: [{capacity_type: spot, percent: 20}]}]
limits:
  - {team: ads, floor: 4}
  - {team: bio, cap: 1}
"""
    found = charges(
        [cell(held("ads", 2), held("ads", 1, capacity_type="spot"), held("bio", 5))], book(text), "USD"
    )
    assert found.currency == "EUR"
    assert lines(found) == {
        ("ads", "used"): (3, 3),
        ("ads", "discount"): (0, Fraction(-1, 5)),
        ("ads", "floor"): (0, Fraction(6, 5)),
        ("bio", "used"): (5, 5),
        ("bio", "cap"): (0, -4),
        (PLATFORM, "discount"): (0, Fraction(1, 5)),
        (PLATFORM, "floor"): (0, Fraction(-6, 5)),
        (PLATFORM, "cap"): (0, 4),
    }


def test_quotas_of_the_team_rules_weigh_idle_time() -> None:
    """Idle time of 8 GPU-hours by quotas of 3 and 1 that nobody pays for: 6 and 2."""
    found = charged(
        "policies: [{idle_of_nobody: by_quota}]",
        held("ads", 1),
        free(8),
        weights={"ads": Fraction(3), "bio": Fraction(1)},
    )
    assert found["ads", "nobodys_idle"] == (6, 12)
    assert found["bio", "nobodys_idle"] == (2, 4)


def test_time_without_a_price_is_counted_and_in_no_amount() -> None:
    one = row(Bucket.HELD, 1, team="ads", job="j")
    unpriced = one._replace(nano=0, unpriced_ms=one.board_ms)
    found = charges([cell(unpriced, free(1))], book(""), "USD")
    assert (found.unpriced_ms, found.capacity.nano) == (HOUR_MS, 2 * NANO)
    assert lines(found)["ads", "used"] == (1, 0)


def test_the_deepest_cohort_lends_first() -> None:
    """chem and bio in inner, dev and ads in outer above it. chem borrows 3, of which bio lends 1; its other 2
    compete with dev's 4 for the 3 that ads has: 1 and 2. The rest, 3, is lent by nobody's quota."""
    text = """
policies: [{idle_of_quota: owner}]
quotas:
  - {team: ads, model: H100, gpus: 3, cohort: outer}
  - {team: dev, model: H100, gpus: 0, cohort: outer}
  - {team: bio, model: H100, gpus: 1, cohort: inner}
  - {team: chem, model: H100, gpus: 0, cohort: inner}
cohorts: [{name: inner, parent: outer}]
"""
    policies, hour = book(text), cell(held("chem", 3), held("dev", 4), free(4))
    quotas = policies.quotas_of(hour.cluster, hour.model, hour.window)
    found = {each.quota.team: each for each in balance(hour, quotas, policies.cohorts).accounts}
    assert {team: each.lent // HOUR_MS for team, each in found.items()} == {
        "ads": 3,
        "dev": 0,
        "bio": 1,
        "chem": 0,
    }
    assert {team: found[team].from_nobody // HOUR_MS for team in ("chem", "dev")} == {"chem": 1, "dev": 2}


def test_idle_time_spread_over_a_month_goes_by_the_use_of_the_month() -> None:
    """ads runs 2 GPUs in the first hour beside 2 idle ones, bio 1 GPU in the second beside 4: 6 idle
    GPU-hours, 12 dollars, go 2 : 1 by the month, and 4 and 8 dollars by the hour."""
    later = Window(START_MS + HOUR_MS, START_MS + 2 * HOUR_MS)
    cells = [
        cell(held("ads", 2), free(2)),
        cell(
            row(Bucket.HELD, 1, team="bio", job="j", window=later),
            row(Bucket.UNALLOCATED, 4, window=later),
            window=later,
        ),
    ]
    for span, dollars in (("hour", (4, 8)), ("month", (8, 4))):
        text = f"policies: [{{idle_of_nobody: by_use, spread_over: {span}}}]"
        account = charges(cells, book(text), "USD")
        found = lines(account)
        assert tuple(found[team, "nobodys_idle"][1] for team in ("ads", "bio")) == dollars
        # 2 of 3 GPU-hours of use by the month; by the hour, each alone in its own.
        (_, use), *_ = account.spreads
        assert (use.parts, use.amount.board_ms // HOUR_MS) == ({"hour": 2, "month": 1}[span], 6)
        weights = {team: share.weight_ms // HOUR_MS for team, share in use.teams.items()}
        assert (weights, use.weight_ms // HOUR_MS) == ({"ads": 2, "bio": 1}, 3)


def test_quotas_say_what_was_asked_for_and_what_no_quota_lent() -> None:
    """ads asks for 12 and bio for 4 of 8 GPUs that are there: 6 and 2. ads uses 1, bio 4, chem, which has no
    quota, 3: bio borrows 2, all lent by ads; the 3 of chem are in no quota, and ads has them idle: taken."""
    quotas = QUOTAS.replace("gpus: 6", "gpus: 12").replace("gpus: 2", "gpus: 4")
    account = charges([cell(held("ads", 1), held("bio", 4), held("chem", 3))], book(quotas), "USD")
    names = ("asked", "nominal", "used", "idle", "lent", "borrowed", "taken", "unlent")
    assert {
        key.team: tuple(getattr(use, f"{name}_board_ms") // HOUR_MS for name in names)
        for key, use in account.quotas
    } == {"ads": (12, 6, 1, 0, 5, 0, 3, 0), "bio": (4, 2, 2, 0, 0, 2, 0, 0)}


def test_quota_of_a_cohort_is_lent_to_its_members_and_its_rest_is_nobodys() -> None:
    """bio has 1 and holds 3, so 2 of the cohort's own 4 are lent; the other 2 are in nobody's quota, as is
    the GPU beyond all quotas. With a team, that team pays 4 x 2 = 8 dollars and gets 4 back; what it holds
    itself does not count against the cohort's quota."""
    text = """
policies: [{idle_of_quota: owner}]
quotas:
  - {team: bio, model: H100, gpus: 1, cohort: all}
  - {shared: true, model: H100, gpus: 4, cohort: all}
"""
    rows = held("bio", 3), free(3)
    found = charged(text, *rows)
    assert found == {
        ("bio", "used"): (1, 2),
        ("bio", "borrowed"): (2, 4),
        (PLATFORM, "nobodys_idle"): (3, 6),
    }
    paid = charged(
        text.replace("shared: true", "shared: true, team: ads"), *rows[:1], held("ads", 1), free(2)
    )
    assert paid == {
        ("ads", "borrowed"): (1, 2),
        ("ads", "reserved_idle"): (2, 4),
        ("ads", "quota_lent"): (2, 4),
        ("ads", "lent_credit"): (-2, -4),
        ("bio", "used"): (1, 2),
        ("bio", "borrowed"): (2, 4),
    }


def test_the_lending_limit_of_a_cohorts_quota_is_of_all_that_leaves_it() -> None:
    """chem, in right, borrows 6. left has 4 of its own and ads' 8 idle, of which 3 leave it together."""
    text = """
policies: [{idle_of_quota: owner}]
quotas:
  - {team: ads, model: H100, gpus: 8, cohort: left}
  - {team: dev, shared: true, model: H100, gpus: 4, cohort: left, lending_limit: 3}
  - {team: chem, model: H100, gpus: 0, cohort: right}
cohorts:
  - {name: left, parent: root}
  - {name: right, parent: root}
"""
    found = charged(text, held("chem", 6), free(9))
    assert (found["ads", "quota_lent"], found["dev", "quota_lent"]) == ((2, 4), (1, 2))
    assert (found["ads", "reserved_idle"], found["dev", "reserved_idle"]) == ((6, 12), (3, 6))
    assert found["chem", "borrowed"] == (6, 12)


def test_of_two_discounts_the_larger_one_holds() -> None:
    """20 % off on spot, 50 % off in the queue batch: 2 dollars there are 1 each, on spot in or outside of it
    1 and 1.60, and elsewhere 2."""
    text = "policies: [{discounts: [{capacity_type: spot, percent: 20}, {queue: [batch, low], percent: 50}]}]"
    found = charged(
        text,
        held("ads", 1, queue="batch"),
        held("bio", 1, queue="batch", capacity_type="spot"),
        held("chem", 1, queue="prod", capacity_type="spot"),
        held("dev", 1, queue="prod"),
    )
    off = {team: amounts[1] for (team, kind), amounts in found.items() if kind == "discount"}
    assert off == {"ads": -1, "bio": -1, "chem": Fraction(-2, 5), PLATFORM: Fraction(12, 5)}


RESERVED = """
quotas: [{team: ads, model: H100, gpus: 8, queue: ads-q, cohort: all}]
reservations:
"""


def reserved(first_min: int, last_min: int, gpus: int, queue: str = "ads-q") -> str:
    at = [iso(START_MS + minute * MINUTE_MS) for minute in (first_min, last_min)]
    dates = f'valid_from: "{at[0]}", valid_to: "{at[1]}"'
    return f"  - {{cluster: prod, queue: {queue}, model: H100, gpus: {gpus}, {dates}}}\n"


def test_quota_reserved_for_work_that_does_not_run_is_a_line_of_its_own() -> None:
    """ads has 8, of which Kueue reserved 6; pods hold 4 for half an hour, then 6. Of (4 + 2) / 2 = 3 idle
    GPU-hours 2 / 2 = 1 was reserved. Its owner pays 2 dollars for it, or the platform does."""
    rows = (
        held("ads", 4, queue="ads-q"),
        held("ads", 2, 30, 60, queue="ads-q"),
        free(4, 0, 30),
        free(2, 30, 60),
    )
    text = RESERVED + reserved(0, 60, 6)
    for payer, policy in (("ads", "owner"), (PLATFORM, "platform")):
        found = charged(f"policies: [{{idle_of_quota: {policy}}}]{text}", *rows)
        assert found == {
            ("ads", "used"): (5, 10),
            (payer, "admitted_not_running"): (1, 2),
            (payer, "reserved_idle"): (2, 4),
        }
    half = charged(f"policies: [{{base: two_part, fixed_part: 0.5}}]{text}", *rows)
    assert half["ads", "admitted_not_running"] == (1, 1)
    assert half[PLATFORM, "admitted_not_running"] == (0, 1)
    more = charged(f"policies: [{{idle_of_quota: owner, mark_up: 10}}]{text}", *rows)
    assert more["ads", "mark_up"] == (0, Fraction(16, 10))


def test_what_others_hold_is_lent_though_it_was_reserved() -> None:
    """Of the 8 of ads 4 are held and 3 lent to bio: 1 is idle, and 6 - 4 = 2 were reserved: that 1. Without
    the loan 2 of 4 would be."""
    text = f"policies: [{{idle_of_quota: owner}}]{RESERVED}{reserved(0, 60, 6)}"
    text = text.replace("quotas: [", "quotas: [{team: bio, model: H100, gpus: 0, cohort: all}, ")
    found = charged(text, held("ads", 4, queue="ads-q"), held("bio", 3), free(1))
    assert found == {
        ("ads", "used"): (4, 8),
        ("ads", "admitted_not_running"): (1, 2),
        ("ads", "quota_lent"): (3, 6),
        ("ads", "lent_credit"): (-3, -6),
        ("bio", "borrowed"): (3, 6),
    }
    alone = charged(text, held("ads", 4, queue="ads-q"), free(4))
    assert (alone["ads", "admitted_not_running"], alone["ads", "reserved_idle"]) == ((2, 4), (2, 4))


def test_a_reservation_holds_to_its_minute_for_its_queue_and_up_to_the_quota() -> None:
    """6 for 15 minutes, 12 for 30, nothing for 15: beyond the 4 that are held 2 / 4 and, of the 4 idle ones,
    4 / 2 GPU-hours. One of another queue, or of a time before, is nothing."""
    text = f"policies: [{{idle_of_quota: owner}}]{RESERVED}"
    text += reserved(15, 45, 12) + reserved(0, 15, 6) + reserved(-60, 0, 9) + reserved(0, 60, 9, "bio-q")
    found = charged(text, held("ads", 4, queue="ads-q"), free(4))
    assert found["ads", "admitted_not_running"] == (Fraction(5, 2), 5)
    assert found["ads", "reserved_idle"] == (Fraction(3, 2), 3)


def test_pods_past_all_quotas_take_what_was_not_reserved_first() -> None:
    """8 GPUs: ads has all of them in its quota, holds 4 and lends nothing. chem, in no quota, holds 3: 1 is
    left idle, and was reserved."""
    text = f"policies: [{{idle_of_quota: owner}}]{RESERVED}{reserved(0, 60, 6)}".replace(", cohort: all", "")
    found = charged(text, held("ads", 4, queue="ads-q"), held("chem", 3), free(1))
    assert found["ads", "admitted_not_running"] == (1, 2)
    assert ("ads", "reserved_idle") not in found
