"""gpucost commitments on the day of ``findings_worlds``, by arithmetic that was done by hand.

8 GPUs at 4 on 6 October: train (nlp) holds 4 and forgotten (vision) 2 from 01:00 on, 138 GPU-hours in 23
hours; the other 54 of 192 are free.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import Result

from gpucost.cli.terminal.exit_codes import ExitCode
from tests.cli.findings_worlds import Run, looked_at

__all__ = ["looked_at"]

HEAD = "version: 1\ncurrency: USD\ncontracts:\n"
TERM = "start: 2026-10-01T00:00:00Z, end: 2026-11-01T00:00:00Z"
DAY = "2026-10-06T00:00:00Z/2026-10-07T00:00:00Z"
# 3 GPUs at 2 for vision; the scope is that of the node.
RESERVED = f"- {{id: r-1, kind: reservation, gpus: 3, price: 2, owner: vision, {TERM}}}\n"
PLANNED = (
    "- {id: try, kind: reservation, planned: true, gpus: 4, price: 3, "
    "start: 2027-01-01T00:00:00Z, end: 2028-01-01T00:00:00Z}\n"
)
SPOT = f"- {{id: spots, kind: spot, {TERM}}}\n"


def asked(run: Run, folder: Path, contracts: str, *words: str, window: str = DAY) -> Result:
    file = folder / "contracts.yaml"
    file.write_text(HEAD + contracts, encoding="utf-8")
    return run("commitments", window, "--contracts", str(file), *words)


def test_a_day_of_a_reservation(looked_at: Run, tmp_path: Path) -> None:
    """72 GPU-hours at 2 are 144. Vision uses 46 of them, nlp 23; the first hour of 3 stands idle: of 138
    GPU-hours of teams 69 are covered. The rest, 120, is on demand at 4: 480; all would have been 768."""
    result = asked(looked_at, tmp_path, RESERVED)
    assert (result.exit_code, result.stderr) == (ExitCode.OK, "")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "r-1 vision 72.0 h 69.0 h 95.8% 50.0% 144.00 6.00 144.00" in lines
    assert "vision 46.0 184.00 184.00 98.00 6.00 0.00" in lines
    assert "nlp 92.0 368.00 368.00 322.00 0.00 276.00" in lines
    assert "kept by the platform 54.0 216.00 216.00 204.00 0.00 204.00" in lines
    assert "all 192.0 768.00 768.00 624.00 6.00 480.00" in lines
    proof = "Used, idle, unused and left against what the contracts cost: difference 0 nano-USD."
    assert proof in lines
    assert "r-1: with what was not used, a GPU-hour that was used cost 2.0870 USD." in lines


def test_the_same_for_programs(looked_at: Run, tmp_path: Path) -> None:
    found = json.loads(asked(looked_at, tmp_path, RESERVED + PLANNED + SPOT, "-f", "json").stdout)
    assert found["schema"] == "gpucost/CommitmentReport/v1"
    [one] = found["contracts"]
    assert (one["committed_quantity"]["gpu_hours"], one["used_quantity"]["gpu_hours"]) == (
        "72.000000000",
        "69.000000000",
    )
    assert (one["utilisation"], one["coverage"], one["paid"]) == (0.958333, 0.5, "144.000000000")
    effective = {row["team"]: row["effective"] for row in found["teams"]}
    assert effective == {"": "204.000000000", "nlp": "322.000000000", "vision": "98.000000000"}
    assert found["difference_nano"] == 0
    assert found["gaps"] == {
        "missing_ms": 0,
        "unknown_board_ms": 0,
        "unknown_gpu_hours": "0.000000000",
        "unread": None,
    }
    # Beside the reservation 4 more: 3 of nlp are on demand from 01:00 on, and idle GPUs the rest of the time.
    [tried] = found["planned"]
    assert (tried["contract"], tried["saved"]) == ("try", "96.000000000")
    [spot] = found["spot"]
    assert (spot["contract"], spot["nano_per_board_hour"]) == ("spots", None)


def test_a_planned_contract_and_spot_in_words(looked_at: Run, tmp_path: Path) -> None:
    said = " ".join(asked(looked_at, tmp_path, PLANNED + SPOT).stdout.split())
    assert "No contract commits anything in this window." in said
    tried = said.partition("try, planned: on 2026-10-06T00:00:00Z/2026-10-07T00:00:00Z ")[2]
    assert tried.startswith(
        "it would have saved 96.00 USD (saved per day: p10 96.00; p50 96.00; p90 96.00); "
    )
    assert "it pays from 75% drawn on, and 100% would have been drawn, 96% by teams" in tried
    assert "spots: no spot use with a price." in said


def test_the_month_is_cut_to_what_the_ledger_has(looked_at: Run, tmp_path: Path) -> None:
    """The other days of October are in no ledger: they are not unused, and a pool's past is not known."""
    pool = RESERVED.replace("gpus: 3", "gpu_hours: 1000, per: month, unused: platform")
    result = asked(looked_at, tmp_path, pool, window="2026-10")
    assert result.exit_code == ExitCode.OK
    assert "Commitments 2026-10-06T00:00:00Z/2026-10-07T00:00:00Z, USD" in result.stdout
    said = " ".join(result.stdout.split())
    assert "r-1, a pool per month: 0.00 of 2,000.00 USD was drawn before, 1,616.00 is left." in said
    assert "The ledger begins at 2026-10-06T00:00:00Z: what pools lost from 2026-10-01T00:00:00Z on" in said


WRONG = [
    (
        RESERVED.replace("vision", "sales"),
        "contracts[0].owner: 'sales' is not allowed; allowed: shared, or a team",
    ),
    (RESERVED.replace("T00:00:00Z, end", ", end"), "contracts[0].start"),
    (RESERVED + RESERVED.replace("r-1", "r-2"), "contracts[1].order"),
    (RESERVED.replace("gpus", "boards"), "contracts[0].boards: unknown key"),
]


@pytest.mark.parametrize(("contracts", "says"), WRONG)
def test_wrong_contracts_end_with_2_and_nothing_is_written(
    contracts: str, says: str, looked_at: Run, tmp_path: Path
) -> None:
    target = tmp_path / "report.json"
    result = asked(looked_at, tmp_path, contracts, "-f", "json", "-o", str(target))
    assert (result.exit_code, result.stdout) == (ExitCode.USAGE, "")
    assert f"{tmp_path / 'contracts.yaml'}:4: {says}" in result.stderr.replace("yaml:5", "yaml:4")
    assert not target.exists()


def test_another_currency_and_another_time_are_refused(looked_at: Run, tmp_path: Path) -> None:
    file = tmp_path / "euro.yaml"
    file.write_text(HEAD.replace("USD", "EUR") + RESERVED, encoding="utf-8")
    result = looked_at("commitments", DAY, "--contracts", str(file))
    assert result.exit_code == ExitCode.USAGE
    assert "currency: 'EUR' is not allowed; allowed: USD, the currency of the ledger" in result.stderr
    result = asked(looked_at, tmp_path, RESERVED, window="2026-12")
    assert result.exit_code == ExitCode.USAGE
    assert "WINDOW" in result.stderr
    assert "which the ledger holds" in result.stderr


CHARGED = "version: 1\nname: contracts\ncontracts_file: contracts.yaml\n"


def test_a_policy_with_contracts_charges_what_they_made_of_the_use(looked_at: Run, tmp_path: Path) -> None:
    """Of the first test: vision pays 98 of 184, 6 of them for what was not used; nlp 322 of 368. What the
    platform keeps is 768 - 98 - 322 = 348."""
    (tmp_path / "contracts.yaml").write_text(HEAD + RESERVED, encoding="utf-8")
    (tmp_path / "policy.yaml").write_text(CHARGED, encoding="utf-8")
    words = ("2026-10", "--policy", str(tmp_path / "policy.yaml"))
    found = json.loads(looked_at("statement", *words, "--all", "-f", "json").stdout)
    lines = {each["team"]: {row["kind"]: row["nano"] // 10**9 for row in each["lines"]} for each in found}
    assert lines == {
        "nlp": {"used": 368, "commitment": -46},
        "vision": {"used": 184, "commitment": -92, "unused_commitment": 6},
    }
    [nlp, vision] = found
    assert (nlp["total"], vision["total"]) == ("322.000000000", "98.000000000")
    views = {name: vision["contracts"][name] for name in ("list", "contracted", "effective", "unused")}
    assert views == {
        "list": "184.000000000",
        "contracted": "184.000000000",
        "effective": "98.000000000",
        "unused": "6.000000000",
    }
    shown = [" ".join(line.split()) for line in looked_at("statement", *words, "--all").stdout.splitlines()]
    assert "kept by the platform 54.0 348.00" in shown
    assert "Difference 0 GPU-ms, 0 nano-USD." in shown
    assert "184.00 184.00 98.00 6.00" in shown
    (tmp_path / "plain.yaml").write_text("version: 1\nname: plain\n", encoding="utf-8")
    both = ("--policy", str(tmp_path / "plain.yaml"), "--policy", str(tmp_path / "policy.yaml"))
    previewed = json.loads(looked_at("chargeback", "preview", "2026-10", *both, "-f", "json").stdout)
    assert [each["difference"]["nano"] for each in previewed["policies"]] == [0, 0]
    assert {each["team"]: each["difference_nano"] // 10**9 for each in previewed["teams"]} == {
        "nlp": -46,
        "vision": -86,
    }


@pytest.mark.parametrize(
    ("policy", "contracts", "said"),
    [
        (CHARGED, (HEAD + RESERVED).replace("USD", "EUR"), "currency: 'EUR' is not allowed; allowed: USD"),
        (CHARGED, HEAD + RESERVED.replace("vision", "visoin"), "contracts[0].owner: 'visoin'"),
        (
            f"{CHARGED}policies: [{{base: nominal}}]\nquotas: [{{team: nlp, model: H100, gpus: 1}}]\n",
            HEAD + RESERVED,
            "policies[0].base: 'nominal' is not allowed; allowed: use",
        ),
        (
            f"{CHARGED}currency: EUR\nrates: []\n",
            HEAD + RESERVED,
            "currency: 'EUR' is not allowed; allowed: USD",
        ),
        (CHARGED, None, "contracts.yaml"),
    ],
)
def test_contracts_that_a_policy_cannot_charge_are_refused(
    looked_at: Run, tmp_path: Path, policy: str, contracts: str | None, said: str
) -> None:
    (tmp_path / "policy.yaml").write_text(policy, encoding="utf-8")
    if contracts is not None:
        (tmp_path / "contracts.yaml").write_text(contracts, encoding="utf-8")
    result = looked_at("statement", "2026-10", "--all", "--policy", str(tmp_path / "policy.yaml"))
    assert (result.exit_code, result.stdout) == (ExitCode.USAGE, "")
    assert said in result.stderr
