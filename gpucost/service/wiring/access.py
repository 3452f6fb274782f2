"""Builders of authentication: keys of the settings and of the ledger, and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gpucost.access.authenticator import Authenticator, FixedKeys, TokenChecker
from gpucost.access.grants import GroupGrants
from gpucost.ledger.stores.api_keys import LedgerKeys
from gpucost.service.settings.api import is_loopback
from gpucost.service.wiring.cluster import api_server
from gpucost.settings.types import milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpucost.ledger import Ledger
    from gpucost.service.settings.model import Settings


def build_authenticator(settings: Settings, ledger: Ledger, now: Callable[[], int]) -> Authenticator:
    """The authenticator: keys of the settings and of the ledger, and tokens of the issuers that the settings
    trust."""
    stores = FixedKeys([key.record() for key in settings.api.keys]), LedgerKeys(ledger, now)
    return Authenticator(stores, build_checkers(settings), now)


def build_checkers(settings: Settings) -> list[TokenChecker]:
    """Checkers of tokens. The issuer comes first: what is not its own is asked of the API server. Neither is
    called yet. Raises InputError for an API server that cannot be found."""
    found, checkers = settings.access, list[TokenChecker]()
    grants = GroupGrants(tuple(grant.grant() for grant in found.grants))
    if found.oidc.issuer:
        # Imported here, since most commands check no tokens.
        from gpucost.access.issuer_keys import IssuerFetcher, IssuerKeys
        from gpucost.access.oidc_tokens import OidcTokens

        # As for a kubeconfig: the proxies of the environment are not used for this machine.
        proxies = not is_loopback(urlsplit(found.oidc.issuer).hostname or "")
        fetcher = IssuerFetcher(found.oidc.ca_file, found.oidc.allow_http, proxies)
        keys = IssuerKeys(found.oidc.issuer, fetcher, found.oidc.jwks_url)
        checkers.append(OidcTokens(found.oidc.rules(), grants, keys))
    if found.kubernetes.enabled:
        from gpucost.kube.connect.token_review import KubernetesTokens

        keep_ms = milliseconds(found.kubernetes.cache)
        transport = api_server(settings.detectors)
        checkers.append(KubernetesTokens(transport, found.kubernetes.audiences, grants, keep_ms))
    return checkers
