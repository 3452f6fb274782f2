"""The admission webhook without a network: whatever is sent, everything is allowed, and in time."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.advisor.model.answers import Advice, AdviceSubject, SchedulingDecision
from gpucost.api.webhook.admission_review import (
    AdmissionReview,
    ReviewResult,
    may_ask_gpus,
    read,
)
from gpucost.api.webhook.adviser import StepLatencyEstimate
from gpucost.api.webhook.app import LoopLag, WebhookApp, WebhookToken
from gpucost.api.webhook.deadline_queue import ReviewOutcome, ReviewQueue, ReviewTask
from gpucost.service.advisor.advisor_service import GarbageControl
from tests.api.advisor_worlds import (
    FOREIGN,
    TOKEN,
    SmallEngine,
    StillCluster,
    advice,
    advising,
    body,
    job,
    review,
    working,
)

URL = f"/v1/admission/{TOKEN}"
JSON = {"Content-Type": "application/json"}
LONG_MS = 60_000
"""A deadline that no test reaches."""


class World:
    """A webhook over a small engine."""

    def __init__(
        self,
        engine: SmallEngine | None = None,
        watched: StillCluster | None = None,
        *,
        deadline_ms: int = LONG_MS,
        in_flight: int = 4,
    ) -> None:
        self.engine = engine or SmallEngine()
        self.advising = advising(self.engine, watched)
        self.app = WebhookApp(
            WebhookToken(TOKEN),
            self.advising.status.reviewed,
            working(self.advising),
            deadline_ms=deadline_ms,
            in_flight=in_flight,
        )

    def post(self, content: bytes, url: str = URL, headers: dict[str, str] | None = None) -> httpx2.Response:
        return asyncio.run(self.apost(content, url, headers))

    async def apost(
        self, content: bytes, url: str = URL, headers: dict[str, str] | None = None, method: str = "POST"
    ) -> httpx2.Response:
        transport = httpx2.ASGITransport(app=self.app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://webhook") as client:
            return await client.request(method, url, content=content, headers=headers or JSON)

    def close(self) -> None:
        self.app.desk.close()


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    found.close()


def response_of(answered: httpx2.Response) -> dict[str, Any]:
    """The response, after checking that it is a valid one of v1, and allows."""
    assert answered.status_code == 200
    assert answered.headers["content-type"] == "application/json"
    found = answered.json()
    assert set(found) == {"apiVersion", "kind", "response"}
    assert (found["apiVersion"], found["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: dict[str, Any] = found["response"]
    assert response["allowed"] is True
    assert set(response) <= {"uid", "allowed", "warnings", "auditAnnotations"}
    return response


def test_a_job_gets_its_advice(world: World) -> None:
    found = response_of(world.post(body()))
    assert found["uid"] == "0d4a-uid"
    first, second = found["warnings"]
    assert found["auditAnnotations"] == {"rules": "kueue 0.19.2"}
    assert first.startswith("gpucost: waits: queue ml-queue has 8 of 64 GPUs left")
    assert second == "gpucost: would run now with one change: asks 4 GPUs: runs now"
    assert world.advising.status.reviews() == {"advised": 1}
    assert world.advising.status.answers() == {
        ("webhook", "waits"): 1,
        ("webhook_wait", "waits"): 1,
        ("webhook_suggestions", "waits"): 1,
    }
    asked = [("train", False), ("train", False), ("train", True)]
    assert world.engine.asked == asked, "the fast answer comes first, then the wait, then what to change"


def test_what_runs_now_is_not_asked_for_suggestions() -> None:
    engine = SmallEngine(
        lambda subject: replace(advice(subject), decision=SchedulingDecision.NOW, says="runs now")
    )
    world = World(engine)
    assert response_of(world.post(body()))["warnings"] == ["gpucost: runs now, by preempting 2 workloads"]
    assert [suggestions for _, suggestions in engine.asked] == [False]
    world.close()


@pytest.mark.fault(59)
def test_what_others_run_is_not_named(world: World) -> None:
    found = response_of(world.post(body()))
    assert FOREIGN.name not in json.dumps(found)
    assert "another team's workload" in found["warnings"][0]


def test_a_job_without_gpus_gets_none(world: World) -> None:
    assert set(response_of(world.post(body(job(gpus=0))))) == {"uid", "allowed"}
    assert world.advising.status.reviews() == {"no_gpus": 1}
    assert world.engine.asked == []


ASKS = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
LARGE = job() | {"data": "x" * 3_000_000}


@pytest.mark.fault(57)
@pytest.mark.parametrize(
    ("content", "result", "uid"),
    [
        (b"", "malformed", ""),
        (b"not JSON", "malformed", ""),
        (b"[]", "malformed", ""),
        (b"null", "malformed", ""),
        (b'{"request": []}', "malformed", ""),
        (b"[" * 15_000, "malformed", ""),
        (b"\xff\xfe", "malformed", ""),
        (body()[:-1], "malformed", "0d4a-uid"),
        (body(uid=None), "malformed", ""),
        (body(uid=7), "malformed", ""),
        (body(uid="x" * 10_000), "malformed", ""),
        (body(uid="\ud800"), "malformed", ""),
        (
            json.dumps(review() | {"apiVersion": "admission.k8s.io/v1beta1"}).encode(),
            *("unsupported_version", "0d4a-uid"),
        ),
        (json.dumps(review() | {"kind": "ConversionReview"}).encode(), "unsupported_version", "0d4a-uid"),
        (body(object=None), "no_object", "0d4a-uid"),
        (body(object=[]), "no_object", "0d4a-uid"),
        (body(object={"kind": "Job"}), "no_object", "0d4a-uid"),
        (body({"kind": "Job", "metadata": {}, "spec": ASKS}), "error", "0d4a-uid"),
        (body({"kind": "Unheard", "metadata": {}, "spec": ASKS}), "invalid_manifest", "0d4a-uid"),
        (body({"kind": "Unheard", "metadata": {}}), "no_gpus", "0d4a-uid"),
        (body({"kind": "Job", "metadata": {}, "spec": []}), "no_gpus", "0d4a-uid"),
        (body(operation="DELETE", object=None, oldObject=job()), "operation", "0d4a-uid"),
        (body(operation="CONNECT"), "operation", "0d4a-uid"),
        (body(operation=["CREATE"]), "operation", "0d4a-uid"),
        (body(subResource="status"), "operation", "0d4a-uid"),
        (body(LARGE), "too_large", "0d4a-uid"),
        (body(job() | {"status": {"values": [{}] * 12_000}}), "too_large", "0d4a-uid"),
        (b'{"request": {"object": [' + b"[]," * 1_000_000 + b'1], "uid": "last"}}', "too_large", ""),
        (b'{"request": {"object": {' + b'"a": 1,' * 30_000 + b'"b": 2}, "uid": "last"}}', "too_large", ""),
        (json.dumps({"request": {"object": LARGE, "uid": "last"}}).encode(), "too_large", "last"),
        (b" " * 20_000_000, "too_large", ""),
    ],
)
def test_whatever_is_sent_is_allowed_without_advice(
    content: bytes, result: str, uid: str, world: World
) -> None:
    found = response_of(world.post(content))
    assert found == {"uid": uid, "allowed": True}
    assert world.advising.status.reviews() == {result: 1}
    assert len(world.engine.asked) == 0


@pytest.mark.fault(57)
def test_a_wrong_content_type_is_allowed_without_advice(world: World) -> None:
    for given_type in ("text/plain", "", "application/yaml"):
        found = response_of(world.post(body(), headers={"Content-Type": given_type}))
        assert found == {"uid": "0d4a-uid", "allowed": True}
    assert world.advising.status.reviews() == {"content_type": 3}


@pytest.mark.fault(57)
def test_a_dry_run_gets_the_same_advice(world: World) -> None:
    """Advice has no side effect, and ``kubectl apply --dry-run=server`` is who asks for it."""
    assert response_of(world.post(body(dryRun=True))) == response_of(world.post(body()))


@pytest.mark.parametrize(
    ("spec", "may"),
    [
        (None, False),
        ({}, False),
        ({"containers": [{"resources": {"limits": {"cpu": 1, "memory": "1Gi"}}}]}, False),
        ({"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]}, True),
        ({"template": {"initContainers": [{"resources": {"requests": {"amd.com/gpu": "1"}}}]}}, True),
        ({"resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}}, True),
        ({"resourceClaims": [{"name": "gpu"}]}, True),
        ({"resourceClaims": []}, False),
        ({"runtimeRef": {"name": "torch"}}, True),
        ({"nodeSelector": {"nvidia.com/gpu.product": "H100"}}, False),
        ({"env": [{"name": "limits", "value": "nvidia.com/gpu"}]}, False),
    ],
)
def test_what_asks_for_no_device_is_told_apart_without_the_cluster(spec: Any, may: bool) -> None:
    assert may_ask_gpus({"metadata": {}, "spec": spec}) is may


@pytest.mark.fault(57)
def test_what_a_controller_makes_gets_none(world: World) -> None:
    owned = job()
    owned["metadata"]["ownerReferences"] = [{"kind": "JobSet", "name": "x", "controller": True}]
    assert "warnings" not in response_of(world.post(body(owned)))
    assert world.advising.status.reviews() == {"owned": 1}


@pytest.mark.fault(57)
@given(
    st.recursive(
        st.none() | st.booleans() | st.text() | st.integers(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(["request", "uid", "object", "metadata", "operation", "apiVersion", "kind"]),
                x,
            )
        ),
    )
)
def test_no_json_is_too_strange_to_be_read(sent: Any) -> None:
    found = read(json.dumps(sent).encode(), "application/json")
    assert isinstance(found, AdmissionReview)
    assert found.refused is not None or found.document is not None


def test_the_namespace_is_that_of_the_request() -> None:
    found = read(body(job(namespace="elsewhere"), namespace="ml"), "application/json")
    assert found.document is not None
    assert found.document["metadata"]["namespace"] == "ml"


@pytest.mark.parametrize(
    ("url", "method"),
    [
        ("/v1/admission/wrong", "POST"),
        ("/v1/admission/", "POST"),
        (f"{URL}/", "POST"),
        (f"/v1/other/{TOKEN}", "POST"),
        (f"/{TOKEN}", "POST"),
        (TOKEN, "POST"),
        (URL, "GET"),
        ("/healthz", "GET"),
    ],
)
def test_without_the_token_nothing_is_found(
    url: str, method: str, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        answered = asyncio.run(world.apost(body(), url, method=method))
    assert (answered.status_code, answered.content) == (404, b"")
    assert world.advising.status.reviews() == {}
    assert TOKEN not in "".join(r.getMessage() for r in caplog.records if r.name.startswith("gpucost"))


def test_the_timeout_that_api_servers_add_is_no_part_of_the_token(world: World) -> None:
    assert "warnings" in response_of(world.post(body(), f"{URL}?timeout=2s"))


@pytest.mark.fault(58)
def test_before_the_state_is_read_there_is_no_advice() -> None:
    world = World(watched=StillCluster(is_current=False))
    assert response_of(world.post(body())) == {"uid": "0d4a-uid", "allowed": True}
    assert world.advising.status.reviews() == {"no_state": 1}
    world.close()


@pytest.mark.fault(58)
def test_an_exception_in_a_rule_costs_the_advice_only(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: AdviceSubject) -> Advice:
        raise ZeroDivisionError

    world = World(SmallEngine(fail))
    assert response_of(world.post(body())) == {"uid": "0d4a-uid", "allowed": True}
    assert world.advising.status.reviews() == {"error": 1}
    assert "no advice for a review" in caplog.text
    world.close()


@pytest.mark.fault(58)
def test_a_slow_rule_is_not_waited_for_nor_piled_up() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hang(subject: AdviceSubject) -> Advice:
        begun.set()
        assert go_on.wait(30)
        return advice(subject)

    world = World(SmallEngine(hang), deadline_ms=50)
    first = 0
    while not begun.is_set():  # at once, unless its deadline passed before a worker took it
        assert "warnings" not in response_of(world.post(body()))
        first += 1
    for _ in range(10):
        assert "warnings" not in response_of(world.post(body()))
    reviews = world.advising.status.reviews()
    assert set(reviews) == {"deadline", "busy"}
    assert sum(reviews.values()) == first + 10
    assert reviews["busy"] > 5, "only at first somebody waits for it"
    assert len(world.engine.asked) == 1
    go_on.set()
    world.close()


def test_who_waits_comes_before_what_would_be_better() -> None:
    """While another review waits, one gets its first answer and no more."""
    begun, go_on = threading.Event(), threading.Event()
    wanted = []

    def work(task: ReviewTask) -> None:
        begun.set()
        assert go_on.wait(30)
        wanted.append(task.tell(ReviewOutcome(ReviewResult.ADVISED)))

    async def ask(desk: ReviewQueue) -> None:
        until = asyncio.get_running_loop().time() + 30
        asked = [asyncio.create_task(desk.ask(AdmissionReview(str(n)), until)) for n in range(3)]
        while desk.taken < 3:
            await asyncio.sleep(0.001)
        go_on.set()
        await asyncio.gather(*asked)

    run_desk(work, 3, ask)
    assert wanted[0] is False


def test_a_step_that_took_long_is_not_begun_without_time() -> None:
    cost = StepLatencyEstimate()
    assert cost.fits(0.02), "nobody knows yet"
    cost.took(0.2)
    assert not cost.fits(0.15)
    assert cost.fits(1.0)
    for _ in range(20):
        cost.took(0.01)
    assert cost.fits(0.15)


def test_a_step_that_never_fits_is_tried_again_some_time() -> None:
    cost = StepLatencyEstimate()
    cost.took(0.2)
    assert any(cost.fits(0.15) for _ in range(200))


@pytest.mark.fault(58)
def test_slow_suggestions_leave_the_first_answer() -> None:
    go_on = threading.Event()
    engine = SmallEngine()
    fast = engine.advise

    def advise(manifest: Any, known: Any, with_suggestions: bool = True) -> Advice:
        if with_suggestions:
            assert go_on.wait(30)
        return fast(manifest, known, with_suggestions)

    engine.advise = advise  # type: ignore[method-assign]
    world = World(engine, deadline_ms=2_000)
    assert len(response_of(world.post(body()))["warnings"]) == 1
    assert world.advising.status.reviews() == {"advised": 1}
    go_on.set()
    world.close()


def run_desk(
    work: Callable[[ReviewTask], None], in_flight: int, ask: Callable[[ReviewQueue], Awaitable[None]]
) -> None:
    desk = ReviewQueue(work, in_flight)

    async def main() -> None:
        await ask(desk)

    asyncio.run(main())
    desk.close()


def test_one_more_than_may_be_in_flight_is_answered_at_once() -> None:
    go_on = threading.Event()

    def work(task: ReviewTask) -> None:
        assert go_on.wait(30)
        task.tell(ReviewOutcome(ReviewResult.ADVISED))

    async def ask(desk: ReviewQueue) -> None:
        until = asyncio.get_running_loop().time() + 30
        asked = [asyncio.create_task(desk.ask(AdmissionReview(str(n)), until)) for n in range(10)]
        while desk.taken < 3 or sum(each.done() for each in asked) < 7:
            await asyncio.sleep(0.001)
        go_on.set()
        results = [outcome.result for outcome in await asyncio.gather(*asked)]
        assert sorted(results) == [ReviewResult.ADVISED] * 3 + [ReviewResult.BUSY] * 7
        assert desk.taken == 0

    run_desk(work, 3, ask)


@pytest.mark.fault(60)
def test_nobody_waits_for_a_turn_that_comes_too_late() -> None:
    """Each takes 30 ms: of those that ask at once with 0.3 s to go, five or six wait."""

    def work(task: ReviewTask) -> None:
        threading.Event().wait(0.03)
        task.tell(ReviewOutcome(ReviewResult.ADVISED))

    async def ask(desk: ReviewQueue) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(20):
            await desk.ask(AdmissionReview("before"), loop.time() + 30)
        asked = [asyncio.create_task(desk.ask(AdmissionReview(str(n)), loop.time() + 0.3)) for n in range(30)]
        found = Counter([outcome.result for outcome in await asyncio.gather(*asked)])
        assert found[ReviewResult.BUSY] >= 30 - 6

    run_desk(work, 30, ask)


def test_a_loop_that_is_held_up_is_late() -> None:
    async def ask() -> tuple[float, float, float]:
        lateness = LoopLag()
        first = lateness.seconds()
        time.sleep(0.2)
        held_up = lateness.seconds()
        await asyncio.sleep(0)
        return first, held_up, lateness.seconds()

    first, held_up, after = asyncio.run(ask())
    assert first == 0
    assert held_up > 0.15
    assert after > 0.15, "what was sent meanwhile is read now"


@pytest.mark.fault(60)
def test_a_listener_that_is_late_has_an_answer_for_each_and_no_more(world: World) -> None:
    class Late(LoopLag):
        def seconds(self) -> float:
            return LONG_MS

    world.app._lateness = Late()
    assert response_of(world.post(body())) == {"uid": "0d4a-uid", "allowed": True}
    assert world.advising.status.reviews() == {"busy": 1}
    assert world.engine.asked == []


def test_what_waited_too_long_is_not_begun() -> None:
    go_on, begun = threading.Event(), []

    def work(task: ReviewTask) -> None:
        begun.append(task.review.uid)
        assert go_on.wait(30)

    async def ask(desk: ReviewQueue) -> None:
        now = asyncio.get_running_loop().time()
        first = asyncio.create_task(desk.ask(AdmissionReview("first"), now + 30))
        while not begun:
            await asyncio.sleep(0.001)
        soon = asyncio.get_running_loop().time() + 0.2
        assert (await desk.ask(AdmissionReview("second"), soon)).result is ReviewResult.DEADLINE
        go_on.set()
        await first
        while desk.taken:
            await asyncio.sleep(0.001)
        assert begun == ["first"]

    run_desk(work, 3, ask)


def test_a_state_is_kept_from_the_collector_of_garbage() -> None:
    engine = SmallEngine()
    found = replace(advising(engine), has_webhook=True, _informed=None)
    before = gc.get_freeze_count()
    found.refresh()
    assert gc.isenabled()
    assert gc.get_freeze_count() > before
    known = found.informed()
    assert all(each is not known for each in gc.get_objects()), "it is not looked through"
    found.close()
    assert gc.get_freeze_count() == 0


def test_what_was_kept_from_it_is_collected_some_time() -> None:
    class Ring:
        """Of one."""

    dropped = []
    garbage = GarbageControl(every_s=-1)
    with garbage.kept_out():
        ring = Ring()
        ring.itself = ring  # type: ignore[attr-defined]
        dropped.append(weakref.ref(ring))
        del ring
    gc.unfreeze()
    assert dropped[0]() is None


def test_a_token_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "token"
    token = WebhookToken("the-first-token-of-all", file)
    assert not token.renew(), "there is no file yet"
    file.write_text("the-second-token-of-all\n", encoding="utf-8")
    assert token.renew()
    assert token.matches("the-second-token-of-all")
    assert not token.matches("the-first-token-of-all")
    assert not token.renew(), "nothing has changed"
    written = file.stat()
    file.write_text("the-other-token-of-them\n", encoding="utf-8")
    os.utime(file, ns=(written.st_atime_ns, written.st_mtime_ns))
    assert token.renew(), "as long, and of the same instant"
    file.write_text("the-second-token-of-all\n", encoding="utf-8")
    assert token.renew()
    file.write_text("the-third-token-of-all\nthe-second-token-of-all\n", encoding="utf-8")
    assert token.renew()
    assert token.matches("the-third-token-of-all")
    assert token.matches("the-second-token-of-all"), "until nobody has the one before"
    assert not token.matches("the-third-token-of-all\nthe-second-token-of-all")
    file.write_text("the-second-token-of-all\n", encoding="utf-8")
    assert token.renew()
    assert not token.matches("the-third-token-of-all")
    for sent in (b"short", b"two words of a token", b"\xff" * 20, b""):
        file.write_bytes(sent)
        assert not token.renew()
    assert token.matches("the-second-token-of-all")
    assert "the token before stays" in caplog.text
    assert "two words" not in caplog.text
