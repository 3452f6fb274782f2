"""Monitors, rules and dashboards: what Prometheus, Grafana and Alertmanager get."""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from gpucost.service.metrics import FINDING_ACTIVE
from tests.support.helm_chart import (
    CHART,
    ROOT,
    chart,
    merged,
    needs_helm,
    objects,
    of_kind,
    one,
    pods,
    scenarios,
    texts,
)
from tests.support.prometheus import PROMTOOL, needs_prometheus

pytestmark = [needs_helm, pytest.mark.fault(70)]

ALL = scenarios()["all"]
RULES = (ROOT / "alerts" / "gpucost.rules.yaml").read_text("utf-8")
BOARDS = sorted((ROOT / "dashboards" / "generated").glob("*.json"))
LARGEST_OBJECT = 1024 * 1024


def test_rules_are_those_of_the_repository_with_addresses() -> None:
    [rule] = of_kind(objects(ALL), "PrometheusRule")
    text = RULES.replace("RUNBOOKS/", "https://git.example.com/gpucost/alerts/runbooks/")
    text = text.replace("DASHBOARDS/", "https://grafana.example.com/")
    assert rule["spec"] == yaml.safe_load(text)
    # Braces of Prometheus' own templates are left as they are.
    assert "{{ $labels.cluster" in json.dumps(rule["spec"])
    assert not re.search(r"RUNBOOKS/|DASHBOARDS/", json.dumps(rule))


def test_rules_without_addresses_say_where_runbooks_are() -> None:
    [rule] = of_kind(objects({"monitoring": {"rules": {"enabled": True}}}), "PrometheusRule")
    urls = {
        each["annotations"]["runbook_url"]
        for group in rule["spec"]["groups"]
        for each in group["rules"]
        if "runbook_url" in each.get("annotations", {})
    }
    assert urls
    assert all((ROOT / url).exists() for url in urls)
    assert not re.search(r"RUNBOOKS/|DASHBOARDS/", json.dumps(rule))


@needs_prometheus
@pytest.mark.prometheus
def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    [rule] = of_kind(objects(ALL), "PrometheusRule")
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(rule["spec"]), encoding="utf-8")
    done = subprocess.run(
        [PROMTOOL or "promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


def test_dashboards_are_those_of_the_repository() -> None:
    found = [
        each
        for each in of_kind(objects(ALL), "ConfigMap")
        if "grafana_dashboard" in each["metadata"]["labels"]
    ]
    boards = {name: text for each in found for name, text in each["data"].items()}
    assert boards == {file.name: file.read_text("utf-8") for file in BOARDS}
    for each in found:
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert each["metadata"]["annotations"] == {"grafana_folder": "GPUs"}
        assert len(json.dumps(each)) < LARGEST_OBJECT
        [text] = each["data"].values()
        assert json.loads(text)["uid"].startswith("gpucost-")


def test_a_release_fits_into_the_secret_that_helm_keeps_it_in() -> None:
    """Helm keeps chart and manifests, compressed, in one Secret of a megabyte at most."""
    files = [*chart().files, *chart().templates]
    for each in files:
        each["data"] = base64.b64encode(each["data"].encode()).decode()
    release = {"chart": files, "manifest": "".join(texts(ALL).values())}
    packed = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(release).encode())))
    assert len(packed) < LARGEST_OBJECT * 0.7


def test_the_package_holds_rules_and_boards_and_no_scenarios(tmp_path: Path) -> None:
    with tarfile.open(chart().save(tmp_path)) as archive:
        members = {member.name: member for member in archive.getmembers()}
        assert all(member.isfile() for member in members.values()), "a link would lead nowhere"
        rules = archive.extractfile("gpucost/files/gpucost.rules.yaml")
        assert rules is not None
        assert rules.read().decode() == RULES
    assert {f"gpucost/files/dashboards/{file.name}" for file in BOARDS} <= set(members)
    assert {"gpucost/values.schema.json", "gpucost/README.md", "gpucost/templates/NOTES.txt"} <= set(members)
    assert not [name for name in members if name.startswith("gpucost/ci/")]


def test_links_of_the_chart_stay_in_the_repository() -> None:
    links = [file for file in CHART.rglob("*") if file.is_symlink()]
    assert {link.name for link in links} == {"gpucost.rules.yaml", "dashboards"}
    assert all(link.resolve().is_relative_to(ROOT) and link.exists() for link in links)


def test_monitors_find_pods_and_ports() -> None:
    found = objects(ALL)
    monitors = of_kind(found, "PodMonitor", "ServiceMonitor")
    assert len(monitors) == 3
    for monitor in monitors:
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        if monitor["kind"] == "PodMonitor":
            [pod] = [each for each in pods(found).values() if wanted <= each["metadata"]["labels"].items()]
            ports = {each["name"] for each in pod["spec"]["containers"][0]["ports"]}
        else:
            [service] = [
                each for each in of_kind(found, "Service") if wanted <= each["metadata"]["labels"].items()
            ]
            ports = {each["name"] for each in service["spec"]["ports"]}
        [endpoint] = monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] in ports
        assert monitor["metadata"]["labels"]["release"] == "kube-prometheus-stack"


def test_series_of_exporters_keep_their_labels_and_get_the_clusters() -> None:
    found = objects(ALL)
    for kind, component in (("PodMonitor", "gpu-exporter"), ("ServiceMonitor", "queue-collector")):
        spec = one(found, kind, component)["spec"]
        [endpoint] = spec.get("endpoints") or spec["podMetricsEndpoints"]
        assert endpoint["honorLabels"] is True
        dropped, label = endpoint["relabelings"]
        assert dropped == {"action": "labeldrop", "regex": "pod|container|endpoint|service"}
        assert (label["targetLabel"], label["replacement"]) == ("cluster", "prod-eu")


def test_series_of_the_service_keep_the_namespace_of_jobs_and_findings() -> None:
    """Else it is the service's own: in alerts, in their links, and on the GPU of a job."""
    assert "namespace" in FINDING_ACTIVE.labels
    [endpoint] = one(objects(ALL), "ServiceMonitor", "service")["spec"]["endpoints"]
    assert endpoint["honorLabels"] is True
    assert "relabelings" not in endpoint, "its series name their cluster themselves"


def test_the_service_is_scraped_with_a_key_or_not_at_all() -> None:
    [endpoint] = one(objects(ALL), "ServiceMonitor", "service")["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "gpucost-metrics-key", "key": "key"}
    assert endpoint["scheme"] == "https"
    without = merged(ALL, {"monitoring": {"serviceMonitors": {"serviceKey": {"secret": ""}}}})
    components = [
        each["metadata"]["labels"]["app.kubernetes.io/component"]
        for each in of_kind(objects(without), "ServiceMonitor")
    ]
    assert components == ["queue-collector"]
    assert "key add prometheus --role metrics" in texts(without)["NOTES.txt"]


def test_alertmanager_sends_to_the_service() -> None:
    found = objects(ALL)
    [config] = of_kind(found, "AlertmanagerConfig")
    [receiver] = config["spec"]["receivers"]
    [webhook] = receiver["webhookConfigs"]
    service = one(found, "Service", "service")
    port = service["spec"]["ports"][0]["port"]
    assert webhook["url"] == f"https://{service['metadata']['name']}.cost.svc:{port}/v1/alerts/alertmanager"
    assert webhook["httpConfig"]["authorization"]["credentials"]["name"] == "gpucost-alerts-key"
    [endpoint] = one(found, "ServiceMonitor", "service")["spec"]["endpoints"]
    assert webhook["httpConfig"]["tlsConfig"] == endpoint["tlsConfig"]
    assert endpoint["tlsConfig"]["ca"]["secret"]["name"] == "gpucost-api-tls"
    plain = merged(ALL, {"service": {"tls": {"secret": ""}}})
    assert "tlsConfig" not in json.dumps(of_kind(objects(plain), "AlertmanagerConfig"))
