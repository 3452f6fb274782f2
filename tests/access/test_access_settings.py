"""Settings of access: what is refused at the start, and what they become."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from gpucost.access.authenticator import CheckUnavailable, NotGranted
from gpucost.access.oidc_tokens import OidcTokens
from gpucost.access.principal import AccessRole
from gpucost.domain.errors import ConfigError, InputError
from gpucost.kube.connect.token_review import KubernetesTokens
from gpucost.ledger.ledger import Ledger
from gpucost.service.settings.loader import load_settings
from gpucost.service.settings.model import Settings
from gpucost.service.wiring.access import build_authenticator, build_checkers
from tests.access.test_token_review import NAME, TOKEN, review
from tests.service.worlds import Clock
from tests.support.http import scripted_server
from tests.support.oidc_issuer import Issuer

Loaded = Callable[[str], Settings]
GRANT = "grants: [{groups: [gpu-finance], role: finance}]"


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    def load(access: str) -> Settings:
        file = tmp_path / "gpucost.yaml"
        file.write_text("access:\n" + textwrap.indent(textwrap.dedent(access), "  "))
        return load_settings(file)

    return load


@pytest.mark.fault(67)
@pytest.mark.parametrize(
    ("access", "field", "allowed"),
    [
        ("oidc: {issuer: 'https://dex.example'}", "access.grants", "at least one"),
        ("kubernetes: {enabled: true}", "access.grants", "at least one"),
        (f"oidc: {{issuer: 'http://dex.example'}}\n{GRANT}", "access.oidc.issuer", "https://"),
        (f"oidc: {{issuer: 'ftp://dex.example'}}\n{GRANT}", "access.oidc.issuer", "https://"),
        (
            f"oidc: {{issuer: 'https://dex.example', jwks_url: 'http://dex.example/k'}}\n{GRANT}",
            "access.oidc.jwks_url",
            "https://",
        ),
        ("oidc: {jwks_url: 'https://dex.example/k'}", "access.oidc.issuer", "the issuer whose keys"),
        ("oidc: {audience: ''}", "access.oidc.audience", "client id"),
        ("oidc: {ca_file: missing.pem}", "access.oidc.ca_file", "a file that exists"),
        (
            f"oidc: {{issuer: 'https://dex.example', scopes: [email]}}\n{GRANT}",
            "access.oidc.scopes",
            "openid",
        ),
        ("oidc: {scopes: [openid, 'a b']}", "access.oidc.scopes[1]", "a login asks for"),
        ("oidc: {client_secret_file: missing}", "access.oidc.client_secret_file", "a file that exists"),
        ("oidc: {redirect_url: 'https://x.example/'}", "access.oidc.redirect_url", "/login/callback"),
        ("oidc: {redirect_url: 'http:/login/callback'}", "access.oidc.redirect_url", "http"),
        ("session: 4m", "access.session", "5m to 24h"),
        ("session: 25h", "access.session", "5m to 24h"),
        ("kubernetes: {audiences: []}", "access.kubernetes.audiences", "one"),
        ("kubernetes: {cache: 2m}", "access.kubernetes.cache", "0s to 1m"),
        ("grants: [{role: admin}]", "access.grants[0].groups", "at least one of users"),
        ("grants: [{groups: ['a*b'], role: admin}]", "access.grants[0].groups", "at the end"),
        ("grants: [{groups: [''], role: admin}]", "access.grants[0].groups", "at the end"),
        ("grants: [{users: ['ada*'], role: admin}]", "access.grants[0].users", "a whole name"),
        ("grants: [{team_groups: 'gpu-members'}]", "access.grants[0].team_groups", "{team}"),
        ("grants: [{team_groups: '{team}-{team}'}]", "access.grants[0].team_groups", "{team}"),
        ("grants: [{team_groups: 'g-{team}*'}]", "access.grants[0].team_groups", "{team}"),
        ("grants: [{groups: [x]}]", "access.grants[0].teams", "for viewer and team-admin"),
        ("grants: [{groups: [x], role: admin, teams: [a]}]", "access.grants[0].teams", "none for another"),
        ("grants: [{groups: [x], role: root}]", "access.grants[0].role", "viewer"),
        ("grants: [{group: [x], role: admin}]", "access.grants[0].group", "groups"),
    ],
)
def test_what_is_refused(access: str, field: str, allowed: str, loaded: Loaded) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(access)
    assert caught.value.field == field
    assert allowed in str(caught.value)


@pytest.mark.fault(56)
def test_user_info_in_a_url_is_refused_and_not_shown(loaded: Loaded) -> None:
    with pytest.raises(ConfigError, match="without user info") as caught:
        loaded(f"oidc: {{issuer: 'https://gpucost:s3cret@dex.example'}}\n{GRANT}")
    assert "s3cret" not in str(caught.value)


def test_a_slash_at_the_end_of_an_issuer_is_kept(loaded: Loaded) -> None:
    settings = loaded(f"oidc: {{issuer: 'https://dex.example/dex/'}}\n{GRANT}")
    assert settings.access.oidc.rules().issuer == "https://dex.example/dex/"


def test_nobody_is_asked_by_default() -> None:
    assert build_checkers(Settings()) == []


def test_the_issuer_is_asked_first_and_the_api_server_for_the_rest(
    issuer: Issuer, loaded: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_url: str
) -> None:
    for name in [name for name in os.environ if name.startswith("KUBERNETES_")]:
        monkeypatch.delenv(name)
    with scripted_server(review()) as server:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(
            "current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\n"
            f"clusters: [{{name: c, cluster: {{server: '{server.url}'}}}}]\n"
        )
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        settings = loaded(
            f"""
            oidc: {{issuer: '{issuer.url}', ca_file: '{issuer.ca_file}'}}
            kubernetes: {{enabled: true}}
            grants:
              - {{users: ['{NAME}'], role: metrics, clusters: [east]}}
              - {{groups: ['gpu-fin*'], role: finance}}
            """
        )
        kinds = [type(each) for each in build_checkers(settings)]
        assert kinds == [OidcTokens, KubernetesTokens]
        with Ledger.open(sqlite_url, now=Clock(), create=True) as ledger:
            authenticator = build_authenticator(settings, ledger, Clock())
            person = authenticator.authenticate(issuer.token(groups=["gpu-finance"]))
            assert (person.id, person.role) == ("oidc:ada", AccessRole.FINANCE)
            with pytest.raises(NotGranted):
                authenticator.authenticate(issuer.token())
            assert not server.asked, "a token of the issuer is nobody else's to see"
            robot = authenticator.authenticate(TOKEN)
            assert (robot.id, robot.role) == (f"kubernetes:{NAME}", AccessRole.METRICS)
            assert robot.scope.clusters == {"east"}
            issuer.is_down = True
            fresh = build_authenticator(settings, ledger, Clock())
            with pytest.raises(CheckUnavailable):
                fresh.authenticate(issuer.token())
            assert len(server.asked) == 1
            authenticator.close()
            fresh.close()


def test_an_api_server_that_cannot_be_found(
    loaded: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    settings = loaded("kubernetes: {enabled: true}\n" + GRANT)
    with pytest.raises(InputError, match="missing"):
        build_checkers(settings)
