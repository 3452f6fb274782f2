"""What the webhook says: whole sentences, short, and about no other team."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.advisor.kueue.answer import BLOCKED
from gpucost.advisor.model.answers import (
    AdviceSubject,
    PodSetAnswer,
    PreemptionVictim,
    PriceEstimate,
    SchedulingDecision,
    WaitEstimate,
)
from gpucost.api.webhook.adviser import (
    LONGEST,
    MOST,
    MOST_BYTES,
    fitted,
    warnings_of,
)
from gpucost.cluster.objects.kueue import FlavorResource
from gpucost.domain.time import HOUR_MS, MINUTE_MS
from tests.api.advisor_worlds import (
    FOREIGN,
    advice,
)


@pytest.mark.fault(59)
@given(st.lists(st.text(max_size=400), max_size=12))
def test_warnings_are_short_and_steer_no_terminal(lines: list[str]) -> None:
    found = fitted(lines)
    assert len(found) <= MOST
    assert sum(len(each.encode()) for each in found) < MOST_BYTES
    for each in found:
        assert len(each) <= LONGEST
        assert each.startswith("gpucost: ")
        assert not any(unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") for char in each)


@pytest.mark.fault(59)
@pytest.mark.parametrize(
    "name", ["a\x1b[31mb", "x\r\nWarning: y", "\u202etxt.exe", "a\0b", "\ud800", "n" * 5_000]
)
def test_hostile_names_are_shown_as_what_they_are(name: str) -> None:
    found = warnings_of(replace(advice(AdviceSubject("Job", "ml", name)), says=f"waits: {name} is before it"))
    assert len(found[0]) <= LONGEST
    assert found[0].isprintable()
    found[0].encode()


def test_a_long_line_is_cut_between_words() -> None:
    (found,) = fitted(["waits: " + "several words " * 20])
    assert found.endswith(("several…", "words…"))
    assert len(found) <= LONGEST


PLACED = (PodSetAnswer("main", 2, {}, {"n1": 1, "n2": 1}),)
VICTIM = PreemptionVictim(FOREIGN, "ml-queue", None, "InClusterQueue", {})
WAIT = WaitEstimate(3 * HOUR_MS, 9 * HOUR_MS, 24 * HOUR_MS, "", 3)
NO_RUN = WaitEstimate(None, None, 24 * HOUR_MS, "", 3)
SHORT = "asks 16 nvidia.com/gpu; ClusterQueue ml has 0 left (flavor h100)"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"decision": "now", "says": "runs now"}, "runs now"),
        ({"decision": "now", "says": "runs now", "pod_sets": PLACED}, "runs now on 2 nodes"),
        (
            {
                "decision": "now",
                "says": "runs now",
                "price": PriceEstimate(12_340_000_000, "USD", None, None, ()),
            },
            "runs now; USD 12.34/h",
        ),
        (
            {
                "decision": "now",
                "says": "runs now",
                "borrowed": {FlavorResource("h100", "nvidia.com/gpu"): 8},
            },
            "runs now, on borrowed quota, which can be taken back",
        ),
        (
            {"decision": "now", "says": "", "victims": (VICTIM,), "pod_sets": PLACED},
            "runs now on 2 nodes, by preempting 1 workload",
        ),
        (
            {"decision": "later", "says": "starts in about 10 min: fits once …", "later_ms": 10 * MINUTE_MS},
            "starts in about 10 min, once an autoscaler has added nodes",
        ),
        ({"decision": "waits", "says": f"waits: {SHORT}"}, f"waits: {SHORT}"),
        (
            {"decision": "waits", "says": f"waits about 3 h (p90 9 h): {SHORT}", "wait": WAIT},
            f"waits about 3 h: {SHORT}",
        ),
        (
            {"decision": "waits", "says": f"waits longer than 24 h: {SHORT}", "wait": NO_RUN},
            f"waits longer than 24 h: {SHORT}",
        ),
        (
            {"decision": "waits", "reason": BLOCKED, "says": "waits: stands behind cv/x", "wait": WAIT},
            "waits about 3 h: the head of queue ml-queue does not fit yet, and nobody passes it (StrictFIFO)",
        ),
        (
            {"decision": "never", "says": "never runs as it is: there is no queue x"},
            "will not run as it is: there is no queue x",
        ),
        (
            {"decision": "unknown", "says": "unknown: PodGroups could not be read"},
            "no forecast: PodGroups could not be read",
        ),
    ],
)
def test_each_answer_is_one_sentence(changes: dict[str, Any], said: str) -> None:
    bare = replace(advice(AdviceSubject("Job", "ml", "train")), victims=(), suggestions=(), why=())
    found = replace(bare, **(changes | {"decision": SchedulingDecision(changes["decision"])}))
    assert warnings_of(found) == [f"gpucost: {said}"]


def test_whose_change_it_is_and_what_to_mind_is_said() -> None:
    found = advice(AdviceSubject("Job", "ml", "train"))
    own, admins = found.suggestions
    assert warnings_of(replace(found, suggestions=(admins, replace(own, caveat="slower"))))[1:] == [
        "gpucost: would run now with one change: asks 4 GPUs: runs now",
        "gpucost: mind: slower",
    ], "one's own comes before an administrator's"
    (said,) = warnings_of(replace(found, suggestions=(replace(admins, says="8 more GPUs of quota"),)))[1:]
    assert said == "gpucost: would run now with one change by an administrator: 8 more GPUs of quota"


def test_the_rules_come_last_where_the_cluster_may_decide_otherwise() -> None:
    found = advice(AdviceSubject("Job", "ml", "train"))
    rules = "Kueue 0.19.2 (v0.18.1 runs), classical preemption"
    other = replace(found, rules=rules, drift=("Kueue v0.18.1 runs, an older minor version",))
    assert warnings_of(other) == [*warnings_of(found), f"gpucost: by the rules of {rules}"]
    assert warnings_of(replace(other, rules="")) == warnings_of(found)


def test_partial_admission_is_said() -> None:
    found = replace(
        advice(AdviceSubject("Job", "ml", "train")), decision=SchedulingDecision.NOW, suggestions=()
    )
    said = warnings_of(replace(found, why=("size: 4 of 8 pods (partial admission)", "quota: has room")))
    assert said[1:] == ["gpucost: gets 4 of 8 pods (partial admission)"]
