"""What programs' faces say (JSON, CSV, /metrics), by the names that are printed for people."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from datetime import date
from fractions import Fraction
from typing import Any, TypeAlias

from prometheus_client.parser import text_string_to_metric_families

from gpucost.domain.buckets import Bucket, Waste
from gpucost.reports.base.display import PARTS
from gpucost.reports.waste.waste_table import LABELS
from gpucost.service.wiring.demo_month import DEMO_MONTH
from tests.cli.named_amounts import Name

Known: TypeAlias = Iterator[tuple[Name, Fraction | None]]
HOUR_MS = 3_600_000
_TEAMS = {"__no_team__": "no team", "": "nobody"}


def team_of(key: str) -> str:
    return _TEAMS.get(key, key)


def amount(name: Name, found: Mapping[str, Any], hours: str = "gpu-hours", cost: str = "cost") -> Known:
    """An amount of JSON, or the columns of a CSV row."""
    yield (*name, hours), Fraction(int(found["board_ms"]), HOUR_MS)
    yield (*name, cost), None if found["nano"] in (None, "") else Fraction(int(found["nano"]), 10**9)


def ratio(value: object) -> Fraction | None:
    return None if value in (None, "") else Fraction(str(value))


def group(name: Name, row: Mapping[str, Any]) -> Known:
    """What one holder had, and how it was used, in JSON."""
    yield from amount(name, row["held"])
    if "jobs" in row:
        yield (*name, "jobs"), Fraction(row["jobs"])
        yield (*name, "of cost"), ratio(row.get("share_of_cost"))
    change = row.get("change")
    if change is not None:
        # Printed with a sign, by which a number is not found.
        relative = ratio(change["relative"])
        yield (*name, "change"), None if relative is None else abs(relative)
        yield (*name, "change in cost"), abs(Fraction(change["nano"], 10**9))
    for part in ("busy", "sm", "tensor", "memory"):
        found = row["utilisation"][part]
        if found is not None:
            yield (*name, part, part), ratio(found["mean"])
            yield (*name, part, "seen"), ratio(found["coverage"])
            if part == "memory" and found["peak_mib"] is not None:
                yield (*name, part, "peak"), Fraction(found["peak_mib"], 1024)
    energy = row["utilisation"]["energy"]
    if energy is not None:
        yield (*name, "energy", "energy"), Fraction(energy["mj"], 3_600_000_000)
        yield (*name, "energy", "watts"), ratio(energy["mean_w"])
        yield (*name, "energy", "seen"), ratio(energy["coverage"])


def report_json(found: Mapping[str, Any], scope: str) -> Known:
    capacity = found["capacity"]
    whole = capacity["capacity"]
    yield from amount((scope, "capacity", "capacity"), whole)
    for part, each in capacity["buckets"].items():
        yield from _part((scope, "capacity", PARTS[Bucket(part)]), each, whole)
    for model in capacity["models"]:
        name = (scope, "model", model["model"])
        yield from amount(name, model["capacity"], "capacity gpu-hours", "capacity cost")
        for part, each in model["buckets"].items():
            yield from _part((*name, PARTS[Bucket(part)]), each, model["capacity"])
    for team in found["teams"]:
        yield from _team(team, scope)
    yield (scope, "teams' jobs"), Fraction(sum(team["row"]["jobs"] for team in found["teams"]))
    yield from group((scope, "team", "all"), found["totals"])
    yield from _days(found["days"], scope)
    for kind, rows, key in (
        ("model", "models", "model"),
        ("queue", "queues", "queue"),
        ("kind of job", "job_kinds", "job_kind"),
    ):
        for row in found[rows]:
            yield from group((scope, kind, row["group"][key] or f"no {kind}"), row)
    for row in found["top_jobs"]:
        yield from group((scope, "job", row["job"]), row)
    for row in found["projects"]:
        project, team = row["group"]["project"] or "no project", team_of(row["group"]["team"])
        yield from group((scope, "project, team", f"{project} {team}"), row)
    for row in found["share_bases"]:
        yield from amount((scope, "share basis", row["basis"]), row["held"])
    yield from _provenance(found["provenance"], scope)
    yield (
        (scope, "what", "overcommitted", "gpu-hours"),
        Fraction(sum(each["board_ms"] or 0 for each in found["problems"]), HOUR_MS),
    )
    for cause in found["causes"]:
        yield from _cause(cause, scope)
    if found["waste"] is not None:
        yield from waste_json(found["waste"], scope)


def _cause(found: Mapping[str, Any], scope: str) -> Known:
    """Without its sign, as ``group`` has changes."""
    about = [each for each in (found["model"], found["pattern"]) if each]
    name = (scope, "cause", team_of(found["team"]).strip("_"), found["kind"], *about)
    yield (*name, "cost"), Fraction(abs(found["nano"]), 10**9)
    yield (*name, "gpu-hours"), Fraction(abs(found["board_ms"]), HOUR_MS)
    for at in ("before", "now"):
        yield (*name, at), ratio(found[at])


def _provenance(found: Mapping[str, Any], scope: str) -> Known:
    (cluster,) = found["clusters"]
    yield (scope, "observed"), ratio(cluster["observed"])
    yield (scope, "cluster", cluster["cluster"], "observed"), ratio(cluster["observed"])
    yield (scope, "in the ledger"), Fraction(cluster["covered_ms"], DEMO_MONTH.window.length_ms)
    for rate in found["rates"]:
        name = (scope, "rate", rate["rate_id"])
        yield (*name, "usd per gpu-hour"), _nano(rate["price_nano"])
        yield (*name, "list price"), _nano(rate["list_price_nano"])
        yield from amount(name, rate["rated"])


def _team(team: Mapping[str, Any], scope: str) -> Known:
    name = (scope, "team", team_of(team["row"]["group"]["team"]))
    yield from group(name, team["row"])
    if team["budget"] is not None:
        yield (*name, "budget of the month"), Fraction(team["budget"]["monthly_nano"], 10**9)
        yield (*name, "used"), ratio(team["budget"]["part"])


def _days(days: list[Mapping[str, Any]], scope: str) -> Known:
    free: dict[str, dict[str, int]] = {}
    for row in days:
        name = (scope, "day", row["day"], "team")
        if row["bucket"] == "held":
            yield from amount((*name, team_of(row["team"])), row["amount"])
        elif row["bucket"] != "overcommitted":
            sums = free.setdefault(row["day"], {"board_ms": 0, "nano": 0})
            for key in sums:
                sums[key] += row["amount"][key]
    for day, sums in free.items():
        yield from amount((scope, "day", day, "team", "not held"), sums)


def _part(name: Name, found: Mapping[str, Any], whole: Mapping[str, Any]) -> Known:
    yield from amount(name, found)
    yield (*name, "of capacity"), Fraction(found["board_ms"], whole["board_ms"])


def waste_json(found: Mapping[str, Any], scope: str) -> Known:
    whole = found["capacity"]
    yield from amount((scope, "capacity", "capacity"), whole)
    yield (scope, "capacity", "capacity", "of capacity"), Fraction(1)
    yield from amount((scope, "wasted"), found["wasted"])
    yield (scope, "wasted", "of capacity"), ratio(found["share"])
    for state, count in found["assessment"].items():
        yield (scope, "windows", state), Fraction(count)
    busy = found["held_busy"]
    if busy is not None:
        yield (scope, "held busy", "busy"), ratio(busy["mean"])
        yield (scope, "held busy", "seen"), ratio(busy["coverage"])
    yield from amount((scope, "capacity", PARTS[Bucket.UNKNOWN]), found["unknown"]["unobserved"])
    yield from amount((scope, "held, and not measured"), found["unknown"]["held"])
    for row in found["buckets"]:
        name = (scope, "bucket", LABELS[Waste(row["waste"])])
        yield from _part(name, row["amount"], whole)
        assert round(float(Fraction(row["amount"]["board_ms"], whole["board_ms"])), 6) == row["share"], name
    for team in found["teams"]:
        name = (scope, "team", team_of(team["team"]))
        yield from amount(name, team["wasted"], "wasted h", "cost of it")
        yield (*name, "of held"), ratio(team["share"])
        yield from amount(name, team["unknown"], "unknown h", "unknown cost")
        yield from amount(name, team["held"], "held h", "held cost")
        yield from amount(name, team["held"])
        for row in team["buckets"]:
            yield from amount((*name, LABELS[Waste(row["waste"])]), row["amount"])
    for job in found["jobs"]:
        yield from _wasteful(job, scope)
    for row in found["causes"]:
        yield from amount((scope, "bucket", LABELS[Waste(row["waste"])], team_of(row["team"])), row["amount"])
    days: dict[str, list[Any]] = {}
    for day in found["days"]:
        yield from amount((scope, "day", day["day"], LABELS[Waste(day["waste"])]), day["amount"])
        days.setdefault(day["day"], []).append(day)
    wastes = {row["waste"] for row in found["buckets"] if row["is_waste"]}
    for name, rows in days.items():
        all_ms = sum(row["amount"]["board_ms"] for row in rows)
        wasted_ms = sum(row["amount"]["board_ms"] for row in rows if row["waste"] in wastes)
        yield (scope, "day", name, "wasted"), Fraction(wasted_ms, all_ms)
        yield (scope, "day", name, "gpu-hours"), Fraction(all_ms, HOUR_MS)
    for row in found["to_do"]:
        yield from _to_do(row)


def _wasteful(job: Mapping[str, Any], scope: str) -> Known:
    """A job of two teams wasted something of each."""
    name = (scope, "job", job["job"], LABELS[Waste(job["waste"])], team_of(job["team"]))
    yield from amount(name, job["amount"])


def _to_do(row: Mapping[str, Any]) -> Known:
    """A finding's numbers are of its last day, whatever page it stands on."""
    name = ("finding", str(row["finding"]))
    yield from amount(name, row["wasted"], "hours in its last day", "in its last day")
    yield (*name, "a day at its rate of now"), _nano(row["daily_nano"])
    if row["alike"] is not None:
        numbers = " ".join(map(str, row["alike"]["findings"]))
        yield ("findings", numbers, "a day at their rate of now"), _nano(row["alike"]["daily_nano"])


def _nano(value: object) -> Fraction | None:
    return None if value in (None, "") else Fraction(int(str(value)), 10**9)


def findings_json(found: Mapping[str, Any]) -> Known:
    for row in found["findings"]:
        name = ("finding", str(row["id"]))
        yield from amount(name, row["wasted"], "hours in its last day", "in its last day")
        yield from _rates(name, row["now"]["hourly_nano"], row["now"]["daily_nano"])
        yield (*name, "gpus now"), ratio(row["now"]["boards"])
        subject = row["subject"]
        of = "/".join(filter(None, (subject["namespace"], subject["name"])))
        about = ("finding of", f"{subject['kind']} {of}")
        yield from amount(about, row["wasted"], "hours in its last day", "in its last day")
        yield (*about, "a day at its rate of now"), _nano(row["now"]["daily_nano"])


def _rates(name: Name, hourly: object, daily: object) -> Known:
    yield (*name, "an hour"), _nano(hourly)
    yield (*name, "a day at its rate of now"), _nano(daily)
    assert (hourly in (None, "")) == (daily in (None, "")), name
    if daily not in (None, ""):
        assert int(str(hourly)) * 24 == int(str(daily)), name


def digest_json(found: Mapping[str, Any], scope: str) -> Known:
    yield from amount((scope, "capacity", "capacity"), found["cost"])
    yield (scope, "in the ledger"), ratio(found["coverage"]["covered"])
    yield (scope, "observed"), ratio(found["coverage"]["observed"])
    yield from amount((scope, "capacity", "held"), found["held"])
    if found["change"] is not None:
        yield from amount((scope, "week before"), found["change"]["previous"])
    for cause in found["causes"]:
        yield from _cause(cause, scope)
    budget = found["budget"]
    yield (scope, "budget", "of the week"), Fraction(budget["week_nano"], 10**9)
    yield (scope, "budget", "of the month"), Fraction(budget["monthly_nano"], 10**9)
    yield (scope, "budget", "held"), Fraction(budget["spent"]["nano"], 10**9)
    yield (scope, "budget", "used"), ratio(budget["part"])
    yield from waste_json(found["waste"], scope)
    for day in found["days"]:
        weekday = date.fromisoformat(day["day"]).strftime("%a")
        hours = sum(each["board_ms"] for each in day["buckets"].values())
        yield (scope, "day", weekday, "gpu-hours"), Fraction(hours, HOUR_MS)
        for waste, each in day["buckets"].items():
            yield from amount((scope, "day", day["day"], LABELS[Waste(waste)]), each)
    for team in found["teams"]:
        name = (scope, "team", team_of(team["row"]["group"]["team"]))
        yield from group(name, team["row"])
        wasted, held = team["waste"]["wasted"], team["row"]["held"]
        yield (*name, "wasted of cost"), Fraction(wasted["nano"], held["nano"])
    rest = [team["row"]["held"] for team in found["teams"][5:]]
    sums = {key: sum(row[key] for row in rest) for key in ("board_ms", "nano")}
    yield from amount((scope, "more teams"), sums)
    yield (scope, "jobs"), Fraction(found["job_count"])
    for row in found["jobs"]:
        yield from group((scope, "job", row["job"]), row)
    for row in found["actions"]:
        yield from _to_do(row)
    for row in found["over"]:
        yield from _wasteful(row, scope)
    whole = found["cost"]
    for row in found["waste"]["buckets"]:
        label = LABELS[Waste(row["waste"])]
        yield (scope, "bucket", label, "of the cost"), Fraction(row["amount"]["nano"], whole["nano"])
    yield (scope, "wasted", "of the cost"), Fraction(found["waste"]["wasted"]["nano"], whole["nano"])


def rows_of(text: str) -> Iterator[dict[str, str]]:
    return csv.DictReader(io.StringIO(text))


_KEYS = {"model": "model", "queue": "queue", "job_kind": "kind of job", "team": "team"}
"""Sections of what was held, each with a column of its name, and the head that is printed over them."""


def report_csv(text: str, scope: str) -> Known:
    jobs: dict[tuple[str, str], dict[str, int]] = {}
    of_teams: dict[str, list[dict[str, str]]] = {}
    for row in rows_of(text):
        section = row["section"]
        if section in _KEYS:
            key = team_of(row[section]) if section == "team" else row[section] or f"no {section}"
            yield from _held_row(row, (scope, _KEYS[section], key))
        elif section == "capacity":
            yield from amount((scope, "capacity", PARTS[Bucket(row["bucket"])]), row)
        elif section == "model_capacity":
            yield from amount((scope, "model", row["model"], PARTS[Bucket(row["bucket"])]), row)
        elif section == "job":
            sums = jobs.setdefault((row["job"], row["job_uid"]), {"board_ms": 0, "nano": 0})
            sums["board_ms"] += int(row["board_ms"])
            sums["nano"] += int(row["nano"])
            of_teams.setdefault(team_of(row["team"]), []).append(row)
        elif row["waste"]:
            yield from _waste_row(row, section, scope)
    for (job, _), sums in sorted(jobs.items(), key=lambda each: -each[1]["nano"])[:5]:
        yield from amount((scope, "job", job), sums)
    for team, rows in of_teams.items():
        for row in sorted(rows, key=lambda row: -int(row["nano"]))[:5]:
            name = (scope, "job", row["job"], team)
            yield from _held_row(row, name)
            if row["energy_mj"]:
                observed_s = Fraction(row["energy_coverage"]) * int(row["board_ms"]) / 1000
                yield (*name, "energy", "watts"), Fraction(int(row["energy_mj"]), 1000) / observed_s


def _held_row(row: Mapping[str, str], name: Name) -> Known:
    yield from amount(name, row)
    yield (*name, "jobs"), Fraction(row["jobs"])
    yield (*name, "of cost"), ratio(row["share_of_cost"])
    for part in ("busy", "sm", "tensor", "memory"):
        yield (*name, part, part), ratio(row[part])
        yield (*name, part, "seen"), ratio(row[f"{part}_coverage"])
    peak, energy = row["memory_peak_mib"], row["energy_mj"]
    yield (*name, "memory", "peak"), Fraction(int(peak), 1024) if peak else None
    yield (*name, "energy", "energy"), Fraction(int(energy), 3_600_000_000) if energy else None
    yield (*name, "energy", "seen"), ratio(row["energy_coverage"])
    if name[1] == "team":
        yield (*name, "budget of the month"), _nano(row["monthly_budget_nano"])
        yield (*name, "used"), ratio(row["budget_used"])


def _waste_row(row: Mapping[str, str], section: str, scope: str) -> Known:
    """A row of the waste ledger: sections have longer names in the table of a month."""
    label = LABELS[Waste(row["waste"])]
    match section:
        case "waste" | "bucket":
            name: Name = ("bucket", label)
        case "team_waste" | "team":
            name = ("team", team_of(row["team"]), label)
        case "day_waste" | "day":
            name = ("day", row["start"][:10], label)
        case "top_job_waste" | "job":
            name = ("job", row["job"], label, team_of(row["team"]))
        case "cause":
            name = ("bucket", label, team_of(row["team"]))
        case _:
            raise AssertionError(section)
    yield from amount((scope, *name), row)


def waste_csv(text: str, scope: str) -> Known:
    for row in rows_of(text):
        if row["section"] != "to_do":
            yield from _waste_row(row, row["section"], scope)
            continue
        alike = {"findings": row["alike"].split(), "daily_nano": row["alike_daily_nano"]}
        about = {"finding": row["finding"], "wasted": row, "daily_nano": row["daily_nano"]}
        yield from _to_do({**about, "alike": alike if row["alike"] else None})


def findings_csv(text: str) -> Known:
    for row in rows_of(text):
        name = ("finding", row["id"])
        yield from amount(name, row, "hours in its last day", "in its last day")
        yield from _rates(name, row["hourly_nano"], row["daily_nano"])
        yield (*name, "gpus now"), ratio(row["boards_now"])


def metrics_of(text: str, scope: str, final: str) -> Known:
    """``final`` is the scope of all windows whose waste is final: those alone are counted."""
    for family in text_string_to_metric_families(text):
        sums: dict[Name, Fraction] = {}
        for sample in family.samples:
            labels, value = sample.labels, Fraction(str(sample.value))
            if sample.name == "gpucost_team_cost_usd":
                part = {f"__{bucket.value}__": PARTS[bucket] for bucket in Bucket}.get(labels["owner_team"])
                key = ("capacity", part) if part else ("team", team_of(labels["owner_team"]))
                yield (scope, *key, "cost"), value
            elif sample.name == "gpucost_job_cost_usd" and labels["job_name"]:
                name = (scope, "job", labels["job_name"], labels["job_uid"])
                sums[name] = sums.get(name, Fraction(0)) + value
            elif sample.name == "gpucost_team_budget_usd":
                yield (scope, "team", labels["owner_team"], "budget of the month"), value
            elif sample.name == "gpucost_finding_wasted_per_hour_usd":
                yield ("finding", labels["finding"], "an hour"), value
            elif sample.name == "gpucost_waste_gpu_seconds_total":
                name = (final, "bucket", LABELS[Waste(labels["bucket"])])
                sums[name] = sums.get(name, Fraction(0)) + value / 3600
                team = labels["owner_team"]
                if not team.startswith("__un"):
                    yield (final, "team", team_of(team), name[2], "gpu-hours"), value / 3600
        for name, total in sums.items():
            if name[1] == "job":
                yield (*name[:3], "cost"), total
            else:
                yield (*name, "gpu-hours"), total
