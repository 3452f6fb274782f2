"""gpucost digest: the week of 6 October 2026, of which the ledger has one day, by arithmetic done by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpucost.cli.terminal.exit_codes import ExitCode
from tests.cli.findings_worlds import Run, looked_at, prepare

__all__ = ["looked_at"]

# 8 GPUs for a day at 4 USD an hour; of the week six days are not there.
WEEK = "2026-W41"


def test_the_digest_of_the_platform_as_text(looked_at: Run) -> None:
    result = looked_at("digest", WEEK)
    assert (result.exit_code, result.stderr) == (ExitCode.OK, "")
    words = " ".join(result.stdout.split())
    assert words.startswith("All teams: week 41, 2026-10-05 to 2026-10-11")
    said = "The clusters cost USD 768 in week 41; 26% of the cost was wasted; 6 days of the week are not in"
    assert said in words
    assert "Wasted USD 199 (25.9% of the cost), 49.7 GPU-hours" in words
    assert "Week before not compared: nothing of the week before in the ledger" in words
    assert "1. job ns/forgotten of vision: USD 192 a day at its rate of now" in words
    assert "kubectl -n ns patch jobs.batch/forgotten" in words
    assert "Of 24 windows: 0 final, 24 provisional until more is known, 0 not looked at." in words


def test_without_a_week_it_is_the_last_that_the_ledger_has(looked_at: Run) -> None:
    assert looked_at("digest").stdout == looked_at("digest", WEEK).stdout


def test_a_team_reads_its_own(looked_at: Run) -> None:
    result = looked_at("digest", WEEK, "--team", "vision", "-f", "json")
    assert (result.exit_code, result.stderr) == (ExitCode.OK, "")
    found = json.loads(result.stdout)
    assert (found["schema"], found["week"], found["team"]) == ("gpucost/WeekDigest/v1", WEEK, "vision")
    assert (found["teams"], found["waste"]["teams_in_scope"]) == ([], ["vision"])
    assert found["cost"]["nano"] == 4 * 10**9 * found["cost"]["board_ms"] // 3_600_000
    assert sum(row["amount"]["board_ms"] for row in found["waste"]["buckets"]) == found["cost"]["board_ms"]
    assert [day["buckets"] is None for day in found["days"]] == [True, False, *[True] * 5]
    assert [row["finding"] for row in found["actions"]] == [1]
    assert found["coverage"]["missing_ms"] == 6 * 86_400_000
    text = looked_at("digest", WEEK, "--team", "vision").stdout
    assert text.startswith("vision: week 41")
    assert "All teams" not in text


def test_a_page_has_its_pictures_in_it(looked_at: Run, tmp_path: Path) -> None:
    target = tmp_path / "digest.html"
    assert looked_at("digest", WEEK, "-f", "html", "-o", str(target)).exit_code == ExitCode.OK
    page = target.read_text(encoding="utf-8")
    assert "USD 768" in page
    assert "data:image/png;base64," in page
    assert "cid:" not in page


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("2026-W40",), "WEEK: '2026-W40' is not allowed; allowed: a week of 2026-10-06T00:00:00Z/"),
        (("2026-41",), "WEEK: '2026-41' is not allowed; allowed: YYYY-Www of ISO 8601, such as 2026-W43"),
        ((WEEK, "--team", "visoin"), "--team: 'visoin' is not allowed; allowed: "),
        ((WEEK, "-f", "csv"), "'csv' is not one of"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_code_2(
    words: tuple[str, ...], sentence: str, looked_at: Run
) -> None:
    result = looked_at("digest", *words)
    assert (result.exit_code, result.stdout) == (ExitCode.USAGE, "")
    assert sentence in " ".join(result.stderr.replace("│", " ").split())


def test_an_empty_ledger_is_said(tmp_path: Path) -> None:
    result = prepare(tmp_path)("digest")
    assert result.exit_code != ExitCode.OK
    assert result.stdout == ""
