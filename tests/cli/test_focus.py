"""gpucost export focus and gpucost import focus, as people call them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from gpucost.cli.application import app
from tests.support.focus_rules import rows_of
from tests.support.focus_world import CONTRACTS, focus_ledger

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    with focus_ledger(tmp_path):
        pass
    config = tmp_path / "config.yaml"
    config.write_text(f"ledger:\n  url: sqlite:///{tmp_path / 'focus.db'}\n", "utf-8")

    def call(*words: str) -> Result:
        return CliRunner().invoke(app, ["--config", str(config), *words])

    return call


def test_a_month_is_written_to_a_file_and_to_a_folder(run: Run, tmp_path: Path) -> None:
    contracts = tmp_path / "contracts.yaml"
    contracts.write_text(CONTRACTS, "utf-8")
    asked = ("export", "focus", "2026-10", "--contracts", str(contracts), "--version")
    assert run(*asked, "1.4", "--output-dir", str(tmp_path / "out")).exit_code == 0
    names = ("BillingPeriod", "ContractCommitment", "CostAndUsage", "InvoiceDetail")
    found = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert found == [*(f"2026-10-{name}.csv" for name in names), "2026-10-metadata.json"]
    said = json.loads((tmp_path / "out" / "2026-10-metadata.json").read_text("utf-8"))
    assert [schema["DatasetId"] for schema in said["Schema"]] == [
        "CostAndUsage",
        "ContractCommitment",
        "BillingPeriod",
        "InvoiceDetail",
    ]
    one = tmp_path / "one.csv"
    assert run(*asked, "1.4", "-o", str(one)).exit_code == 0
    assert one.read_bytes() == (tmp_path / "out" / "2026-10-CostAndUsage.csv").read_bytes()
    printed = run("export", "focus", "2026-10", "--team", "red", "--by", "team")
    assert {row["AllocatedResourceId"] for row in rows_of(printed.stdout_bytes)} == {"red"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("2026-13",), "MONTH"),
        (("2027-01",), "MONTH"),
        (("2026-10", "--team", "nobody"), "--team"),
        (("2026-10", "--cluster", "nowhere"), "--cluster"),
        (("2026-10", "--version", "1.3", "--dataset", "InvoiceDetail"), "--version"),
        (("2026-10", "--version", "1.1"), "1.2"),
    ],
)
def test_what_is_wrong_is_said(run: Run, words: tuple[str, ...], said: str) -> None:
    result = run("export", "focus", *words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_an_export_reads_in_as_an_invoice_without_a_difference(run: Run, tmp_path: Path) -> None:
    """Rows of a node name it in ResourceName; the file of the whole month is the ledger's own bill."""
    file = tmp_path / "own.csv"
    assert run("export", "focus", "2026-10", "-o", str(file)).exit_code == 0
    found = json.loads(run("import", "focus", str(file), "--month", "2026-10", "-f", "json").stdout)
    assert [node["difference_nano"] for node in found["nodes"]] == [0] * 7
    assert "own.csv" in run("import", "focus", str(file)).stdout
    booked = run("import", "focus", str(file), "--as-adjustments")
    assert (booked.exit_code, "0 adjustments booked" in booked.stderr) == (0, True)
    wrong = run("import", "focus", str(file), "--rate", "EUR")
    assert wrong.exit_code == 2
    assert "--rate" in wrong.stderr
