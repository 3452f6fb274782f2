"""Which versions of a group are served, over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpucost.kube.connect.http_transport import HttpTransport
from gpucost.kube.connect.transport import TransportError
from gpucost.kube.parse.events import Unreadable
from gpucost.kube.watch.api_calls import ApiDiscovery, ApiServerRefusal
from tests.support.kube import Answer, KubeServer, kube_server, refused

KUEUE = "kueue.x-k8s.io"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def group(*versions: object) -> Answer:
    body = {"kind": "APIGroup", "name": KUEUE, "versions": [{"version": version} for version in versions]}
    return Answer(chunks=(json.dumps(body).encode(),))


def plain(body: object) -> Answer:
    return Answer(chunks=(json.dumps(body).encode(),))


@contextmanager
def discovery(*script: Answer) -> Iterator[tuple[ApiDiscovery, Clock, KubeServer]]:
    clock = Clock()
    with kube_server(*script) as server:
        yield ApiDiscovery(HttpTransport(server.url), monotonic=clock, kept_s=60), clock, server


def resources(*names: object) -> Answer:
    return plain({"kind": "APIResourceList", "resources": [{"name": name} for name in names]})


@pytest.mark.fault(19)
@pytest.mark.parametrize(
    ("answers", "versions", "having"),
    [
        ((group("v1"), resources("workloads", "workloads/status")), ("v1",), ("v1",)),
        ((group("v1"), resources("cohorts")), ("v1",), ()),
        ((group("v2", "v1"), resources("workloads"), resources("workloads")), ("v2", "v1"), ("v2", "v1")),
        ((group("v2", "v1"), refused(404), resources("workloads")), ("v2", "v1"), ("v1",)),
        ((refused(404),), (), ()),
        ((group(),), (), ()),
        ((group(7, "v1", None), resources(None, "workloads")), ("v1",), ("v1",)),
    ],
    ids=["newer", "without it", "both", "one is empty", "absent", "no version", "odd"],
)
def test_versions_that_have_a_collection(
    answers: tuple[Answer, ...], versions: tuple[str, ...], having: tuple[str, ...]
) -> None:
    with discovery(*answers) as (found, _, server):
        assert found.versions_of(KUEUE, "workloads") == having
        assert found.versions(KUEUE) == versions
    assert [asked.path for asked in server.asked] == [
        f"/apis/{KUEUE}",
        *(f"/apis/{KUEUE}/{version}" for version in versions),
    ]


@pytest.mark.fault(19)
def test_an_answer_is_kept_for_a_time_and_a_group_that_comes_is_seen_after_it() -> None:
    with discovery(refused(404), group("v1beta1")) as (found, clock, server):
        assert found.versions(KUEUE) == ()
        clock.now_s += 59.9
        assert found.versions(KUEUE) == ()
        assert len(server.asked) == 1
        clock.now_s += 0.1
        assert found.versions(KUEUE) == ("v1beta1",)
        assert len(server.asked) == 2


@pytest.mark.fault(14)
def test_what_is_no_answer_raises_and_is_asked_again() -> None:
    script = (refused(403), refused(500), plain({"versions": 5}), plain([]), Answer(chunks=(b"<",)))
    with discovery(*script, group("v1")) as (found, _, server):
        for error, reason in (
            (ApiServerRefusal, "http_403"),
            (ApiServerRefusal, "http_500"),
            (Unreadable, "bad_list"),
            (Unreadable, "bad_list"),
            (TransportError, "not_json"),
        ):
            with pytest.raises(error) as caught:
                found.versions(KUEUE)
            assert caught.value.reason == reason  # type: ignore[attr-defined]
        assert found.versions(KUEUE) == ("v1",)
    assert len(server.asked) == 6
