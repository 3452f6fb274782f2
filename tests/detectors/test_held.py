"""Names in commands, and whose pods a command may touch."""

from __future__ import annotations

import pytest

from gpucost.cluster.views.commands import is_plain
from gpucost.detectors.allocation_pieces import (
    pieces,
    stop_action,
    stop_command,
    with_names,
)
from gpucost.detectors.findings import FindingAction
from tests.detectors.worlds import World


@pytest.mark.parametrize("name", ["a", "a-b", "a.b-9", "9", "a" * 253])
def test_plain(name: str) -> None:
    assert is_plain(name)
    assert with_names(FindingAction("Do it.", "patch"), "x", name).patch == "patch"


@pytest.mark.parametrize(
    "name", ["", "-a", "a-", "A", "a b", "a\n", "a\nb", "a;b", "$(a)", "a/b", "a_b", "ä", "a" * 254]
)
def test_not_plain(name: str) -> None:
    assert not is_plain(name)
    action = with_names(FindingAction("Do it.", "patch", 2.0), "x", name)
    assert action == FindingAction("Do it (by hand: its name is no plain name).", "", 2.0)
    assert with_names(FindingAction("Do it."), name) == FindingAction("Do it.")


def test_a_command_touches_pods_of_one_namespace_only() -> None:
    world = World(60).node("n1").pod("p1", "n1", 0, job="j", kind="Notebook", namespace="mine")
    world.pod("p2", "n1", 1, job="j", kind="Notebook", namespace="theirs")
    rows = pieces(world.facts().history.held, "job_uid", {"uid-j"})["uid-j"]
    assert stop_command(rows) == "kubectl -n mine delete pod p1"
    assert stop_action("Stop it.", rows, 1.0).patch == "kubectl -n mine delete pod p1"


@pytest.mark.parametrize("kind", ["Pod", "Other"])
def test_no_command_ends_what_no_controller_makes_again(kind: str) -> None:
    world = World(60).node("n1").pod("p1", "n1", 0, job="j", kind=kind, namespace="mine")
    rows = pieces(world.facts().history.held, "job_uid", {"uid-j"})["uid-j"]
    # To deactivate the Workload of a plain pod deletes the pod.
    managed = [row._replace(workload="w", cluster_queue="q") for row in rows]
    for each in (rows, managed):
        assert stop_command(each) == ""
        action = stop_action("Stop it.", each, 1.0)
        assert (action.patch, action.frees_boards) == ("", 1.0)
        assert "No controller makes this pod again (p1): ask whoever runs it" in action.text
