"""How exporters are scraped: pods, probes and monitors have one token and one certificate, in every way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.helm_chart import (
    Object,
    Values,
    defaults,
    merged,
    needs_helm,
    objects,
    of_kind,
    one,
    refusal,
    texts,
)

pytestmark = [needs_helm, pytest.mark.fault(70)]

MONITORED: Values = {"monitoring": {"serviceMonitors": {"enabled": True}}}
EXPORTERS = (
    ("DaemonSet", "gpu-exporter", "PodMonitor", "GPUCOST_GPU_EXPORTER_"),
    ("Deployment", "queue-collector", "ServiceMonitor", "GPUCOST_QUEUE_COLLECTOR_"),
)
HOSTS = {f"gpu-gpucost-{component}.cost.svc" for _, component, _, _ in EXPORTERS}
exporters = pytest.mark.parametrize(("kind", "component", "monitor", "prefix"), EXPORTERS)


def scraped(
    values: Values, kind: str, component: str, monitor: str, prefix: str
) -> tuple[Object, dict[str, str], Object]:
    """Pod, settings and endpoint."""
    found = objects(merged(MONITORED, values))
    pod: Object = one(found, kind, component)["spec"]["template"]["spec"]
    settings = {
        each["name"].removeprefix(prefix): each.get("value", "")
        for each in pod["containers"][0]["env"]
        if each["name"].startswith(prefix)
        and each["name"].removeprefix(prefix).startswith(("SCRAPE_", "TLS_"))
    }
    spec = one(found, monitor, component)["spec"]
    [endpoint] = spec.get("endpoints") or spec["podMetricsEndpoints"]
    return pod, settings, endpoint


def mounted(pod: Object, file: str) -> Any:
    """The volume in which a file stands that a setting names."""
    folder = str(Path(file).parent)
    [name] = [each["name"] for each in pod["containers"][0]["volumeMounts"] if each["mountPath"] == folder]
    [volume] = [each for each in pod["volumes"] if each["name"] == name]
    return volume


@exporters
@pytest.mark.parametrize("secret", ["", "mine"])
def test_prometheus_sends_the_token_that_pods_take(
    kind: str, component: str, monitor: str, prefix: str, secret: str
) -> None:
    values = {"scrapes": {"token": {"secret": secret, "key": "key"}}}
    pod, settings, endpoint = scraped(values, kind, component, monitor, prefix)
    name = secret or "gpu-gpucost-scrape"
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": {"name": name, "key": "key"}}
    token, other = settings["SCRAPE_TOKEN_FILES"].split(",")
    first, second = (each["secret"] for each in mounted(pod, token)["projected"]["sources"])
    assert first == {"name": name, "items": [{"key": "key", "path": Path(token).name}]}
    assert second == {"name": name, "items": [{"key": "other", "path": Path(other).name}], "optional": True}
    assert mounted(pod, other) == mounted(pod, token)
    assert "SCRAPE_AUTH" not in settings


@exporters
@pytest.mark.parametrize(
    ("tls", "secret"),
    [
        ({}, ""),
        ({"certificates": "cert-manager"}, "gpu-gpucost-scrape-tls"),
        ({"certificates": "existingSecret", "existingSecret": "mine"}, "mine"),
    ],
    ids=["self-signed", "cert-manager", "existingSecret"],
)
def test_pods_probes_and_monitors_speak_the_same_tls(
    kind: str, component: str, monitor: str, prefix: str, tls: Values, secret: str
) -> None:
    pod, settings, endpoint = scraped({"scrapes": {"tls": tls}}, kind, component, monitor, prefix)
    probes = [pod["containers"][0][name]["httpGet"] for name in ("livenessProbe", "readinessProbe")]
    assert [each["scheme"] for each in probes] == ["HTTPS", "HTTPS"]
    assert endpoint["scheme"] == "https"
    if not secret:
        assert settings["TLS_SELF_SIGNED"] == "true"
        assert endpoint["tlsConfig"] == {"insecureSkipVerify": True}
        return
    for key in ("TLS_CERT_FILE", "TLS_KEY_FILE"):
        assert mounted(pod, settings[key])["secret"] == {"secretName": secret, "defaultMode": 0o440}
    ca = {"secret": {"name": secret, "key": "ca.crt", "optional": True}}
    assert endpoint["tlsConfig"] == {"serverName": f"gpu-gpucost-{component}.cost.svc", "ca": ca}


@exporters
def test_the_way_off(kind: str, component: str, monitor: str, prefix: str) -> None:
    for off in ("off", False):
        values = {"scrapes": {"token": {"enabled": False}, "tls": {"certificates": off}}}
        pod, settings, endpoint = scraped(values, kind, component, monitor, prefix)
        assert settings == {"SCRAPE_AUTH": "off"}
        assert not {"scheme", "authorization", "tlsConfig"} & set(endpoint)
        probes = [pod["containers"][0][name]["httpGet"] for name in ("livenessProbe", "readinessProbe")]
        assert [each["scheme"] for each in probes] == ["HTTP", "HTTP"]
        assert "scrape" not in str(pod["volumes"])
        assert not [each for each in objects(values) if each["metadata"]["name"].endswith("-scrape")]
        assert "MIND: scrapes" in texts(values)["NOTES.txt"]


def test_values_of_an_older_chart_are_not_taken_for_a_way_off() -> None:
    """With ``helm upgrade --reuse-values`` the new defaults are missing."""
    assert "scrapes: missing" in refusal({"scrapes": None})


def test_both_are_on_by_default() -> None:
    scrapes = defaults()["scrapes"]
    assert (scrapes["token"]["enabled"], scrapes["tls"]["certificates"]) == (True, "self-signed")
    assert "MIND: scrapes" not in texts({})["NOTES.txt"]


def test_kubernetes_writes_the_token_of_an_account_that_is_bound_to_nothing() -> None:
    found = objects({})
    [secret] = [
        each for each in of_kind(found, "Secret") if each["type"] == "kubernetes.io/service-account-token"
    ]
    assert "data" not in secret
    account = secret["metadata"]["annotations"]["kubernetes.io/service-account.name"]
    assert account in {each["metadata"]["name"] for each in of_kind(found, "ServiceAccount")}
    bound = [
        subject["name"]
        for each in of_kind(found, "ClusterRoleBinding", "RoleBinding")
        for subject in each["subjects"]
    ]
    assert account not in bound
    for values in (
        {"scrapes": {"token": {"secret": "mine"}}},
        {"gpuExporter": {"enabled": False}, "queueCollector": {"enabled": False}},
    ):
        assert account not in {each["metadata"]["name"] for each in objects(values)}


def test_the_certificate_is_for_the_names_by_which_prometheus_asks() -> None:
    found = objects({"scrapes": {"tls": {"certificates": "cert-manager"}}})
    [certificate], [issuer] = of_kind(found, "Certificate"), of_kind(found, "Issuer")
    assert set(certificate["spec"]["dnsNames"]) == HOSTS
    assert certificate["spec"]["issuerRef"]["name"] == issuer["metadata"]["name"]
    given = {
        "certificates": "cert-manager",
        "certManager": {"issuerKind": "ClusterIssuer", "issuerName": "ours"},
    }
    found = objects({"scrapes": {"tls": given}})
    assert not of_kind(found, "Issuer")
    [certificate] = of_kind(found, "Certificate")
    assert certificate["spec"]["issuerRef"] == {
        "group": "cert-manager.io",
        "kind": "ClusterIssuer",
        "name": "ours",
    }
    notes = texts({"scrapes": {"tls": {"certificates": "existingSecret", "existingSecret": "mine"}}})[
        "NOTES.txt"
    ]
    assert all(host in notes for host in HOSTS)
    assert "scrapes.tls.existingSecret: needed" in refusal(
        {"scrapes": {"tls": {"certificates": "existingSecret"}}}
    )
