"""What the chart writes is what the programs take: settings, variables, commands, files, ports."""

from __future__ import annotations

import re
from base64 import b64decode
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import typer.main

from gpucost import __version__
from gpucost.cli.application import app
from gpucost.service.settings.loader import load_settings
from gpucost.service.settings.model import Settings
from gpucost_gpu_exporter.settings import load_settings as load_exporter
from gpucost_queue_collector.settings import load_settings as load_collector
from tests.support.helm_chart import (
    Object,
    Values,
    containers,
    needs_helm,
    objects,
    of_kind,
    one,
    pods,
    scenarios,
)

pytestmark = [needs_helm, pytest.mark.fault(70)]

SERVED = {
    name: values for name, values in scenarios().items() if values.get("service", {}).get("enabled", True)
}
TOKEN = "0123456789abcdef0123456789abcdef"
SECRETS = {
    "/ledger/": "postgresql+psycopg://gpucost:x@db/gpucost",
    "/slack/": "https://hooks.slack.com/services/T000/B000/x",
}
"""What stands in the file of a mounted Secret, where not a token."""

FILES = re.compile(r"/etc/gpucost/[-\w./]+")


def deployment(values: Values) -> Object:
    pod: Object = one(objects(values), "Deployment", "service")["spec"]["template"]
    return pod


def mounted(pod: Object) -> list[str]:
    return [mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]]


def loaded(values: Values, folder: Path) -> Settings:
    """The settings of the service, with every file they name in ``folder``."""
    data = one(objects(values), "ConfigMap", "service")["data"]
    text = data["config.yaml"]
    for name in set(FILES.findall(text)):
        file = folder / name.removeprefix("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(next((text for part, text in SECRETS.items() if part in name), TOKEN))
    for name, content in data.items():
        file = folder / "etc/gpucost/config" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content.replace("/etc/gpucost", f"{folder}/etc/gpucost"), encoding="utf-8")
    return load_settings(folder / "etc/gpucost/config/config.yaml")


@pytest.mark.parametrize("name", SERVED)
def test_the_service_takes_its_settings(name: str, tmp_path: Path) -> None:
    values = SERVED[name]
    settings = loaded(values, tmp_path)
    assert settings.api.host == "0.0.0.0"
    assert settings.api.auth == "required"
    assert settings.log.format == "json"
    assert settings.prometheus.cluster == values.get("cluster", {}).get("name", "default")
    is_postgres = values.get("ledger", {}).get("kind") == "postgresql"
    assert settings.ledger.database_url().startswith("postgresql" if is_postgres else "sqlite:////var/lib/")
    assert settings.webhook.enabled is values.get("webhook", {}).get("enabled", False)


@pytest.mark.parametrize("name", SERVED)
def test_every_file_of_the_settings_is_mounted(name: str) -> None:
    pod = deployment(SERVED[name])
    data = one(objects(SERVED[name]), "ConfigMap", "service")["data"]
    folders = mounted(pod)
    for file in FILES.findall(data["config.yaml"]):
        assert file.rpartition("/")[0] in folders, file
        if file.startswith("/etc/gpucost/config/"):
            assert file.rpartition("/")[2] in data
    named = {each["name"]: each for each in pod["spec"]["volumes"]}
    for container in containers(pod):
        assert {mount["name"] for mount in container["volumeMounts"]} <= set(named)


def test_managed_certificates_are_those_that_the_chart_makes(tmp_path: Path) -> None:
    values = scenarios()["webhook-managed"]
    found = objects(values)
    kept = loaded(values, tmp_path).webhook.certificates
    [configuration] = of_kind(found, "ValidatingWebhookConfiguration")
    service = configuration["webhooks"][0]["clientConfig"]["service"]
    assert kept.is_managed
    assert kept.webhook_configuration == configuration["metadata"]["name"]
    assert kept.dns_names == (f"{service['name']}.{service['namespace']}.svc",)
    [secret] = [each for each in of_kind(found, "Secret") if each["type"] == "Opaque" and "data" not in each]
    assert (kept.namespace, kept.secret_name) == ("cost", secret["metadata"]["name"])
    assert "caBundle" not in configuration["webhooks"][0]["clientConfig"]


def test_the_webhook_is_as_its_page_says(tmp_path: Path) -> None:
    values = scenarios()["webhook-own"]
    found = objects(values)
    settings = loaded(values, tmp_path).webhook
    [configuration] = of_kind(found, "ValidatingWebhookConfiguration")
    [webhook] = configuration["webhooks"]
    assert webhook["failurePolicy"] == "Ignore"
    assert webhook["timeoutSeconds"] <= 3
    assert webhook["sideEffects"] == "None"
    assert webhook["namespaceSelector"]["matchExpressions"][0]["values"] == ["kube-system", "cost"]
    assert webhook["clientConfig"]["service"]["path"] == f"/v1/admission/{TOKEN}"
    turning = objects({**values, "webhook": {**values["webhook"], "nextToken": "0123456789abcdef.next"}})
    [hook] = of_kind(turning, "ValidatingWebhookConfiguration")
    assert hook["webhooks"][0]["clientConfig"]["service"]["path"] == f"/v1/admission/{TOKEN}"
    [secret] = [each for each in of_kind(turning, "Secret") if "token" in each.get("data", {})]
    assert b64decode(secret["data"]["token"]).decode() == f"{TOKEN}\n0123456789abcdef.next"
    service = one(found, "Service", "webhook")
    assert service["metadata"]["name"] == webhook["clientConfig"]["service"]["name"]
    ports = {
        each["name"]: each["containerPort"] for each in deployment(values)["spec"]["containers"][0]["ports"]
    }
    assert ports == {"http": 8080, "webhook": settings.port}
    assert settings.tls_cert_file is not None


def test_rules_of_the_webhook_are_those_of_its_page() -> None:
    import yaml

    from tests.support.helm_chart import ROOT

    text = (ROOT / "docs" / "webhook.md").read_text("utf-8")
    [block] = re.findall(r"^```yaml kubernetes\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    [documented] = [each for each in yaml.safe_load_all(block) if each["kind"].startswith("Validating")]
    [found] = of_kind(objects(scenarios()["webhook-own"]), "ValidatingWebhookConfiguration")
    for key in ("rules", "matchConditions", "matchPolicy", "failurePolicy", "admissionReviewVersions"):
        assert found["webhooks"][0][key] == documented["webhooks"][0][key], key


def variables(container: Object, prefix: str) -> dict[str, str]:
    """Its settings; what Kubernetes would put in is a word."""
    return {
        each["name"]: each.get("value", "node-1")
        for each in container["env"]
        if each["name"].startswith(prefix)
    }


@pytest.mark.parametrize("name", scenarios())
def test_exporters_take_their_variables(name: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t", encoding="utf-8")
    for workload, pod in pods(objects(scenarios()[name])).items():
        [container] = deepcopy(pod["spec"]["containers"])
        for each in container.get("env", ()):
            if each["name"].endswith(("TLS_CERT_FILE", "TLS_KEY_FILE")):
                assert Path(each["value"]).parent in {
                    Path(mount["mountPath"]) for mount in container["volumeMounts"]
                }
                each["value"] = str(token)
        if workload.startswith("DaemonSet"):
            exporter = load_exporter(variables(container, "GPUCOST_GPU_EXPORTER_"))
            assert exporter.node == "node-1"
            assert exporter.processes is pod["spec"].get("hostPID", False)
            assert container["ports"][0]["containerPort"] == exporter.listen_port
            folders = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert str(exporter.state_dir) in folders
            asks = scenarios()[name].get("gpuExporter", {}).get("podResources", "acl") != "off"
            assert (str(exporter.kubelet_socket.parent) in folders) is asks
        elif workload.endswith("queue-collector"):
            found = variables(container, "GPUCOST_QUEUE_COLLECTOR_")
            key = "GPUCOST_QUEUE_COLLECTOR_METRICS_TOKEN_FILE"
            if key in found:
                assert found[key].startswith("/var/run/secrets/kubernetes.io/serviceaccount/")
                found[key] = str(token)
            collector = load_collector(found)
            assert container["ports"][0]["containerPort"] == collector.listen_port


def test_the_folder_of_the_kubelets_socket_is_mounted_where_it_is() -> None:
    socket = "/var/lib/k0s/kubelet/pod-resources/kubelet.sock"
    values: Values = {"gpuExporter": {"settings": {"KUBELET_SOCKET": socket}}}
    spec = one(objects(values), "DaemonSet", "gpu-exporter")["spec"]["template"]["spec"]
    [container] = spec["containers"]
    exporter = load_exporter(variables(container, "GPUCOST_GPU_EXPORTER_"))
    folder = str(exporter.kubelet_socket.parent)
    assert folder == "/var/lib/k0s/kubelet/pod-resources"
    assert {"name": "pod-resources", "mountPath": folder, "readOnly": True} in container["volumeMounts"]
    [volume] = [each for each in spec["volumes"] if each["name"] == "pod-resources"]
    assert volume["hostPath"] == {"path": folder, "type": "Directory"}


def commands() -> set[tuple[str, ...]]:
    found = (pods(objects(values)) for values in scenarios().values())
    return {
        tuple(container["command"])
        for each in found
        for pod in each.values()
        for container in containers(pod)
        if container["command"][0] == "gpucost"
    }


@pytest.mark.parametrize("command", sorted(commands()), ids=" ".join)
def test_commands_exist(command: tuple[str, ...]) -> None:
    found: Any = typer.main.get_command(app)
    words = list(command[1:])
    context = found.make_context("gpucost", [], resilient_parsing=True)
    while words:
        found = found.get_command(context, words.pop(0))
        assert found is not None, command


def test_ledger_containers_need_the_ledger_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = tmp_path / "url"
    url.write_text("postgresql+psycopg://gpucost:x@db/gpucost", encoding="utf-8")
    for name in ("sqlite", "postgresql"):
        for workload, pod in pods(objects(scenarios()[name])).items():
            for container in containers(pod):
                if container["command"][:2] != ["gpucost", "ledger"]:
                    continue
                with monkeypatch.context() as patched:
                    for key, value in variables(container, "GPUCOST_").items():
                        patched.setenv(key, value.replace("/etc/gpucost/secrets/ledger/uri", str(url)))
                    assert load_settings().ledger.database_url().startswith(name), workload


@pytest.mark.parametrize("name", scenarios())
def test_ports_and_probes_meet(name: str) -> None:
    found = objects(scenarios()[name])
    by_labels = [(pod["metadata"]["labels"].items(), pod) for pod in pods(found).values()]
    for pod in pods(found).values():
        for container in pod["spec"]["containers"]:
            ports = {each["name"] for each in container.get("ports", ())}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if probe in container:
                    assert container[probe]["httpGet"]["port"] in ports
    for service in of_kind(found, "Service"):
        selector = service["spec"]["selector"].items()
        [pod] = [each for labels, each in by_labels if selector <= labels]
        ports = {each["name"] for each in pod["spec"]["containers"][0]["ports"]}
        assert {each["targetPort"] for each in service["spec"]["ports"]} <= ports
    for policy in of_kind(found, "NetworkPolicy"):
        labels = policy["spec"]["podSelector"]["matchLabels"].items()
        [pod] = [each for of, each in by_labels if labels <= of]
        ports = {each["name"] for each in pod["spec"]["containers"][0].get("ports", ())}
        let_in = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        assert let_in == ports, policy["metadata"]["name"]


def test_probes_ask_what_the_programs_answer() -> None:
    [container] = deployment({})["spec"]["containers"]
    paths = {name: container[name]["httpGet"]["path"] for name in container if name.endswith("Probe")}
    assert paths == {
        "startupProbe": "/healthz",
        "livenessProbe": "/healthz",
        "readinessProbe": "/healthz/ready",
    }
    [tls] = deployment(scenarios()["all"])["spec"]["containers"]
    assert tls["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_the_images_are_of_the_version() -> None:
    images = {container["image"] for pod in pods(objects({})).values() for container in containers(pod)}
    assert images == {
        f"{name}:{__version__}" for name in ("gpucost", "gpucost-gpu-exporter", "gpucost-queue-collector")
    }
    everything = pods(objects(scenarios()["all"])).values()
    images = {container["image"] for pod in everything for container in containers(pod)}
    assert all(image.startswith("registry.example.com/") for image in images)
    assert f"registry.example.com/gpucost-gpu-exporter@sha256:{'a' * 64}" in images
