"""The YAML in the docs: it parses, its settings exist, and its paths and ports are the defaults."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpucost_gpu_exporter.node_pods import POD_PATH, SLICE_PATHS
from gpucost_gpu_exporter.settings import PAGE, PREFIX, ExporterSettings, load_settings, variable
from tests.support.prometheus import PROMTOOL, needs_prometheus

TEXT = (Path(__file__).parents[3] / PAGE).read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
[MANIFESTS] = [block for block in BLOCKS if "kind: DaemonSet" in block]
[SCRAPE] = [block for block in BLOCKS if "scrape_configs" in block]
OBJECTS: dict[str, dict[str, Any]] = {found["kind"]: found for found in yaml.safe_load_all(MANIFESTS)}
POD: dict[str, Any] = OBJECTS["DaemonSet"]["spec"]["template"]["spec"]
[CONTAINER] = POD["containers"]
SETTINGS = ExporterSettings()
OF_THE_RUNTIME = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}


def uncommented(text: str) -> str:
    """With what is optional switched on."""
    return re.sub(r"^( +)# (?=- \{|hostPID)", r"\1", text, flags=re.MULTILINE)


def environment(text: str) -> dict[str, str]:
    """The DaemonSet's variables; of a field of the pod, its path."""
    [daemons] = [found for found in yaml.safe_load_all(text) if found["kind"] == "DaemonSet"]
    entries = daemons["spec"]["template"]["spec"]["containers"][0]["env"]
    return {
        entry["name"]: entry["value"] if "value" in entry else entry["valueFrom"]["fieldRef"]["fieldPath"]
        for entry in entries
    }


def test_there_is_what_a_node_needs() -> None:
    assert list(OBJECTS) == ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet"]


@pytest.mark.parametrize(
    "text", [MANIFESTS, uncommented(MANIFESTS)], ids=["as it is", "with what is optional"]
)
def test_every_variable_is_a_setting(text: str) -> None:
    found = environment(text)
    known = {variable(key) for key in ExporterSettings.model_fields}
    assert set(found) <= known | set(OF_THE_RUNTIME)
    assert OF_THE_RUNTIME.items() <= found.items()
    load_settings({name: value for name, value in found.items() if name.startswith(PREFIX)})


def test_processes_come_with_the_pids_of_the_host() -> None:
    [daemons] = [
        found for found in yaml.safe_load_all(uncommented(MANIFESTS)) if found["kind"] == "DaemonSet"
    ]
    assert daemons["spec"]["template"]["spec"]["hostPID"] is True
    assert environment(uncommented(MANIFESTS))[variable("processes")] == "true"
    assert "hostPID" not in POD
    assert variable("processes") not in environment(MANIFESTS)


def test_the_node_is_the_nodes_own_name() -> None:
    assert environment(MANIFESTS)[variable("node")] == "spec.nodeName"


def test_mounts_are_where_the_defaults_look() -> None:
    mounts = {mount["name"]: mount for mount in CONTAINER["volumeMounts"]}
    assert mounts.pop("tmp")["mountPath"] == "/tmp", "what a read-only root needs"
    token = Path(environment(MANIFESTS)[variable("scrape_token_files")])
    assert mounts.pop("scrapes")["mountPath"] == str(token.parent)
    assert {"name": "scrapes", "secret": {"secretName": "gpucost-scrape"}} in POD["volumes"]
    paths = {each["name"]: each["hostPath"]["path"] for each in POD["volumes"] if "hostPath" in each}
    assert {name: mount["mountPath"] for name, mount in mounts.items()} == paths
    assert paths == {
        "pod-resources": str(SETTINGS.kubelet_socket.parent),
        "state": str(SETTINGS.state_dir),
    }
    assert mounts["pod-resources"]["readOnly"] is True
    assert "readOnly" not in mounts["state"]
    assert CONTAINER["securityContext"] == {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_probes_and_port() -> None:
    assert CONTAINER["ports"] == [{"name": "metrics", "containerPort": SETTINGS.listen_port}]
    probes = {name: CONTAINER[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")}
    assert probes == {
        "livenessProbe": {"path": "/healthz", "port": "metrics", "scheme": "HTTPS"},
        "readinessProbe": {"path": "/readyz", "port": "metrics", "scheme": "HTTPS"},
    }


def test_names_refer_to_each_other() -> None:
    role, binding, account = (
        OBJECTS[kind] for kind in ("ClusterRole", "ClusterRoleBinding", "ServiceAccount")
    )
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    [subject] = binding["subjects"]
    assert subject == {"kind": "ServiceAccount", **account["metadata"]}
    assert POD["serviceAccountName"] == account["metadata"]["name"]
    assert OBJECTS["DaemonSet"]["metadata"]["namespace"] == account["metadata"]["namespace"]
    labels = OBJECTS["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    assert OBJECTS["DaemonSet"]["spec"]["selector"]["matchLabels"] == labels


def test_the_role_allows_what_is_watched_and_no_more() -> None:
    rules = OBJECTS["ClusterRole"]["rules"]
    assert [(rule["apiGroups"], rule["resources"]) for rule in rules] == [
        ([""], [POD_PATH.rpartition("/")[2]]),
        ([SLICE_PATHS[0].split("/")[2]], [SLICE_PATHS[0].rpartition("/")[2]]),
    ]
    assert all(rule["verbs"] == ["list", "watch"] for rule in rules)


def test_the_scrape_finds_the_daemonset() -> None:
    [job] = yaml.safe_load(SCRAPE)["scrape_configs"]
    assert job["honor_labels"] is True
    assert (job["scheme"], set(job["authorization"])) == ("https", {"credentials_file"})
    assert job["kubernetes_sd_configs"][0]["namespaces"]["names"] == [
        OBJECTS["DaemonSet"]["metadata"]["namespace"]
    ]
    kept = {tuple(rule["source_labels"]): rule["regex"] for rule in job["relabel_configs"]}
    labels = OBJECTS["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    assert kept == {
        ("__meta_kubernetes_pod_label_app",): labels["app"],
        ("__meta_kubernetes_pod_container_port_name",): CONTAINER["ports"][0]["name"],
    }


@needs_prometheus
@pytest.mark.prometheus
def test_promtool_takes_the_scrape(tmp_path: Path) -> None:
    found = yaml.safe_load(SCRAPE)
    # Debian's Prometheus is built without Kubernetes.
    del found["scrape_configs"][0]["kubernetes_sd_configs"]
    config = tmp_path / "prometheus.yml"
    config.write_text(yaml.safe_dump(found))
    arguments = [PROMTOOL or "promtool", "check", "config", "--syntax-only", str(config)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
