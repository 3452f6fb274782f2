"""Fields that are not there, or make no sense, and what is still read of the object around them."""

from __future__ import annotations

import json
import weakref
from typing import Any

import pytest

from gpucost.cluster.objects.metadata import FieldFlaw, StatusCondition
from gpucost.domain.jobs import OwnerReference
from gpucost.kube.parse.events import Unreadable
from gpucost.kube.parse.fields import (
    MOST_FLAWS,
    ObjectPart,
    conditions,
    meta,
    shared,
)

_OCTOBER_MS = 1_790_812_800_000  # 2026-10-01T00:00:00Z


def _fields(part: ObjectPart) -> list[str]:
    return [flaw.field for flaw in part.flaws]


def test_what_is_missing_or_null_is_empty_and_no_flaw() -> None:
    part = ObjectPart({"none": None})
    for key in ("none", "missing"):
        assert not part.part(key)
        assert (part.parts(key), part.text(key), part.texts(key)) == ([], "", ())
        assert (part.whole(key), part.count(key, 3), part.flag(key, True)) == (None, 3, True)
        assert (part.instant(key), part.labels(key), part.amounts(key)) == (None, {}, {})
        assert key not in part
    assert part.flaws == []


def test_what_has_another_form_is_empty_and_a_flaw() -> None:
    part = ObjectPart({"odd": 1.5})
    assert not part.part("odd")
    assert (part.parts("odd"), part.text("odd"), part.texts("odd")) == ([], "", ())
    assert (part.whole("odd"), part.flag("odd"), part.instant("odd")) == (None, False, None)
    assert (part.labels("odd"), part.amounts("odd")) == ({}, {})
    assert part.flaws[0] == FieldFlaw("odd", "1.5", "an object")
    assert _fields(part) == ["odd"] * 9


@pytest.mark.parametrize("value", [True, 2**63, -(2**63) - 1, "1", 1.0])
def test_a_whole_number_is_an_integer_of_64_bits(value: object) -> None:
    part = ObjectPart({"n": value})
    assert part.whole("n") is None
    assert _fields(part) == ["n"]


def test_counts_are_not_negative() -> None:
    part = ObjectPart({"n": -1, "m": 4})
    assert (part.count("n", 7), part.count("m")) == (7, 4)
    assert _fields(part) == ["n"]


@pytest.mark.parametrize(
    ("text", "instant_ms"),
    [
        ("2026-10-01T00:00:00Z", _OCTOBER_MS),
        ("2026-10-01T00:00:00.123456Z", _OCTOBER_MS + 123),
        ("2026-10-01T00:00:00.999999999Z", _OCTOBER_MS + 999),
        ("2026-10-01T02:00:00+02:00", _OCTOBER_MS),
        ("2026-10-01T00:00:00", None),
        ("0001-01-01T00:00:00Z", None),
        ("0001-01-01T00:00:00+23:59", None),
        ("9999-12-31T23:59:59-23:59", None),
        ("yesterday", None),
        ("2026-10-01T00:00:00Z" * 1000, None),
        ("\ud800", None),
        (0, None),
    ],
)
def test_instants(text: object, instant_ms: int | None) -> None:
    part = ObjectPart({"at": text})
    assert part.instant("at") == instant_ms
    assert (part.flaws == []) is (instant_ms is not None)


def test_flaws_say_where_they_are() -> None:
    root = ObjectPart({"spec": {"containers": [{"resources": {"requests": {"cpu": "lots"}}}, 3]}})
    first, *rest = root.part("spec").parts("containers")
    assert rest == []
    assert first.part("resources").amounts("requests") == {}
    assert _fields(root) == ["spec.containers[1]", "spec.containers[0].resources.requests.cpu"]


def test_flaws_are_few_and_short_however_broken_the_object_is() -> None:
    deep: Any = []
    for _ in range(50_000):
        deep = [deep]
    part = ObjectPart({"a": "x" * 10_000, "deep": deep, "huge": 10**5000})
    for _ in range(50):
        part.whole("a")
    assert len(part.flaws) == MOST_FLAWS
    assert len(part.flaws[0].value) <= 120
    for key in ("deep", "huge"):
        other = ObjectPart({key: part.raw(key), "of": {"cpu": part.raw(key)}})
        assert other.flag(key) is False
        assert other.amounts("of") == {}
        assert len(other.flaws) == 2


def test_amounts_keep_what_makes_sense() -> None:
    part = ObjectPart(
        {"of": {"cpu": 2, "memory": "1Gi", "nvidia.com/gpu": 1.0, "pods": True, "x": None, "y": []}}
    )
    assert part.amounts("of") == {"cpu": 2000, "memory": 2**30, "nvidia.com/gpu": 1}
    assert _fields(part) == ["of.pods", "of.x", "of.y"]


def test_meta_keeps_the_annotations_it_is_asked_for() -> None:
    found = {
        "metadata": {
            "uid": "u",
            "name": "n",
            "namespace": "ns",
            "creationTimestamp": "2026-10-01T00:00:00Z",
            "deletionTimestamp": "2026-10-01T00:00:30Z",
            "labels": {"team": "vision", "bad": 1},
            "annotations": {"a": "1", "b": "2", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Other", "name": "o", "uid": "ou"},
                {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "ju", "controller": True},
            ],
        }
    }
    root = ObjectPart(found)
    who = meta(root, frozenset({"a", "missing"}))
    assert (who.uid, who.namespace, who.name) == ("u", "ns", "n")
    assert (who.created_ms, who.deleted_ms) == (_OCTOBER_MS, _OCTOBER_MS + 30_000)
    assert who.labels == {"team": "vision"}
    assert who.annotations == {"a": "1"}
    assert who.owner == OwnerReference("batch/v1", "Job", "j", "ju")
    assert _fields(root) == ["metadata.labels.'bad'"]
    assert meta(ObjectPart(found)).annotations == {"a": "1", "b": "2"}


@pytest.mark.fault(16)
@pytest.mark.parametrize("metadata", [None, [], {}, {"uid": "u"}, {"name": "n"}, {"uid": 1, "name": "n"}])
def test_an_object_without_uid_or_name_is_unreadable(metadata: object) -> None:
    with pytest.raises(Unreadable) as caught:
        meta(ObjectPart({"metadata": metadata}))
    assert caught.value.reason == "bad_object"


@pytest.mark.parametrize(
    ("owners", "name"),
    [
        ([], None),
        ([{"uid": "a", "name": "only"}], "only"),
        ([{"uid": "a", "name": "one"}, {"uid": "b", "name": "two"}], None),
        ([{"name": "no uid", "controller": True}], None),
    ],
)
def test_the_owner_is_the_controller_or_the_only_one(owners: list[object], name: str | None) -> None:
    owner = meta(ObjectPart({"metadata": {"uid": "u", "name": "n", "ownerReferences": owners}})).owner
    assert (owner and owner.name) == name


def test_conditions_are_by_type_and_unknown_is_none() -> None:
    status = ObjectPart(
        json.loads(
            """{"conditions": [{"type": "Ready", "status": "True", "reason": "R", "message": "m",
            "lastTransitionTime": "2026-10-01T00:00:00Z"}, {"type": "Lost", "status": "Unknown"}, {}]}"""
        )
    )
    assert conditions(status) == {
        "Ready": StatusCondition(True, "R", "m", _OCTOBER_MS),
        "Lost": StatusCondition(None, "", "", None),
    }


def test_messages_are_cut() -> None:
    status = ObjectPart({"conditions": [{"type": "Ready", "status": "False", "message": "ab" * 30_000}]})
    assert conditions(status)["Ready"].message == "ab" * 2048
    assert status.flaws == []


def test_equal_resources_are_one_object() -> None:
    one = shared({"cpu": 1, "memory": 2})
    assert one is shared({"memory": 2, "cpu": 1})
    assert one == {"cpu": 1, "memory": 2}


def test_equal_resources_are_held_by_nobody_else() -> None:
    one = shared({"example.com/only-here": 1})
    seen = weakref.ref(one)
    del one
    assert seen() is None
