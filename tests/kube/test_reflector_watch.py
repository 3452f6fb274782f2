"""Watches: events in and out of order, what cannot be read, the 410s."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.kube.parse.events import Unreadable, parse_event
from gpucost.kube.watch.object_store import ObjectStore
from tests.kube.worlds import world
from tests.support.kube import bookmark, event, expired, listed, pod, refused, watched


def test_events_change_the_store_and_are_told_in_order() -> None:
    with world(
        listed(pod("a", version=10)),
        watched(
            event("ADDED", pod("b", version=101)),
            event("MODIFIED", pod("a", version=102)),
            event("DELETED", pod("b", version=103)),
        ),
    ) as scene:
        reflector = scene.reflector()
        scene.run(reflector)
        assert {uid: found["metadata"]["resourceVersion"] for uid, found in reflector.snapshot().items()} == {
            "uid-a": "102"
        }
    assert scene.history == [
        ("added", "uid-a"),
        ("added", "uid-b"),
        ("modified", "uid-a"),
        ("deleted", "uid-b"),
    ]
    assert [
        change.previous and change.previous["metadata"]["resourceVersion"] for change in scene.changes
    ] == [
        None,
        None,
        "10",
        "101",
    ]


def test_a_snapshot_stays_as_it_was_and_is_shared_until_something_changes() -> None:
    with world(listed(pod("a")), watched(event("ADDED", pod("b", version=101)))) as scene:
        reflector = scene.reflector()
        reflector.step()
        before, version = reflector.snapshot(), reflector.version
        assert reflector.snapshot() is before
        reflector.step()
        assert set(before) == {"uid-a"}
        assert set(reflector.snapshot()) == {"uid-a", "uid-b"}
        assert reflector.version > version
        with pytest.raises(TypeError):
            before["uid-a"] = {}  # type: ignore[index]


@pytest.mark.fault(12)
@pytest.mark.parametrize(
    ("answer", "reason"),
    [(refused(410), "http_410"), (watched(expired()), "event_410")],
    ids=["status", "event"],
)
def test_a_watch_too_old_leads_to_a_list_that_closes_what_went(answer: Any, reason: str) -> None:
    with world(
        listed(pod("a"), pod("b")), answer, listed(pod("b"), pod("c"), version="500"), watched()
    ) as scene:
        reflector = scene.reflector()
        scene.run(reflector)
        assert set(reflector.snapshot()) == {"uid-b", "uid-c"}
    assert scene.history[2:] == [("vanished", "uid-a"), ("added", "uid-c")]
    assert reflector.errors[reason] == 1
    assert scene.server.asked[-1].params["resourceVersion"] == "500"


def test_a_server_that_calls_everything_too_old_is_not_stormed() -> None:
    script = [listed(pod("a")), watched(expired())] * 8
    with world(*script) as scene:
        scene.jitter = 0.999
        pauses = scene.run(scene.reflector())[1::2]
    assert pauses == pytest.approx([0.999 * wait for wait in (1, 2, 4, 8, 16, 30, 30, 30)])


@pytest.mark.fault(16)
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'{"type": "MODIFIED", "object": {"metadata"\n', "bad_line"),
        (b"\xff\xfe\n", "bad_line"),
        (b"[" * 100_000 + b"\n", "bad_line"),
        (b'{"type": "UPSERTED", "object": {}}\n', "bad_event"),
        (b'{"object": {}}\n', "bad_event"),
        (b'"text"\n', "bad_event"),
        (b'{"type": "ADDED"}\n', "bad_object"),
        (b'{"type": "ADDED", "object": {"kind": "Pod"}}\n', "bad_object"),
        (b'{"type": "DELETED", "object": {"metadata": {"name": "x"}}}\n', "bad_object"),
    ],
)
def test_what_cannot_be_read_is_counted_and_the_stream_goes_on(bad: bytes, reason: str) -> None:
    with world(
        listed(), watched(event("ADDED", pod("a", version=101)), bad, event("ADDED", pod("b", version=103)))
    ) as scene:
        reflector = scene.reflector()
        scene.run(reflector)
        assert set(reflector.snapshot()) == {"uid-a", "uid-b"}
        assert (reflector.up, reflector.errors) == (True, {reason: 1})


@pytest.mark.fault(16)
def test_a_deletion_that_could_not_be_read_is_found_by_the_next_list() -> None:
    with world(
        listed(pod("a"), pod("b")),
        watched(b'{"type": "DELETED", "object": {"meta\n', bookmark("130")),
        listed(pod("b"), version="200"),
    ) as scene:
        reflector = scene.reflector()
        scene.run(reflector)
        assert set(reflector.snapshot()) == {"uid-b"}
    assert [asked.is_watch for asked in scene.server.asked] == [False, True, False]


@pytest.mark.fault(16)
def test_a_line_cut_with_its_connection_is_asked_for_again() -> None:
    whole = json.dumps(event("ADDED", pod("b", version=102))).encode()
    with world(
        listed(pod("a")),
        watched(event("MODIFIED", pod("a", version=101)), whole[:40], ending="cut"),
        watched(whole + b"\n"),
    ) as scene:
        reflector = scene.reflector()
        scene.run(reflector)
        assert set(reflector.snapshot()) == {"uid-a", "uid-b"}
    assert [asked.params.get("resourceVersion") for asked in scene.server.asked] == [None, "100", "101"]
    assert reflector.errors["cut"] == 1


@pytest.mark.fault(16)
def test_a_last_line_cut_in_an_answer_that_ends_well_is_asked_for_again_too() -> None:
    whole = json.dumps(event("ADDED", pod("b", version=102))).encode()
    with world(
        listed(), watched(event("ADDED", pod("a", version=101)), whole[:40]), watched(whole + b"\n")
    ) as scene:
        reflector = scene.reflector()
        scene.run(reflector)
        assert set(reflector.snapshot()) == {"uid-a", "uid-b"}
        assert reflector.errors == {"bad_line": 1}
    assert [asked.is_watch for asked in scene.server.asked] == [False, True, True]


def test_a_deletion_whose_last_state_cannot_be_read_is_still_a_deletion() -> None:
    broken = {**pod("a", version=101), "spec": None}
    with world(listed(pod("a")), watched(event("DELETED", broken))) as scene:
        reflector = scene.reflector(trim=lambda found: {**found, "node": found["spec"]["nodeName"]})
        scene.run(reflector)
        assert not reflector.snapshot()
    assert scene.changes[-1].object["node"] == "gpu-1"


@pytest.mark.fault(20)
def test_old_and_repeated_events_change_nothing() -> None:
    with world(
        listed(pod("a", version=90)),
        watched(
            event("MODIFIED", pod("a", version=110)),
            event("MODIFIED", pod("a", version=110)),
            event("MODIFIED", pod("a", version=9)),
            event("DELETED", pod("a", version=109)),
            event("ADDED", pod("b", version=111)),
            event("DELETED", pod("b", version=113)),
            event("MODIFIED", pod("b", version=112)),
        ),
        watched(),
    ) as scene:
        reflector = scene.reflector()
        scene.run(reflector)
        assert {uid: found["metadata"]["resourceVersion"] for uid, found in reflector.snapshot().items()} == {
            "uid-a": "110"
        }
    assert scene.history[1:] == [("modified", "uid-a"), ("added", "uid-b"), ("deleted", "uid-b")]
    assert scene.server.asked[-1].params["resourceVersion"] == "113"


_LIVES = st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=4)


@pytest.mark.fault(20)
@given(lives=_LIVES, data=st.data())
def test_any_order_and_any_repetition_gives_the_newest_state(
    lives: list[tuple[int, bool]], data: st.DataObject
) -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    expected: dict[str, str] = {}
    version = 100
    for number, (states, is_deleted) in enumerate(lives):
        for state in range(states):
            version += 1
            events.append(("ADDED" if state == 0 else "MODIFIED", pod(f"p{number}", version=version)))
        if is_deleted:
            version += 1
            events.append(("DELETED", pod(f"p{number}", version=version)))
        else:
            expected[f"uid-p{number}"] = str(version)
    repeated = events + data.draw(st.lists(st.sampled_from(events), max_size=6))
    store = ObjectStore(dict)
    for kind, found in data.draw(st.permutations(repeated)):
        (store.remove if kind == "DELETED" else store.put)(found, 1)
    assert {uid: found["metadata"]["resourceVersion"] for uid, found in store.view().items()} == expected


@pytest.mark.fault(20)
def test_a_deletion_counts_at_the_version_that_is_known_and_not_before() -> None:
    store = ObjectStore(dict)
    store.put(pod("a", version=104), 1)
    assert store.remove(pod("a", version=103), 1) is None
    assert store.remove(pod("a", version=104), 1) is not None


@pytest.mark.fault(20)
def test_the_newest_deletion_is_the_one_that_is_remembered() -> None:
    """An object can leave a label selector, come back, and be deleted."""
    store = ObjectStore(dict)
    store.put(pod("a", version=101), 1)
    for version in (105, 103):
        store.remove(pod("a", version=version), 1)
    assert store.put(pod("a", version=104), 1) is None
    assert store.put(pod("a", version=106), 1) is not None


def test_versions_that_are_no_numbers_are_taken_as_they_come() -> None:
    store = ObjectStore(dict)
    for version in ("zz", "aa", "…", "٣"):
        assert store.put(pod("a", version=version), 1) is not None
        assert store.view()["uid-a"]["metadata"]["resourceVersion"] == version


def test_a_list_is_the_truth_even_when_its_versions_are_older() -> None:
    """An etcd restored from a backup goes back."""
    with world(
        listed(pod("a", version=900), version="1000"), refused(410), listed(pod("a", version=5), version="10")
    ) as scene:
        reflector = scene.reflector()
        scene.run(reflector)
        assert reflector.snapshot()["uid-a"]["metadata"]["resourceVersion"] == "5"


@pytest.mark.fault(16)
@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(max_size=5)
        | st.sampled_from(["ADDED", "DELETED"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["type", "object", "metadata", "uid"]), inner, max_size=4)
        ),
        max_leaves=8,
    ).map(lambda found: json.dumps(found).encode())
)
def test_no_line_at_all_raises_anything_else(line: bytes) -> None:
    store = ObjectStore(dict)
    try:
        found = parse_event(line)
        store.put(found.object, 1)
        store.remove(found.object, 1)
    except Unreadable:
        pass
    assert not store.view()
