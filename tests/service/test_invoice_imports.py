"""A cloud's invoice beside the ledger: made-up months with known differences, and files of no sense."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpucost.domain.errors import InputError
from gpucost.domain.money import NANO
from gpucost.domain.rates import NodeIdentity
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import HOUR_MS, Month, iso
from gpucost.ledger.db.records import Adjustment, MonthOpen
from gpucost.ledger.ledger import Ledger
from gpucost.reports.focus.invoice_lines import (
    InvoiceLine,
    RefusedLine,
    invoice_lines,
)
from gpucost.reports.focus.invoice_reconciliation import (
    InvoiceCost,
    InvoiceReconciliation,
    NodeDifference,
    NodeEvidence,
    NodeLedger,
    node_differences,
)
from gpucost.service.reporting.invoice_imports import (
    book_differences,
    ledger_nodes,
    opened,
    read_nodes,
    reconcile_file,
)
from tests.ledger.builders import hour, ingest, line
from tests.support.ledgers import new_ledger

MONTH = Month(2026, 10)
HOURS = 24
DATA = Path(__file__).parents[1] / "data" / "focus"
IDENTITIES = [
    NodeIdentity("alpha", "node-1", "aws:///eu-1a/i-0aaa"),
    NodeIdentity("alpha", "node-2", "aws:///eu-1a/i-0bbb"),
]
PRICE = 24 * NANO
"""A node of eight GPUs at 3 an hour."""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with _opened(new_ledger(tmp_path / "l.db", _two_nodes)) as ledger:
        yield ledger


def _opened(url: str) -> Ledger:
    return Ledger.open(url, now=lambda: Month(2026, 12).window.start_ms)


def _two_nodes(url: str) -> None:
    """Two nodes for a day; node-2 came three hours late, and two hours were seen by nobody."""
    with _opened(url) as ledger:
        for number in range(HOURS):
            if number not in (10, 11):
                window = hour(number)
                rows = [node(number, "node-1")] + ([node(number, "node-2")] if number >= 3 else [])
                ingest(ledger, window, *rows, *(idle(number, name) for name in ("node-1",)))


def node(number: int, name: str) -> dict[str, object]:
    gpus = 6 if name == "node-1" else 8
    team = "red" if name == "node-1" else "blue"
    uid = f"pod-{name}"
    cost = {"board_ms": gpus * HOUR_MS, "nano": gpus * 3 * NANO}
    return line(hour(number), node=name, team=team, pod_uid=uid, job_uid=f"job-{name}", **cost)


def idle(number: int, name: str) -> dict[str, object]:
    bucket = {"bucket": "unallocated", "team": "__unallocated__"}
    return line(hour(number), node=name, board_ms=2 * HOUR_MS, nano=6 * NANO, **bucket)


def focus_row(number: int, resource: str, cost: str, **more: str) -> dict[str, str]:
    row = {
        "ChargePeriodStart": iso(hour(number).start_ms),
        "ChargePeriodEnd": iso(hour(number).end_ms),
        "ChargeCategory": "Usage",
        "BilledCost": cost,
        "EffectiveCost": cost,
        "ContractedCost": cost,
        "BillingCurrency": "USD",
        "ResourceId": f"arn:aws:ec2:eu-1:1:instance/{resource}" if resource else "",
        "ResourceName": "",
        "ConsumedQuantity": "1",
        "ConsumedUnit": "Hours",
        "CommitmentDiscountId": "",
        "CommitmentDiscountStatus": "",
        "ServiceName": "EC2",
    }
    return row | more


def month_rows() -> list[dict[str, str]]:
    """node-1 costs 26 an hour on the invoice; half of node-2's hours are 5 cheaper by a commitment."""
    rows = [focus_row(number, "i-0aaa", "26") for number in range(HOURS)]
    for number in range(HOURS):
        more = {}
        if number % 2:
            more = {"EffectiveCost": "19", "CommitmentDiscountId": "sp-1", "CommitmentDiscountStatus": "Used"}
        rows.append(focus_row(number, "i-0bbb", "24", **more))
    rows.append(focus_row(0, "i-0aaa", "10.5", ChargeCategory="Tax"))
    rows.append(focus_row(0, "i-0ccc", "7.25"))
    return rows


def write_csv(file: Path, rows: Sequence[Mapping[str, str]]) -> Path:
    target = io.StringIO()
    writer = csv.DictWriter(target, [*rows[0]])
    writer.writeheader()
    writer.writerows(rows)
    file.write_text(target.getvalue(), "utf-8")
    return file


def beside(ledger: Ledger, file: Path, given: Sequence[NodeIdentity], **more: Any) -> InvoiceReconciliation:
    return reconcile_file(partial(ledger_nodes, ledger, EVERYTHING), file, given, **more)


def book(ledger: Ledger, found: InvoiceReconciliation) -> tuple[Adjustment, ...]:
    return book_differences(ledger, node_differences(found), found.file, found.digest, "ada")


def test_of_time_without_a_price_nothing_is_booked_and_nobody_pays_for_it(tmp_path: Path) -> None:
    """Red would pay for the four GPUs of blue; all of node-2 would be booked for nobody, in silence."""

    def fill(url: str) -> None:
        bare = {"nano": None, "unpriced_ms": 4 * HOUR_MS, "rate_id": "", "board_ms": 4 * HOUR_MS}
        with _opened(url) as ledger:
            for number in range(HOURS):
                rows = [line(hour(number), node="node-1", team="red", board_ms=4 * HOUR_MS, nano=12 * NANO)]
                for name in ("node-1", "node-2"):
                    rows.append(line(hour(number), node=name, team="blue", pod_uid=name, job_uid="b", **bare))
                ingest(ledger, hour(number), *rows)

    with _opened(new_ledger(tmp_path / "l.db", fill)) as ledger:
        rows = [focus_row(n, resource, "24") for n in range(HOURS) for resource in ("i-0aaa", "i-0bbb")]
        found = beside(ledger, write_csv(tmp_path / "i.csv", rows), IDENTITIES)
        assert causes_of(found) == {"node-1": {"no_price": 288}, "node-2": {"no_price": 576}}
        assert [each.unpriced_ms for each in found.nodes] == [HOURS * 4 * HOUR_MS] * 2
        assert node_differences(found) == {}
        ledger.close_month(MONTH, author="ada", min_coverage=Fraction(0), reason="as it is")
        told = [
            NodeDifference(each.cluster, each.node, each.resource, each.difference_nano, "")
            for each in found.nodes
        ]
        assert book_differences(ledger, {MONTH: told}, "i.csv", "0" * 64, "ada") == ()


def causes_of(found: InvoiceReconciliation) -> dict[str, dict[str, Fraction]]:
    return {
        each.node: {part.cause.value: Fraction(part.nano, NANO) for part in each.causes}
        for each in found.nodes
    }


def test_every_difference_is_named_with_its_amount(ledger: Ledger, tmp_path: Path) -> None:
    found = beside(ledger, write_csv(tmp_path / "f.csv", month_rows()), IDENTITIES)
    assert causes_of(found) == {
        "node-1": {"price": Fraction(44), "tax": Fraction("10.5"), "not_observed": Fraction(52)},
        "node-2": {"missing_hours": Fraction(72), "commitment": Fraction(-60), "not_observed": Fraction(48)},
    }
    assert [(each.cause, each.resource, each.invoice_nano) for each in found.outside] == [
        ("not_in_cluster", "arn:aws:ec2:eu-1:1:instance/i-0ccc", 7_250_000_000)
    ]
    for each in found.nodes:
        assert each.difference_nano == each.invoice_nano - each.ledger_nano
        assert each.difference_nano == sum(part.nano for part in each.causes)
    assert sum(part.nano for part in found.causes) == found.difference_nano


def test_a_made_up_month_of_aws_with_three_known_differences(ledger: Ledger, tmp_path: Path) -> None:
    """A report with parts of pods: dearer hours of node-1, hours of node-2 before it joined, a plan."""

    def row(number: int, resource: str, cost: str, kind: str = "Usage", **more: str) -> dict[str, str]:
        return {
            "line_item_resource_id": resource,
            "line_item_usage_start_date": iso(hour(number).start_ms),
            "line_item_usage_end_date": iso(hour(number).end_ms),
            "line_item_line_item_type": kind,
            "line_item_unblended_cost": cost,
            "line_item_currency_code": "USD",
            "line_item_usage_amount": "1",
            "pricing_unit": "Hrs",
            "pricing_public_on_demand_cost": "24",
            "savings_plan_savings_plan_effective_cost": "",
            "split_line_item_parent_resource_id": "",
            "split_line_item_split_cost": "",
            "split_line_item_unused_cost": "",
        } | more

    plan = {"savings_plan_savings_plan_effective_cost": "20"}
    rows = [row(n, "i-0aaa", "25") for n in range(HOURS) if n not in (10, 11)]
    for n in range(HOURS):
        if n not in (10, 11):
            covered = n >= 20
            kind = "SavingsPlanCoveredUsage" if covered else "Usage"
            rows.append(row(n, "i-0bbb", "24", kind, **(plan if covered else {})))
    rows += [row(n, "i-0bbb", "-24", "SavingsPlanNegation") for n in range(20, HOURS)]
    pod = {"split_line_item_parent_resource_id": "i-0aaa", "split_line_item_split_cost": "9"}
    rows.append(row(5, "arn:aws:eks:pod/a", "0", **pod))
    found = beside(ledger, write_csv(tmp_path / "cur.csv", rows), IDENTITIES)
    assert causes_of(found) == {
        "node-1": {"price": Fraction(22)},
        "node-2": {"missing_hours": Fraction(72), "commitment": Fraction(-16)},
    }
    assert found.outside == ()
    assert found.refused_count == 0


def test_fees_of_aws_are_its_amortized_cost(ledger: Ledger, tmp_path: Path) -> None:
    """What was paid for a plan or a reservation is a cost as far as it was not used; another fee is one. In
    the names that older reports have."""
    head = ("lineItem/ResourceId", "lineItem/UsageStartDate", "lineItem/UsageEndDate")
    names = (
        *(*head, "lineItem/LineItemType", "lineItem/UnblendedCost", "lineItem/CurrencyCode"),
        *("reservation/ReservationARN", "reservation/UnusedAmortizedUpfrontFeeForBillingPeriod"),
        *("reservation/UnusedRecurringFee", "savingsPlan/SavingsPlanARN"),
        *("savingsPlan/TotalCommitmentToDate", "savingsPlan/UsedCommitment"),
    )
    start, end = iso(hour(0).start_ms), iso(hour(0).end_ms)
    values = [
        ("RIFee", "100", "ri-1", "3.5", "1.5", "", "", ""),
        ("SavingsPlanRecurringFee", "50", "", "", "", "sp-1", "50", "42.5"),
        ("SavingsPlanUpfrontFee", "900", "", "", "", "sp-1", "", ""),
        ("Fee", "700", "ri-1", "", "", "", "", ""),
        ("Fee", "12.25", "", "", "", "", "", ""),
    ]
    rows = [
        dict(zip(names, ("", start, end, kind, cost, "USD", *rest), strict=True))
        for kind, cost, *rest in values
    ]
    found = beside(ledger, write_csv(tmp_path / "cur.csv", rows), IDENTITIES)
    outside = {(each.cause.value, each.resource): each.invoice_nano for each in found.outside}
    assert outside == {
        ("commitment", "ri-1"): 5 * NANO,
        ("commitment", "sp-1"): 7_500_000_000,
        ("not_in_cluster", ""): 12_250_000_000,
    }
    billed = beside(ledger, tmp_path / "cur.csv", IDENTITIES, cost=InvoiceCost.BILLED)
    assert billed.invoice_nano == 1_762_250_000_000


def test_split_parts_stand_for_a_node_without_lines_of_its_own(ledger: Ledger, tmp_path: Path) -> None:
    head = ("line_item_resource_id", "line_item_usage_start_date", "line_item_usage_end_date")
    names = (*head, "line_item_line_item_type", "line_item_unblended_cost", "line_item_currency_code")
    split = (
        "split_line_item_parent_resource_id",
        "split_line_item_split_cost",
        "split_line_item_unused_cost",
    )
    start, end = iso(hour(0).start_ms), iso(hour(0).end_ms)
    rows = [
        dict(
            zip((*names, *split), ("pod", start, end, "Usage", "0", "USD", "i-0aaa", cost, "1"), strict=True)
        )
        for cost in ("9", "11")
    ]
    found = beside(ledger, write_csv(tmp_path / "cur.csv", rows), IDENTITIES)
    assert found.nodes[0].invoice_nano == 22 * NANO


def test_the_difference_is_booked_once(ledger: Ledger, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "f.csv", month_rows())
    found = beside(ledger, file, IDENTITIES)
    with pytest.raises(MonthOpen):
        book(ledger, found)
    assert ledger.adjustments(EVERYTHING, MONTH) == ()
    ledger.close_month(MONTH, author="ada", min_coverage=Fraction(0), reason="a test")
    made = book(ledger, found)
    assert sum(each.nano for each in made) == sum(each.difference_nano for each in found.nodes)
    by_team = {each.team: each.nano for each in made}
    assert by_team == {
        "red": 106_500_000_000 * 3 // 4,
        "__unallocated__": 106_500_000_000 // 4,
        "blue": 60 * NANO,
    }
    assert book(ledger, beside(ledger, file, IDENTITIES)) == ()
    dearer = month_rows()
    dearer[0] |= {"EffectiveCost": "30", "ContractedCost": "30"}
    newer = beside(ledger, write_csv(tmp_path / "g.csv", dearer), IDENTITIES)
    more = book(ledger, newer)
    assert {each.team: each.nano for each in more} == {"red": 3 * NANO, "__unallocated__": NANO}
    back = book(ledger, beside(ledger, file, IDENTITIES))
    assert sum(each.nano for each in back) == -4 * NANO


def test_two_currencies_need_a_rate(ledger: Ledger, tmp_path: Path) -> None:
    rows = [focus_row(0, "i-0aaa", "20", BillingCurrency="EUR"), focus_row(1, "i-0aaa", "24")]
    file = write_csv(tmp_path / "f.csv", rows)
    found = beside(ledger, file, IDENTITIES)
    assert [(each.row, each.field, each.value) for each in found.refused] == [(2, "BillingCurrency", "EUR")]
    found = beside(ledger, file, IDENTITIES, rates={"EUR": Fraction("1.1")})
    assert found.nodes[0].invoice_nano == 46 * NANO


def test_a_file_of_gzip_or_parquet_is_the_same_invoice(ledger: Ledger, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "f.csv", month_rows())
    packed = tmp_path / "f.csv.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    table = pa.Table.from_pylist(month_rows())
    pq.write_table(table, tmp_path / "f.parquet")
    nodes = [beside(ledger, each, IDENTITIES).nodes for each in (file, packed, tmp_path / "f.parquet")]
    assert nodes[0] == nodes[1] == nodes[2]
    billed = beside(ledger, file, IDENTITIES, cost=InvoiceCost.BILLED)
    assert "commitment" not in causes_of(billed)["node-2"]


def test_nodes_are_read_of_what_kubectl_prints() -> None:
    items = [{"metadata": {"name": "n1"}, "spec": {"providerID": "aws:///eu-1a/i-1"}}]
    items.append({"metadata": {"name": "n2"}, "spec": {}})
    expected = [NodeIdentity("c", "n1", "aws:///eu-1a/i-1")]
    assert read_nodes(json.dumps({"items": items}), "nodes.json", "c") == expected
    assert read_nodes("cluster,node,provider_id\nc,n1,aws:///eu-1a/i-1\n", "n.csv") == expected
    for wrong in ("{}", "[]", "node,provider\na,b\n", '{"items": [1]}'):
        with pytest.raises(InputError, match="--nodes"):
            read_nodes(wrong, "nodes")
    with pytest.raises(InputError, match="field larger than field limit"):
        read_nodes(f"cluster,node,provider_id\nc,{'n' * 200_000},p\n", "nodes")


_SET = "providers/Microsoft.Compute/virtualMachineScaleSets/aks/virtualMachines/3"
PROVIDERS = {
    "aws": "aws:///eu-1a/i-0abc",
    "gce": "gce://p/z/gke-1",
    "azure": f"azure:///subscriptions/s/resourceGroups/g/{_SET}",
    "machine": "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/vm-1",
    "other": "ocid1.instance.oc1.eu-1.abc",
}


@pytest.mark.parametrize(
    ("resource", "node"),
    [
        ("arn:aws:ec2:eu-1:123:instance/i-0abc", "aws"),
        ("arn:aws-us-gov:ec2:eu-1:123:instance/i-0abc", "aws"),
        ("i-0abc", "aws"),
        ("I-0ABC ", "aws"),
        ("//compute.googleapis.com/projects/p/zones/z/instances/gke-1", "gce"),
        ("//compute.googleapis.com/projects/p/zones/z/instance/gke-1", "gce"),
        ("https://www.googleapis.com/compute/v1/projects/p/zones/z/instances/gke-1", "gce"),
        (f"/subscriptions/s/resourceGroups/G/{_SET}", "azure"),
        (f"/SUBSCRIPTIONS/S/RESOURCEGROUPS/G/{_SET.upper()}", "azure"),
        ("/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/VM-1", "machine"),
        ("ocid1.instance.oc1.eu-1.abc", "other"),
        # What is beside a machine, and may have its name.
        ("//compute.googleapis.com/projects/p/zones/z/disks/gke-1", None),
        ("arn:aws:ec2:eu-1:123:volume/i-0abc", None),
        ("arn:aws:eks:eu-1:123:pod/prod/ns/i-0abc", None),
        ("arn:aws:s3:::i-0abc", None),
        ("/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/vm-1", None),
        ("/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/aks", None),
        ("i-0ab", None),
        ("", None),
    ],
)
def test_a_resource_is_found_by_its_provider_id(resource: str, node: str | None) -> None:
    names = NodeLedger()
    for name, provider in PROVIDERS.items():
        names.add(("c", name), provider, NodeEvidence.CLUSTER)
    found = names.find(resource, "")
    assert (found and found[1]) == node


FEBRUARY = ("2026-02-01", "2026-02-28", "2026-03-01")
"""Its first and last day, and its end."""


def _cloud_rows(at: str, unit: str, resource: str, **more: str) -> list[dict[str, str]]:
    """February's first and last day of one machine; ``at`` is how the cloud writes a midnight."""
    first, last, end = (at.format(day) for day in FEBRUARY)
    second = at.format("2026-02-02")
    row = (
        focus_row(0, "", "576") | {"ResourceId": resource, "ConsumedQuantity": "", "ConsumedUnit": ""} | more
    )
    row |= {"PricingQuantity": "24", "PricingUnit": unit}
    starts_ends = ((first, second), (last, end))
    return [row | {"ChargePeriodStart": start, "ChargePeriodEnd": end} for start, end in starts_ends]


CLOUDS = {
    "azure": _cloud_rows(
        "{}T00:00Z",
        "1 Hour",
        f"/subscriptions/S/resourcegroups/g/{_SET.lower()}",
        x_SkuDetails='{"a": "b,c"}',
    ),
    "google": _cloud_rows(
        "{} 00:00:00 UTC",
        "hour",
        "//compute.googleapis.com/projects/12/zones/z/instances/77",
        ResourceName="gke-1",
        Tags='[{"key": "a", "value": "two\nlines"}]',
    ),
    "oracle": _cloud_rows(
        "{}T00:00:00.000Z", "Hours", "ocid1.instance.oc1.eu-1.abc", oci_ReferenceNumber="r;1"
    ),
    "1.0": _cloud_rows("{} 00:00:00", "Hours", "i-0aaa"),
}


@pytest.mark.parametrize("separator", [",", ";", "\t"], ids=["comma", "semicolon", "tab"])
@pytest.mark.parametrize("cloud", [*CLOUDS])
def test_each_cloud_writes_february_in_its_own_way(tmp_path: Path, cloud: str, separator: str) -> None:
    """Times, units and cells of several lines, behind a mark of byte order, with ends of lines as Windows has
    them; a credit, an exponent and what is refused beside them."""
    rows = CLOUDS[cloud]
    rows = [*rows, rows[0] | {"EffectiveCost": "-1.25E+1", "ChargeCategory": "Credit"}]
    rows += [rows[0] | {"BilledCost": ""}, rows[0] | {"BillingCurrency": "US$"}]
    text = io.StringIO()
    writer = csv.DictWriter(text, [*rows[0]], delimiter=separator, lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(rows)
    file = tmp_path / "february.csv.gz"
    file.write_bytes(gzip.compress(text.getvalue().encode("utf-8-sig")))
    with opened(file) as found:
        lines = [*found]
    read = [each for each in lines if isinstance(each, InvoiceLine)]
    refused = [(each.row, each.field) for each in lines if isinstance(each, RefusedLine)]
    assert refused == [(5, "BilledCost"), (6, "BillingCurrency")]
    assert [each.effective for each in read] == [576, 576, Fraction("-12.5")]
    assert [each.hours_ms for each in read] == [24 * HOUR_MS] * 3
    month = Month(2026, 2).window
    assert (read[0].period.start_ms, read[1].period.end_ms) == (month.start_ms, month.end_ms)
    names = NodeLedger()
    for node, provider in (PROVIDERS | {"1.0": "aws:///z/i-0aaa"}).items():
        names.add(("c", node), provider, NodeEvidence.CLUSTER)
    expected = {"google": "gce", "oracle": "other"}.get(cloud, cloud)
    assert {names.find(each.resource, each.name) for each in read} == {("c", expected)}


def test_what_the_cluster_says_wins_over_a_file_and_that_over_names() -> None:
    names = NodeLedger()
    names.add(("c", "i-1"), "i-1", NodeEvidence.NAME)
    names.add(("c", "of-file"), "aws:///z/i-1", NodeEvidence.GIVEN)
    assert names.find("i-1", "") == ("c", "of-file")
    names.add(("c", "of-cluster"), "aws:///z/i-1", NodeEvidence.CLUSTER)
    assert names.find("i-1", "") == ("c", "of-cluster")
    # Two nodes that say they are one machine: neither is believed.
    names.add(("d", "another"), "aws:///z/i-1", NodeEvidence.CLUSTER)
    assert names.find("i-1", "") == ("c", "of-file")


def test_the_ledger_knows_machines_without_a_file(ledger: Ledger, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "f.csv", month_rows())
    assert not causes_of(beside(ledger, file, []))
    found = [(each.node, each.provider_id) for each in IDENTITIES]
    assert [ledger.identify_nodes("alpha", found) for _ in range(2)] == [2, 0]
    assert beside(ledger, file, []) == beside(ledger, file, IDENTITIES)
    assert ledger.node_identities(scope=Scope(frozenset({"red"}))) == ()
    assert ledger.node_identities(scope=Scope(None, frozenset({"beta"}))) == ()


def test_wrong_rows_are_refused_one_by_one() -> None:
    good = focus_row(0, "i-0aaa", "1")
    rows = [
        good,
        good | {"EffectiveCost": "NaN"},
        good | {"BilledCost": "1e999999"},
        good | {"ChargePeriodEnd": good["ChargePeriodStart"]},
        good | {"ChargeCategory": "Gift"},
        good | {"BillingCurrency": "dollars"},
        good | {"ChargePeriodStart": "yesterday"},
    ]
    found = [*invoice_lines([*good], ([*row.values()] for row in rows))]
    assert [type(each) for each in found] == [InvoiceLine, *[RefusedLine] * 6]
    refused = [(each.row, each.field) for each in found if isinstance(each, RefusedLine)]
    assert refused == [
        (3, "EffectiveCost"),
        (4, "BilledCost"),
        (5, "ChargePeriodEnd"),
        (6, "ChargeCategory"),
        (7, "BillingCurrency"),
        (8, "ChargePeriodStart"),
    ]


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\xff\xfe\x00", b"\x1f\x8bno", b"PAR1no"])
def test_a_file_that_is_no_invoice_is_refused(ledger: Ledger, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "f.csv"
    file.write_bytes(content)
    with pytest.raises(InputError):
        beside(ledger, file, IDENTITIES)


def test_rows_that_are_the_same_in_every_column_count_once_and_are_said(
    ledger: Ledger, tmp_path: Path
) -> None:
    """An export that overlaps another one, or was joined to itself; two lines of other amounts are two."""
    rows = month_rows()
    single = beside(ledger, write_csv(tmp_path / "a.csv", rows), IDENTITIES)
    twice = write_csv(tmp_path / "b.csv", rows + rows[:3] + [rows[0] | {"EffectiveCost": "26.01"}])
    once = beside(ledger, twice, IDENTITIES)
    assert (single.repeated_lines, once.repeated_lines, once.repeated_nano) == (0, 3, 78 * NANO)
    assert once.invoice_nano == single.invoice_nano + 26_010_000_000
    each = beside(ledger, twice, IDENTITIES, count_repeated=True)
    assert (each.repeated_lines, each.invoice_nano) == (0, once.invoice_nano + 78 * NANO)
    of_month = beside(ledger, twice, IDENTITIES, month=MONTH)
    assert (of_month.repeated_lines, of_month.nodes) == (3, once.nodes)


def test_a_machine_has_no_more_hours_than_its_time(ledger: Ledger, tmp_path: Path) -> None:
    """Traffic in other units, and a second line by the hour, beside the machine's own."""
    rows = [focus_row(n, "i-0aaa", "24") for n in range(HOURS) if n not in (10, 11)]
    beside_it = [
        focus_row(0, "i-0aaa", "3", ConsumedQuantity="70", ConsumedUnit="GB"),
        focus_row(1, "i-0aaa", "2", ServiceName="EBS-optimized"),
    ]
    file = write_csv(tmp_path / "f.csv", rows + beside_it)
    [found] = [each for each in beside(ledger, file, IDENTITIES).nodes if each.node == "node-1"]
    assert found.invoice_ms == found.ledger_ms == 22 * HOUR_MS
    assert {part.cause.value: part.nano for part in found.causes} == {"price": 5 * NANO}


def test_lines_of_periods_that_lie_in_one_another_are_named(ledger: Ledger, tmp_path: Path) -> None:
    """A day's line restated beside the lines of its hours."""
    rows = [focus_row(n, "i-0aaa", "24") for n in range(HOURS) if n not in (10, 11)]
    end = {"ChargePeriodEnd": iso(hour(9).end_ms), "ConsumedQuantity": "10"}
    file = write_csv(tmp_path / "f.csv", [*rows, focus_row(0, "i-0aaa", "240", **end)])
    [found] = [each for each in beside(ledger, file, IDENTITIES).nodes if each.node == "node-1"]
    assert [(each.cause.value, each.nano, each.hours_ms) for each in found.causes] == [
        ("overlap", 240 * NANO, 10 * HOUR_MS)
    ]
    assert found.difference_nano == 240 * NANO


def test_a_row_of_another_length_than_the_head_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    """A comma that nobody quoted moves every cell behind it."""
    file = write_csv(tmp_path / "f.csv", month_rows()[:3])
    text = file.read_text("utf-8")
    file.write_text(text + text.splitlines()[1] + ",EC2\n" + text.splitlines()[1].rpartition(",")[0], "utf-8")
    found = beside(ledger, file, IDENTITIES)
    assert [(each.row, each.field) for each in found.refused] == [(5, "row"), (6, "row")]
    assert found.lines == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(b"")[:10] + b"\xff" * 50, "damaged"),
        (gzip.compress(b"0" * 3_000_000), "a line of more than"),
        (b"ResourceId,BilledCost,ResourceId\n", "each column once"),
    ],
    ids=["damaged", "bomb", "twice"],
)
def test_a_file_of_harm_is_refused_in_words(
    ledger: Ledger, tmp_path: Path, content: bytes, said: str
) -> None:
    file = tmp_path / "f.csv.gz"
    file.write_bytes(content)
    with pytest.raises(InputError, match=said):
        beside(ledger, file, IDENTITIES)


def test_a_sample_of_the_foundation_reads_in(ledger: Ledger) -> None:
    with opened(DATA / "foundation-sample-1.0.csv") as found:
        lines = [*found]
    assert all(isinstance(each, InvoiceLine) for each in lines)
    assert len(lines) == 25
    report = beside(ledger, DATA / "foundation-sample-1.0.csv", [])
    assert {each.cause.value for each in report.outside} <= {"not_in_cluster", "tax", "commitment"}
