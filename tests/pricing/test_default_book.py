"""The table that ships: every row sourced and dated, numbers as read, odd ones flagged."""

from __future__ import annotations

from datetime import date

import pytest

from gpucost.domain.gpu import KNOWN_MODELS
from gpucost.domain.money import parse_nano
from gpucost.pricing.price_book import DEFAULT_BOOK_FILE, PriceBook, default_book_text
from gpucost.pricing.price_rows import WarningCode
from tests.pricing.books import h100, only_rate, window

BOOK = PriceBook.parse(default_book_text(), DEFAULT_BOOK_FILE)
READ = date(2026, 11, 21)


@pytest.mark.parametrize(
    ("instance", "model", "region", "capacity_type", "per_board"),
    [
        ("p5.48xlarge", "H100", "us-east-1", "on-demand", "6.88"),
        ("p5.48xlarge", "H100", "us-east-1", "spot", "3.22"),
        ("p4d.24xlarge", "A100-40GB", "us-east-1", "on-demand", "2.7447"),
        ("g6e.xlarge", "L40S", "us-east-1", "on-demand", "1.861"),
        ("g6e.24xlarge", "L40S", "us-east-1", "on-demand", "3.7663975"),
        ("n1-standard-8", "V100-16GB", "us-central1", "on-demand", "2.86"),
        ("n1-standard-8", "T4", "us-central1", "on-demand", "0.73"),
        ("a3-highgpu-8g", "H100", "us-east4", "on-demand", "10.97905875"),
        ("Standard_ND96isr_H100_v5", "H100", "eastus", "on-demand", "12.29"),
        ("Standard_NC80adis_H100_v5", "H100-NVL", "eastus", "on-demand", "6.98"),
        ("BM.GPU.H100.8", "H100", "eu-frankfurt-1", "on-demand", "10"),
        ("gpu_8x_h100_sxm5", "H100", "us-west-1", "on-demand", "3.99"),
        ("p6-b200.48xlarge", "B200", "us-east-1", "on-demand", "14.2416"),
    ],
)
def test_prices_by_instance_type(
    instance: str, model: str, region: str, capacity_type: str, per_board: str
) -> None:
    node = h100(instance_type=instance, model=model, region=region, capacity_type=capacity_type)
    rate = only_rate(BOOK.rates(node, window()))
    assert rate.nano_per_board_hour == parse_nano(per_board)
    assert rate.matched_by == "instance_type"


DEFAULTS = {
    "V100-16GB": "3.06", "V100-32GB": "3.9015", "T4": "0.526", "A10G": "1.006", "A10": "2", "L4": "0.8048",
    "L40S": "1.861", "A100-40GB": "2.7447", "A100-80GB": "3.430875", "H100": "6.88", "H100-NVL": "6.98",
    "H200": "7.912", "B200": "14.2416", "B300": "17.802", "GB200": "16", "GB300": "18", "MI300X": "6",
    "MI355X": "8.6",
}  # fmt: skip


@pytest.mark.parametrize("model", sorted(KNOWN_MODELS))
def test_a_model_alone_has_a_flagged_default_or_no_price(model: str) -> None:
    [span] = BOOK.rates(h100(model=model, instance_type="unlisted"), window())
    if model not in DEFAULTS:
        assert span.rate is None
        assert f"model {model}" in span.reason
    else:
        assert span.rate is not None
        assert span.rate.nano_per_board_hour == parse_nano(DEFAULTS[model])
        assert span.rate.matched_by == "model"
        assert "default for the model" in span.rate.source


def test_a_spot_node_without_a_spot_row_has_no_price() -> None:
    [span] = BOOK.rates(h100(capacity_type="spot"), window())
    assert span.rate is None


def test_every_row_has_a_model_a_source_and_a_date() -> None:
    for row in BOOK.rows:
        assert row.model in KNOWN_MODELS
        assert "@" in row.source
        assert "://" not in row.source
        assert row.retrieved == (date(2026, 9, 18) if "oci" in row.source else READ)
        assert row.dated is ("oci" in row.source)
        assert any(flag.startswith("grade ") for flag in row.flags)
    assert len({row.title + str(row.model) for row in BOOK.rows}) == len(BOOK.rows) == 111


def test_on_demand_is_never_below_its_own_spot() -> None:
    listed = {(r.instance_type, r.model, r.region, r.capacity_type): r.board_hour for r in BOOK.rows}
    spot = [key for key in listed if key[3] == "spot"]
    assert len(spot) > 20
    assert all(listed[key] < listed[(*key[:3], "on-demand")] for key in spot)


def test_it_warns_of_its_age_from_the_first_day() -> None:
    first = {warning.code for warning in BOOK.check(READ)}
    assert first == {WarningCode.UNDATED, WarningCode.FAR_FROM_OTHERS}
    stale = [w for w in BOOK.check(date(2027, 2, 20)) if w.code is WarningCode.STALE]
    assert sum(len(warning.rows) for warning in stale) > 80
