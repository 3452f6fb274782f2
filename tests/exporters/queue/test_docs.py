"""The collector's page against the code: rights, problems, reasons, manifests, links."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import promql_parser
import pytest
import yaml

from gpucost.cluster.objects.kueue import EvictionReason, WorkloadState
from gpucost.cluster.views import quota as quota_use
from gpucost.cluster.views import wait_causes
from gpucost.cluster.views.problems import StateProblemCode
from gpucost.cluster.views.workload_families import DispatchStage
from gpucost.contract.metrics import METRICS, UnavailableCause
from gpucost.contract.queue_metrics import GangKind, WaitLayer
from gpucost.domain.jobs import JobKind
from gpucost.kube.connect.transport import TransportError
from gpucost.kube.parse.collections import collections
from gpucost.kube.parse.events import Unreadable
from gpucost.kube.watch.cluster_watch import UNKNOWN_VERSION
from gpucost_queue_collector.scheduler_metrics import SchedulerKind
from gpucost_queue_collector.settings import PAGE, PREFIX, CollectorSettings, load_settings, variable
from tests.support.prometheus import PROMTOOL, needs_prometheus

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
[MANIFESTS] = [block for block in BLOCKS if "kind: Deployment" in block]
[SCRAPE] = [block for block in BLOCKS if "scrape_configs" in block]
[FOR_KUEUE] = [block for block in BLOCKS if "nonResourceURLs" in block]
OBJECTS: dict[str, dict[str, Any]] = {found["kind"]: found for found in yaml.safe_load_all(MANIFESTS)}
POD: dict[str, Any] = OBJECTS["Deployment"]["spec"]["template"]["spec"]
[CONTAINER] = POD["containers"]
SETTINGS = CollectorSettings()
# Of the reflector itself; those of an answer (http_403) and of an event (event_410) carry their status.
OWN_REASONS = {"short_watch", "callback", "internal", UNKNOWN_VERSION}


def rows(name: str) -> list[list[str]]:
    """The cells of a table between two marks, without its head."""
    found = re.search(rf"^<!-- {name} -->\n(.*?)^<!-- /{name} -->$", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()[2:]]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^##+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_role_allows_what_is_watched_and_no_more() -> None:
    rules = OBJECTS["ClusterRole"]["rules"]
    allowed = [(group, name) for rule in rules for group in rule["apiGroups"] for name in rule["resources"]]
    watched = [(each.group, each.plural) for each in collections()]
    assert sorted(allowed) == sorted(set(watched))
    assert all(rule["verbs"] == ["list", "watch"] for rule in rules)


def test_all_problems_are_explained() -> None:
    found = {code.strip("`"): (meaning, advice) for code, meaning, advice in rows("problems")}
    assert {code: meaning for code, (meaning, _) in found.items()} == {
        code.value: code.meaning for code in StateProblemCode
    }
    assert all(advice for _, advice in found.values())


def test_all_reasons_of_errors_are_explained() -> None:
    found = {reason for cell, *_ in rows("reasons") for reason in re.findall(r"`(\w+)`", cell)}
    documented = f"{TransportError.__doc__} {Unreadable.__doc__}"
    words = set(re.findall(r"``([a-z_]+)``", documented)) - {"reason", "uid"}
    assert {"unreachable", "bad_line", "too_many"} <= words
    with_status = {reason for reason in found if re.fullmatch(r"(http|event)_\d+", reason)}
    assert found - with_status == words | OWN_REASONS
    assert {"http_…", "event_…"} <= {reason for cell, *_ in rows("reasons") for reason in cell.split("`")}
    assert all(meaning and advice for _, meaning, advice in rows("reasons"))


def test_every_metric_that_is_named_exists() -> None:
    names = set(re.findall(r"gpucost_[a-z_]+(?!…|[a-z_])", TEXT)) - {"gpucost_queue_collector"}
    assert names <= {spec.name for spec in METRICS}


def words(label: str, of: str) -> set[str]:
    """The values that the table gives of a label, in the row of which the second cell has ``of``."""
    [cell] = [values for name, where, values in rows("values") if name == f"`{label}`" and of in where]
    return set(re.findall(r"`(\w+)`", cell))


def test_values_of_labels_are_explained() -> None:
    assert words("layer", "gpucost_workload_waiting") == {layer.value for layer in WaitLayer}
    assert words("cause", "gpucost_node") >= {cause.value for cause in UnavailableCause}
    quota = words("reason", "layer `quota`")
    asked_of_queues = {quota_use.QUEUE_MISSING, quota_use.QUEUE_INACTIVE}
    other = {quota_use.WAITING_FOR_REQUEUE, quota_use.CHECKS_OUTSTANDING, quota_use.PREEMPTION_GATED}
    other |= {wait_causes.NO_WORKER, quota_use.TOPOLOGY_OUTSTANDING, quota_use.NOT_ADMITTED_YET}
    assert quota - {"UnadmittedWorkloadsObservability"} == quota_use.GRANULAR | asked_of_queues | other
    assert words("reason", "layer `placement`") >= {
        *(wait_causes.GANG_NOT_READY, wait_causes.UNSCHEDULABLE, wait_causes.GATED, wait_causes.NOT_LOOKED_AT)
    }
    assert words("reason", "layer `device`") == wait_causes.DEVICE_ERRORS | {wait_causes.NOT_ADVERTISED}
    assert words("state", "gpucost_workload_state") == {state.value for state in WorkloadState}
    assert words("gang_kind", "gpucost_gang") == {kind.value for kind in GangKind}
    assert words("stage", "gpucost_workload_dispatched") == {stage.value for stage in DispatchStage}
    assert words("reason", "gpucost_workload_evictions_total") >= {reason.value for reason in EvictionReason}
    assert words("scheduler", "gpucost_scheduler_info") == {each.value for each in SchedulerKind}
    assert words("job_kind", "gpucost_pod_owner_info") <= {kind.value for kind in JobKind}


def test_labels_in_the_table_are_of_the_metrics_beside_them() -> None:
    labels = {spec.name: spec.labels for spec in METRICS}
    for label, where, _ in rows("values"):
        for name in re.findall(r"`(gpucost_[a-z_]+)`", where):
            assert label.strip("`") in labels[name], name


def test_queries_name_metrics_and_labels_of_the_contract() -> None:
    known = {spec.name: spec for spec in METRICS}
    blocks = re.findall(r"^```promql\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    for query in (query for block in blocks for query in block.split("\n\n")):
        promql_parser.parse(query)
        names = set(re.findall(r"\bgpucost_\w+", query))
        labels = {label for name in names for label in known[name].labels}
        for grouped in re.findall(r"\b(?:by|on|group_left) \((.*?)\)", query):
            assert set(filter(None, grouped.split(", "))) <= labels, query
        assert "by (" in query, "an aggregation makes one of what replicas say"


def test_manifests_are_valid_by_the_schemas_of_kubernetes() -> None:
    for found in OBJECTS.values():
        kubernetes_validate.validate(found, kubernetes_validate.latest_version(), strict=True)


def test_a_restricted_namespace_admits_the_pod() -> None:
    """What the level restricted of the Pod Security Standards asks for."""
    inner = CONTAINER["securityContext"]
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert POD["securityContext"]["runAsUser"] > 0
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert inner["allowPrivilegeEscalation"] is False
    assert inner["capabilities"] == {"drop": ["ALL"]}
    assert inner["readOnlyRootFilesystem"] is True
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(POD)
    assert POD["volumes"] == [{"name": "scrapes", "secret": {"secretName": "gpucost-scrape"}}]


def test_the_image_has_the_command_and_the_user_of_the_manifest() -> None:
    text = (ROOT / "gpucost" / "Dockerfile").read_text(encoding="utf-8")
    stages = {stage.split("\n")[0].split(" AS ")[-1]: stage for stage in text.split("\nFROM ")[1:]}
    image, user = stages["queue-collector"], POD["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}" in image
    assert f'/{CONTAINER["command"][0]}"]' in image
    assert "--from=queue-collector-environment" in image
    assert "[collector]" in stages["queue-collector-environment"]


def test_what_the_manifest_requests_is_in_the_table_of_sizes() -> None:
    sizes = {name: cells for name, *cells in rows("sizes")}
    asked, most = CONTAINER["resources"]["requests"], CONTAINER["resources"]["limits"]
    medium = next(cells for name, cells in sizes.items() if name.startswith("medium"))
    assert medium[-2:] == [f"{asked['cpu']}, {asked['memory']}", most["memory"]]
    assert "cpu" not in most


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", TEXT)
    assert len(links) > 10
    for path, anchor in links:
        page = ROOT / "docs" / path if path else ROOT / PAGE
        assert page.exists(), path
        assert not anchor or anchor in anchors(page), f"{path}#{anchor}"


def test_manifests_use_settings_that_exist_and_the_defaults() -> None:
    variables = {entry["name"]: entry["value"] for entry in CONTAINER["env"]}
    assert set(variables) <= {variable(key) for key in CollectorSettings.model_fields}
    settings = load_settings(variables)
    [token] = settings.scrape_token_files
    assert CONTAINER["volumeMounts"][0]["mountPath"] == str(Path(token).parent)
    assert settings.replicas == OBJECTS["Deployment"]["spec"]["replicas"]
    assert CONTAINER["ports"] == [{"name": "metrics", "containerPort": SETTINGS.listen_port}]
    probes = {name: CONTAINER[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")}
    assert probes == {
        "livenessProbe": {"path": "/healthz", "port": "metrics", "scheme": "HTTPS"},
        "readinessProbe": {"path": "/readyz", "port": "metrics", "scheme": "HTTPS"},
    }
    named = set(re.findall(rf"{PREFIX}\w+", TEXT)) - {PREFIX}
    assert named == {variable(key) for key in CollectorSettings.model_fields}


def test_names_refer_to_each_other() -> None:
    role, binding, account = (
        OBJECTS[kind] for kind in ("ClusterRole", "ClusterRoleBinding", "ServiceAccount")
    )
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", **account["metadata"]}]
    assert POD["serviceAccountName"] == account["metadata"]["name"]
    assert OBJECTS["Deployment"]["metadata"]["namespace"] == account["metadata"]["namespace"]
    labels = OBJECTS["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert OBJECTS["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert yaml.safe_load(FOR_KUEUE) == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]


def test_the_scrape_finds_the_deployment() -> None:
    [job] = yaml.safe_load(SCRAPE)["scrape_configs"]
    assert job["honor_labels"] is True
    assert (job["scheme"], set(job["authorization"])) == ("https", {"credentials_file"})
    kept = {tuple(rule["source_labels"]): rule["regex"] for rule in job["relabel_configs"]}
    assert kept == {
        ("__meta_kubernetes_pod_label_app",): "gpucost-queue-collector",
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
