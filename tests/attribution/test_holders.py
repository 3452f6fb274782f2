"""Who appears in lines: texts that a database can keep, and one number per holder."""

from __future__ import annotations

import pytest

from gpucost.attribution.attribute import attribute
from gpucost.attribution.teams import TeamRules
from gpucost.attribution.usage_lines import HOLDER_NAMES
from gpucost.contract.frames import MAX_TEXT
from gpucost.domain.time import HOUR_MS
from tests.support.frames import FlatRates, NamespaceTeams, build, hours, node, pod, units

PRICES = FlatRates(("2.50", 0))


@pytest.mark.parametrize("name", ["user", "project", "team_label", "queue", "workload", "job"])
@pytest.mark.parametrize(
    ("given", "kept"), [("x" * 10_000, "x" * MAX_TEXT), ("a\0b", "ab"), ("ärger", "ärger")]
)
def test_what_people_write_into_labels_fits_a_database(name: str, given: str, kept: str) -> None:
    frames = build(
        pods=[pod("a", (0, 1), **{name: given}), pod("b", (0, 1))], nodes=[node()], capacity=[units()]
    )
    frame = attribute(frames, [hours(0, 1)], rates=PRICES, teams=NamespaceTeams()).holders.frame
    people = frame[frame["pod"] != ""]
    assert sorted(people[name]) == sorted([kept, "b" if name == "job" else ""])


def test_labels_that_differ_beyond_the_cut_are_one_holder() -> None:
    texts = ["x" * MAX_TEXT + end for end in "ab"]
    pods = [pod("a", (n / 2, n / 2 + 0.5), user=text) for n, text in enumerate(texts)]
    found = attribute(
        build(pods=pods, nodes=[node()], capacity=[units()]),
        [hours(0, 1)],
        rates=PRICES,
        teams=NamespaceTeams(),
    )
    assert found.flat().query("pod == 'a'")["board_ms"].tolist() == [HOUR_MS]


def test_a_change_of_team_rules_cuts_only_the_lines_of_those_it_moves() -> None:
    """Else the same holder would have two lines in the window of the change, and the ledger refuse it."""
    rules = """
version: 1
rules:
  - {team: old, namespace: moving, valid_to: "2026-10-01T01:30:00Z"}
  - {team: old, namespace: moving, valid_from: "2026-10-01T01:45:00Z"}
  - {team_from: namespace, namespace: "*"}
"""
    pods = [pod("a", (0, 4), namespace="moving"), pod("b", (0, 4), 2, namespace="staying")]
    found = attribute(
        build(pods=pods, nodes=[node()], capacity=[units()]),
        list(hours(0, 4).split(HOUR_MS)),
        rates=PRICES,
        teams=TeamRules.parse(rules, "rules"),
    ).flat()
    assert not found.duplicated(["window_start_ms", "node", "bucket", *HOLDER_NAMES, "team", "rate_id"]).any()
    second = found[found["window_start_ms"] == hours(1, 2).start_ms].query("bucket == 'held'")
    rows = second[["pod", "team", "board_ms"]].sort_values(["pod", "team"])
    assert rows.to_numpy().tolist() == [
        ["a", "moving", HOUR_MS // 4],
        ["a", "old", HOUR_MS * 3 // 4],
        ["b", "staying", 2 * HOUR_MS],
    ]


def test_every_line_has_the_rule_that_was_in_force_last_while_its_pod_held() -> None:
    """Of pod a, old gives way to the namespace at 1:30 and comes back at 1:45 by another rule; pod b, which
    ends at 1:20, has the first rule."""
    rules = """
version: 1
rules:
  - {team: old, namespace: moving, valid_to: "2026-10-01T01:30:00Z"}
  - {team: old, namespace: moving, valid_from: "2026-10-01T01:45:00Z"}
  - {team_from: namespace, namespace: "*"}
"""
    pods = [pod("a", (0, 4), namespace="moving"), pod("b", (0, 4 / 3), namespace="moving")]
    found = attribute(
        build(pods=pods, nodes=[node()], capacity=[units()]),
        list(hours(0, 3).split(HOUR_MS)),
        rates=PRICES,
        teams=TeamRules.parse(rules, "rules"),
    )
    texts, rule = found.holders.rules_of(found.lines)
    lines = found.flat().assign(rule=["" if at < 0 else texts[at] for at in rule])
    of_nobody = lines["pod"] == ""
    assert set(lines.loc[of_nobody, "rule"]) == {""}
    rows = lines[~of_nobody].sort_values(["window_start_ms", "pod", "team"])
    before = "namespace is moving, to 2026-10-01T01:30:00Z"
    after = "namespace is moving, from 2026-10-01T01:45:00Z"
    assert rows[["pod", "team", "rule"]].to_numpy().tolist() == [
        ["a", "old", before],
        ["b", "old", before],
        ["a", "moving", "namespace is *; namespace names the team"],
        ["a", "old", after],
        ["b", "old", before],
        ["a", "old", after],
    ]
