"""What is wrong in values is refused before anything is installed, and named."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.support.helm_chart import (
    CHART,
    LOADER,
    Values,
    at,
    containers,
    defaults,
    merged,
    needs_helm,
    objects,
    one,
    pods,
    refusal,
    rendered_settings,
    scenarios,
    texts,
)

pytestmark = [needs_helm, pytest.mark.fault(70)]

WRONG: list[tuple[str, object]] = [
    ("gpuExporter.podResources", "privileged"),
    ("gpuExporter.perProcess", "yes"),
    ("gpuExporter.dcgmUrl", "localhost:9400"),
    ("gpuExporter.maxUnavailable", "0%"),
    ("gpuExporter.image.digest", "sha256:abc"),
    ("gpuExporter.settings", {"interval": "1s"}),
    ("gpuExporter.stateHostPath", "var/lib"),
    ("queueCollector.replicas", 0),
    ("queueCollector.replicas", 11),
    ("queueCollector.replicas", "2"),
    ("securityContext.runAsUser", 0),
    ("securityContext.runAsGroup", 0),
    ("image.pullPolicy", "Sometimes"),
    ("prometheus.url", ""),
    ("prometheus.url", "prometheus:9090"),
    ("ledger.kind", "mysql"),
    ("ledger", {"kind": "postgresql"}),
    ("ledger.sqlite.size", "lots"),
    ("service.port", 0),
    ("service.port", 70_000),
    ("service.ingress", {"enabled": True}),
    ("service.podDisruptionBudget.maxUnavailable", 2),
    ("service.terminationGracePeriodSeconds", 1),
    ("service.secrets", {"Slack": "secret"}),
    ("webhook", {"enabled": True}),
    ("webhook.token", "short"),
    *(
        (key, wrong)
        for key in ("webhook.token", "webhook.nextToken")
        for wrong in (
            "0123456789abcdef/0123456789abcdef",
            "0123456789ABCDEF",
            "0123456789abcdef_0",
            "0123456789abcdef~0",
            "-0123456789abcdef",
            "0123456789abcdef-",
            "0123456789abcdef..0",
        )
    ),
    ("webhook.timeoutSeconds", 30),
    ("webhook.certificates", "openssl"),
    ("monitoring.interval", "30"),
    ("monitoring.alertmanager", {"enabled": True}),
    ("networkPolicies.prometheusPort", 0),
    ("networkPolicies.apiClients", [{"namespace": "x"}]),
    ("networkPolicies.kubernetesApi.cidrs", ["10.0.0.1"]),
    ("cluster.name", ""),
    ("access.oidc.issuer", "dex.example.com"),
    ("access.oidc.issuer", "http://dex.example.com"),
    ("access.grants", [{"groups": ["a"], "role": "boss"}]),
    ("access.grants", [{"groups": ["a"], "role": "viewer"}]),
    ("access.grants", [{"groups": ["a"]}]),
    ("access.grants", [{"groups": ["a"], "role": "team-admin", "teams": []}]),
    ("access.grants", [{"groups": ["a"], "role": "finance", "teams": ["vision"]}]),
    ("access.grants", [{"role": "admin"}]),
    ("gpuExporter.podResources", True),
    ("gpuExporter.kubernetes", True),
    ("service.extraVolumes", [{"emptyDir": {}}]),
    ("service.extraVolumeMounts", [{"name": "backups"}]),
    ("networkPolicies.dnsPeers", [{"namespace": "x"}]),
    ("networkPolicies.dnsPorts", []),
    ("networkPolicies.prometheus", "all"),
    ("networkPolicies.serviceEgress", [{"ports": [{"port": 25}]}]),
    ("networkPolicies.serviceEgress", [{"to": "any"}]),
    ("scrapes.tls.certificates", "none"),
    ("scrapes.token.secret", "No_Secret"),
    ("cluster.apiGroups", ["example.com"]),
]


MISSING = {
    "ledger": "ledger.postgresql.secret",
    "service.ingress": "service.ingress.host",
    "webhook": "webhook.token",
    "monitoring.alertmanager": "monitoring.alertmanager.secret",
}
"""What is named where a value is given that needs another."""

UNKNOWN = {"gpuExporter.settings": ["interval"], "service.secrets": ["Slack"]}


@pytest.mark.parametrize(("key", "value"), WRONG, ids=lambda each: each if isinstance(each, str) else "")
def test_a_wrong_value_is_refused_by_its_name(key: str, value: object) -> None:
    said = refusal(at(key.split("."), value))
    path = MISSING.get(key, key) if isinstance(value, dict) else key
    assert path.replace(".", "/") in said
    assert all(unknown in said for unknown in UNKNOWN.get(key, ()))


REFUSED: list[tuple[Values, str, str]] = [
    ({"prometheus": {"basicAuth": {"username": "me"}}}, "prometheus.basicAuth.secret", "needed"),
    ({"prometheus": {"basicAuth": {"secret": "password"}}}, "prometheus.basicAuth.username", "needed"),
    (
        {"prometheus": {"basicAuth": {"username": "me", "secret": "p"}, "bearerToken": {"secret": "t"}}},
        "prometheus.bearerToken and prometheus.basicAuth",
        "one of them",
    ),
    *(
        ({"service": {"config": at(key.split("."), value)}}, f"service.config.{key}", instead)
        for key, value, instead in (
            ("api.host", "127.0.0.1", "service.port"),
            ("api.port", 9000, "service.port"),
            ("api.auth", False, "always required"),
            ("api.tls_cert_file", "/a", "service.tls.secret"),
            ("api.tls_key_file", "/a", "service.tls.secret"),
            ("ledger.url", "sqlite:////tmp/a.db", "ledger.kind"),
            ("ledger.url_file", "/a", "ledger.postgresql.secret"),
            ("webhook.enabled", True, "webhook.enabled"),
            ("webhook.port", 9443, "the values below webhook"),
            ("webhook.token", "0123456789abcdef", "webhook.token"),
            ("webhook.tls_cert_file", "/a", "webhook.certificates"),
            ("webhook.certificates", {"mode": "managed"}, "webhook.certificates"),
            ("api", None, "a map"),
            ("ledger", "sqlite", "a map"),
        )
    ),
    *(
        (at(key.split("."), value), key, instead)
        for key, value, instead in (
            ("queueCollector.settings.REPLICAS", 2, "queueCollector.replicas"),
            ("queueCollector.settings.LISTEN_PORT", 9000, "probes and monitors"),
            ("queueCollector.settings.KUEUE_METRICS_URL", "http://k", "queueCollector.kueueMetrics"),
            ("queueCollector.settings.VOLCANO_METRICS_URL", "volcano:8080", "http:// or https://"),
            ("queueCollector.settings.VOLCANO_METRICS_URL", 8080, "http:// or https://"),
            ("gpuExporter.settings.NODE", "n", "the name of the node"),
            ("gpuExporter.settings.LISTEN_PORT", 9000, "probes and monitors"),
            ("gpuExporter.settings.KUBERNETES", "off", "gpuExporter.kubernetes"),
            ("gpuExporter.settings.PROCESSES", True, "gpuExporter.perProcess"),
            ("gpuExporter.settings.DCGM_URL", "http://d", "gpuExporter.dcgmUrl"),
            ("gpuExporter.settings.STATE_DIR", "/data", "gpuExporter.stateHostPath"),
            ("gpuExporter.settings.KUBELET_SOCKET", "kubelet.sock", "the whole path"),
            ("gpuExporter.settings.KUBELET_SOCKET", "/kubelet.sock", "in a folder"),
            ("gpuExporter.settings.KUBELET_SOCKET", "/var/../kubelet.sock", "in a folder"),
            ("gpuExporter.settings.SCRAPE_AUTH", "off", "scrapes.token"),
            ("queueCollector.settings.TLS_SELF_SIGNED", True, "scrapes.tls"),
        )
    ),
    *(
        ({part: {**more, "extraEnv": [{"name": name, "value": "x"}]}}, f"{part}.extraEnv: {name}", instead)
        for part, more, name, instead in (
            ("service", {}, "GPUCOST_CONFIG", "service.config"),
            ("service", {}, "GPUCOST_LEDGER__URL", "the values below ledger"),
            ("service", {}, "GPUCOST_LEDGER__URL_FILE", "the values below ledger"),
            ("gpuExporter", {}, "GPUCOST_GPU_EXPORTER_NODE", "the name of the node"),
            ("gpuExporter", {"settings": {"INTERVAL": "1s"}}, "GPUCOST_GPU_EXPORTER_INTERVAL", "already"),
            ("gpuExporter", {}, "GPUCOST_GPU_EXPORTER_STATE_DIR", "gpuExporter.stateHostPath"),
            (
                "gpuExporter",
                {},
                "GPUCOST_GPU_EXPORTER_KUBELET_SOCKET",
                "gpuExporter.settings.KUBELET_SOCKET",
            ),
            ("queueCollector", {}, "GPUCOST_QUEUE_COLLECTOR_REPLICAS", "queueCollector.replicas"),
            (
                "queueCollector",
                {},
                "GPUCOST_QUEUE_COLLECTOR_VOLCANO_METRICS_URL",
                "queueCollector.settings.VOLCANO_METRICS_URL",
            ),
        )
    ),
    *(
        (at([*path, "app.kubernetes.io/name"], "x"), said, "app.kubernetes.io/name is the chart's own")
        for path, said in (
            (("commonLabels",), "commonLabels"),
            (("service", "podLabels"), "service.podLabels"),
            (("gpuExporter", "podLabels"), "gpuExporter.podLabels"),
            (("queueCollector", "podLabels"), "queueCollector.podLabels"),
        )
    ),
    (
        {part: {"serviceAccount": {"name": "gpucost"}} for part in ("gpuExporter", "queueCollector")},
        "serviceAccount.name",
        "gpuExporter and queueCollector; leave create on for one",
    ),
    (
        {"monitoring": {"labels": {"app.kubernetes.io/component": "x"}, "rules": {"enabled": True}}},
        "monitoring",
        "app.kubernetes.io/component is the chart's own",
    ),
    (
        {
            "queueCollector": {
                "kueueMetrics": {"enabled": True},
                "settings": {"METRICS_INSECURE": True},
            }
        },
        "queueCollector.settings.METRICS_INSECURE",
        "queueCollector.kueueMetrics.insecure",
    ),
]


@pytest.mark.parametrize(("values", "key", "instead"), REFUSED)
def test_what_cannot_go_together_is_refused_with_what_to_do(values: Values, key: str, instead: str) -> None:
    said = refusal(values)
    assert f"{key}:" in said
    assert instead in said.partition(f"{key}:")[2]


def test_grants_that_the_service_takes_are_taken() -> None:
    grants = [
        {"users": ["ada"], "teams": ["vision"]},
        {"team_groups": "gpu-{team}", "role": "team-admin"},
        {"groups": ["finance"], "role": "finance", "clusters": ["prod"]},
    ]
    assert objects({"access": {"oidc": {"issuer": "https://dex.example.com"}, "grants": grants}})


def test_labels_of_a_user_stand_once_and_take_the_place_of_the_charts() -> None:
    """A key that stands twice is no YAML to kustomize, which GitOps tools send charts through."""
    part_of, release = "app.kubernetes.io/part-of", "release"
    values: Values = {
        "commonLabels": {part_of: "platform", release: "all"},
        "service": {"podLabels": {part_of: "cost"}},
        "monitoring": {
            "labels": {release: "prometheus"},
            "serviceMonitors": {"enabled": True},
            "rules": {"enabled": True},
        },
    }
    for name, text in texts(values).items():
        if name != "NOTES.txt":
            refuse_twins(text)
    found = objects(values)
    rules, pod = one(found, "PrometheusRule", "service"), one(found, "Deployment", "service")
    assert rules["metadata"]["labels"].items() >= {part_of: "platform", release: "prometheus"}.items()
    assert pod["metadata"]["labels"][part_of] == "platform"
    assert pod["spec"]["template"]["metadata"]["labels"].items() >= {part_of: "cost", release: "all"}.items()


def refuse_twins(text: str) -> None:
    """Raises AssertionError for a map in which a key stands twice."""

    def look(node: yaml.Node | None) -> None:
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value]
            assert len(keys) == len(set(keys)), keys
            for _, value in node.value:
                look(value)
        elif isinstance(node, yaml.SequenceNode):
            for each in node.value:
                look(each)

    for document in yaml.compose_all(text, LOADER):
        look(document)


def test_no_variable_stands_twice() -> None:
    """An API server refuses that where objects are applied on its side."""
    for values in scenarios().values():
        for name, pod in pods(objects(values)).items():
            for container in containers(pod):
                names = [each["name"] for each in container.get("env", ())]
                assert len(names) == len(set(names)), name


def test_off_without_quotes_is_off() -> None:
    """YAML reads it as false."""
    exporters = [{"podResources": value, "kubernetes": value} for value in ("off", False)]
    with_quotes, without = ({"gpuExporter": each} for each in exporters)
    assert objects(without) == objects(with_quotes)
    assert texts(without)["NOTES.txt"] == texts(with_quotes)["NOTES.txt"]


def test_no_settings_are_none() -> None:
    assert objects({"service": {"config": None}}) == objects({})


def test_further_volumes_are_the_services() -> None:
    volume = {"name": "backups", "persistentVolumeClaim": {"claimName": "backups"}}
    mount = {"name": "backups", "mountPath": "/backups"}
    values = {"service": {"extraVolumes": [volume], "extraVolumeMounts": [mount]}}
    spec = one(objects(values), "Deployment", "service")["spec"]["template"]["spec"]
    assert volume in spec["volumes"]
    assert mount in spec["containers"][0]["volumeMounts"]


def test_replicas_of_the_collector_are_told_apart() -> None:
    """By ``instance`` alone: ``pod`` is the workload's, by which progress finds its pods."""
    two: Values = {"queueCollector": {"replicas": 2}}
    assert rendered_settings(objects(two))["prometheus"]["replica_labels"] == ["instance"]
    assert "replica_labels" not in rendered_settings(objects({}))["prometheus"]
    mine = ["prometheus_replica", "instance"]
    given = merged(two, at(["service", "config", "prometheus", "replica_labels"], mine))
    assert rendered_settings(objects(given))["prometheus"]["replica_labels"] == mine


def groups(schema: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Where a map of fixed keys stands, by the defaults."""
    found = []
    for key, value in schema.items():
        if isinstance(value, dict) and value:
            found += [(*path, key), *groups(value, (*path, key))]
    return found


FREE = {"resources", "requests", "limits", "nodeSelector", "global"}
FIXED = [path for path in groups(defaults()) if not FREE & set(path[:-1])]


@pytest.mark.parametrize("path", [(), *(path for path in FIXED if path[-1] not in FREE)], ids=".".join)
def test_a_typo_is_refused_by_its_name(path: tuple[str, ...]) -> None:
    said = refusal(at((*path, "tpyo"), 1))
    assert "tpyo" in said
    assert "/".join(path) in said


def test_the_schema_allows_no_unknown_key_where_keys_are_fixed() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"

    def known(part: Any, values: Any, path: str) -> None:
        part = schema["definitions"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        if not isinstance(values, dict) or "properties" not in part:
            return
        assert part["additionalProperties"] is False, path
        assert set(part["properties"]) >= set(values), path
        for key, value in values.items():
            known(part["properties"][key], value, f"{path}.{key}")

    assert schema["additionalProperties"] is False
    known(schema, defaults(), "")
    assert set(schema["properties"]) == set(defaults())


def test_the_webhook_needs_a_cluster_that_is_watched() -> None:
    said = refusal({"service": {"watchCluster": False}, "webhook": {"enabled": True, "token": "a" * 16}})
    assert "service.watchCluster" in said


@pytest.mark.parametrize(
    ("drain", "seconds", "holds"), [("5m", 300, False), ("5m", 355, True), ("6s", 60, False)]
)
def test_a_stop_has_time_for_its_drain(drain: str, seconds: int, holds: bool) -> None:
    """The longest of everything that a stop waits for is 55 s and the drain."""
    values = {
        "service": {"terminationGracePeriodSeconds": seconds, "config": {"api": {"drain": drain}}},
        "prometheus": {"url": "http://prometheus:9090"},
    }
    if holds:
        assert objects(values)
    else:
        assert "service.terminationGracePeriodSeconds" in refusal(values)


def test_tokens_need_grants() -> None:
    for way in ({"kubernetes": {"enabled": True}}, {"oidc": {"issuer": "https://dex.example.com"}}):
        assert "access.grants" in refusal({"access": way})


def test_a_secret_cannot_take_the_place_of_the_charts_own() -> None:
    values: Values = {"prometheus": {"ca": {"secret": "ca"}}, "service": {"secrets": {"prometheus-ca": "x"}}}
    assert "service.secrets.prometheus-ca" in refusal(values)


def test_numbers_stay_numbers() -> None:
    """Go's templates write 1000000 as 1e+06, which YAML reads as text."""
    values = {"service": {"config": {"api": {"max_body_bytes": 65_536_000}}}}
    assert '"max_body_bytes": 65536000' in texts(values)["service.yaml"]
    settings = {"gpuExporter": {"settings": {"INTERVAL": 1_000_000}}}
    [found] = [
        each["value"]
        for each in one(objects(settings), "DaemonSet", "gpu-exporter")["spec"]["template"]["spec"][
            "containers"
        ][0]["env"]
        if each["name"] == "GPUCOST_GPU_EXPORTER_INTERVAL"
    ]
    assert found == "1000000"


def test_values_are_merged_over_the_settings_of_the_chart() -> None:
    config = {"ingest": {"window": "15m"}, "log": {"level": "debug"}}
    found = one(objects(merged({"service": {"config": config}})), "ConfigMap", "service")
    settings = json.loads(found["data"]["config.yaml"])
    assert settings["ingest"] == {"window": "15m"}
    assert settings["log"] == {"format": "json", "level": "debug"}
