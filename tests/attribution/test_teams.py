"""Team rules: the first that applies decides, at its time; what is wrong stops the start."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.attribution.attribute import attribute
from gpucost.attribution.teams import CONDITIONS, NO_RULE, TeamFile, TeamProfile, TeamRule, TeamRules
from gpucost.contract.frames import HOLDER_COLUMNS, MAX_TEXT
from gpucost.domain.buckets import NO_TEAM
from gpucost.domain.configfile import ConfigModel
from gpucost.domain.errors import ConfigError
from gpucost.domain.money import NANO
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window, parse_instant
from tests.support.frames import START, FlatRates, build, hours, node, pod, units

HEAD = "version: 1\nrules:\n"
DOCS = Path(__file__).parents[2] / "docs" / "teams.md"


def holders(*rows: dict[str, str]) -> pd.DataFrame:
    names = [column.name for column in HOLDER_COLUMNS]
    return pd.DataFrame([{**dict.fromkeys(names, ""), **row} for row in rows], columns=names, dtype="str")


def place(rules: str, at_ms: int = START, **holder: str) -> str:
    return str(TeamRules.parse(HEAD + rules, "teams.yaml").assign(holders(holder), at_ms).iloc[0])


@pytest.mark.parametrize(
    ("rule", "holder", "expected"),
    [
        ("namespace: research", {"namespace": "research"}, "a"),
        ("namespace: research", {"namespace": "research-2"}, NO_TEAM),
        ("namespace: research", {"namespace": "Research"}, NO_TEAM),
        ("namespace: 'research-*'", {"namespace": "research-2"}, "a"),
        ("namespace: 'r?'", {"namespace": "r2"}, "a"),
        ("namespace: 'r[0-4]'", {"namespace": "r5"}, NO_TEAM),
        ("namespace: [x, 'r*']", {"namespace": "r5"}, "a"),
        ("namespace: 'a.c'", {"namespace": "abc"}, NO_TEAM),
        ("team_label: vision", {"team_label": "vision"}, "a"),
        ("project: p", {"project": "p"}, "a"),
        ("queue: q", {"queue": "q"}, "a"),
        ("cluster_queue: cq", {"cluster_queue": "cq", "queue": "q"}, "a"),
        ("user: '*@example.com'", {"user": "jo@example.com"}, "a"),
        ("queue: '*'", {"queue": ""}, NO_TEAM),
        ("queue: '*'", {"queue": "any"}, "a"),
        ("queue: q, user: u", {"queue": "q"}, NO_TEAM),
        ("queue: q, user: u", {"queue": "q", "user": "u"}, "a"),
        ("valid_from: 2010-01-01", {}, "a"),
    ],
)
def test_a_rule_applies_when_all_its_conditions_hold(
    rule: str, holder: dict[str, str], expected: str
) -> None:
    assert place(f"- {{team: a, {rule}}}", **holder) == expected


def test_the_first_rule_that_applies_decides() -> None:
    rules = "- {team: a, namespace: 'x*'}\n- {team: b, namespace: xy}\n- {team: c}\n"
    assert [place(rules, namespace=name) for name in ("xy", "xz", "other")] == ["a", "a", "c"]


@pytest.mark.fault(35)
@pytest.mark.parametrize(
    ("holder", "expected"),
    [
        ({"team_label": "vision"}, "vision"),
        ({"team_label": " vision "}, "vision"),
        ({"team_label": "", "namespace": "nobody-knows"}, NO_TEAM),
        ({"team_label": "   "}, NO_TEAM),
        ({"team_label": "__unallocated__"}, NO_TEAM),
        ({"team_label": "__anything"}, NO_TEAM),
        ({"team_label": "two\nlines"}, NO_TEAM),
        ({"team_label": "x" * 254}, NO_TEAM),
        ({}, NO_TEAM),
    ],
)
def test_without_a_file_the_label_is_the_team(holder: dict[str, str], expected: str) -> None:
    assert TeamRules.default().assign(holders(holder), START).tolist() == [expected]


@pytest.mark.fault(35)
def test_a_label_that_gives_nothing_leaves_the_pod_to_the_next_rule() -> None:
    rules = "- {team_from: team_label}\n- {team_from: project}\n- {team: rest, namespace: known}\n"
    assert place(rules, team_label="__unknown__", project="p") == "p"
    assert place(rules, namespace="known") == "rest"
    assert place(rules, namespace="unknown") == NO_TEAM


CHANGE = """\
- {team: old, namespace: n, valid_to: 2026-10-15}
- {team: new, namespace: n, valid_from: 2026-10-15}
"""


@pytest.mark.fault(35)
@pytest.mark.parametrize(("offset", "team"), [(-1, "old"), (0, "new"), (DAY_MS, "new")])
def test_a_rule_changes_at_its_instant(offset: int, team: str) -> None:
    assert place(CHANGE, parse_instant("2026-10-15T00:00:00Z") + offset, namespace="n") == team


def test_the_instants_of_change_lie_inside_the_window() -> None:
    rules = TeamRules.parse(HEAD + CHANGE + "- {team: x, valid_from: 2026-10-20T12:00:00Z}", "t")
    change, later = parse_instant("2026-10-15T00:00:00Z"), parse_instant("2026-10-20T12:00:00Z")
    assert rules.changes(Window(change - 1, later + 1)) == (change, later)
    assert rules.changes(Window(change, later)) == ()
    assert TeamRules.default().changes(Window(0, later)) == ()


@pytest.mark.fault(35)
@pytest.mark.vector("V26")
def test_a_rule_that_changes_during_a_job_charges_both_teams_their_time() -> None:
    change = START + 90 * 60_000
    rules = TeamRules.parse(
        HEAD + "- {team: old, namespace: research, valid_to: 2026-10-01T01:30:00Z}\n"
        "- {team: new, namespace: research, valid_from: 2026-10-01T01:30:00Z}\n",
        "t",
    )
    assert rules.changes(hours(0, 4)) == (change,)
    frames = build([pod("a", (0, 4), 2)], nodes=[node(boards=2)], capacity=[units(2)])
    result = attribute(frames, list(hours(0, 4).split(HOUR_MS)), rates=FlatRates(("2.50", 0)), teams=rules)
    flat = result.flat()
    nano = flat[flat["bucket"] == "held"].groupby("team")["nano"].sum().to_dict()
    assert nano == {"old": 7.5 * NANO, "new": 12.5 * NANO}


NAMES = st.text("abc-*?_", max_size=4)


@given(st.lists(st.fixed_dictionaries(dict.fromkeys(CONDITIONS, NAMES)), max_size=8))
def test_a_team_depends_on_the_holder_alone(rows: list[dict[str, str]]) -> None:
    rules = TeamRules.parse(HEAD + "- {team: x, queue: 'a*', user: '?'}\n- {team_from: project}", "t")
    frame = holders(*rows)
    teams = rules.assign(frame, START)
    backwards = rules.assign(frame.iloc[::-1], START)
    assert teams.to_dict() == backwards.to_dict()
    assert [rules.assign(holders(row), START).iloc[0] for row in rows] == teams.tolist()
    assert teams.dtype == frame["queue"].dtype
    assert not teams.str.startswith("__").where(teams != NO_TEAM, False).any()


def test_nobody_to_place_gives_an_empty_column() -> None:
    assert len(TeamRules.default().assign(holders(), START)) == 0


def test_the_names_that_rules_give_are_known() -> None:
    rules = HEAD + "- {team: a, namespace: x}\n- {team_from: namespace, namespace: '*'}\n"
    assert TeamRules.parse(rules, "rules").names == {"a"}
    assert TeamRules.parse(rules + "teams: [{name: a}, {name: b}]", "rules").names == {"a", "b"}


def test_teams_have_quotas_and_cost_centres() -> None:
    text = """
version: 1
teams:
  - {name: a, quota_gpus: 16, cost_centre: CC-1}
  - {name: b, quota_gpus: 2.5}
  - {name: c}
  - {name: d, quota_gpus: 0}
rules: [{team: a, namespace: n}]
"""
    rules = TeamRules.parse(text, "t")
    assert rules.quotas == {"a": 16, "b": Fraction(5, 2), "d": 0}
    assert [team.cost_centre for team in rules.teams] == ["CC-1", None, None, None]


def test_a_queue_has_a_team_where_a_rule_is_about_the_queue_alone() -> None:
    text = """
version: 1
rules:
  - {team: a, cluster_queue: shared, user: ann}
  - {team: b, cluster_queue: [b, "b-*"]}
  - {team: c, cluster_queue: moved, valid_to: 2026-10-15}
  - {team: d, cluster_queue: moved, valid_from: 2026-10-15}
  - {team_from: cluster_queue, cluster_queue: "own-*"}
  - {team_from: team_label}
"""
    rules, october = TeamRules.parse(text, "t"), Month(2026, 10).window
    found = {
        name: rules.team_of_queue(name, october) for name in ("shared", "b-2", "moved", "own-x", "other")
    }
    assert found == {"shared": None, "b-2": "b", "moved": None, "own-x": "own-x", "other": None}
    assert rules.team_of_queue("moved", Month(2026, 9).window) == "c"


@pytest.mark.fault(67)
@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        ("rules: []", "version", "missing"),
        ("version: 1", "rules", "missing; allowed: a list of rules"),
        ("version: 1\nrule: []", "rule", "unknown key; allowed: rules (did you mean this?)"),
        (HEAD + "- {team: a, namespce: b}", "rules[0].namespce", "unknown key; allowed: namespace (did you"),
        (HEAD + "- {namespace: b}", "rules[0].team", "missing; allowed: exactly one of team and team_from"),
        (HEAD + "- {team: a, team_from: user}", "rules[0].team", "both are given"),
        (HEAD + "- {team_from: pod}", "rules[0].team_from", "'pod' is not allowed; allowed: one of name"),
        (HEAD + "- {team: __unallocated__}", "rules[0].team", "does not begin with __"),
        (HEAD + "- {team: 7}", "rules[0].team", "put quotes around it"),
        (HEAD + "- {team: a, queue: []}", "rules[0].queue", "a name or a pattern"),
        (HEAD + "- {team: a, queue: 7}", "rules[0].queue", "a name or a pattern"),
        (HEAD + "- {team: a, queue: [q, 7]}", "rules[0].queue[1]", "put quotes around it"),
        (HEAD + "- {team: a, valid_from: tomorrow}", "rules[0].valid_from", "midnight UTC"),
        (HEAD + "- {team: a, valid_from: 2026-10-02, valid_to: 2026-10-01}", "rules[0].valid_to",
         "a time after valid_from"),
        (HEAD + "- {team: a, user: u}\n- {team: b, user: u}", "rules[1]", "the same conditions as rules[0]"),
        (HEAD + "- {team: a, user: [u, v]}\n- {team: a, user: [v, u]}", "rules[1]", "the same conditions"),
        (HEAD + "- {team: a, valid_to: 2026-10-02}\n- {team: b, valid_from: 2026-10-01}", "rules[1]",
         "validities that do not overlap"),
        ("version: 1\nteams: [{name: a}, {name: b}, {name: a}]\nrules: []", "teams[2].name", "teams[0] has"),
        ("version: 1\nteams: [{name: __x}]\nrules: []", "teams[0].name", "does not begin with __"),
        ("version: 1\nteams: [{name: a, quota_gpus: -1}]\nrules: []", "teams[0].quota_gpus", "at least 0"),
        ("version: 1\nteams: [{name: a, quota: 1}]\nrules: []", "teams[0].quota", "quota_gpus (did you mean"),
        ("version: 1\nteams: [{name: vision}]\nrules: [{team: vison}]", "rules[0].team",
         "'vison' is not allowed; allowed: a team of the list: vision"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(text: str, field: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TeamRules.parse(text, "teams.yaml")
    assert caught.value.field == field
    assert says in str(caught.value)
    assert str(caught.value).startswith("teams.yaml")


def test_rules_alike_at_other_times_or_as_a_fallback_are_fine() -> None:
    rules = CHANGE + "- {team_from: team_label}\n- {team_from: project}\n- {team: rest}\n"
    assert len(TeamRules.parse(HEAD + rules, "t").file.rules) == 5


def test_the_page_names_every_key_and_its_example_is_valid() -> None:
    page = DOCS.read_text(encoding="utf-8")
    models: list[type[ConfigModel]] = [TeamFile, TeamProfile, TeamRule]
    for model in models:
        for name, field in model.model_fields.items():
            assert field.description, name
            assert f"`{name}`" in page or f"{name}:" in page, name
    rules = TeamRules.parse(page.split("```yaml\n")[1].split("```")[0], "docs/teams.md")
    rows = ({"namespace": "gpu-operator"}, {"team_label": "vision"}, {"namespace": "vision-1"})
    assert rules.assign(holders(*rows), START).tolist() == ["platform", "vision", "vision"]
    later = parse_instant("2026-10-15T00:00:00Z")
    assert rules.assign(holders(*rows), later).tolist() == ["platform", "vision", "language"]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("team: vision, namespace: ['vision-*', vision]", "namespace is vision or vision-*"),
        ("team: vision, user: '*@x', cluster_queue: llm", "cluster_queue is llm; user is *@x"),
        ("team: vision", "every pod"),
        ("team: vision, project: ['a, b', c]", 'project is "a, b" or c'),
        ("team_from: team_label", "team_label names the team"),
        # A list may name other teams, and the text is shown to the team that the rule gives.
        (
            "team_from: team_label, team_label: [vision, nlp]",
            "team_label is one of 2 patterns; team_label names the team",
        ),
        ("team_from: user, namespace: lab", "namespace is lab; user names the team"),
        (
            "team: vision, queue: q, valid_from: 2026-10-05, valid_to: 2026-10-06",
            "queue is q, from 2026-10-05T00:00:00Z to 2026-10-06T00:00:00Z",
        ),
    ],
)
def test_a_rule_in_plain_words_wherever_it_stands(rule: str, said: str) -> None:
    for rules in (f"- {{{rule}}}", f"- {{team: z, queue: z}}\n- {{{rule}}}"):
        file = TeamRules.parse(HEAD + rules, "t").file
        assert file.rules[-1].text == said


def test_long_lists_are_cut_with_a_count() -> None:
    names = ", ".join(f"team-{n:04}" for n in range(1000))
    [rule] = TeamRules.parse(HEAD + f"- {{team: a, namespace: [{names}]}}", "t").file.rules
    shown = " or ".join(f"team-{n:04}" for n in range(15))
    assert (len(shown), rule.text) == (191, f"namespace is {shown} or 985 more")
    every = ", ".join(f"{name}: [{'a' * 253}, b]" for name in CONDITIONS)
    [rule] = TeamRules.parse(HEAD + f"- {{team: a, {every}, valid_from: 2026-10-01}}", "t").file.rules
    assert f"queue is {'a' * 32}… or 1 more; " in rule.text
    assert len(rule.text) <= MAX_TEXT


@given(texts=st.fixed_dictionaries(dict.fromkeys(CONDITIONS, st.text(max_size=40))))
def test_nothing_of_a_pod_is_in_the_text_of_its_rule(texts: dict[str, str]) -> None:
    rules = "- {team: a, namespace: 'q*'}\n- {team_from: team_label, user: '?*'}\n- {team_from: project}"
    known = TeamRules.parse(HEAD + rules, "t")
    [placed] = known.placed(holders(texts), START).itertuples()
    assert placed.rule in {NO_RULE, *(rule.text for rule in known.file.rules)}
    assert (placed.rule == NO_RULE) == (placed.team == NO_TEAM)
    assert placed.team == known.assign(holders(texts), START).iloc[0]
