"""Tokens of an issuer of our own over real TLS: which are accepted, and all that are refused."""

from __future__ import annotations

import logging
import traceback

import pytest

from gpucost.access.authenticator import AccessDenied, Authenticator, NotGranted
from gpucost.access.grants import AccessGrant, GroupGrants
from gpucost.access.oidc_tokens import OidcTokens
from gpucost.access.principal import AccessRole, AuthenticationMethod, Principal
from gpucost.domain.scope import EVERYTHING, Scope
from tests.access.conftest import Checker
from tests.service.worlds import NOW_MS
from tests.support.oidc_issuer import NOW_S, WRONG, Issuer, public_jwk

ADA = Principal("oidc:ada", AccessRole.VIEWER, Scope(frozenset({"research"})), AuthenticationMethod.OIDC)
KEYS = ("/keys", "/.well-known/openid-configuration")


def decided(checker: OidcTokens, token: str) -> Principal:
    """As a request is: what no checker knows is denied."""
    return Authenticator([], [checker], lambda: NOW_MS).authenticate(token)


def test_it_must_ask_only_while_it_has_no_key(issuer: Issuer, checker: Checker) -> None:
    known = checker()
    assert known.must_ask("of.somebody.else", NOW_MS) is None
    assert known.must_ask(issuer.token(), NOW_MS)
    known.check(issuer.token(), NOW_MS)
    assert known.must_ask(issuer.token(kid="rsa-2", header={"kid": "new"}), NOW_MS) is False


@pytest.mark.parametrize(
    ("kid", "alg"),
    [
        *(("rsa", f"{family}{bits}") for family in ("RS", "PS") for bits in (256, 384, 512)),
        ("ec", "ES256"),
        ("ed", "EdDSA"),
    ],
)
def test_a_token_says_who_asks(kid: str, alg: str, issuer: Issuer, checker: Checker) -> None:
    assert checker().check(issuer.token(kid=kid, alg=alg), NOW_MS) == ADA


@pytest.mark.fault(46)
@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_token_is_denied(what: str, issuer: Issuer, checker: Checker) -> None:
    known = checker()
    assert decided(known, issuer.token()) == ADA
    with pytest.raises(AccessDenied) as caught:
        decided(known, WRONG[what](issuer))
    assert type(caught.value) is AccessDenied
    assert set(issuer.served) <= set(KEYS), "nothing that a token names is fetched"
    assert "\n" not in str(caught.value)


@pytest.mark.fault(46)
def test_clocks_may_differ_by_a_minute(issuer: Issuer, checker: Checker) -> None:
    known = checker()
    just_over = issuer.token(iat=NOW_S - 3600, exp=NOW_S - 59)
    assert known.check(just_over, NOW_MS) == ADA
    with pytest.raises(AccessDenied, match="expired"):
        known.check(just_over, NOW_MS + 1000)
    early = issuer.token(iat=NOW_S + 60, nbf=NOW_S + 60)
    assert known.check(early, NOW_MS) == ADA
    with pytest.raises(AccessDenied, match="future"):
        known.check(early, NOW_MS - 1000)


def test_a_key_serves_the_algorithm_that_it_is_for(issuer: Issuer, checker: Checker) -> None:
    issuer.published = [public_jwk(issuer.keys["rsa"], "rsa", alg="RS512")]
    known = checker()
    assert known.check(issuer.token(alg="RS512"), NOW_MS) == ADA
    for other in ("RS256", "PS512"):
        with pytest.raises(AccessDenied, match="no key"):
            known.check(issuer.token(alg=other), NOW_MS)


def test_a_token_of_another_issuer_is_somebody_elses(issuer: Issuer, checker: Checker) -> None:
    known = checker()
    for token in ("opaque", "a.b.c", issuer.token(iss="https://other.example"), issuer.token(iss=None)):
        assert known.check(token, NOW_MS) is None
    assert not issuer.served


def test_what_is_refused_anyway_costs_the_issuer_nothing(issuer: Issuer, checker: Checker) -> None:
    known = checker()
    for what in ("expired", "wrong audience", "alg none", "HS256 with the public key", "no kid"):
        with pytest.raises(AccessDenied):
            known.check(WRONG[what](issuer), NOW_MS)
    assert not issuer.served


@pytest.mark.parametrize("typ", ["JWT", "jwt", "at+jwt", "application/at+jwt"])
def test_types_of_tokens(typ: str, issuer: Issuer, checker: Checker) -> None:
    assert checker().check(issuer.token(header={"typ": typ}), NOW_MS) == ADA


def test_the_audience_may_be_one_of_several(issuer: Issuer, checker: Checker) -> None:
    assert checker().check(issuer.token(aud=["account", "gpucost"]), NOW_MS) == ADA


@pytest.mark.parametrize(
    ("path", "claims"),
    [
        ("realm_access.roles", {"realm_access": {"roles": ["gpu-research-members", "x"]}}),
        ("https://example.com/groups", {"https://example.com/groups": ["gpu-research-members"]}),
        ("roles", {"roles": "gpu-research-members"}),
        ("roles", {"roles": [7, None, "gpu-\nx-members", "g" * 254, "gpu-research-members", ["y"]]}),
    ],
)
def test_where_groups_stand(path: str, claims: dict[str, object], issuer: Issuer, checker: Checker) -> None:
    token = issuer.token(groups=None, **claims)
    assert checker(groups_claim=path).check(token, NOW_MS) == ADA


@pytest.mark.parametrize(
    "groups",
    [None, [], {}, 5, True, {"gpu-research-members": 1}, "gpu-research-members,x", [["gpu-a-members"]]],
)
def test_without_groups_nothing_is_granted(groups: object, issuer: Issuer, checker: Checker) -> None:
    with pytest.raises(NotGranted, match="oidc:ada"):
        checker().check(issuer.token(groups=groups), NOW_MS)


def test_groups_of_kubernetes_are_never_an_issuers_to_give(issuer: Issuer, checker: Checker) -> None:
    known = checker(GroupGrants((AccessGrant(groups=("system:masters",), role=AccessRole.ADMIN),)))
    with pytest.raises(NotGranted):
        known.check(issuer.token(groups=["system:masters"]), NOW_MS)


def test_an_address_that_is_not_verified_is_no_name(issuer: Issuer, checker: Checker) -> None:
    known = checker(
        GroupGrants((AccessGrant(frozenset({"a@x.org"}), role=AccessRole.FINANCE),)), username_claim="email"
    )
    person = Principal("oidc:a@x.org", AccessRole.FINANCE, EVERYTHING, AuthenticationMethod.OIDC)
    assert known.check(issuer.token(email="a@x.org"), NOW_MS) == person
    assert known.check(issuer.token(email="a@x.org", email_verified=True), NOW_MS) == person
    for verified in (False, "false", "true", 1, []):
        with pytest.raises(AccessDenied, match="not verified"):
            known.check(issuer.token(email="a@x.org", email_verified=verified), NOW_MS)


@pytest.mark.fault(56)
@pytest.mark.parametrize("what", WRONG)
def test_nothing_of_a_token_is_told(
    what: str, issuer: Issuer, checker: Checker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = WRONG[what](issuer)
    try:
        decided(checker(), token)
    except AccessDenied as error:
        told = "".join(traceback.format_exception(error)) + caplog.text
    secrets = [part for part in token.split(".") if len(part) > 8]
    assert not [part for part in secrets if part in told]
