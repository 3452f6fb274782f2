"""Builders of authentication: keys of the settings and of the ledger, tokens, and how people log in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gpucost.access.authenticator import Authenticator, FixedKeys, TokenChecker
from gpucost.access.code_flow import IssuerLogin, LoginWays
from gpucost.access.grants import GroupGrants
from gpucost.access.sessions import SessionAuthority
from gpucost.ledger.stores.api_keys import LedgerKeys
from gpucost.reports.base.page_addresses import CALLBACK
from gpucost.service.settings.api import is_loopback
from gpucost.service.wiring.cluster import api_server
from gpucost.settings.types import milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpucost.access.issuer_keys import IssuerFetcher
    from gpucost.ledger.ledger import Ledger
    from gpucost.service.settings.model import Settings


def build_authenticator(settings: Settings, ledger: Ledger, now: Callable[[], int]) -> Authenticator:
    """The authenticator: keys of the settings and of the ledger, and tokens of the issuers that the settings
    trust."""
    stores = FixedKeys([key.record() for key in settings.api.keys]), LedgerKeys(ledger, now)
    return Authenticator(stores, build_checkers(settings), now)


def build_login(
    settings: Settings, ledger: Ledger, authenticator: Authenticator, now: Callable[[], int]
) -> LoginWays:
    """How people log in to the pages. The issuer is not called yet."""
    found, oidc, public_url = settings.access, settings.access.oidc, settings.notify.base_url
    sessions = SessionAuthority(
        ledger, authenticator, _grants(settings), oidc.issuer, milliseconds(found.session), now
    )
    if not oidc.issuer:
        return LoginWays(sessions, None, public_url)
    from gpucost.access.issuer_codes import IssuerCodes
    from gpucost.access.issuer_keys import IssuerKeys
    from gpucost.access.oidc_tokens import OidcTokens

    fetcher = _fetcher(settings)
    keys = IssuerKeys(oidc.issuer, fetcher, oidc.jwks_url)
    tokens = OidcTokens(replace(oidc.rules(), audience=oidc.client), _grants(settings), keys)
    exchange = IssuerCodes(oidc.issuer, oidc.client, fetcher, oidc.client_secret_file, now)
    redirect_url = oidc.redirect_url or (public_url and public_url + CALLBACK)
    login = IssuerLogin(oidc.issuer, oidc.client, oidc.scopes, exchange, tokens, now, redirect_url)
    return LoginWays(sessions, login, public_url)


def _grants(settings: Settings) -> GroupGrants:
    return GroupGrants(tuple(grant.grant() for grant in settings.access.grants))


def _fetcher(settings: Settings) -> IssuerFetcher:
    from gpucost.access.issuer_keys import IssuerFetcher

    found = settings.access.oidc
    # As for a kubeconfig: the proxies of the environment are not used for this machine.
    proxies = not is_loopback(urlsplit(found.issuer).hostname or "")
    return IssuerFetcher(found.ca_file, found.allow_http, proxies)


def build_checkers(settings: Settings) -> list[TokenChecker]:
    """Checkers of tokens. The issuer comes first: what is not its own is asked of the API server. Neither is
    called yet. Raises InputError for an API server that cannot be found."""
    found, checkers = settings.access, list[TokenChecker]()
    grants = _grants(settings)
    if found.oidc.issuer:
        # Imported here, since most commands check no tokens.
        from gpucost.access.issuer_keys import IssuerKeys
        from gpucost.access.oidc_tokens import OidcTokens

        keys = IssuerKeys(found.oidc.issuer, _fetcher(settings), found.oidc.jwks_url)
        checkers.append(OidcTokens(found.oidc.rules(), grants, keys))
    if found.kubernetes.enabled:
        from gpucost.kube.connect.token_review import KubernetesTokens

        keep_ms = milliseconds(found.kubernetes.cache)
        transport = api_server(settings.detectors)
        checkers.append(KubernetesTokens(transport, found.kubernetes.audiences, grants, keep_ms))
    return checkers
