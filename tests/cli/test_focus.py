"""gpucost export focus and gpucost import focus, as people call them."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from gpucost.cli.application import app
from gpucost.domain.scope import EVERYTHING
from gpucost.reports.focus.focus_columns import FocusDataset
from tests.cli.api_server import served
from tests.support.focus_rules import rows_of
from tests.support.focus_world import CONTRACTS, MONTH, focus_ledger

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
    assert [(node["difference_nano"], node["causes"]) for node in found["nodes"]] == [(0, [])] * 7
    assert (found["repeated_lines"], found["refused_count"]) == (0, 0)
    assert "own.csv" in run("import", "focus", str(file)).stdout
    booked = run("import", "focus", str(file), "--as-adjustments")
    assert (booked.exit_code, "0 adjustments booked" in booked.stderr) == (0, True)
    wrong = run("import", "focus", str(file), "--rate", "EUR")
    assert wrong.exit_code == 2
    assert "--rate" in wrong.stderr


def test_a_server_gives_the_same_files_and_books_the_same(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("ChargePeriodStart", "ChargePeriodEnd", "ChargeCategory", "BilledCost", "EffectiveCost")
    values = ("2026-10-01T00:00:00Z", "2026-10-01T01:00:00Z", "Usage", "100", "100", "USD", "i-1")
    invoice = tmp_path / "aws, october.csv"
    invoice.write_text(f"{','.join(names)},BillingCurrency,ResourceId\n{','.join(values)}\n", "utf-8")
    asked = ("export", "focus", "2026-10", "--version", "1.4", "--output-dir")
    read = ("import", "focus", str(invoice))
    with served(f"sqlite:///{tmp_path / 'focus.db'}", tmp_path / "keys") as server:

        def ask(*words: str, key: str = "root") -> Result:
            monkeypatch.setenv("GPUCOST_TOKEN_FILE", str(server.key(key)))
            return CliRunner().invoke(app, ["--server", server.url, *words])

        server.ledger.identify_nodes("alpha", [("whole", "aws:///eu-1a/i-1")])
        assert run(*asked, str(tmp_path / "here")).exit_code == 0
        assert ask(*asked, str(tmp_path / "there")).exit_code == 0
        files = sorted(file.name for file in (tmp_path / "here").iterdir())
        assert files == sorted(file.name for file in (tmp_path / "there").iterdir())
        for name in files:
            assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
        here, there = (each(*read, "-f", "json") for each in (run, ask))
        assert json.loads(here.stdout)["nodes"]
        assert (there.exit_code, there.stdout) == (0, here.stdout)
        assert ask(*read, "--as-adjustments").exit_code == 4  # the month is open
        server.ledger.close_month(MONTH, author="ada", min_coverage=Fraction(0), reason="a test")
        assert ask(*read, "--as-adjustments", key="fin").exit_code == 2
        assert ask(*read, key="vera").exit_code == 2
        assert server.ledger.adjustments(EVERYTHING, MONTH) == ()
        assert "3 adjustments booked" in ask(*read, "--as-adjustments").stderr
        assert "0 adjustments booked" in run(*read, "--as-adjustments").stderr
        found = [entry for entry in server.ledger.audit(EVERYTHING) if entry.action.startswith("focus")]
    exports = [entry.subject for entry in found if (entry.action, entry.author) == ("focus export", "root")]
    assert sorted(exports) == sorted(f"2026-10 {dataset}" for dataset in FocusDataset)
    [imported] = [entry for entry in found if entry.action == "focus import"]
    assert imported.subject.startswith("2026-10 aws, october.csv ")
    assert "3 adjustments" in imported.detail


@pytest.mark.parametrize("words", ["export focus 2026-10 --contracts c.yaml", "import focus f --author a"])
def test_what_a_server_decides_itself_is_refused(words: str) -> None:
    result = CliRunner().invoke(app, ["--server", "http://127.0.0.1:9", *words.split()])
    assert (result.exit_code, words.split()[3] in result.stderr) == (2, True)
