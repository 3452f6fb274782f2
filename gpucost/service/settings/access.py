"""Settings of authentication: OIDC, Kubernetes' own tokens, and what groups and people are granted."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from gpucost.access.grants import TEAM, AccessGrant
from gpucost.access.principal import AccessRole
from gpucost.access.token_claims import OidcRules
from gpucost.domain.configfile import wrong
from gpucost.domain.errors import ErrorRemark
from gpucost.reports.base.page_addresses import CALLBACK
from gpucost.settings.types import Duration, ExistingFile, SettingsGroup, base_url, between, one_line


def _exact_url(url: str) -> str:
    """Checked as any other address, but left as it is: a slash at the end belongs to an issuer's name."""
    if url:
        base_url(url)
    return url


_Url = Annotated[str, AfterValidator(_exact_url)]
_SIGNS = r"[\x21\x23-\x5b\x5d-\x7e]+"  # of a scope, RFC 6749
Scope = Annotated[str, Field(pattern=f"^{_SIGNS}$")]


class OidcSettings(SettingsGroup):
    """Bearer tokens of an OpenID Connect issuer, such as Dex, Keycloak, Okta or Entra ID."""

    issuer: _Url = ""
    """URL of the issuer, exactly as it stands in the tokens' ``iss``, a slash at its end included. Empty: no
    such tokens are accepted. Its keys are found through ``/.well-known/openid-configuration``.
    """

    audience: Annotated[str, Field(min_length=1)] = "gpucost"
    """What must stand in the tokens' ``aud``: the client id that the issuer knows gpucost by."""

    jwks_url: _Url = ""
    """Where the issuer's keys are, when its discovery page cannot be reached."""

    username_claim: Annotated[str, Field(min_length=1)] = "sub"
    """Claim that names the person, such as ``email``. It appears in logs and in the audit trail. Choose one
    that people cannot change by themselves, and that is never given to somebody else.
    """

    groups_claim: Annotated[str, Field(min_length=1)] = "groups"
    """Claim that lists the person's groups, which ``access.grants`` looks at. Dots lead into a claim, as in
    ``realm_access.roles``.
    """

    client_id: str = ""
    """Client id by which the issuer knows gpucost when people log in in a browser, and what stands in the
    ``aud`` of their ID tokens. Empty: ``audience``.
    """

    client_secret_file: ExistingFile | None = None
    """File whose content is the client's secret, for mounted secrets; read for each login. Without it the
    client is a public one, which PKCE protects.
    """

    scopes: tuple[Scope, ...] = ("openid", "profile", "email", "groups")
    """Scopes that a login asks for; ``openid`` is needed. Leave out what the issuer does not know: Entra ID
    and Google refuse ``groups``.
    """

    redirect_url: _Url = ""
    """Where the issuer sends people back to, as the client there names it: the service's address and
    ``/login/callback``. Empty: that of ``notify.base_url``, else of the address in the browser.
    """

    ca_file: ExistingFile | None = None
    """PEM file of the certificate authorities to trust instead of the system's."""

    allow_http: bool = False
    """Whether the issuer may be reached without TLS. For tests on one machine: whoever can change what goes
    over the network could let anybody in.
    """

    @model_validator(mode="after")
    def _encrypted(self) -> Self:
        for key in ("issuer", "jwks_url"):
            if getattr(self, key).startswith("http:") and not self.allow_http:
                raise wrong(getattr(self, key), "an https:// URL, or access.oidc.allow_http for tests", key)
        if self.jwks_url and not self.issuer:
            raise wrong(ErrorRemark("missing"), "the issuer whose keys are at jwks_url", "issuer")
        return self

    @model_validator(mode="after")
    def _login_fits(self) -> Self:
        if "openid" not in self.scopes:
            raise wrong(" ".join(self.scopes), "scopes with openid among them", "scopes")
        if self.redirect_url and not self.redirect_url.endswith(CALLBACK):
            raise wrong(self.redirect_url, f"the address of the service, and {CALLBACK}", "redirect_url")
        if self.client_secret_file is not None:
            one_line(self.client_secret_file, "client_secret")
        return self

    @property
    def client(self) -> str:
        """The client id of logins."""
        return self.client_id or self.audience

    def rules(self) -> OidcRules:
        return OidcRules(self.issuer, self.audience, self.username_claim, self.groups_claim)


class KubernetesAccessSettings(SettingsGroup):
    """Tokens of Kubernetes itself: of service accounts, and of people where the API server knows them."""

    enabled: bool = False
    """Whether such tokens are accepted: each is asked of the API server by a TokenReview, and the answer kept
    for ``cache``. gpucost's account needs ``create`` on ``tokenreviews``.
    """

    audiences: Annotated[tuple[str, ...], Field(min_length=1)] = ("gpucost",)
    """Audiences of which a token must have one. Make one with ``kubectl create token NAME --audience
    gpucost``. A token for the API server itself is not for us, so it is refused.
    """

    cache: Annotated[Duration, between(timedelta(), timedelta(minutes=1), "0s to 1m")] = timedelta(minutes=1)
    """How long an answer of the API server is believed, at most a minute."""


class GrantSettings(SettingsGroup):
    """What a caller with a token may do. The first grant that fits decides."""

    users: frozenset[str] = frozenset()
    """Names of people or service accounts (``system:serviceaccount:NAMESPACE:NAME``), exactly."""

    groups: tuple[str, ...] = ()
    """Groups; one is enough. ``*`` at the end stands for anything."""

    team_groups: str = ""
    """Group with ``{team}`` in it, such as ``gpu-{team}-members``: members of such groups see those teams.
    With ``users`` or ``groups`` beside it, only those are meant, and it says which teams they see."""

    role: AccessRole = AccessRole.VIEWER
    """``viewer``, ``team-admin``, ``finance``, ``admin``, ``metrics`` or ``alerts``: see docs/access.md."""

    teams: frozenset[str] = frozenset()
    """Teams of a viewer or team-admin, beside those of ``team_groups``."""

    clusters: frozenset[str] = frozenset()
    """Clusters that may be seen. All, when none is given."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not (self.users or self.groups or self.team_groups):
            raise wrong(ErrorRemark("missing"), "at least one of users, groups and team_groups", "groups")
        for user in self.users:
            if not user or "*" in user:
                raise wrong(user, "a whole name; only groups may end in *", "users")
        for group in self.groups:
            if not group or "*" in group[:-1]:
                raise wrong(group, "a group's name, or the beginning of one and * at the end", "groups")
        if self.team_groups and (self.team_groups.count(TEAM) != 1 or "*" in self.team_groups):
            raise wrong(self.team_groups, "a group's name with {team} in it, once, and no *", "team_groups")
        bound = bool(self.teams or self.team_groups)
        if self.role.has_teams != bound:
            allowed = "teams or team_groups for viewer and team-admin, and none for another role"
            raise wrong(sorted(self.teams), allowed, "teams")
        return self

    def grant(self) -> AccessGrant:
        return AccessGrant(
            self.users, self.groups, self.team_groups, self.role, self.teams, self.clusters or None
        )


class AccessSettings(SettingsGroup):
    """Who may ask, beside those who have an API key."""

    oidc: OidcSettings = OidcSettings()
    kubernetes: KubernetesAccessSettings = KubernetesAccessSettings()

    session: Annotated[
        Duration, between(timedelta(minutes=5), timedelta(days=1), "a duration from 5m to 24h")
    ] = timedelta(hours=8)
    """How long a person stays logged in to the pages, from 5m to 24h, however much they are used: a day of
    work. What they may do is looked up anew at every request; their groups are those of the log-in.
    """

    grants: tuple[GrantSettings, ...] = ()
    """What people and service accounts may do. Somebody whom no grant fits is refused (403)."""

    @model_validator(mode="after")
    def _granted(self) -> Self:
        if (self.oidc.issuer or self.kubernetes.enabled) and not self.grants:
            allowed = (
                "at least one, since tokens are accepted: without any, nobody who has one may do anything"
            )
            raise wrong(ErrorRemark("missing"), allowed, "grants")
        return self
