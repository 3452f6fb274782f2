"""One issuer for a module of tests, as new for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gpucost.access.grants import AccessGrant, GroupGrants
from gpucost.access.issuer_keys import IssuerFetcher, IssuerKeys
from gpucost.access.oidc_tokens import OidcTokens
from gpucost.access.principal import AccessRole
from gpucost.access.token_claims import OidcRules
from tests.support.oidc_issuer import AUDIENCE, Issuer, running_issuer

GRANTS = GroupGrants(
    (
        AccessGrant(groups=("gpu-admins",), role=AccessRole.ADMIN),
        AccessGrant(team_groups="gpu-{team}-members"),
    )
)
Checker = Callable[..., OidcTokens]


@pytest.fixture(scope="module")
def started_issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuer]:
    with running_issuer(tmp_path_factory.mktemp("issuer")) as issuer:
        yield issuer


@pytest.fixture
def issuer(started_issuer: Issuer) -> Issuer:
    started_issuer.reset()
    return started_issuer


@pytest.fixture
def checker(issuer: Issuer) -> Checker:
    """Makes a checker of the issuer's tokens; ``changes`` are of the rules."""

    def make(grants: GroupGrants = GRANTS, jwks_url: str = "", **changes: str) -> OidcTokens:
        rules = OidcRules(**{"issuer": issuer.url, "audience": AUDIENCE, **changes})
        keys = IssuerKeys(rules.issuer, IssuerFetcher(issuer.ca_file, proxies=False), jwks_url)
        return OidcTokens(rules, grants, keys)

    return make
