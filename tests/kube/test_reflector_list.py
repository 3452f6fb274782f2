"""Lists: pages, what vanished, what is no list."""

from __future__ import annotations

import pytest

from gpucost.kube.watch.reflector import ReflectorSettings
from tests.kube.worlds import SECOND, world
from tests.support.kube import Answer, bookmark, event, listed, pod, refused, watched


def test_objects_are_listed_trimmed_and_then_watched_from_the_lists_version() -> None:
    with world(listed(pod("a", version=7), version="100"), watched(bookmark("120")), watched()) as scene:
        reflector = scene.reflector(
            params={"fieldSelector": "spec.nodeName=gpu-1"},
            trim=lambda found: {"metadata": found["metadata"]},
        )
        assert not reflector.synced
        scene.run(reflector)
        assert reflector.synced
        assert [set(found) for found in reflector.snapshot().values()] == [{"metadata"}]
    first, watch, later = (asked.params for asked in scene.server.asked)
    assert first == {"fieldSelector": "spec.nodeName=gpu-1", "limit": "500"}
    assert watch["fieldSelector"] == "spec.nodeName=gpu-1"
    assert (watch["resourceVersion"], watch["allowWatchBookmarks"]) == ("100", "true")
    assert watch["timeoutSeconds"] == "450"
    assert later["resourceVersion"] == "120"


@pytest.mark.fault(18)
def test_pages_are_put_together() -> None:
    pages = [listed(pod(name), token=token) for name, token in (("a", "x"), ("b", "y"), ("c", ""))]
    with world(*pages) as scene:
        reflector = scene.reflector()
        assert reflector.step() == 0
        assert set(reflector.snapshot()) == {"uid-a", "uid-b", "uid-c"}
    assert [asked.params.get("continue") for asked in scene.server.asked] == [None, "x", "y"]


@pytest.mark.fault(18)
def test_a_list_that_turns_in_circles_is_left() -> None:
    with world(listed(pod("a"), token="x"), listed(pod("b"), token="x")) as scene:
        reflector = scene.reflector()
        reflector.step()
        assert (dict(reflector.snapshot()), reflector.errors) == ({}, {"bad_list": 1})


@pytest.mark.fault(18)
@pytest.mark.parametrize("bound", [{"max_pages": 3}, {"max_objects": 2}])
def test_a_list_without_an_end_is_left_and_replaces_nothing(bound: dict[str, int]) -> None:
    pages = [listed(pod(f"p{number}"), token=f"page {number}") for number in range(4)]
    with world(*pages) as scene:
        reflector = scene.reflector(settings=ReflectorSettings(**bound))  # type: ignore[arg-type]
        reflector.step()
        assert (dict(reflector.snapshot()), reflector.errors) == ({}, {"too_many": 1})
        assert (reflector.synced, reflector.problem) == (False, "too_many")
        assert len(scene.server.asked) == 3


@pytest.mark.fault(18)
def test_an_expired_page_starts_the_list_again_and_replaces_nothing_in_part() -> None:
    with world(
        listed(pod("a"), pod("b")),
        watched(event("MODIFIED", pod("a", version=2)), ending="cut"),
        refused(410),
        listed(pod("new"), token="page 2", version="300"),
        refused(410, "the provided continue parameter is too old"),
        listed(pod("new"), token="page 2", version="400"),
        listed(pod("b"), version="400"),
    ) as scene:
        reflector = scene.reflector()
        while len(scene.server.script) > 2:
            reflector.step()
        assert set(reflector.snapshot()) == {"uid-a", "uid-b"}
        assert scene.history == [("added", "uid-a"), ("added", "uid-b"), ("modified", "uid-a")]
        scene.run(reflector)
        assert set(reflector.snapshot()) == {"uid-b", "uid-new"}
    assert scene.history[3:] == [("vanished", "uid-a"), ("added", "uid-new")]
    assert [asked.params.get("continue") for asked in scene.server.asked[3:]] == [
        None,
        "page 2",
        None,
        "page 2",
    ]
    assert reflector.errors["http_410"] == 2


@pytest.mark.fault(13)
def test_a_pod_replaced_under_its_name_while_nobody_watched_is_two_pods() -> None:
    with world(
        listed(pod("worker-0", "first", version=5)),
        watched(ending="cut"),
        refused(410),
        listed(pod("worker-0", "second", version=9)),
    ) as scene:
        reflector = scene.reflector()
        scene.run(reflector)
        assert set(reflector.snapshot()) == {"second"}
    assert scene.history == [("added", "first"), ("vanished", "first"), ("added", "second")]


@pytest.mark.fault(12)
def test_what_vanished_is_closed_when_the_server_was_last_heard() -> None:
    with world(
        listed(pod("a"), pod("b")),
        watched(event("MODIFIED", pod("b", version=2)), ending="cut"),
        refused(410),
        listed(pod("b", version=2)),
    ) as scene:
        reflector = scene.reflector()
        reflector.step()
        reflector.step()
        heard = reflector.last_success_ns
        scene.clock.now_ns += 600 * SECOND
        scene.run(reflector)
    vanished = scene.changes[-1]
    assert (vanished.kind, vanished.object["metadata"]["uid"]) == ("vanished", "uid-a")
    assert vanished.seen_ns == heard
    assert reflector.last_success_ns is not None
    assert heard is not None
    assert reflector.last_success_ns > heard + 600 * SECOND


@pytest.mark.parametrize(
    "body",
    [
        b"<html>proxy</html>",
        b"{}",
        b"[]",
        b'{"metadata": {"resourceVersion": "1"}}',
        b'{"metadata": {}, "items": []}',
        b'{"metadata": {"resourceVersion": "1"}, "items": {}}',
        b'{"metadata": {"resourceVersion": "1"}, "items": [',
    ],
)
def test_an_answer_that_is_no_list_never_passes_for_an_empty_one(body: bytes) -> None:
    with world(
        listed(pod("a")), watched(ending="cut"), refused(410), Answer(chunks=(body,)), listed(pod("a"))
    ) as scene:
        reflector = scene.reflector()
        for _ in range(4):
            reflector.step()
        assert set(reflector.snapshot()) == {"uid-a"}
        assert not reflector.up
        assert reflector.errors["bad_list"] + reflector.errors["not_json"] == 1
        scene.run(reflector)
        assert reflector.up
    assert scene.history == [("added", "uid-a")]


def test_a_list_without_items_is_empty() -> None:
    empty = Answer(chunks=(b'{"metadata": {"resourceVersion": "5"}, "items": null}',))
    with world(empty) as scene:
        reflector = scene.reflector()
        reflector.step()
        assert (dict(reflector.snapshot()), reflector.synced, reflector.up) == ({}, True, True)


@pytest.mark.fault(16)
def test_bad_objects_in_a_list_are_skipped_and_counted_and_known_ones_do_not_vanish() -> None:
    broken = {**pod("known", version=2), "spec": None}
    with world(
        listed(pod("known"), pod("other")),
        watched(ending="cut"),
        refused(410),
        listed(broken, {"kind": "Pod"}, "text", None, {"metadata": {"uid": 5}}, pod("other")),
    ) as scene:
        reflector = scene.reflector(trim=lambda found: {**found, "node": found["spec"]["nodeName"]})
        scene.run(reflector)
        assert set(reflector.snapshot()) == {"uid-known", "uid-other"}
        assert reflector.snapshot()["uid-known"]["node"] == "gpu-1"
    assert reflector.errors["bad_object"] == 5
    assert scene.history == [("added", "uid-known"), ("added", "uid-other")]


@pytest.mark.fault(19)
def test_the_newest_served_version_of_a_collection_is_used() -> None:
    with world(refused(404), refused(404), listed(pod("a")), watched()) as scene:
        reflector = scene.reflector("/v1", older_paths=("/v1beta2", "/v1beta1"), optional=True)
        scene.run(reflector)
        assert not reflector.absent
    assert [asked.path for asked in scene.server.asked] == ["/v1", "/v1beta2", "/v1beta1", "/v1beta1"]


@pytest.mark.fault(19)
def test_an_optional_collection_that_nobody_serves_is_absent_until_it_appears() -> None:
    with world(refused(404), refused(404), listed(pod("a"))) as scene:
        reflector = scene.reflector("/v1", older_paths=("/v1beta1",), optional=True)
        assert reflector.step() == 300
        assert (reflector.absent, reflector.synced, reflector.up, dict(reflector.snapshot())) == (
            True,
            True,
            True,
            {},
        )
        assert not reflector.errors
        reflector.step()
        assert (reflector.absent, set(reflector.snapshot())) == (False, {"uid-a"})


def test_a_collection_once_seen_is_given_up_only_at_the_third_404() -> None:
    gone = [refused(404)] * 3
    with world(listed(pod("a")), *gone) as scene:
        reflector = scene.reflector(optional=True)
        for _ in range(3):
            reflector.step()
            assert set(reflector.snapshot()) == {"uid-a"}
            assert not reflector.absent
        reflector.step()
        assert (dict(reflector.snapshot()), reflector.absent) == ({}, True)


def test_without_optional_a_404_is_an_error() -> None:
    with world(refused(404)) as scene:
        reflector = scene.reflector()
        assert reflector.step() == 0.5
        assert (reflector.up, reflector.synced, reflector.errors) == (False, False, {"http_404": 1})
