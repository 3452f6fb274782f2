"""gpucost chargeback preview, of the day of ``findings_worlds``: 8 H100 at 4 dollars, 192 GPU-hours, 768 USD.

``nlp`` held 4 x 23 = 92 GPU-hours (368), ``vision`` 2 x 23 = 46 (184); 54 were idle (216).
"""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from zipfile import ZipFile

import pytest

from gpucost.cli.commands.chargeback import _file_name
from gpucost.cli.terminal.exit_codes import ExitCode
from tests.cli.findings_worlds import (
    DAY_MINUTES,
    Run,
    copied,
    ingest,
    looked_at,
    prepare,
    world,
)
from tests.detectors.worlds import at

__all__ = ["looked_at"]

HELD = "version: 1\nname: by use\n"
QUOTA = """
version: 1
name: by quota
policies: [{base: nominal}]
quotas:
  - {team: nlp, model: H100, gpus: 6, queue: cq}
  - {team: vision, model: H100, gpus: 2}
"""


@pytest.fixture
def policies(tmp_path: Path) -> tuple[str, ...]:
    words = []
    for name, text in (("use", HELD), ("quota", QUOTA)):
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
        words += ["--policy", str(tmp_path / f"{name}.yaml")]
    return tuple(words)


def preview(run: Run, *words: str):  # type: ignore[no-untyped-def]
    return run("chargeback", "preview", "2026-10", *words)


def test_two_policies_side_by_side(looked_at: Run, policies: tuple[str, ...]) -> None:
    """By quota nlp pays 6 x 24 x 4 = 576, vision 2 x 24 x 4 = 192, and nothing is kept."""
    result = preview(looked_at, *policies)
    assert (result.exit_code, result.stderr) == (ExitCode.OK, "")
    rows = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "nlp – 368.00 576.00 +208.00 +56.5%" in rows
    assert "vision – 184.00 192.00 +8.00 +4.3%" in rows
    assert "kept by the platform 216.00 0.00 −216.00 −100.0%" in rows
    assert "nlp used 92.0 92.0 368.00 368.00 0.00" in rows
    assert "quota that stood idle 0.0 52.0 0.00 208.00 +208.00" in rows
    assert "216.00 USD change hands between A and B." in rows
    assert "A: charged 552.00 + kept 216.00 = capacity 768.00 USD: difference 0 nano" in rows
    assert "B: charged 768.00 + kept 0.00 = capacity 768.00 USD: difference 0 nano" in rows


def test_the_same_for_programs(looked_at: Run, policies: tuple[str, ...]) -> None:
    result = preview(looked_at, *policies, "-f", "json")
    found = json.loads(result.stdout)
    assert found["schema"] == "gpucost/ChargebackPreview/v1"
    assert [each["charged"]["cost"] for each in found["policies"]] == ["552.000000000", "768.000000000"]
    assert {each["team"]: each["difference"] for each in found["teams"]} == {
        "nlp": "208.000000000",
        "vision": "8.000000000",
    }
    assert preview(looked_at, *policies, "-f", "json").stdout == result.stdout


def test_one_policy_is_shown_alone(looked_at: Run, policies: tuple[str, ...]) -> None:
    result = preview(looked_at, *policies[2:])
    rows = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "nlp – 576.00" in rows
    assert not [row for row in rows if "change hands" in row]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: 1\nname: a\npolicies: [{base: usage}]", "policies[0].base: 'usage'"),
        ("version: 1\nname: a\nlimits: [{team: visoin, cap: 1}]", "limits[0].team: 'visoin'"),
        ("version: 1\nname: a\ncurrency: EUR", "rates: missing; allowed: a rate from USD to EUR"),
    ],
)
def test_a_policy_that_is_wrong_ends_before_anything_is_printed(
    looked_at: Run, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "wrong.yaml").write_text(text, encoding="utf-8")
    result = preview(looked_at, "--policy", str(tmp_path / "wrong.yaml"))
    assert (result.exit_code, result.stdout) == (ExitCode.USAGE, "")
    assert said in result.stderr
    assert "wrong.yaml" in result.stderr


def test_a_month_that_is_not_there(looked_at: Run, policies: tuple[str, ...]) -> None:
    result = looked_at("chargeback", "preview", "2026-08", *policies)
    assert result.exit_code == ExitCode.USAGE
    assert "MONTH" in result.stderr


def test_a_statement_of_a_team(looked_at: Run) -> None:
    """nlp held 92 GPU-hours of 4 dollars: its amount in the report, too."""
    result = looked_at("statement", "2026-10", "--team", "nlp")
    assert (result.exit_code, result.stderr) == (ExitCode.OK, "")
    rows = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert rows[0] == "Statement of nlp, October 2026, USD"
    assert "used 92.0 368.00" in rows
    assert "total 92.0 368.00" in rows
    found = json.loads(looked_at("statement", "2026-10", "--team", "nlp", "-f", "json").stdout)
    assert found["schema"] == "gpucost/TeamStatement/v1"
    assert (found["total"], found["charged"], found["adjusted"]) == (
        "368.000000000",
        "368.000000000",
        "0.000000000",
    )
    report = json.loads(looked_at("report", "2026-10", "-f", "json").stdout)
    [team] = [each for each in report["teams"] if each["row"]["group"]["team"] == "nlp"]
    assert found["total_nano"] == team["adjusted"]["nano"]
    assert sum(job["nano"] for job in found["jobs"]) == 368 * 10**9
    assert found["digest"] == report["provenance"]["digest"]


def test_statements_of_all_teams_and_what_is_kept_are_the_capacity(
    looked_at: Run, policies: tuple[str, ...], tmp_path: Path
) -> None:
    """By quota: 576 and 192, nothing is kept; each is the preview's amount, and a file of its own."""
    words = ("statement", "2026-10", "--all", "--policy", policies[3])
    shown = json.loads(looked_at(*words, "-f", "json").stdout)
    assert {each["team"]: each["total"] for each in shown} == {
        "nlp": "576.000000000",
        "vision": "192.000000000",
    }
    [nlp] = [each for each in shown if each["team"] == "nlp"]
    assert {each["kind"]: each["nano"] // 10**9 for each in nlp["lines"]} == {
        "used": 368,
        "reserved_idle": 208,
    }
    done = looked_at(*words, "-f", "csv", "--output-dir", str(tmp_path / "october"))
    assert done.exit_code == ExitCode.OK, done.stderr
    files = sorted(file.name for file in (tmp_path / "october").iterdir())
    assert files == ["2026-10-nlp.csv", "2026-10-vision.csv", "2026-10.csv"]
    (tmp_path / "file").touch()
    refused = looked_at(*words, "-f", "csv", "--output-dir", str(tmp_path / "file"))
    assert refused.exit_code == ExitCode.USAGE
    assert "allowed: a folder that can be made (File exists)" in refused.stderr
    lines = (tmp_path / "october" / "2026-10-vision.csv").read_text("utf-8").splitlines()
    assert lines[0].startswith('"month","team","cost_centre","policy","state","line"')
    assert '"total",48.000000000,172800000,192.000000000,192000000000,"USD"' in lines[-1]
    lines = (tmp_path / "october" / "2026-10.csv").read_text("utf-8").splitlines()
    assert [line.split(",")[1] for line in lines[1:]] == ['"nlp"', '"vision"', '""']
    assert "144.000000000,518400000,576.000000000,576000000000,0.000000000,0,576.000000000" in lines[1]


def test_what_every_team_pays_stands_before_their_statements(looked_at: Run) -> None:
    """By use nlp held 92 of the day's 192 GPU-hours, vision 46: 368 and 184 of 768 USD, 216 are kept."""
    shown = looked_at("statement", "2026-10", "--all").stdout
    first = shown[: shown.index("Statement of nlp")]
    rows = {row.split()[0]: row.split()[1:] for row in first.splitlines() if row.strip()}
    assert rows["nlp"] == ["–", "92.0", "368.00"]
    assert rows["vision"][-1] == "184.00"
    assert rows["kept"][-2:] == ["54.0", "216.00"]
    assert "Difference 0 GPU-ms, 0 nano-USD." in first


def test_a_report_says_what_statements_say(
    looked_at: Run, policies: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By quota: 576 and 192. A policy that does not fit leaves the report as it is, and says so."""
    assert json.loads(looked_at("report", "2026-10", "-f", "json").stdout)["charges"] is None
    monkeypatch.setenv("GPUCOST_CHARGES__POLICY", policies[3])
    found = json.loads(looked_at("report", "2026-10", "-f", "json").stdout)["charges"]
    statements = json.loads(looked_at("statement", "2026-10", "--all", "-f", "json").stdout)
    totals = {each["team"]: each["total"] for each in statements}
    assert {each["team"]: each["total"] for each in found["teams"]} == totals
    assert totals["nlp"] == "576.000000000"
    assert found["proof"]["difference_nano"] == 0
    assert '"to_pay","2026-10"' in looked_at("report", "2026-10", "-f", "csv").stdout
    assert "Difference 0 GPU-ms, 0 nano-USD." in looked_at("report", "2026-10").stdout
    assert "<td>0 GPU-ms</td><td>0 nano</td>" in looked_at("report", "2026-10", "-f", "html").stdout
    Path(policies[3]).write_text("version: 1\nname: a\ncurrency: EUR\n", encoding="utf-8")
    unfit = json.loads(looked_at("report", "2026-10", "-f", "json").stdout)
    assert (unfit["charges"], "rates" in unfit["uncharged"]) == (None, True)


def test_what_became_of_a_quota(looked_at: Run, policies: tuple[str, ...]) -> None:
    """nlp's 6 GPUs for 24 hours: 144 GPU-hours, 92 of them used and 52 idle, 208 USD; none were lent."""
    words = ("statement", "2026-10", "--team", "nlp", "--policy", policies[3])
    [quota] = json.loads(looked_at(*words, "-f", "json").stdout)["quotas"]
    hours = [quota[f"{name}_gpu_hours"] for name in ("nominal", "used", "idle", "lent", "borrowed")]
    assert [float(each) for each in hours] == [144, 92, 52, 0, 0]
    assert (quota["queue"], quota["idle"], quota["lent"]) == ("cq", "208.000000000", "0.000000000")
    row = next(row for row in looked_at(*words).stdout.splitlines() if "H100" in row and "cq" in row)
    assert row.split()[2:] == ["144.0", "92.0", "52.0", "0.0", "0.0", "208.00", "0.00"]
    assert "Quota" not in looked_at("statement", "2026-10", "--team", "nlp").stdout


def test_a_statement_says_at_which_prices(looked_at: Run) -> None:
    """92 GPU-hours of the one price, 4 dollars: 368."""
    found = json.loads(looked_at("statement", "2026-10", "--team", "nlp", "-f", "json").stdout)
    [price] = found["prices"]
    assert (price["model"], price["price"], price["gpu_hours"]) == ("H100", "4.000000000", "92.000000000")
    assert price["cost"] == "368.000000000"
    shown = looked_at("statement", "2026-10", "--team", "nlp").stdout
    assert any("H100" in row and "4.00" in row and "368.00" in row for row in shown.splitlines())


def test_a_statement_says_which_rule_made_the_team_pay(looked_at: Run, tmp_path: Path) -> None:
    """Pods of the day carry labels, and there is no file: the rule is the one that goes without."""
    found = json.loads(looked_at("statement", "2026-10", "--team", "nlp", "-f", "json").stdout)
    [rule] = found["rules"]
    assert (rule["rule"], rule["gpu_hours"], rule["cost"], rule["unpriced_board_ms"]) == (
        "team_label names the team",
        "92.000000000",
        "368.000000000",
        0,
    )
    shown = looked_at("statement", "2026-10", "--team", "nlp").stdout
    rows = [" ".join(row.split()) for row in shown.splitlines()]
    assert rows[rows.index("Why this team") + 2 :][:1] == ["rule of the team rules GPU-h USD"]
    assert "team_label names the team 92.0 368.00" in rows
    page = tmp_path / "nlp.html"
    assert looked_at("statement", "2026-10", "--team", "nlp", "-f", "html", "-o", str(page)).exit_code == 0
    assert "<bdi>team_label names the team</bdi></th><td>92.0</td>" in page.read_text("utf-8")


def test_statements_as_pages(looked_at: Run, policies: tuple[str, ...], tmp_path: Path) -> None:
    """One page for all teams has both amounts, and is the same each time."""
    page, again = tmp_path / "all.html", tmp_path / "again.html"
    for file in (page, again):
        words = ("statement", "2026-10", "--all", "--policy", policies[3], "-f", "html", "-o", str(file))
        assert looked_at(*words).exit_code == ExitCode.OK
    text = page.read_text("utf-8")
    assert text == again.read_text("utf-8")
    assert text.count("<main") == 3
    for words in ("<bdi>nlp</bdi>", "576.00", "<bdi>vision</bdi>", "192.00", "its quota that no pod held"):
        assert words in text
    assert "<td>0 GPU-ms</td><td>0 nano</td>" in text
    assert "<script" not in text
    assert "default-src 'none'" in text


def test_statements_as_a_workbook(looked_at: Run, tmp_path: Path) -> None:
    """Its sheets have lines, jobs, prices and team rules; amounts are numbers, nano-units are exact."""
    file = tmp_path / "all.xlsx"
    assert looked_at("statement", "2026-10", "--all", "-f", "xlsx", "-o", str(file)).exit_code == ExitCode.OK
    with ZipFile(file) as book:
        sheets = re.findall(r'<sheet name="([^"]+)"', book.read("xl/workbook.xml").decode())
        texts = re.findall(r"<t[^>]*>([^<]*)</t>", book.read("xl/sharedStrings.xml").decode())
        cells = book.read("xl/worksheets/sheet2.xml").decode()
    assert sheets == [
        "Teams",
        "Charges",
        "Dearest jobs",
        "Prices",
        "Why this team",
        "Quota",
        "Shares",
        "Contracts",
        "Unit costs",
    ]
    assert {"nlp", "vision", "used", "total", "team_label names the team"} <= set(texts)
    numbers = re.findall(r'<c r="[A-Z]+\d+"(?: s="\d+")?><v>([^<]+)</v>', cells)
    assert {"368", "368000000000", "92", "331200000"} <= set(numbers)
    assert "<f>" not in cells


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--team: missing; allowed: a team, or --all"),
        (("--team", "nlp", "--all"), "given beside --all"),
        (("--team", "nlpp"), "nlp (did you mean this?)"),
        (("--all", "--output-dir", "there"), "with another format than table"),
    ],
)
def test_what_no_statement_can_be_made_of_is_refused(
    looked_at: Run, words: tuple[str, ...], said: str
) -> None:
    result = looked_at("statement", "2026-10", *words)
    assert result.exit_code == ExitCode.USAGE
    assert said in result.stderr
    assert not Path("there").exists()


def test_the_policy_of_the_settings_holds_where_none_is_given(
    looked_at: Run, policies: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("statement", "2026-10", "--all", "-f", "json")
    plain, given = looked_at(*words).stdout, looked_at(*words, "--policy", policies[3]).stdout
    monkeypatch.setenv("GPUCOST_CHARGES__POLICY", policies[3])
    assert looked_at(*words).stdout == given != plain


def test_no_two_teams_have_one_file() -> None:
    """Names come from labels: paths, what another name is encoded as, and very long ones."""
    teams = ["a/b", "a%2Fb", "..", "\u0100", "\x100", "x" * 400, "x" * 401]
    files = {_file_name(team) for team in teams}
    assert len(files) == len(teams)
    assert all("/" not in file and len(file) <= 150 for file in files)


@pytest.fixture(scope="module")
def with_quotas(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The day, in which cq had 6 GPUs until 12:34, then 4, and lends at most one; in it ``lab`` had 2."""
    found = world()
    changed = at(12 * 60 + 34)
    for queue, start, end, nominal, limit in (
        ("cq", at(0), changed, 6.0, float("nan")),
        ("cq", changed, at(DAY_MINUTES), 4.0, 1.0),
        ("lab", at(0), at(DAY_MINUTES), 2.0, float("nan")),
    ):
        found.add(
            "quotas", scheduler="kueue", queue=queue, cohort="ml", flavor="h100", resource="nvidia.com/gpu",
            start_ms=start, end_ms=end, nominal=nominal, borrowing_limit=0.0, lending_limit=limit, used=1.0,
        )  # fmt: skip
    run = prepare(tmp_path_factory.mktemp("quotas"), found)
    ingest(run)
    return run


QUOTA_WORDS = ("--team", "cq=nlp", "--team", "lab=vision", "--model", "h100=H100")


def test_quotas_as_they_were_are_charged_to_the_minute(with_quotas: Run, tmp_path: Path) -> None:
    """Nobody can change the recording's past: charges follow from the ledger and two files. nlp pays (6 x
    754 + 4 x 686) / 60 GPU-hours of quota x 4 dollars = 484.53, vision 2 x 24 x 4 = 192."""
    done = with_quotas("chargeback", "quotas", "2026-10", *QUOTA_WORDS, "-o", str(tmp_path / "quotas.yaml"))
    assert (done.exit_code, done.stderr) == (ExitCode.OK, "")
    text = (tmp_path / "quotas.yaml").read_text("utf-8")
    entry = '{team: "nlp", model: "H100", gpus: 4, cluster: "c", queue: "cq", cohort: "ml", '
    dates = 'lending_limit: 1, valid_from: "2026-10-06T12:34:00Z", valid_to: "2026-10-07T00:00:00Z"}'
    assert f"  - {entry}{dates}" in text
    assert '# Cluster "c": the source holds 2026-10-06T00:00:00Z/2026-10-07T00:00:00Z' in text
    policy = "version: 1\nname: a\npolicies: [{base: nominal}]\nquotas_file: quotas.yaml"
    (tmp_path / "policy.yaml").write_text(policy, encoding="utf-8")
    shown = json.loads(preview(with_quotas, "--policy", str(tmp_path / "policy.yaml"), "-f", "json").stdout)
    totals = {each["team"]: round(each["totals"][0]["nano"] / 10**9, 6) for each in shown["teams"]}
    assert totals == {"nlp": 484.533333, "vision": 192}
    assert shown["policies"][0]["difference"]["nano"] == 0


def test_quota_that_was_reserved_and_did_not_run_is_a_line_of_statements(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """Kueue had 5 of the 6 of cq reserved all day, and nlp held 4 from 01:00 on: of 6 + 2 x 23 = 52 idle
    GPU-hours 5 + 23 = 28 were admitted and did not run, 112 USD; the other 24 are 96 USD."""
    found = world()
    found.add(
        "quotas", scheduler="kueue", queue="cq", cohort="ml", flavor="h100", resource="nvidia.com/gpu",
        start_ms=at(0), end_ms=at(DAY_MINUTES), nominal=6.0, borrowing_limit=0.0, lending_limit=float("nan"),
        used=5.0,
    )  # fmt: skip
    run = prepare(tmp_path_factory.mktemp("reserved"), found)
    ingest(run)
    words = ("--team", "cq=nlp", "--model", "h100=H100", "-o", str(tmp_path / "quotas.yaml"))
    done = run("chargeback", "quotas", "2026-10", *words)
    assert (done.exit_code, done.stderr) == (ExitCode.OK, "")
    entry = '{queue: "cq", model: "H100", cluster: "c", gpus: 5, '
    dates = 'valid_from: "2026-10-06T00:00:00Z", valid_to: "2026-10-07T00:00:00Z"}'
    assert f"reservations:\n  - {entry}{dates}\n" in (tmp_path / "quotas.yaml").read_text("utf-8")
    policy = "version: 1\nname: a\npolicies: [{idle_of_quota: owner}]\nquotas_file: quotas.yaml"
    (tmp_path / "policy.yaml").write_text(policy, encoding="utf-8")
    file = ("--policy", str(tmp_path / "policy.yaml"))
    shown = json.loads(run("statement", "2026-10", "--team", "nlp", *file, "-f", "json").stdout)
    assert {each["kind"]: each["nano"] // 10**9 for each in shown["lines"]} == {
        "used": 368,
        "reserved_idle": 96,
        "admitted_not_running": 112,
    }
    rows = [
        " ".join(row.split())
        for row in run("statement", "2026-10", "--team", "nlp", *file).stdout.splitlines()
    ]
    assert "admitted, not running 28.0 112.00" in rows
    text = " ".join(preview(run, *file).stdout.split())
    assert "nlp, H100: 2.2 GPUs of its quota stood idle: 208.00 USD a day" in text
    assert "difference 0 nano" in text


OWNERS = """
version: 1
name: owners pay
policies: [{idle_of_quota: owner}]
quotas:
  - {team: nlp, model: H100, gpus: 6, queue: cq, cohort: ml}
  - {team: vision, model: H100, gpus: 2, cohort: ml}
"""


def test_idle_quota_in_money_a_day_beside_who_waited(with_quotas: Run, tmp_path: Path) -> None:
    """nlp held 4 of its 6 from 01:00 on: 6 + 2 x 23 = 52 GPU-hours idle, 2.2 GPUs, 208 USD that day. vision
    held its 2 from 01:00 on: 2 GPU-hours, 8 USD. Until 01:00 a job of nlp waited for 4 GPUs."""
    (tmp_path / "owners.yaml").write_text(OWNERS, encoding="utf-8")
    words = ("--policy", str(tmp_path / "owners.yaml"))
    text = " ".join(preview(with_quotas, *words, "--waiting").stdout.split())
    idle = "nlp, H100: 2.2 GPUs of its quota stood idle: 208.00 USD a day"
    assert f"{idle}; it waited for 4.0 itself." in text
    beside = "0.1 GPUs of its quota stood idle: 8.00 USD a day; beside them waited, in GPU-hours: nlp 4.0."
    assert f"vision, H100: {beside}" in text
    assert "Not known, who waited: cluster c: the source holds 2026-10-06T00:00:00Z/" in text
    assert f"{idle}." in " ".join(preview(with_quotas, *words).stdout.split())
    found = json.loads(preview(with_quotas, *words, "-f", "json").stdout)["quotas"]
    assert [(each["team"], each["idle_gpu_hours"], each["waited_board_ms"]) for each in found] == [
        ("nlp", "52.000000000", None),
        ("vision", "2.000000000", None),
    ]


def test_lines_by_cost_centre_and_by_day(looked_at: Run, policies: tuple[str, ...]) -> None:
    """Neither team has a cost centre: together they pay 552 by use and 768 by quota. The rows of each policy
    are the capacity."""
    rows = [
        " ".join(row.split())
        for row in preview(looked_at, *policies, "--by", "cost-centre").stdout.splitlines()
    ]
    assert "no cost centre 552.00 768.00 +216.00 +39.1%" in rows
    table = [*csv.DictReader(io.StringIO(preview(looked_at, *policies, "-f", "csv").stdout))]
    sums = {
        name: sum(int(row["nano"]) for row in table if row["policy"] == name)
        for name in ("by use", "by quota")
    }
    assert sums == dict.fromkeys(("by use", "by quota"), 768 * 10**9)
    [idle] = [
        row
        for row in table
        if row["policy"] == "by quota" and row["line"] == "reserved_idle" and row["queue"]
    ]
    assert (idle["team"], idle["queue"], idle["day"], idle["cost"]) == (
        "nlp",
        "cq",
        "2026-10-06",
        "208.000000000",
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (QUOTA_WORDS[2:], "QUEUE=TEAM for each of: cq (no team rule is about the queue alone)"),
        ((*QUOTA_WORDS, "--team", "cp=nlp"), "--team: 'cp'"),
        (("--team", "cq=nlpp", *QUOTA_WORDS[2:]), "nlp (did you mean this?)"),
        ((*QUOTA_WORDS, "--cohort-team", "ml=nlp"), "nothing has quota"),
        (("--team", "cq"), "NAME=VALUE"),
    ],
)
def test_a_queue_is_given_to_no_team_by_guess(with_quotas: Run, words: tuple[str, ...], said: str) -> None:
    result = with_quotas("chargeback", "quotas", "2026-10", *words)
    assert (result.exit_code, result.stdout) == (ExitCode.USAGE, "")
    assert said in result.stderr


def test_a_file_of_quotas_that_is_not_there(looked_at: Run, tmp_path: Path) -> None:
    policy = "version: 1\nname: a\nquotas_file: quotas.yaml"
    (tmp_path / "policy.yaml").write_text(policy, encoding="utf-8")
    result = preview(looked_at, "--policy", str(tmp_path / "policy.yaml"))
    assert result.exit_code == ExitCode.USAGE
    assert "quotas.yaml" in result.stderr


@pytest.mark.fault(43)
def test_a_closed_month_is_charged_as_it_was_closed(
    day_looked_at: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed by quota: 576 and 192. Then the settings charge by use, and the file of quotas is gone."""
    run = copied(day_looked_at, tmp_path)
    first, *rest = QUOTA.split("quotas:")
    (tmp_path / "quotas.yaml").write_text(f"version: 1\nquotas:{rest[0]}", encoding="utf-8")
    (tmp_path / "policy.yaml").write_text(f"{first}quotas_file: quotas.yaml\n", encoding="utf-8")
    monkeypatch.setenv("GPUCOST_CHARGES__POLICY", str(tmp_path / "policy.yaml"))
    dry = run("month", "close", "2026-10", "--dry-run").stdout
    assert "nlp                                       144.0 GPU-h           576.00" in dry
    assert "by the charge policy by quota, digest of the charges " in dry
    words = ("statement", "2026-10", "--all", "-f", "json")
    before = json.loads(run(*words).stdout)
    done = run("month", "close", "2026-10", "--reason", "one day is enough")
    assert done.exit_code == ExitCode.OK, done.stderr
    monkeypatch.delenv("GPUCOST_CHARGES__POLICY")
    (tmp_path / "quotas.yaml").unlink()
    after = json.loads(run(*words).stdout)
    assert [each["total"] for each in after] == [each["total"] for each in before]
    assert {each["charges_digest"] for each in after} == {each["charges_digest"] for each in before}
    assert [(each["state"], each["as_closed"]) for each in after] == [("closed", True)] * 2
    assert "charged as when it was closed" in run("statement", "2026-10", "--all").stdout
    report = json.loads(run("report", "2026-10", "-f", "json").stdout)["charges"]
    assert ({each["total"] for each in report["teams"]}, report["as_closed"]) == (
        {"576.000000000", "192.000000000"},
        True,
    )
    (tmp_path / "other.yaml").write_text(HELD, encoding="utf-8")
    refused = run("statement", "2026-10", "--all", "--policy", str(tmp_path / "other.yaml"))
    assert (refused.exit_code, "gpucost chargeback preview 2026-10" in refused.stderr) == (
        ExitCode.USAGE,
        True,
    )
    assert run("month", "verify", "2026-10").exit_code == ExitCode.OK


def test_a_quota_that_nothing_belongs_to_is_named(looked_at: Run, tmp_path: Path) -> None:
    """Misspelt names of models, clusters and queues; the amounts are those of the other quotas."""
    (tmp_path / "typos.yaml").write_text(
        OWNERS.replace(
            "  - {team: nlp, model: H100, gpus: 6, queue: cq, cohort: ml}",
            """
  - {team: nlp, model: H-100, gpus: 6}
  - {team: nlp, model: H100, gpus: 6, cluster: prod}
  - {team: nlp, model: H100, gpus: 6, queue: cp}
""",
        ),
        encoding="utf-8",
    )
    words = ("2026-10", "--policy", str(tmp_path / "typos.yaml"))
    nothing = "there is no such GPU in the month, and nothing is charged by it"
    said = [
        f"quota of nlp for H-100: {nothing}",
        f"quota of nlp for H100 in cluster prod: {nothing}",
        "quota of nlp for H100: no pod held anything in queue cp in the month",
    ]
    result = looked_at("statement", *words, "--team", "vision")
    assert result.exit_code == ExitCode.OK
    assert result.stderr.splitlines() == [f"gpucost: {each}" for each in said]
    result = looked_at("chargeback", "preview", *words)
    assert result.stderr.splitlines() == [f"gpucost: owners pay: {each}" for each in said]
