"""Tokens of Kubernetes, asked of an API server over real HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import kmock as kmock_library
import pytest

from gpucost.access.authenticator import AccessDenied, CheckUnavailable, NotGranted
from gpucost.access.grants import AccessGrant, GroupGrants
from gpucost.access.principal import AccessRole, AuthenticationMethod, Principal
from gpucost.domain.scope import EVERYTHING
from gpucost.kube.connect import token_review
from gpucost.kube.connect.connection import connect_url
from gpucost.kube.connect.credentials import AnswerLimits
from gpucost.kube.connect.token_review import PATH, KubernetesTokens
from tests.service.worlds import NOW_MS
from tests.support.http import Reply, ScriptedServer, scripted_server

TOKEN = "opaque.c2VjcmV0LXRva2Vu-of.robot"
NAME = "system:serviceaccount:monitoring:grafana"
GRANTS = GroupGrants(
    (
        AccessGrant(frozenset({NAME}), role=AccessRole.FINANCE),
        AccessGrant(groups=("system:serviceaccounts:ml",), teams=frozenset({"ml"})),
    )
)
ROBOT = Principal(f"kubernetes:{NAME}", AccessRole.FINANCE, EVERYTHING, AuthenticationMethod.KUBERNETES)
MINUTE_MS = 60_000


def review(**changes: Any) -> Reply:
    status = {
        "authenticated": True,
        "audiences": ["gpucost"],
        "user": {"username": NAME, "uid": "u", "groups": ["system:serviceaccounts", "system:authenticated"]},
        **changes,
    }
    return Reply(201, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status})


UNKNOWN = Reply(201, {"kind": "TokenReview", "status": {"error": "[invalid bearer token]", "user": {}}})


@contextmanager
def asking(*replies: Reply, keep_ms: int = MINUTE_MS) -> Iterator[tuple[ScriptedServer, KubernetesTokens]]:
    with scripted_server(*replies) as server:
        transport = connect_url(server.url, AnswerLimits(head_s=5))
        with closing(KubernetesTokens(transport, ("gpucost", "other"), GRANTS, keep_ms)) as tokens:
            yield server, tokens


def test_a_service_account_is_known_by_its_name() -> None:
    with asking(review()) as (server, tokens):
        assert tokens.check(TOKEN, NOW_MS) == ROBOT
    (asked,) = server.asked
    assert (asked.method, asked.path, asked.headers["Content-Type"]) == ("POST", PATH, "application/json")
    assert json.loads(asked.body) == {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": TOKEN, "audiences": ["gpucost", "other"]},
    }


def test_groups_count_too() -> None:
    user = {"username": "system:serviceaccount:ml:x", "groups": ["system:serviceaccounts:ml"]}
    with asking(review(user=user)) as (_, tokens):
        found = tokens.check(TOKEN, NOW_MS)
    assert found is not None
    assert (found.role, found.scope.teams) == (AccessRole.VIEWER, {"ml"})


@pytest.mark.fault(46)
@pytest.mark.parametrize(
    "reply",
    [
        UNKNOWN,
        review(authenticated=False),
        review(authenticated="true"),
        review(authenticated=1),
        review(audiences=[]),
        review(audiences=None),
        review(audiences=["https://kubernetes.default.svc"]),
        review(audiences="gpucost"),
        review(audiences={"gpucost": 1}),
        review(user=None),
        review(user={"username": ""}),
        review(user={"username": 5}),
        review(user={"username": "a\nb"}),
        review(user={"username": "a" * 254}),
    ],
)
def test_who_is_denied(reply: Reply) -> None:
    with asking(reply) as (_, tokens), pytest.raises(AccessDenied) as caught:
        tokens.check(TOKEN, NOW_MS)
    assert type(caught.value) is AccessDenied


def test_somebody_known_whom_no_grant_fits() -> None:
    with asking(review(user={"username": "system:serviceaccount:a:b"})) as (server, tokens):
        for _ in range(2):
            with pytest.raises(NotGranted, match="kubernetes:system:serviceaccount:a:b"):
                tokens.check(TOKEN, NOW_MS)
    assert len(server.asked) == 1


def test_an_answer_is_believed_for_a_minute() -> None:
    with asking(review(), UNKNOWN, review()) as (server, tokens):
        assert tokens.check(TOKEN, NOW_MS) == ROBOT
        assert tokens.check(TOKEN, NOW_MS + MINUTE_MS - 1) == ROBOT
        for after_ms in (MINUTE_MS, 2 * MINUTE_MS - 1):
            with pytest.raises(AccessDenied):
                tokens.check(TOKEN, NOW_MS + after_ms)
        assert len(server.asked) == 2
        assert tokens.check(TOKEN, NOW_MS + 2 * MINUTE_MS) == ROBOT
        assert len(server.asked) == 3
        # A clock that was set back makes no answer live longer.
        assert tokens.check(TOKEN, NOW_MS) == ROBOT
        assert len(server.asked) == 4


def test_no_token_stays_in_memory_with_a_refusal() -> None:
    with asking(UNKNOWN) as (_, tokens):
        with pytest.raises(AccessDenied):
            tokens.check(TOKEN, NOW_MS)
        [(_, kept)] = tokens._refused._held.values()
        assert kept.__traceback__ is None


def test_it_must_ask_only_where_no_answer_is_kept() -> None:
    with asking(review(), UNKNOWN) as (server, tokens):
        assert tokens.must_ask(TOKEN, NOW_MS)
        tokens.check(TOKEN, NOW_MS)
        assert not tokens.must_ask(TOKEN, NOW_MS + MINUTE_MS - 1)
        assert tokens.must_ask(TOKEN, NOW_MS + MINUTE_MS)
        assert tokens.must_ask("bad", NOW_MS)
        with pytest.raises(AccessDenied):
            tokens.check("bad", NOW_MS)
        assert not tokens.must_ask("bad", NOW_MS)
        assert not any(tokens.must_ask(each, NOW_MS) for each in ("x" * 50_000, "a\nb", ""))
    assert len(server.asked) == 2


def test_another_token_is_another_question() -> None:
    with asking(review(), UNKNOWN) as (server, tokens):
        assert tokens.check(TOKEN, NOW_MS) == ROBOT
        with pytest.raises(AccessDenied):
            tokens.check(TOKEN + "x", NOW_MS)
    assert len(server.asked) == 2


def test_nothing_is_kept_where_the_settings_say_so() -> None:
    with asking(review(), keep_ms=0) as (server, tokens):
        assert [tokens.check(TOKEN, NOW_MS) for _ in range(2)] == [ROBOT, ROBOT]
    assert len(server.asked) == 2


def test_a_flood_of_bad_tokens_drops_no_good_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_review, "MOST_KEPT", 8)
    with asking(review(), UNKNOWN) as (server, tokens):
        assert tokens.check(TOKEN, NOW_MS) == ROBOT
        for n in range(30):
            with pytest.raises(AccessDenied):
                tokens.check(f"bad{n}", NOW_MS)
        assert tokens.check(TOKEN, NOW_MS) == ROBOT
        assert len(server.asked) == 31
        assert len(tokens._refused._held) == 8


@pytest.mark.fault(48)
@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Reply(500), "answered 500"),
        (Reply(429), "answered 429"),
        (Reply(403, "<html>"), "may this account create tokenreviews"),
        (Reply(401, {"kind": "Status"}), "may this account create tokenreviews"),
        (Reply(302, headers={"Location": "http://127.0.0.1:1/"}), "answered 302"),
        (Reply(201, "<html>"), "not_json"),
        (Reply(201, "[]"), "no TokenReview"),
        (Reply(201, {"status": "yes"}), "no TokenReview"),
        (Reply(hang_up=True), "does not answer"),
    ],
)
def test_what_cannot_be_said_is_not_kept(reply: Reply, why: str) -> None:
    with asking(reply, reply, reply, reply, review()) as (_, tokens):
        with pytest.raises(CheckUnavailable, match=why):
            tokens.check(TOKEN, NOW_MS)
        for _ in range(4):
            try:
                assert tokens.check(TOKEN, NOW_MS) == ROBOT
            except CheckUnavailable:
                continue
            break
        else:
            pytest.fail("the last answer was a good one")


@pytest.mark.parametrize("token", ["", "a b", "a\tb", "\u00e4", "x" * 20_000])
def test_what_is_no_token_is_never_sent(token: str) -> None:
    with asking(review()) as (server, tokens), pytest.raises(AccessDenied):
        tokens.check(token, NOW_MS)
    assert not server.asked


@pytest.mark.fault(56)
@pytest.mark.parametrize(
    "reply", [review(), UNKNOWN, Reply(500, TOKEN), Reply(201, TOKEN), Reply(hang_up=True)]
)
def test_the_token_is_told_nowhere(reply: Reply, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    told = ""
    with asking(reply) as (_, tokens):
        try:
            tokens.check(TOKEN, NOW_MS)
        except (AccessDenied, CheckUnavailable) as error:
            told = "".join(traceback.format_exception(error))
    assert "c2VjcmV0LXRva2Vu" not in told + caplog.text + repr(vars(tokens))


@pytest.mark.asyncio
async def test_against_an_api_server_that_was_not_written_here(
    kmock: kmock_library.KubernetesEmulator,
) -> None:
    kmock[f"post {PATH}"] << review().body
    tokens = KubernetesTokens(connect_url(str(kmock.url).rstrip("/")), ("gpucost",), GRANTS, MINUTE_MS)
    check: Callable[[], Principal | None] = lambda: tokens.check(TOKEN, NOW_MS)  # noqa: E731
    assert await asyncio.to_thread(check) == ROBOT
    await asyncio.to_thread(tokens.close)
