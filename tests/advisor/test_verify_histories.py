"""Histories of the real scheduler, replayed: every admission, eviction and end to the second."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucost.advisor.verify.case_files import MOST_BYTES, decoded
from gpucost.advisor.verify.history_check import HistoryReport, checked, replayed, run_times
from gpucost.advisor.verify.history_files import histories_of
from gpucost.domain.errors import InputError
from gpucost.kube.dumps.dump import content_of
from tests.support.recorded import KUEUE_SCHEDULER
from tests.support.shared import SHARED, needs_shared

OWN = KUEUE_SCHEDULER / "histories.json.gz"
RANDOM = KUEUE_SCHEDULER / "histories-random.json.gz"
FIRST = SHARED / "reference" / "kueue-histories-1.json.gz"


def document(path: Path = OWN) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


def reports(found: Any) -> list[HistoryReport]:
    return [each for history in histories_of(found, "file").histories for each in checked(history)]


def only(id_: str) -> Any:
    found = document()
    found["histories"] = [each for each in found["histories"] if each["id"] == id_]
    return found


@pytest.mark.parametrize(("path", "of_a"), [(OWN, True), (RANDOM, False)], ids=["own", "random"])
def test_our_own_recording_agrees_to_the_second(path: Path, of_a: bool) -> None:
    found = document(path)
    told = reports(found)
    assert [each.differences for each in told] == [()] * len(told)
    counts = [each["counts"] for history in found["histories"] for each in history["configurations"]]
    assert [each.cycles for each in told] == [each["cycles"] for each in counts]
    for fact in ("admissions", "evictions"):
        assert [getattr(each, fact).of for each in told] == [each[fact] for each in counts]
    assert (sum(each.run_times_of_a for each in told) > 0) is of_a
    assert not any(each.exception for each in told)


@pytest.mark.slow
@needs_shared("reference/kueue-histories-1.json.gz")
def test_all_that_was_recorded_for_developers_agrees() -> None:
    found = decoded(content_of(FIRST, MOST_BYTES), FIRST.name)
    told = reports(found)
    assert {each.name: each.differences[:1] for each in told if each.differences} == {}
    assert (len(told), sum(each.admissions.of for each in told)) == (56, 15_250)
    assert (sum(each.evictions.of for each in told), sum(each.ends.of for each in told)) == (3_158, 12_064)
    counts = [each["counts"] for history in found["histories"] for each in history["configurations"]]
    assert [each.cycles for each in told] == [each["cycles"] for each in counts]
    restless = [each.name for each in told if each.restless is not None]
    assert restless == ["kh-021/B2", "kh-045/B2", "kh-min-1/A", "kh-min-1/B1"]


def test_the_order_of_arrivals_means_nothing_and_a_replay_repeats() -> None:
    for history in histories_of(document(), "file").histories:
        for each in history.configurations:
            there, back = list(history.arrivals), list(reversed(history.arrivals))
            first = replayed(each, there)
            assert replayed(each, back) == first == replayed(each, there)


def test_preemption_without_rest_names_workloads_and_setting() -> None:
    first, second = reports(only("kh-min-1"))
    assert first.restless is not None
    assert second.restless is not None
    assert (first.restless.why, second.restless.why) == ("instant", "evictions")
    assert [(each.by, each.victim) for each in first.restless.pairs] == [("w00002", "w00001")]
    assert first.restless.pairs[0].reason == "InCohortReclaimWhileBorrowing"
    assert first.queues == {"w00002": "team-a"}


def stopped(
    leaves_s: int, steps: Sequence[tuple[int, str]], *jobs: tuple[int, int, int, Sequence[int]]
) -> Any:
    """The queue of kh-min-4, of 8 GPUs, stopped and started at ``steps``, with a second of batching; ``jobs``
    by creation, GPUs, run time and the seconds at which real Kueue admitted them."""
    found = only("kh-min-4")
    (history,) = found["histories"]
    (one, _), job = history["configurations"], history["arrivals"][0]
    first = one["changes"][0]
    one["changes"] = [
        {**first, "at": at, "object": {**first["object"], "stopPolicy": policy}} for at, policy in steps
    ]
    one["settings"] |= {"terminationSeconds": leaves_s, "requeueBatchSeconds": 1}
    history["arrivals"] = [
        {
            **job,
            "name": f"w{number}",
            "createdSecond": created,
            "podSets": [{**job["podSets"][0], "requestsPerPod": {"nvidia.com/gpu": str(gpus)}}],
            "runSeconds": run_s,
        }
        for number, (created, gpus, run_s, _) in enumerate(jobs)
    ]
    drained = {"at": steps[0][0], "reason": "ClusterQueueStopped", "by": None}
    flavors = {"main": {"nvidia.com/gpu": "gpu"}}
    one["truth"] = [
        {
            "name": f"w{number}",
            "admissions": [{"at": at, "flavors": flavors} for at in admitted],
            "evictions": [drained] * (len(admitted) - 1),
            "finished": admitted[-1] + run_s,
        }
        for number, (_, _, run_s, admitted) in enumerate(jobs)
    ]
    history["configurations"] = [one]
    return found


@pytest.mark.parametrize(
    "found",
    [
        stopped(0, [(100, "HoldAndDrain"), (200, "None")], (0, 4, 1000, [0, 200])),
        stopped(30, [(100, "HoldAndDrain"), (110, "None")], (0, 4, 1000, [0, 130])),
        stopped(0, [(100, "HoldAndDrain"), (200, "None")], (0, 8, 1000, [0, 200]), (10, 4, 50, [1201])),
        stopped(0, [(100, "HoldAndDrain"), (150, "Hold"), (200, "None")], (0, 4, 1000, [0, 200])),
    ],
    ids=["started again", "before its pods are gone", "the older one first", "held first"],
)
def test_what_was_drained_is_tried_as_soon_as_the_queue_is_open(found: Any) -> None:
    """Not a batch later, as the parked are."""
    (told,) = reports(found)
    assert told.differences == ()


def changed(change: Callable[[dict[str, Any]], None]) -> HistoryReport:
    """kh-min-6, of which the first configuration says something else."""
    found = only("kh-min-6")
    change(found["histories"][0]["configurations"][0])
    return reports(found)[0]


def later(found: dict[str, Any]) -> None:
    found["truth"][1]["admissions"][0]["at"] += 1


def elsewhere(found: dict[str, Any]) -> None:
    found["truth"][1]["admissions"][0]["flavors"]["main"]["nvidia.com/gpu"] = "other"


def fewer(found: dict[str, Any]) -> None:
    found["truth"][1]["admissions"][0]["counts"] = {"main": 0}


def for_another(found: dict[str, Any]) -> None:
    found["truth"][0]["evictions"][0]["by"] = "w00003"


def why_else(found: dict[str, Any]) -> None:
    found["truth"][0]["evictions"][0]["reason"] = "InClusterQueue"


def never(found: dict[str, Any]) -> None:
    found["truth"][2]["finished"] = None


def restless(found: dict[str, Any]) -> None:
    found["noRest"] = {"at": 10, "why": "instant"}


def at_once(found: dict[str, Any]) -> None:
    found["settings"]["terminationSeconds"] = 0


@pytest.mark.parametrize(
    "change",
    [later, elsewhere, fewer, for_another, why_else, never, restless, at_once],
    ids=lambda f: f.__name__,
)
def test_whatever_differs_is_found(change: Callable[[dict[str, Any]], None]) -> None:
    told = changed(change)
    assert told.differences
    assert not told.passes
    assert told.differences[0].recorded != told.differences[0].replayed


@pytest.mark.parametrize(("trap", "passes"), [("fair-tree", True), ("scan-phase", True), ("no-rest", False)])
def test_only_what_hangs_on_chance_is_excepted(trap: str, passes: bool) -> None:
    def change(found: dict[str, Any]) -> None:
        later(found)
        found["traps"] = [trap]

    told = changed(change)
    assert not told.agrees
    assert (told.passes, told.exception) == (passes, trap if passes else "")


def test_run_times_are_those_that_the_first_configuration_tells() -> None:
    for history in histories_of(document(), "file").histories:
        observed = run_times(history, history.configurations[0])
        given = {each.uid: each.run_ms for each in history.arrivals}
        assert observed == {uid: given[uid] for uid in observed}


def test_variations_do_not_read_run_times_that_the_first_tells() -> None:
    (history,) = histories_of(only("kh-min-6"), "file").histories
    lied = replace(history, arrivals=tuple(replace(each, run_ms=1) for each in history.arrivals))
    first, *others = checked(lied)
    assert not first.agrees
    assert all(each.agrees and each.run_times_of_a == 3 for each in others)


def put(*path: str | int, value: object) -> Callable[[Any], None]:
    def change(found: Any) -> None:
        for key in path[:-1]:
            found = found[key]
        found[path[-1]] = value

    return change


_A = ("histories", 0, "configurations", 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("schema", value=2), "file.schema"),
        (put("histories", value=3), "file.histories"),
        (put("histories", 0, "arrivals", 0, "extra", value=1), "extra"),
        (put("histories", 0, "arrivals", 0, "runSeconds", value=-1), "runSeconds"),
        (put("histories", 0, "arrivals", 0, "name", value="w00002"), "a name twice"),
        (put("histories", 0, "arrivals", 0, "queue", value="team-z"), "team-z"),
        (put(*_A, "traps", value=["bear"]), "bear"),
        (put(*_A, "truth", value=[]), "truth"),
        (put(*_A, "settings", "preemptionStrategies", value=["luck"]), "preemptionStrategies"),
        (put(*_A, "cluster", "nodes", value=[]), "nodes"),
        (put(*_A, "changes", value=[{"at": 1, "kind": "Cohort", "object": {}}]), "kind"),
        (
            put(*_A, "changes", value=[{"at": 1, "kind": "ClusterQueue", "object": {"name": "team-z"}}]),
            "team-z",
        ),
        (put(*_A, "noRest", value={"at": 1, "why": "tired"}), "tired"),
        (put(*_A, "truth", 0, "admissions", value=[]), "truth[0].finished"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_path(change: Callable[[Any], None], said: str) -> None:
    found = copy.deepcopy(only("kh-min-6"))
    change(found)
    with pytest.raises(InputError) as refused:
        histories_of(found, "file")
    assert said in str(refused.value)
    assert "file" in str(refused.value)
