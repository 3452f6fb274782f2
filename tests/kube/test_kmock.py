"""The reflector against kmock, an API server that was not written here."""

from __future__ import annotations

import asyncio
from typing import Any

import kmock as kmock_library
import pytest

from gpucost.kube.connect.http_transport import HttpTransport
from gpucost.kube.watch.reflector import Reflector, ReflectorSettings
from tests.support.kube import pod

pytestmark = pytest.mark.asyncio

PODS = "/api/v1/namespaces/team/pods"


async def _until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def test_pods_come_and_go_through_a_real_list_and_watch(
    kmock: kmock_library.KubernetesEmulator,
) -> None:
    kmock.resources["v1/pods"] = {"kind": "Pod", "namespaced": True}
    async with kmock.post(PODS, json=pod("before", version="")) as created:
        assert created.status == 200
    changes: list[tuple[str, str]] = []
    reflector = Reflector(
        HttpTransport(str(kmock.url)),
        "/api/v1/pods",
        trim=dict,
        on_change=lambda change: changes.append((change.kind.value, change.object["metadata"]["uid"])),
        settings=ReflectorSettings(inactivity_s=10),
    )
    reflector.start()
    await _until(lambda: len(kmock[kmock_library.action.WATCH]) == 1)
    await kmock.post(PODS, json=pod("during", version=""))
    await _until(lambda: set(reflector.snapshot()) == {"uid-before", "uid-during"})
    await kmock.delete(f"{PODS}/before")
    await _until(lambda: set(reflector.snapshot()) == {"uid-during"})
    assert reflector.up
    assert changes[0] == ("added", "uid-before")
    assert changes[-2:] == [("added", "uid-during"), ("deleted", "uid-before")]
    assert not reflector.errors
    await asyncio.to_thread(reflector.close)


@pytest.mark.fault(12)
async def test_a_410_of_either_kind_and_a_bookmark(kmock: kmock_library.KubernetesEmulator) -> None:
    def page(version: str, *names: str) -> dict[str, Any]:
        return {"metadata": {"resourceVersion": version}, "items": [pod(name) for name in names]}

    expired = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
    bookmark = {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "150"}}}
    pods = kmock_library.resource("v1/pods")
    lists, watches = kmock["list", pods], kmock["watch", pods]
    lists[:1] << page("100", "a", "b")
    lists[1:2] << page("200", "b", "c")
    lists[2:] << page("300", "c")
    watches[:1] << (bookmark,)
    watches[1:2] << 410
    watches[2:3] << (expired,)
    watches[3:] << (bookmark,)
    reflector = Reflector(HttpTransport(str(kmock.url)), "/api/v1/pods", trim=dict)
    seen = []
    for _ in range(6):
        await asyncio.to_thread(reflector.step)
        seen.append(sorted(reflector.snapshot()))
    ab, bc, c = ["uid-a", "uid-b"], ["uid-b", "uid-c"], ["uid-c"]
    assert seen == [ab, ab, ab, bc, bc, c]
    asked = [request.params.get("resourceVersion") for request in watches]
    assert asked == ["100", "150", "200"]
    assert reflector.errors == {"http_410": 1, "event_410": 1}
