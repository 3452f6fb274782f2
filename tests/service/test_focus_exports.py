"""Months as FOCUS: they add up to the ledger, follow the rules, and say the same each time."""

from __future__ import annotations

import csv
import io
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from gpucost.charges.contract_terms import ContractBook
from gpucost.domain.errors import InputError
from gpucost.domain.money import NANO
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import HOUR_MS, Month, parse_instant
from gpucost.ledger.ledger import Ledger
from gpucost.reports.focus.charge_corrections import CorrectionStyle
from gpucost.reports.focus.exact_products import nano_of
from gpucost.reports.focus.focus_columns import (
    FocusDataset,
    FocusVersion,
    columns_of,
    known_columns,
)
from gpucost.reports.focus.focus_files import read_csv, to_csv
from gpucost.service.reporting.commitment_reporting import CommitmentReporting
from gpucost.service.reporting.focus_exports import FocusExports, FocusRequest
from tests.ledger import builders
from tests.ledger.test_ledger_waste import assess, part
from tests.support.focus_rules import breaches, rows_of
from tests.support.focus_world import (
    BEFORE,
    CONTRACTS,
    MONTH,
    RATES,
    TEAMS,
    contracts,
    focus_ledger,
    free,
    held,
)
from tests.support.ledgers import new_ledger

COSTS = FocusDataset.COST_AND_USAGE
RED = Scope(frozenset({"red"}))
_INVOICES, _WORDS = FocusDataset.INVOICE_DETAIL, "InvoiceDetailDescription"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    with focus_ledger(tmp_path_factory.mktemp("focus")) as found:
        yield found


def written(
    exports: FocusExports, request: FocusRequest, dataset: FocusDataset = COSTS, format_: str = "csv"
) -> bytes:
    target = io.BytesIO()
    exports.write(request, dataset, format_, target)
    return target.getvalue()


def nano(rows: list[dict[str, str]], name: str) -> int:
    total = sum((Decimal(row[name]) for row in rows if row[name]), Decimal())
    return int(total * NANO)


def whole(ledger: Ledger, scope: Scope = EVERYTHING) -> int:
    lines = ledger.aggregate(scope, MONTH.window, ())
    return int(lines["nano"].sum())


@pytest.mark.parametrize("contracted", [False, True])
@pytest.mark.parametrize("scope", [EVERYTHING, RED], ids=["all", "red"])
@pytest.mark.parametrize("version", FocusVersion)
def test_every_rule_holds(ledger: Ledger, version: FocusVersion, scope: Scope, contracted: bool) -> None:
    exports = FocusExports(ledger, scope, "1", contracts() if contracted else None)
    for by, grain, style in (("job", "day", "delta"), ("team", "hour", "ledger")):
        request = FocusRequest(MONTH, version, by, grain, CorrectionStyle(style))
        rows = rows_of(written(exports, request))
        assert breaches(version, COSTS, rows) == Counter()
        for dataset in FocusDataset:
            if dataset != COSTS and dataset.since <= version:
                others = rows_of(written(exports, request, dataset))
                assert breaches(version, dataset, others) == Counter()


@pytest.mark.parametrize("grain", ["hour", "day"])
@pytest.mark.parametrize("by", ["job", "team"])
def test_rows_add_up_to_the_ledger(ledger: Ledger, by: str, grain: str) -> None:
    for version, scope in ((FocusVersion.V1_2, EVERYTHING), (FocusVersion.V1_4, RED)):
        request = FocusRequest(MONTH, version, by, grain)
        content = written(FocusExports(ledger, scope, "1"), request)
        rows = [row for row in rows_of(content) if not row["ChargeClass"]]
        assert nano(rows, "EffectiveCost") == nano(rows, "BilledCost") == whole(ledger, scope)
        [*parsed] = read_csv(io.StringIO(content.decode(), newline=""), known_columns().get)
        products = [nano_of(row["ContractedCost"]) for batch in parsed for row in batch.dicts()]
        own = nano(rows_of(content), "EffectiveCost")
        assert sum(product or 0 for product in products) == own
        columns = columns_of(COSTS, version)
        assert to_csv(columns, parsed) == content


def test_rows_by_resource_give_the_origin_back(ledger: Ledger) -> None:
    rows = rows_of(written(FocusExports(ledger, EVERYTHING, "1"), FocusRequest(MONTH)))
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        if not row["ChargeClass"]:
            found[row["ResourceId"]][0] += int(Decimal(row["EffectiveCost"]) * NANO)
            found[row["ResourceId"]][1] += int(Decimal(row["ConsumedQuantity"]) * 1000)
    lines = ledger.aggregate(EVERYTHING, MONTH.window, ("cluster", "node", "model"))
    columns = (lines[name] for name in ("cluster", "node", "model", "nano", "board_ms"))
    expected = {f"{c}/{n}/{m}": [int(cost), int(ms)] for c, n, m, cost, ms in zip(*columns, strict=True)}
    assert found == expected


def test_a_job_of_two_teams_and_a_board_of_three(ledger: Ledger) -> None:
    rows = rows_of(written(FocusExports(ledger, EVERYTHING, "1"), FocusRequest(MONTH)))
    joint = [row for row in rows if row["AllocatedResourceName"].endswith("/joint")]
    teams = {json.loads(row["AllocatedTags"])["gpucost/team"] for row in joint}
    assert teams == {"red", "blue"}
    assert len({row["AllocatedResourceId"] for row in joint}) == 2
    board = [row for row in rows if row["ResourceId"] == "alpha/mig/H100" and not row["ChargeClass"]]
    assert {row["AllocatedMethodId"] for row in board} == {"mig-compute"}
    assert {row["x_Bucket"] for row in board} == {"held", "unallocated"}
    held = [row for row in board if row["AllocatedResourceId"]]
    assert {json.loads(row["AllocatedTags"])["gpucost/team"] for row in held} == {"red", "blue", "green"}
    methods = {row["ResourceId"].split("/")[1]: row["AllocatedMethodId"] for row in rows if row["x_OriginId"]}
    assert methods == {
        "whole": "whole",
        "mig": "mig-compute",
        "mig-memory": "mig-memory",
        "shared": "shared-equal",
        "dra": "dra-capacity",
        "both": "node-split",
        "a100": "whole",
    }


def test_commitments_are_used_unused_and_bought(ledger: Ledger) -> None:
    rows = rows_of(written(FocusExports(ledger, EVERYTHING, "1", contracts()), FocusRequest(MONTH)))
    report = CommitmentReporting(ledger, EVERYTHING).report(contracts(), MONTH.window)
    assert report is not None
    usage = [row for row in rows if row["ChargeCategory"] == "Usage" and not row["ChargeClass"]]
    assert nano(usage, "EffectiveCost") == report.total.effective_nano
    spent: dict[tuple[str, str], int] = defaultdict(int)
    for row in usage:
        spent[row["CommitmentDiscountId"], row["CommitmentDiscountStatus"]] += int(
            Decimal(row["EffectiveCost"]) * NANO
        )
    for each in report.contracts:
        assert spent[each.contract, "Used"] == each.used_nano + each.idle_nano
        assert spent.get((each.contract, "Unused"), 0) == each.unused_nano
    bought = {
        row["CommitmentDiscountId"]: row["BilledCost"] for row in rows if row["ChargeCategory"] == "Purchase"
    }
    assert bought == {"ri-h100": "1512.000000000", "sp-a100": "6696.000000000"}
    applied = [json.loads(row["ContractApplied"]) for row in rows if row["ContractApplied"]]
    ids = {each["Elements"][0]["ContractCommitmentId"] for each in applied}
    version = FocusVersion.V1_3
    known = rows_of(
        written(
            FocusExports(ledger, EVERYTHING, "1", contracts()),
            FocusRequest(MONTH, version),
            FocusDataset.CONTRACT_COMMITMENT,
        )
    )
    assert ids == {row["ContractCommitmentId"] for row in known}


def test_corrections_stand_in_the_month_that_was_open(ledger: Ledger) -> None:
    for style, amounts in (
        ("delta", ["-6.000000000", "6.000000000", "0.001000000"]),
        ("ledger", ["-12.000000000", "6.000000000", "6.000000000", "0.001000000"]),
    ):
        request = FocusRequest(MONTH, corrections=CorrectionStyle(style))
        rows = rows_of(written(FocusExports(ledger, EVERYTHING, "1"), request))
        found = [row for row in rows if row["ChargeClass"] == "Correction"]
        assert [row["EffectiveCost"] for row in found] == amounts
        assert {row["ChargePeriodStart"] for row in found} == {"2026-09-01T00:00:00Z"}
        assert {row["BillingPeriodStart"] for row in found} == {"2026-10-01T00:00:00Z"}
        assert found[-1]["ChargeCategory"] == "Adjustment"
    assert not [
        row
        for row in rows_of(written(FocusExports(ledger, EVERYTHING, "1"), FocusRequest(BEFORE)))
        if row["ChargeClass"]
    ]


def test_an_invoice_is_what_its_rows_add_up_to(ledger: Ledger) -> None:
    exports, request = FocusExports(ledger, EVERYTHING, "1"), FocusRequest(MONTH, FocusVersion.V1_4)
    costs, lines = (
        written(exports, request, FocusDataset(name)) for name in ("CostAndUsage", "InvoiceDetail")
    )
    billed, invoiced = Counter[str](), Counter[str]()
    for row in rows_of(costs):
        billed[row["x_InvoiceDetailId"]] += int(Decimal(row["BilledCost"]) * NANO)
    for row in rows_of(lines):
        invoiced[row["InvoiceDetailId"]] += int(Decimal(row["BilledCost"]) * NANO)
    del billed[""]
    assert billed == invoiced
    by_team = Counter[str]()
    for row in rows_of(lines):
        if not row["InvoiceDetailDescription"].startswith("Correction"):
            by_team[json.loads(row["InvoiceDetailGrain"])["x_Team"]] += int(Decimal(row["BilledCost"]) * NANO)
    held = ledger.aggregate(EVERYTHING, MONTH.window, ("team",), filters={"bucket": ("held",)})
    assert by_team == dict(zip(held["team"], held["nano"].astype(int), strict=True))
    corrected = [row for row in rows_of(lines) if row["ReferenceInvoiceId"] != row["InvoiceId"]]
    assert {row["ReferenceInvoiceId"] for row in corrected} == {"INV-2026-09-red", "INV-2026-09-blue"}
    periods = rows_of(written(exports, request, FocusDataset.BILLING_PERIOD))
    assert [row["BillingPeriodStatus"] for row in periods] == ["Closed", "Open"]


def test_a_ticket_of_two_teams_and_two_months_is_a_line_for_each(tmp_path: Path) -> None:
    """As an import of an invoice books it: one reference for all teams of a node and all its months."""
    august = BEFORE.previous()
    with focus_ledger(tmp_path, corrected=False) as ledger:
        for month in (august, BEFORE):
            window = builders.hour(0, month)
            rows = [held(window, "whole", Fraction(4), team, f"job-{team}") for team in ("red", "blue")]
            builders.ingest(ledger, window, *rows, rates=RATES)
            ledger.close_month(month, author="ada", min_coverage=Fraction(0), reason="a test")
        for month, team, nano_ in ((august, "red", 1), (august, "blue", 2), (BEFORE, "red", 4)):
            ledger.adjust(month, team, nano_ * NANO, 0, "price", "ada", "invoice alpha/whole")
        request = FocusRequest(MONTH, FocusVersion.V1_4)
        lines = rows_of(written(FocusExports(ledger, EVERYTHING, "1"), request, FocusDataset.INVOICE_DETAIL))
        corrected = [row for row in lines if row["ReferenceInvoiceId"] != row["InvoiceId"]]
        assert breaches(FocusVersion.V1_4, FocusDataset.INVOICE_DETAIL, lines) == Counter()
        assert {row["ReferenceInvoiceId"]: (row["InvoiceId"], row["BilledCost"]) for row in corrected} == {
            "INV-2026-08-red": ("INV-2026-10-red", "1.000000000"),
            "INV-2026-08-blue": ("INV-2026-10-blue", "2.000000000"),
            "INV-2026-09-red": ("INV-2026-10-red", "4.000000000"),
        }


def test_the_owner_of_a_contract_has_its_purchase_on_the_invoice(ledger: Ledger) -> None:
    owned = CONTRACTS.replace("gpus: 6,", "gpus: 6, owner: red,")
    book = ContractBook.parse(owned, "contracts.yaml", TEAMS)
    for scope, bills in ((EVERYTHING, 2), (RED, 1), (Scope(frozenset({"blue"})), 0)):
        exports, request = FocusExports(ledger, scope, "1", book), FocusRequest(MONTH, FocusVersion.V1_4)
        bought = [row for row in rows_of(written(exports, request)) if row["ChargeCategory"] == "Purchase"]
        assert len(bought) == bills
        lines = rows_of(written(exports, request, FocusDataset.INVOICE_DETAIL))
        of_purchase = [row for row in lines if row["ChargeCategory"] == "Purchase"]
        expected = [] if not bills else [("INV-2026-10-red", "1512.000000000")]
        assert [(row["InvoiceId"], row["BilledCost"]) for row in of_purchase] == expected


def test_a_payment_is_due_before_the_ledger_begins_and_not_beyond_its_end(tmp_path: Path) -> None:
    """A day of the ledger, from 5 October on; a payment of the 1st, one of each day, one of the 20th."""
    terms = """
version: 1
currency: USD
contracts:
  - {id: first, kind: reservation, start: "2026-10-01T00:00:00Z", end: "2027-10-01T00:00:00Z", gpus: 4,
     order: 1, recurring: [{amount: 7440, every: month}]}
  - {id: daily, kind: reservation, start: "2026-10-01T00:00:00Z", end: "2027-10-01T00:00:00Z", gpus: 4,
     order: 2, recurring: [{amount: 10, every: day}]}
  - {id: later, kind: reservation, start: "2026-10-20T00:00:00Z", end: "2027-10-01T00:00:00Z", gpus: 4,
     order: 3, upfront: 99}
"""
    book = ContractBook.parse(terms, "contracts.yaml", TEAMS)
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=lambda: builders.NOW_MS) as ledger:
        for number in range(4 * 24, 5 * 24):
            builders.ingest(ledger, builders.hour(number), builders.line(builders.hour(number)))

        def bought() -> dict[str, Decimal]:
            rows = rows_of(written(FocusExports(ledger, EVERYTHING, "1", book), FocusRequest(MONTH)))
            return {
                row["ResourceId"]: Decimal(row["BilledCost"])
                for row in rows
                if row["ChargeCategory"] == "Purchase"
            }

        def due() -> dict[str, Decimal]:
            report = CommitmentReporting(ledger, EVERYTHING).report(book, MONTH.window)
            assert report is not None
            return {
                each.contract: Decimal(each.due_nano) / NANO for each in report.contracts if each.due_nano
            }

        assert bought() == due() == {"first": 7440, "daily": 50}
        ledger.close_month(MONTH, author="ada", min_coverage=Fraction(0), reason="a test")
        assert bought() == due() == {"first": 7440, "daily": 310, "later": 99}


def test_what_contracts_paid_for_gpus_without_a_price_is_known(tmp_path: Path) -> None:
    """Three of four GPUs without a price are reserved; beyond four hours of another model, hours have a price
    that the contract says."""
    terms = """
version: 1
currency: USD
contracts:
  - {id: b300, kind: reservation, scope: {models: [B300]}, start: "2026-10-01T00:00:00Z",
     end: "2026-10-02T00:00:00Z", gpus: 3, upfront: 96.000000001, owner: green}
  - {id: l4, kind: neocloud, scope: {models: [L4]}, start: "2026-10-01T00:00:00Z",
     end: "2026-10-02T00:00:00Z", gpu_hours: 4, per: term, price: 0.5, overage_price: 0.7}
"""
    book = ContractBook.parse(terms, "contracts.yaml", TEAMS)
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=lambda: builders.NOW_MS) as ledger:
        for number in range(3):
            window = builders.hour(number)
            rows = [
                held(window, "b", Fraction(2 + number), "red", "train", model="B300", rate_id=""),
                free(window, "b", Fraction(1), model="B300", rate_id=""),
                held(window, "a", Fraction(2), "blue", "serve", model="L4", rate_id=""),
            ]
            rows = [row | {"unpriced_ms": row["board_ms"]} for row in rows]
            builders.ingest(ledger, window, *rows, rates=RATES)
        report = CommitmentReporting(ledger, EVERYTHING).report(book, MONTH.window)
        assert report is not None
        exports = FocusExports(ledger, EVERYTHING, "1", book)
        request = FocusRequest(MONTH, FocusVersion.V1_4, unpriced="null")
        rows = [row for row in rows_of(written(exports, request)) if row["ChargeCategory"] == "Usage"]
        assert nano(rows, "EffectiveCost") == report.total.effective_nano
        names = ("BilledCost", "EffectiveCost", "ContractedCost", "CommitmentDiscountQuantity")
        draws = {
            (row["ResourceId"][-4:], row["x_Bucket"], row["x_CommitmentDraw"]): [row[name] for name in names]
            for row in rows
        }
        assert draws == {
            ("B300", "held", "used"): ["0.000000000", "10.666666666", "", "8.0"],
            ("B300", "unallocated", "idle"): ["0.000000000", "1.333333334", "", "1.0"],
            ("B300", "held", "on_demand"): [""] * 4,
            ("B300", "unallocated", "on_demand"): [""] * 4,
            ("a/L4", "held", "used"): ["0.000000000", "2.000000000", "", "4.0"],
            ("a/L4", "held", "overage"): ["1.400000000", "1.400000000", "", ""],
        }
        applied = [row for row in rows if row["x_CommitmentDraw"] in ("used", "idle")]
        assert all(row["ContractApplied"] for row in applied)
        invoices = rows_of(written(exports, request, _INVOICES))
        assert {row["InvoiceDetailId"]: row["BilledCost"] for row in invoices} == {
            "INV-2026-10-blue/Usage/L4/": "1.400000000",
            "INV-2026-10-green/Purchase/b300/purchase": "96.000000001",
            "INV-2026-10-red/Usage/B300/": "",
        }


def _first(rows: list[dict[str, str]], **wanted: str) -> dict[str, str]:
    return next(row for row in rows if all(row[name] == value for name, value in wanted.items()))


BROKEN: list[tuple[FocusDataset, dict[str, str], str, str, str]] = [
    (COSTS, {"x_Bucket": "held"}, "AllocatedResourceId", "", "what nobody held has no AllocatedResourceId"),
    (COSTS, {"x_Bucket": "held"}, "AllocatedMethodId", "by-hand", "AllocatedMethodId is documented"),
    (COSTS, {"x_Bucket": "held"}, "AllocatedMethodId", "", "AllocatedMethodId is there on every related"),
    (COSTS, {"x_Bucket": "held"}, "AllocatedTags", '{"gpucost/cluster":"alpha"}', "repeats no key of Tags"),
    (COSTS, {"x_Bucket": "held"}, "ConsumedQuantity", "1.000", "the quantity of the method"),
    (COSTS, {"x_Bucket": "held"}, "ResourceName", "red", "ResourceName of an allocated row is the origin's"),
    (
        COSTS,
        {"x_Bucket": "held"},
        "ListUnitPrice",
        "9.0",
        "ListUnitPrice of an allocated row is the origin's",
    ),
    (COSTS, {"x_Bucket": "held"}, "PricingQuantity", "1.25", "times PricingQuantity is ContractedCost"),
    (COSTS, {"x_Bucket": "held"}, "BilledCost", "12", "does not look like an integer"),
    (COSTS, {"x_Bucket": "held"}, "ChargePeriodStart", "2026-10-01T00:00:00+02:00", "is UTC with Z"),
    (COSTS, {"x_Bucket": "held"}, "ServiceProviderName", "", "ServiceProviderName is not null"),
    (
        COSTS,
        {"CommitmentDiscountStatus": "Used"},
        "BilledCost",
        "1.0",
        "what a commitment paid is not billed",
    ),
    (COSTS, {"CommitmentDiscountStatus": "Used"}, "ContractApplied", "", "ContractApplied is there where"),
    (
        COSTS,
        {"CommitmentDiscountStatus": "Used"},
        "ContractApplied",
        '{"Elements":[{}]}',
        "a cost or a quant",
    ),
    (COSTS, {"CommitmentDiscountStatus": "Unused"}, "ResourceId", "alpha/n/H100", "unused is of no resource"),
    (COSTS, {"ChargeCategory": "Purchase"}, "EffectiveCost", "5.0", "a purchase is no cost of use"),
    (COSTS, {"ChargeCategory": "Purchase"}, "ResourceId", "", "the resource of a purchase"),
    (COSTS, {"ChargeClass": "Correction"}, "ChargeClass", "", "a correction is of an older month"),
    (FocusDataset.CONTRACT_COMMITMENT, {}, "ContractCommitmentCategory", "Time", "is Spend or Usage"),
    (FocusDataset.CONTRACT_COMMITMENT, {}, "ContractCommitmentUnit", "", "has a quantity, and that a unit"),
    (FocusDataset.CONTRACT_COMMITMENT, {}, "ContractCommitmentModel", "Maybe", "is one of FOCUS's"),
    (FocusDataset.BILLING_PERIOD, {}, "BillingPeriodStatus", "Soft", "is Open or Closed"),
    (FocusDataset.BILLING_PERIOD, {}, "BillingPeriodEnd", "2026-12-01T00:00:00Z", "follow each other"),
    (FocusDataset.INVOICE_DETAIL, {}, "InvoiceIssueStatus", "Issued", "an issued invoice has its date"),
    (FocusDataset.INVOICE_DETAIL, {}, "ReferenceInvoiceId", "INV-2026-09-green", "the corrected invoice"),
]


def test_every_rule_of_ours_finds_what_breaks_it(ledger: Ledger) -> None:
    """With a commitment to more than the cluster has, so that some of it is unused."""
    book = ContractBook.parse(CONTRACTS.replace("gpus: 6,", "gpus: 60,"), "contracts.yaml", TEAMS)
    version, exports = FocusVersion.V1_4, FocusExports(ledger, EVERYTHING, "1", book)
    whole_ = {each: rows_of(written(exports, FocusRequest(MONTH, version), each)) for each in FocusDataset}
    assert not [rule for each, rows in whole_.items() for rule in breaches(version, each, rows)]
    for dataset, wanted, name, value, rule in BROKEN:
        rows = [dict(row) for row in whole_[dataset]]
        _first(rows, **wanted)[name] = value
        assert any(rule in found for found in breaches(version, dataset, rows)), (name, value)


def test_a_team_has_its_rows_and_nothing_of_others(ledger: Ledger) -> None:
    for dataset in FocusDataset:
        request = FocusRequest(MONTH, FocusVersion.V1_4)
        content = written(FocusExports(ledger, RED, "1", contracts()), request, dataset).decode()
        assert not any(word in content for word in ("blue", "green", "unallocated"))
    rows = rows_of(written(FocusExports(ledger, RED, "1"), FocusRequest(MONTH)))
    assert {row["InvoiceId"] for row in rows} == {"INV-2026-10-red"}


def test_the_same_bytes_each_time(ledger: Ledger) -> None:
    for format_ in ("csv", "parquet"):
        for dataset in FocusDataset:
            request = FocusRequest(MONTH, FocusVersion.V1_4)
            one, two = (
                written(FocusExports(ledger, EVERYTHING, "1", contracts()), request, dataset, format_)
                for _ in range(2)
            )
            assert one == two
    exports = FocusExports(ledger, EVERYTHING, "1")
    found = exports.metadata(FocusRequest(BEFORE))
    assert found == exports.metadata(FocusRequest(BEFORE))
    assert found["DatasetInstance"]["DatasetInstanceComplete"] is True  # type: ignore[index]


def test_time_without_a_price_is_refused_by_name(tmp_path: Path) -> None:
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=lambda: builders.NOW_MS) as ledger:
        builders.ingest_batch(ledger, builders.attribution(0, 30))
        exports = FocusExports(ledger, EVERYTHING, "1")
        with pytest.raises(InputError, match="L4"):
            written(exports, FocusRequest(builders.MONTH))
        rows = rows_of(written(exports, FocusRequest(builders.MONTH, unpriced="null")))
        unpriced = [row for row in rows if row["ResourceId"].endswith("/L4")]
        assert unpriced
        assert {row[name] for row in unpriced for name in ("BilledCost", "EffectiveCost", "ListCost")} == {""}
        periods = FocusRequest(builders.MONTH, FocusVersion.V1_4)
        assert rows_of(written(exports, periods, FocusDataset.BILLING_PERIOD))
        invoices = rows_of(
            written(exports, FocusRequest(builders.MONTH, FocusVersion.V1_4, unpriced="null"), _INVOICES)
        )
        known, unknown = (
            {row["BilledCost"] for row in invoices if ("without a price" in row[_WORDS]) is unpriced}
            for unpriced in (False, True)
        )
        assert known
        assert "" not in known
        assert unknown == {""}
        with pytest.raises(InputError, match="a month of which"):
            written(exports, FocusRequest(Month(2027, 1)))
        with pytest.raises(InputError, match=r"1\.4"):
            written(exports, FocusRequest(builders.MONTH), FocusDataset.INVOICE_DETAIL)


_SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 15))]


@pytest.mark.parametrize("seed", _SEEDS)
def test_random_months_add_up(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=lambda: builders.NOW_MS) as ledger:
        clusters = ("alpha", "beta", "gamma")
        for number in sorted(choose.sample(range(24 * 31), 8)):
            window, cluster = builders.hour(number), choose.choice(clusters)
            rows = builders.random_rows(seed, window, 30, cluster)
            builders.ingest(ledger, window, *rows, cluster=cluster)
        teams = sorted(ledger.teams(EVERYTHING))
        scopes = [EVERYTHING, *(Scope(frozenset({team})) for team in teams)]
        some = [frozenset(choose.sample(clusters, choose.randint(1, 2))) for _ in range(4)]
        scopes += [Scope(None, each) for each in some[:2]]
        scopes += [Scope(frozenset(choose.sample(teams, 2)), each) for each in some[2:]]
        for scope in scopes:
            version = choose.choice([*FocusVersion])
            by, grain = choose.choice(("job", "team")), choose.choice(("hour", "day"))
            request = FocusRequest(builders.MONTH, version, by, grain, unpriced="null")
            if not ledger.windows(builders.MONTH.window, scope=scope):
                with pytest.raises(InputError, match="of which the ledger holds something"):
                    written(FocusExports(ledger, scope, "1"), request)
                continue
            rows = rows_of(written(FocusExports(ledger, scope, "1"), request))
            lines = ledger.aggregate(scope, builders.MONTH.window, ("bucket",))
            lines = lines[lines["bucket"] != "overcommitted"]
            assert nano(rows, "EffectiveCost") == int(lines["nano"].sum())
            assert sum(Decimal(row["ConsumedQuantity"]) * 1000 for row in rows) == int(
                lines["board_ms"].sum()
            )
            origins: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
            prefix = "x_" if version is FocusVersion.V1_2 else ""
            for row in rows:
                details = json.loads(row[f"{prefix}AllocatedMethodDetails"], parse_float=Decimal)
                origins[row["ResourceId"], row["ChargePeriodStart"]] += details["Elements"][0][
                    "AllocatedRatio"
                ]
            assert set(origins.values()) <= {Decimal(1)}
            assert bool(rows) == bool(len(lines))


@pytest.mark.parametrize("version", [FocusVersion.V1_2, FocusVersion.V1_4])
def test_names_that_somebody_thought_of_stay_names(tmp_path: Path, version: FocusVersion) -> None:
    """Formulas, separators, quotes, ends of lines, marks of direction, and the longest name there is, in all
    that a tenant names: no cell begins a formula, each row has all cells, and the money stays."""
    bad = [
        "=1+1",
        "+SUM(A1)",
        "-2",
        "@x",
        "\tt",
        "a,b;c",
        'q"q',
        "two\r\nlines",
        "\u202egnp",
        "n" * 600,
        "＝1",
    ]
    window = builders.hour(0)
    rows = [
        builders.line(window, node=name, team=name, namespace=name, pod=name, pod_uid=f"{at}", job=name)
        | {"job_uid": f"{at}", "rate_id": "h100@1", "queue": name}
        for at, name in enumerate(bad)
    ]
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=lambda: builders.NOW_MS) as ledger:
        builders.ingest(ledger, window, *rows)
        for by in ("job", "team"):
            request = FocusRequest(builders.MONTH, version, by)
            content = written(FocusExports(ledger, EVERYTHING, "1"), request)
            cells = [*csv.reader(io.StringIO(content.decode(), newline=""))]
            assert len(cells) == len(bad) + 1
            assert {len(row) for row in cells} == {len(cells[0])}
            starts = {cell[0] for row in cells for cell in row if cell and not _is_number(cell)}
            assert not starts & set("=+-@\t\r\n＝")
            [*parsed] = read_csv(io.StringIO(content.decode(), newline=""), known_columns().get)
            column = "x_AllocatedTags" if version is FocusVersion.V1_2 else "AllocatedTags"
            tags = [json.loads(str(row[column])) for batch in parsed for row in batch.dicts()]
            assert {each["gpucost/team"] for each in tags} == {*bad}
            assert nano(rows_of(content), "EffectiveCost") == whole(ledger)


def _is_number(cell: str) -> bool:
    try:
        return Decimal(cell).is_finite()
    except ArithmeticError:
        return False


def test_a_local_day_of_25_hours_is_days_of_utc(tmp_path: Path) -> None:
    """Berlin's clocks went back on 25 October 2026: days are of UTC, and have 24 hours each."""
    first = (parse_instant("2026-10-24T22:00:00Z") - MONTH.window.start_ms) // HOUR_MS
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=lambda: builders.NOW_MS) as ledger:
        for number in range(first, first + 25):
            builders.ingest(ledger, builders.hour(number), builders.line(builders.hour(number)))
        exports = FocusExports(ledger, EVERYTHING, "1")
        rows = rows_of(written(exports, FocusRequest(MONTH)))
        assert [row["ConsumedQuantity"] for row in rows] == ["7200.000", "82800.000"]
        assert len(rows_of(written(exports, FocusRequest(MONTH, grain="hour")))) == 25


def test_waste_and_use_stand_beside_the_cost(tmp_path: Path) -> None:
    """Of four GPU-hours a quarter was idle; half an hour of use was seen in two that were observed."""
    window = builders.hour(0)
    cost = {"board_ms": 4 * HOUR_MS, "nano": 10 * NANO, "observed_ms": 2 * HOUR_MS, "busy_ms": HOUR_MS // 2}
    held = builders.line(window, cluster_queue="cq", **cost)
    free = builders.line(window, bucket="unallocated", team="__unallocated__")
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=lambda: builders.NOW_MS) as ledger:
        builders.ingest(ledger, window, held, free, observed_ms=HOUR_MS // 2)
        rows = rows_of(written(FocusExports(ledger, EVERYTHING, "1"), FocusRequest(MONTH)))
        assert {row["x_WasteBucket"] for row in rows} == {""}
        assess(
            ledger,
            window,
            part(held, "idle", HOUR_MS, 2 * NANO),
            part(free, "starved", HOUR_MS, builders.PRICE),
        )
        for by, grain in (("job", "day"), ("team", "hour")):
            request = FocusRequest(MONTH, by=by, grain=grain)
            own, idle = rows_of(written(FocusExports(ledger, EVERYTHING, "1"), request))
            assert json.loads(own["x_WasteCosts"]) == {"productive": 8, "idle": 2}
            assert (own["x_WasteBucket"], idle["x_WasteBucket"]) == ("productive", "starved")
            assert (own["x_UsedCost"], own["x_Coverage"], own["x_Confidence"]) == (
                "1.250000000",
                "0.5",
                "0.5",
            )
            assert own["x_Queue"] == ("cq" if by == "job" else "")
