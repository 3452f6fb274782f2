"""What our runner makes of the validator's output; and the validator, where its environment is there."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import pytest

from gpucost.domain.scope import EVERYTHING
from gpucost.ledger.ledger import Ledger
from gpucost.reports.focus.focus_columns import FocusDataset, FocusVersion
from gpucost.service.reporting.focus_exports import FocusExports, FocusRequest
from tests.ledger import builders
from tests.support.focus_validator import REVIEWED, UnreadableRun, exports, parse_run, reviewed, validate
from tests.support.ledgers import new_ledger

ENVIRONMENT = Path(__file__).parents[3] / ".cache" / "focus"
GOOD = """
=== Validation Results ===
Total: 4 | Pass: 2 | Fail: 1 | Skipped: 1
✅ BilledCost-C-001-M: PASS
❌ InvoiceId-C-004-C: FAIL  (violations=11, msg=InvoiceId MUST be null., 2.0ms)
"""


def test_a_run_says_what_failed_and_in_how_many_rows() -> None:
    run = parse_run(GOOD)
    assert (dict(run.failed), run.passed) == ({"InvoiceId-C-004-C": 11}, 2)


@pytest.mark.parametrize(
    "output",
    [
        "",
        "Traceback (most recent call last):",
        GOOD.replace("Total: 4 |", "Total:"),
        GOOD.replace("Fail: 1", "Fail: 2"),
        GOOD.replace("❌ InvoiceId", "- InvoiceId"),
        "Total: 1 | Pass: 0 | Fail: 0 | Skipped: 1",
    ],
)
def test_a_run_without_a_summary_that_adds_up_counts_as_failed(output: str) -> None:
    with pytest.raises(UnreadableRun):
        parse_run(output)


def test_every_rule_on_the_list_has_a_reason_and_its_rows() -> None:
    entries = json.loads(REVIEWED.read_text("utf-8"))
    assert len({entry["rule"] for entry in entries}) == len(entries)
    assert all(len(entry["reason"]) > 40 and all(entry["rows"].values()) for entry in entries)


@pytest.mark.slow
def test_exports_pass_the_validator_but_for_the_reviewed_list(tmp_path: Path) -> None:
    if not (ENVIRONMENT / ".made").exists():
        pytest.skip("no environment of focus-validator: make focus-check makes it")
    for name, file in exports(tmp_path).items():
        assert dict(validate(ENVIRONMENT, file).failed) == reviewed(name)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "by", "grain"), [(0, "job", "hour"), (1, "team", "day"), (2, "job", "day")])
def test_random_ledgers_fail_no_rule_that_was_not_reviewed(
    tmp_path: Path, seed: int, by: str, grain: str
) -> None:
    """With a price for all GPU time and names in ASCII: docs/focus.md says what fails without."""
    if not (ENVIRONMENT / ".made").exists():
        pytest.skip("no environment of focus-validator: make focus-check makes it")
    choose = random.Random(seed)
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=lambda: builders.NOW_MS) as ledger:
        for number in sorted(choose.sample(range(24 * 31), 8)):
            window, cluster = builders.hour(number), choose.choice(("alpha", "beta"))
            rows = builders.random_rows(seed, window, 30, cluster)
            plain = [{**row, "model": row["model"].replace("é", "e")} for row in rows if row["rate_id"]]
            plain = [{**row, "team": row["team"].replace("é", "e")} for row in plain]
            builders.ingest(ledger, window, *plain, cluster=cluster)
        target = io.BytesIO()
        request = FocusRequest(builders.MONTH, FocusVersion.V1_2, by, grain)
        FocusExports(ledger, EVERYTHING, "1").write(request, FocusDataset.COST_AND_USAGE, "csv", target)
    file = tmp_path / "export.csv"
    file.write_bytes(target.getvalue())
    assert target.getvalue().count(b"\n") > 100
    known = {entry["rule"] for entry in json.loads(REVIEWED.read_text("utf-8"))}
    assert {*validate(ENVIRONMENT, file).failed} <= known
