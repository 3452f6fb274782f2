"""The simulated API server that the scripted day runs on."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from gpucost.kube.connect.http_transport import HttpTransport
from gpucost.kube.connect.transport import TransportError
from gpucost.kube.watch.reflector import Reflector, ReflectorSettings
from tests.exporters.queue.day import World, day
from tests.support.cluster.installed import KUEUE
from tests.support.cluster.kueue_actor import serve_v1beta1_only
from tests.support.cluster.model import Kind
from tests.support.cluster.server import ClusterServer
from tests.support.kube import pod

SETTINGS = ReflectorSettings(page_size=2, inactivity_s=10.0, short_watch_s=0.0, absent_s=0.02)
IMPATIENT = replace(SETTINGS, inactivity_s=0.5)


@pytest.fixture
def server() -> Iterator[ClusterServer]:
    with ClusterServer() as running:
        yield running


@contextmanager
def reflecting(server: ClusterServer, path: str = "/api/v1/pods", **more: Any) -> Iterator[Any]:
    settings = more.pop("settings", SETTINGS)
    reflector: Any = Reflector(
        HttpTransport(server.url), path, settings=settings, jitter=lambda: 0.02, trim=dict, **more
    )
    reflector.start()
    try:
        yield reflector
    finally:
        reflector.close()


def api_pod(name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", **pod(name, **more)}


def get(server: ClusterServer, path: str) -> Any:
    with urlopen(server.url + path) as answer:
        return json.load(answer)


def test_discovery_names_what_is_installed(server: ClusterServer) -> None:
    assert get(server, "/api")["versions"] == ["v1"]
    groups = {each["name"]: each for each in get(server, "/apis")["groups"]}
    assert groups[KUEUE]["preferredVersion"]["version"] == "v1beta2"
    batch = get(server, "/apis/batch/v1")["resources"]
    assert [(each["name"], each["kind"], each["namespaced"]) for each in batch] == [
        ("jobs", "Job", True),
        ("cronjobs", "CronJob", True),
    ]
    server.uninstall("hypernodes")
    assert "topology.volcano.sh" not in {each["name"] for each in get(server, "/apis")["groups"]}


def test_pages_are_of_one_instant_and_versions_rise(server: ClusterServer) -> None:
    for name in "abc":
        server.put(api_pod(name))
    first = get(server, "/api/v1/pods?limit=2")
    server.delete(api_pod("c"))
    token = first["metadata"]["continue"]
    second = get(server, f"/api/v1/pods?limit=2&continue={token}")
    names = [each["metadata"]["name"] for page in (first, second) for each in page["items"]]
    versions = [int(each["metadata"]["resourceVersion"]) for each in first["items"]]
    assert names == ["a", "b", "c"]
    assert versions == [1001, 1002]
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"] == "1003"
    assert first["kind"] == "PodList"


def test_namespaces_are_a_collection_and_a_part_of_paths(server: ClusterServer) -> None:
    found = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "uid": "team"}}
    server.put(found)
    server.put(api_pod("a"))
    assert [each["metadata"]["uid"] for each in get(server, "/api/v1/namespaces")["items"]] == ["team"]
    assert get(server, "/api/v1/namespaces/team")["kind"] == "Namespace"
    assert get(server, "/api/v1/namespaces/team/pods/a")["metadata"]["uid"] == "uid-a"
    assert get(server, "/api/v1/namespaces/other/pods")["items"] == []


def test_a_new_object_needs_a_uid_and_a_name_cannot_be_taken_twice(server: ClusterServer) -> None:
    server.put(api_pod("a"))
    server.put(api_pod("a"))
    assert server.objects("pods")["uid-a"]["metadata"]["resourceVersion"] == "1001"
    with pytest.raises(ValueError, match="another uid"):
        server.put(api_pod("a", uid="other"))


def test_a_reflector_follows(server: ClusterServer) -> None:
    for name in "abc":
        server.put(api_pod(name))
    with reflecting(server) as reflector:
        server.await_watches(1)
        server.delete(api_pod("a"))
        server.put(api_pod("b", status={"phase": "Succeeded"}))
        server.put(api_pod("d"))
        server.settle()
        assert dict(reflector.snapshot()) == server.objects("pods")
        assert set(reflector.snapshot()) == {"uid-b", "uid-c", "uid-d"}
        assert not reflector.errors


WATCH_FAULTS = {
    "cut": "cut",
    "410_event": "event_410",
    "410_status": "http_410",
    "silence": "silent",
    "truncated_line": "bad_line",
    "403": "http_403",
    "500": "http_500",
    "429": "http_429",
}


@pytest.mark.parametrize(("how", "reason"), WATCH_FAULTS.items())
@pytest.mark.fault(12, 14, 15, 16, 17)
def test_a_watch_breaks_and_nothing_is_lost(server: ClusterServer, how: Any, reason: str) -> None:
    server.put(api_pod("a"))
    with reflecting(server, settings=IMPATIENT if how == "silence" else SETTINGS) as reflector:
        server.await_watches(1)
        server.break_watch(how, "pods")
        server.put(api_pod("b"))
        server.delete(api_pod("a"))
        server.put(api_pod("a", uid="second"))
        server.settle()
        assert dict(reflector.snapshot()) == server.objects("pods")
        assert set(reflector.snapshot()) == {"uid-b", "second"}
        assert reflector.errors == {reason: 1}


def test_a_fault_that_stands_keeps_the_old_state_until_it_is_mended(server: ClusterServer) -> None:
    server.put(api_pod("a"))
    with reflecting(server) as reflector:
        server.await_watches(1)
        server.break_watch("500", "pods", times=None)
        server.delete(api_pod("a"))
        server.put(api_pod("a", uid="second"))
        server.settle()
        assert set(reflector.snapshot()) == {"uid-a"}
        server.compact()
        server.mend("pods")
        server.settle()
        assert set(reflector.snapshot()) == {"second"}
        assert reflector.errors["http_500"] >= 1
        assert reflector.errors["event_410"] == 1


@pytest.mark.fault(18)
def test_a_continue_token_expires(server: ClusterServer) -> None:
    for name in "abcde":
        server.put(api_pod(name))
    server.break_list("expired_page", "pods")
    with reflecting(server) as reflector:
        server.await_watches(1)
        assert len(reflector.snapshot()) == 5
        assert reflector.errors == {"http_410": 1}
    assert server.requests()["/api/v1/pods"] == 2 + 3


@pytest.mark.fault(14, 17)
@pytest.mark.parametrize(("how", "reason"), {"403": "http_403", "500": "http_500", "429": "http_429"}.items())
def test_a_list_is_refused_and_asked_for_again(server: ClusterServer, how: Any, reason: str) -> None:
    server.put(api_pod("a"))
    server.break_list(how, "pods")
    with reflecting(server) as reflector:
        server.await_watches(1)
        assert set(reflector.snapshot()) == {"uid-a"}
        assert reflector.errors == {reason: 1}


def test_kueue_in_its_old_version_only(server: ClusterServer) -> None:
    world = World(server)
    world.play(day().steps[0])
    serve_v1beta1_only(server)
    versions = [each["version"] for each in get(server, f"/apis/{KUEUE}")["versions"]]
    queues = {
        each["metadata"]["name"]: each
        for each in get(server, f"/apis/{KUEUE}/v1beta1/clusterqueues")["items"]
    }
    assert versions == ["v1beta1"]
    assert queues["beta"]["apiVersion"] == f"{KUEUE}/v1beta1"
    assert queues["beta"]["spec"]["cohort"] == "research"
    with pytest.raises(HTTPError):
        get(server, f"/apis/{KUEUE}/v1beta2/clusterqueues")


@pytest.mark.fault(19)
def test_a_collection_is_installed_later_and_served_in_two_versions(server: ClusterServer) -> None:
    kind = Kind("test.io", "things", "Thing", False)
    path, older = "/apis/test.io/v2/things", ["/apis/test.io/v1/things"]
    with reflecting(server, path, older_paths=older, optional=True) as reflector:
        wait_for(lambda: reflector.absent)
        server.install(kind, "v1", lambda found: {**found, "spec": {"old": found["spec"]["new"]}})
        server.put(
            {
                "apiVersion": "test.io/v2",
                "kind": "Thing",
                "metadata": {"name": "a", "uid": "a"},
                "spec": {"new": 1},
            }
        )
        server.await_watches(1)
        server.settle()
        assert reflector.snapshot()["a"]["spec"] == {"old": 1}
        assert reflector.snapshot()["a"]["apiVersion"] == "test.io/v1"
        server.uninstall("things")
        wait_for(lambda: reflector.absent and not reflector.snapshot())


def test_who_has_read_a_list_and_does_not_watch_yet_is_waited_for(server: ClusterServer) -> None:
    def client() -> Reflector[Any]:
        return Reflector(HttpTransport(server.url), "/api/v1/pods", settings=SETTINGS, trim=dict)

    slow = client()
    slow.step()
    server.put(api_pod("a"))
    with pytest.raises(TimeoutError):
        server.settle(0.1)
    slow.start()
    server.settle()
    assert "uid-a" in slow.snapshot()
    slow.close()
    server.forget_clients()
    client().step()
    with pytest.raises(TimeoutError):  # the watch of the one that left is no receipt of another
        server.settle(0.1)


def test_quiet_means_written_also_where_a_watch_is_silent(server: ClusterServer) -> None:
    with reflecting(server, settings=replace(SETTINGS, inactivity_s=3.0)) as reflector:
        server.await_watches(1)
        server.put(api_pod("a"))
        server.quiet()
        wait_for(lambda: "uid-a" in reflector.snapshot())
        server.bookmark()
        server.break_watch("silence", "pods")
        server.put(api_pod("b"))
        server.quiet()
        assert "uid-b" not in reflector.snapshot()
        server.settle()
        assert "uid-b" in reflector.snapshot()


def test_kmock_replies_come_first(server: ClusterServer) -> None:
    server.script(lambda mock: mock["get", "/version"] << 503)
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    connection.request("GET", "/version")
    assert connection.getresponse().status == 503
    connection.close()


def test_kubectl_reads_it(server: ClusterServer, tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not on PATH: a second client was not tried")
    for name in "abc":
        server.put(api_pod(name))
    environment = {"PATH": os.environ["PATH"], "NO_PROXY": "127.0.0.1", "HOME": str(tmp_path)}
    asked = [kubectl, "--server", server.url, "get", "pods,nodes", "-A", "-o", "json", "--chunk-size=2"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    assert [each["metadata"]["name"] for each in json.loads(done.stdout)["items"]] == ["a", "b", "c"]


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.005)


# Collections that nothing happens to


class HurriedTransport:
    """The server's answers, without the silences: these pass on a clock of its own.

    With ``interval_s`` etcd reports its version that often, at first after ``first_s``, and ``late_s`` later
    the API server has a bookmark for watches that began at an older version.
    """

    def __init__(
        self,
        server: ClusterServer,
        interval_s: float | None = None,
        first_s: float = 0.0,
        late_s: float = 0.0,
    ) -> None:
        self._server, self._inner = server, HttpTransport(server.url)
        self._interval_s, self._first_s, self._late_s = interval_s, first_s, late_s
        self.now_s = self._position_s = 0.0
        self.expected = 0
        """Events to come, of which each watch waits for one after the other."""

    @property
    def name(self) -> str:
        return self._server.url

    def get(self, path: str, params: Any, timeout_s: float) -> Any:
        is_watch = "watch" in params
        response = self._inner.get(path, params, min(timeout_s, 5.0))
        if not is_watch:
            self._position_s = self.now_s
            return response
        read = response.lines

        def lines(*how: Any) -> Iterator[bytes]:
            told_s, found = self._told_s(), read(*how)
            if told_s is not None and told_s + self._late_s < self.now_s + timeout_s:
                self.now_s, self._position_s = max(self.now_s, told_s + self._late_s), told_s
                self._server.bookmark()
                yield next(found)
            while self.expected:
                self.expected -= 1
                yield next(found)
            self.now_s += timeout_s
            raise TransportError("silent", "no more")

        response.lines = lines  # type: ignore[method-assign]
        return response

    def _told_s(self) -> float | None:
        """When etcd reports its version next, after the one that the watch begins at."""
        if self._interval_s is None:
            return None
        times = max(0, int((self._position_s - self._first_s) // self._interval_s + 1))
        return self._first_s + times * self._interval_s


def quiet_reflector(transport: HurriedTransport) -> Any:
    return Reflector(
        transport,
        "/api/v1/pods",
        trim=dict,
        clock=lambda: round(transport.now_s * 1e9),
        monotonic=lambda: transport.now_s,
        jitter=lambda: 0.5,
    )


@pytest.mark.parametrize("late_s", [0.0, 60.0])
@pytest.mark.parametrize(
    ("interval_s", "first_s"),
    [(60.0, 5.0), *((each, first) for each in (600.0, 660.0) for first in (10.0, 301.0, 449.0, 595.0))],
)
def test_silence_within_twice_the_interval_of_etcd_is_no_error(
    server: ClusterServer, interval_s: float, first_s: float, late_s: float
) -> None:
    """Until etcd 3.4 says how far it is, each ten or eleven minutes, the API server has nothing to send."""
    server.put(api_pod("a"))
    transport = HurriedTransport(server, interval_s, first_s, late_s)
    reflector = quiet_reflector(transport)
    while transport.now_s < 7200.0:
        assert reflector.step() == 0.0
        assert (reflector.up, reflector.problem, reflector.is_stalled) == (True, "", False)
        assert transport.now_s - reflector.last_success_ns / 1e9 <= 450.0
    assert reflector.errors == {}
    assert set(reflector.snapshot()) == {"uid-a"}


def test_silence_is_an_error_after_twice_the_interval_of_etcd(server: ClusterServer) -> None:
    transport = HurriedTransport(server)
    reflector = quiet_reflector(transport)
    told = []
    while transport.now_s < 3600.0:
        before = reflector.errors.total()
        reflector.step()
        if reflector.errors.total() > before:
            told.append(transport.now_s)
        assert (reflector.up, reflector.is_stalled) == (True, False)
    assert told == [1200.0, 2400.0, 3600.0]
    assert reflector.errors == {"silent": 3}


def test_a_dead_connection_is_left_long_before(server: ClusterServer) -> None:
    server.put(api_pod("a"))
    transport = HurriedTransport(server)
    reflector = quiet_reflector(transport)
    reflector.step()
    server.break_watch("silence", "pods")
    server.put(api_pod("b"))
    reflector.step()
    transport.expected = 1
    reflector.step()
    assert set(reflector.snapshot()) == {"uid-a", "uid-b"}
    assert transport.now_s <= 300.0
    assert reflector.errors == {}
