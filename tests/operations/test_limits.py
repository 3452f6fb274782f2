"""How often, and how much at once; and who can hold up others."""

from __future__ import annotations

import asyncio
import http.client
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from gpucost.access.authenticator import AccessDenied, Authenticator, CheckUnavailable, FixedKeys, NotGranted
from gpucost.access.keys import format_key, hash_secret
from gpucost.access.principal import AccessRole, AuthenticationMethod, Principal
from gpucost.api.app import create_app
from gpucost.api.server import connections, listener
from gpucost.api.server.errors import ApiError
from gpucost.api.server.listener import ApiListener
from gpucost.api.server.operations_status import OperationsStatus, RequestRefusal
from gpucost.api.server.rate_limits import MOST_CHECKS, RequestGate, TokenBuckets
from gpucost.api.server.services import ApiServices, ReadinessProbe, ReadinessState
from gpucost.domain.errors import LedgerUnavailable
from gpucost.domain.scope import EVERYTHING
from gpucost.ledger.ledger import Ledger
from gpucost.service.settings.api import ApiKey, ApiSettings
from tests.service.worlds import Clock


class Seconds:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    clock = Seconds()
    buckets = TokenBuckets(2, 3, seconds=clock)
    assert [buckets.take("ada") for _ in range(3)] == [0, 0, 0]
    assert buckets.take("ada") == 0.5
    assert buckets.take("bob") == 0, "everybody has one of their own"
    clock.now = 0.5
    assert (buckets.take("ada"), buckets.take("ada")) == (0, 0.5)
    clock.now = 100
    assert [buckets.take("ada") == 0 for _ in range(4)] == [True, True, True, False]
    assert all(TokenBuckets(0, 1).take("ada") == 0 for _ in range(100)), "0 is no limit"


def test_what_costs_more_takes_more_of_a_bucket() -> None:
    clock = Seconds()
    buckets = TokenBuckets(2, 10, seconds=clock)
    assert (buckets.take("ada", 6), buckets.take("ada", 6)) == (0, 1)
    assert buckets.take("ada", 4) == 0, "what was refused took nothing"
    clock.now = 5
    assert buckets.take("ada", 1_000) == 0, "of all there can be, once"
    assert buckets.take("ada") == 0.5


def test_the_memory_of_addresses_is_bounded() -> None:
    buckets = TokenBuckets(1, 1, most=100, seconds=Seconds())
    for number in range(1_000):
        buckets.take(str(number))
    assert len(buckets) == 100
    assert buckets.take("999") > 0, "the latest are those that are remembered"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", now=Clock()) as found:
        yield found


def app_of(ledger: Ledger, status: OperationsStatus, **limits: int) -> FastAPI:
    keys = tuple(
        ApiKey(id=name, sha256=hash_secret("s"), role=role)
        for name, role in (("fin", AccessRole.FINANCE), ("root", AccessRole.ADMIN))
    )
    settings = ApiSettings(keys=keys, **limits)  # type: ignore[arg-type]
    return timeless(create_app(ledger, settings, now=Clock(), operations=status), status)


def timeless(app: FastAPI, status: OperationsStatus) -> FastAPI:
    """Its limits count on a clock that stands still: a slow machine would fill the buckets meanwhile."""
    services: ApiServices = app.state.services
    services.__dict__["gate"] = RequestGate(services.settings, status, seconds=Seconds())
    return app


def client(app: FastAPI, key: str) -> TestClient:
    return TestClient(app, headers={"Authorization": f"Bearer {key}"})


@pytest.mark.fault(54)
def test_too_many_requests_are_a_429_that_says_when(ledger: Ledger) -> None:
    status = OperationsStatus()
    app = app_of(ledger, status, rate=1, burst=3)
    fin, root = client(app, format_key("fin", "s")), client(app, format_key("root", "s"))
    answers = [fin.get("/v1/findings") for _ in range(5)]
    assert {each.status_code for each in answers[:3]} == {200}
    last = answers[-1]
    assert (last.status_code, last.headers["retry-after"]) == (429, "1")
    assert last.json()["error"]["code"] == "too_many_requests"
    assert root.get("/v1/findings").status_code == 200, "it is nobody else's limit"
    assert fin.get("/healthz/ready").status_code == 200
    assert status.refusals()[RequestRefusal.RATE] >= 1
    assert "gpucost_api_refused_total" in root.get("/metrics").text


@pytest.mark.fault(54)
def test_who_guesses_keys_gets_no_more_answers_and_holds_up_nobody(ledger: Ledger) -> None:
    status = OperationsStatus()
    app = app_of(ledger, status, refused_rate=1)
    guessing = client(app, "gpc_fin_guess")
    found = [guessing.get("/").status_code for _ in range(70)]
    assert found[:60] == [401] * 60
    assert found[-1] == 429
    assert status.refusals()[RequestRefusal.UNAUTHORIZED] > 0
    assert client(app, format_key("fin", "s")).get("/").status_code == 200, "the same address"


@pytest.mark.fault(54)
def test_good_tokens_that_are_granted_nothing_count_for_their_address(ledger: Ledger) -> None:
    class Nobody(Authenticator):
        def authenticate(self, token: str) -> Principal:
            raise NotGranted(f"{token} is known, and granted nothing")

    status, settings = OperationsStatus(), ApiSettings(refused_rate=1)
    nobody = Nobody([], [], Clock())
    app = timeless(create_app(ledger, settings, now=Clock(), operations=status, authenticator=nobody), status)
    asking = client(app, "of-somebody")
    found = [asking.get("/").status_code for _ in range(70)]
    assert found[:60] == [403] * 60
    assert found[-1] == 429


class Remote:
    """A token checker that asks another machine: of a token in ``kept`` nothing any more."""

    def __init__(self, error: Exception) -> None:
        self.error, self.kept = error, {"kept"}
        self.asked: list[str] = []
        self.now = self.most = 0
        self.answers, self.lock = threading.Event(), threading.Lock()
        self.answers.set()

    def must_ask(self, token: str, _: int) -> bool:
        return token not in self.kept

    def check(self, token: str, _: int) -> Principal:
        if token in self.kept:
            return ADA
        with self.lock:
            self.asked.append(token)
            self.now += 1
            self.most = max(self.most, self.now)
        self.answers.wait(30)
        with self.lock:
            self.now -= 1
        raise self.error

    def close(self) -> None:
        self.answers.set()


ADA = Principal("kubernetes:ada", AccessRole.FINANCE, EVERYTHING, AuthenticationMethod.KUBERNETES)


def remote_app(ledger: Ledger, remote: Remote, **limits: int) -> FastAPI:
    keys = FixedKeys([ApiKey(id="fin", sha256=hash_secret("s"), role=AccessRole.FINANCE).record()])
    known = Authenticator([keys], [remote], Clock())
    settings = ApiSettings(**limits)  # type: ignore[arg-type]
    return timeless(create_app(ledger, settings, now=Clock(), authenticator=known), OperationsStatus())


@pytest.mark.fault(54)
def test_tokens_that_wait_for_the_api_server_hold_up_nobody(ledger: Ledger) -> None:
    remote = Remote(AccessDenied("unknown"))
    app = remote_app(ledger, remote)
    remote.answers.clear()

    async def get(asking: httpx2.AsyncClient, token: str) -> int:
        return (await asking.get("/", headers={"Authorization": f"Bearer {token}"})).status_code

    async def flood() -> tuple[list[int], list[int]]:
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as asking:
            junk = [asyncio.create_task(get(asking, f"junk{number}")) for number in range(160)]
            try:
                while remote.now < MOST_CHECKS:
                    await asyncio.sleep(0.01)
                meanwhile = [get(asking, token) for token in (format_key("fin", "s"), "kept")]
                found = await asyncio.wait_for(asyncio.gather(*meanwhile), 20)
            finally:
                remote.answers.set()
            return found, await asyncio.gather(*junk)

    good, bad = asyncio.run(flood())
    assert good == [200, 200]
    assert set(bad) == {401, 503}
    assert (remote.most, len(remote.asked)) == (MOST_CHECKS, bad.count(401))


@pytest.mark.fault(54)
@pytest.mark.parametrize("error", [AccessDenied("unknown"), CheckUnavailable("it is away")])
def test_beyond_its_limit_an_address_asks_nobody_and_fills_no_log(
    ledger: Ledger, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gpucost")
    remote = Remote(error)
    app = remote_app(ledger, remote, refused_rate=1)
    found = [client(app, f"junk{number}").get("/").status_code for number in range(90)]
    answered = 90 - found.count(429)
    assert 60 <= answered < 90
    assert len(remote.asked) == answered
    # A reason and the request's own line.
    assert len([each for each in caplog.records if each.name.startswith("gpucost")]) == 2 * answered
    caplog.clear()
    guesses = [client(app, "gpc_fin_guess").get("/").status_code for _ in range(30)]
    lines = [each for each in caplog.records if each.name.startswith("gpucost")]
    assert len(lines) == 2 * (30 - guesses.count(429)) < 60
    for token in (format_key("fin", "s"), "kept"):
        assert client(app, token).get("/").status_code == 200, "the same address"


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("fe80::1%eth0", "fe80::2", True),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("192.0.2.1", "192.0.2.2", False),
        ("a", "b", False),
    ],
)
def test_who_has_a_whole_ipv6_network_is_one_address(first: str, second: str, is_one: bool) -> None:
    gate = RequestGate(ApiSettings(refused_rate=1), OperationsStatus(), seconds=Seconds())
    for _ in range(60):
        gate.refuse(first)
    with pytest.raises(ApiError):
        gate.refuse(first)
    if is_one:
        with pytest.raises(ApiError):
            gate.refuse(second)
    else:
        gate.refuse(second)


def test_dashboards_and_scrapes_do_not_come_near_the_limit() -> None:
    """Behind one key: 50 dashboards of 30 queries, opened at once, reloaded every 10 s, and scrapes."""
    clock, defaults = Seconds(), ApiSettings()
    buckets = TokenBuckets(defaults.rate, defaults.burst, seconds=clock)
    for second in range(120):
        clock.now = second
        asked = 50 * 30 if second % 10 == 0 else 2
        assert all(buckets.take("grafana") == 0 for _ in range(asked))


@pytest.mark.fault(54)
def test_heavy_queries_take_turns() -> None:
    status, settings = OperationsStatus(), ApiSettings(auth="off", heavy=2)
    gate = RequestGate(settings, status, patience_s=60)
    most = now = done = 0

    async def one(others: int) -> bool:
        """Takes its turn until so many others are done. Whether it had one."""
        nonlocal most, now, done
        try:
            async with gate.turn():
                now += 1
                most = max(most, now)
                await asyncio.sleep(0.01)
                while done < others:
                    await asyncio.sleep(0.01)
                now -= 1
        except ApiError as error:
            done += 1
            return (error.status, error.headers["Retry-After"]) != (503, "5")
        return True

    async def many(count: int, others: int = 0) -> list[bool]:
        return await asyncio.gather(*(one(others) for _ in range(count)))

    assert asyncio.run(many(4)) == [True] * 4
    gate = RequestGate(settings, status, patience_s=0.2)
    assert asyncio.run(many(4, 2)).count(True) == 2
    assert (most, status.refusals()[RequestRefusal.HEAVY]) == (2, 2)
    assert asyncio.run(many(2)) == [True, True], "every turn was given back"


def test_readiness_asks_the_ledger_once_and_never_waits_for_long() -> None:
    clock, asked, stopping = Seconds(), [], threading.Event()
    answer = threading.Event()
    answer.set()

    def read() -> None:
        asked.append(clock())
        answer.wait(60)
        if clock.now == 5:
            raise LedgerUnavailable("gone")

    found = ReadinessProbe(read, lambda: False, stopping.is_set, seconds=clock, patience_s=60)

    async def looks(count: int) -> set[ReadinessState]:
        return set(await asyncio.gather(*(found.look() for _ in range(count))))

    assert asyncio.run(looks(500)) == {ReadinessState.READY}
    assert len(asked) == 1
    clock.now = 5
    assert asyncio.run(looks(50)) == {ReadinessState.LEDGER}
    clock.now = 10
    answer.clear()
    found._patience_s = 0.2
    assert asyncio.run(looks(50)) == {ReadinessState.LEDGER}, "it hangs"
    assert len(asked) == 3
    answer.set()
    clock.now = 20
    assert asyncio.run(looks(1)) <= {ReadinessState.READY, ReadinessState.LEDGER}
    stopping.set()
    assert asyncio.run(looks(1)) == {ReadinessState.STOPPING}


@contextmanager
def listening(app: FastAPI) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        server = ApiListener(app, opened)
        thread = threading.Thread(target=server.run)
        thread.start()
        port = opened.getsockname()[1]
        try:
            yield port
        finally:
            server.stop()
            thread.join()


@pytest.mark.fault(54)
def test_idle_and_half_open_connections_hold_up_nobody(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections.BoundedProtocol, "most", 20)
    monkeypatch.setattr(connections.BoundedProtocol, "request_s", 2.0)
    app = create_app(ledger, ApiSettings(auth="off"), now=Clock())
    begun = (
        b"",
        b"GET / HT",
        b"POST /v1/findings/1/mute HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
    )
    with listening(app) as port, ExitStack() as held:
        slow = []
        for number in range(60):
            connection = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            connection.sendall(begun[number % 3])
            slow.append(connection)
        with httpx2.Client(trust_env=False) as quick:
            for _ in range(5):
                assert quick.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
        for connection in slow:
            try:
                while connection.recv(4_096):
                    pass
            except ConnectionResetError:
                pass  # ended, which is all that it may expect


def test_who_was_idle_longest_makes_room(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections.BoundedProtocol, "most", 2)
    app = create_app(ledger, ApiSettings(auth="off"), now=Clock())

    def answers(connection: http.client.HTTPConnection) -> bool:
        try:
            connection.request("GET", "/healthz")
            return bool(connection.getresponse().read())
        except ConnectionError:
            return False

    with listening(app) as port, ExitStack() as held:

        def connect() -> http.client.HTTPConnection:
            found = held.enter_context(closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)))
            found.connect()
            return found

        oldest = connect()
        assert answers(oldest)
        idle = connect()
        assert answers(idle)
        assert answers(oldest)
        assert answers(connect())
        assert answers(oldest)
        assert not answers(idle)


BEGUN = b"POST /v1/keys HTTP/1.1\r\nHost: localhost\r\n"
BEGUN += b"Content-Type: application/json\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"


def begun(port: int) -> socket.socket:
    """A connection of which the service waits for the body."""
    found = socket.create_connection(("127.0.0.1", port), timeout=60)
    found.sendall(BEGUN)
    assert found.recv(4_096).startswith(b"HTTP/1.1 100")
    return found


@pytest.mark.fault(54)
def test_a_probe_is_answered_however_many_are_connected(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bodies that a client sends slowly, with a good key, are no idle connections."""
    monkeypatch.setattr(listener, "MOST", 3)
    app = create_app(ledger, ApiSettings(auth="off"), now=Clock())
    with listening(app) as port, ExitStack() as held:
        for _ in range(3):
            held.enter_context(begun(port))
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as quick:
            assert quick.get("/healthz").status_code == 200
            assert quick.get("/healthz/ready").status_code in (200, 503)
            assert quick.get("/healthz/ready").headers["X-Request-Id"], "it is ours"
            assert quick.get("/v1/me").status_code == 503


def test_who_sends_slowly_makes_room_where_nobody_is_idle(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections.BoundedProtocol, "most", 2)
    app = create_app(ledger, ApiSettings(auth="off"), now=Clock())
    with listening(app) as port, ExitStack() as held:
        slow = [held.enter_context(begun(port)) for _ in "ab"]
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as quick:
            assert quick.get("/v1/me").status_code == 200
        with suppress(ConnectionResetError):
            assert slow[0].recv(1) == b""
        slow[1].sendall(b"{       }")
        assert slow[1].recv(12) == b"HTTP/1.1 422", "the other one stayed"


def test_a_connection_that_is_used_stays(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections.BoundedProtocol, "request_s", 1.0)
    app = create_app(ledger, ApiSettings(auth="off"), now=Clock())
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with listening(app) as port, socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request)
        assert connection.recv(4_096).startswith(b"HTTP/1.1 200")
        time.sleep(1.2)
        connection.sendall(request * 2)
        found = b""
        while found.count(b"HTTP/1.1 200") < 2:
            found += connection.recv(4_096)
