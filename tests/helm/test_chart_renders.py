"""Every scenario, and every switch turned: what comes out is valid and may do nothing that it need not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.helm_chart import (
    Object,
    Path_,
    Values,
    booleans,
    check,
    containers,
    defaults,
    flipped,
    lint_errors,
    needs_helm,
    objects,
    pods,
    scenarios,
    texts,
)

pytestmark = [needs_helm, pytest.mark.fault(70)]

SWITCHES = list(booleans(defaults()))
WRITING_VERBS = {
    "authentication.k8s.io/tokenreviews": {"create"},
    "admissionregistration.k8s.io/validatingwebhookconfigurations": {"get", "patch"},
    "/secrets": {"get", "update"},
}
"""Where more than list and watch is asked for: to check a token, and to keep the webhook's certificate."""


def check_all(values: Values) -> list[Object]:
    """Raises for whatever should not be in a chart that is trusted."""
    found = objects(values)
    for each in found:
        check(each)
    by_root = values.get("gpuExporter", {}).get("podResources") == "root"
    for name, pod in pods(found).items():
        is_exporter = name.startswith("DaemonSet/")
        check_pod(pod, as_root=by_root and is_exporter)
        spec = pod["spec"]
        shares_pids = is_exporter and values.get("gpuExporter", {}).get("perProcess", False)
        assert spec.get("hostPID", False) is shares_pids, name
        assert not {"hostNetwork", "hostIPC"} & set(spec), name
        check_volumes(spec, is_exporter)
        for container in containers(pod):
            check_container(container)
        for container in spec["containers"]:
            is_job = spec.get("restartPolicy") == "OnFailure"
            assert is_job or {"livenessProbe", "readinessProbe"} <= set(container), name
    for role in (each for each in found if each["kind"] in ("Role", "ClusterRole")):
        check_rules(role["rules"])
    check_names(found)
    return found


def check_pod(pod: Object, *, as_root: bool) -> None:
    spec = pod["spec"]
    context = spec["securityContext"]
    if as_root:
        assert context["runAsUser"] == 0
    else:
        assert context["runAsNonRoot"] is True
        assert context.get("runAsUser", 1) > 0
        assert context.get("runAsGroup", 1) > 0
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    # A Service named gpucost would give GPUCOST_PORT to every pod: an unknown setting, which stops the start.
    assert spec["enableServiceLinks"] is False
    assert isinstance(spec["automountServiceAccountToken"], bool)


def check_container(container: Object) -> None:
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"cpu", "memory"} <= set(container["resources"]["requests"])
    assert "memory" in container["resources"]["limits"]
    assert ":" in container["image"]
    assert not container["image"].endswith(":latest")


def check_volumes(spec: Object, is_exporter: bool) -> None:
    volumes = {each["name"]: each for each in spec.get("volumes", ())}
    folders = {each["hostPath"]["path"] for each in volumes.values() if "hostPath" in each}
    allowed = {"/var/lib/kubelet/pod-resources", "/var/lib/gpucost-gpu-exporter"} if is_exporter else set()
    assert folders <= allowed
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        for mount in container["volumeMounts"]:
            kind = set(volumes[mount["name"]])
            is_kept = mount["name"] in ("tmp", "state", "ledger")
            assert is_kept or mount["readOnly"] is True, mount
            assert "subPath" not in mount, "a file that is mounted alone never changes"
            assert kind


def check_rules(rules: Sequence[dict[str, Any]]) -> None:
    for rule in rules:
        if "nonResourceURLs" in rule:
            assert rule == {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
            continue
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        verbs = set(rule["verbs"])
        if verbs <= {"list", "watch"}:
            continue
        if verbs == {"get"}:
            assert rule["resourceNames"]
            continue
        [group], [resource] = rule["apiGroups"], rule["resources"]
        assert verbs == WRITING_VERBS[f"{group}/{resource}"]
        assert resource == "tokenreviews" or len(rule["resourceNames"]) == 1


def check_names(found: Sequence[Object]) -> None:
    keys = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in found]
    assert len(set(keys)) == len(keys)
    for kind, namespace, name in keys:
        limit = 253 if kind.startswith(("Cluster", "Validating")) or namespace != "cost" else 63
        assert len(name) <= limit, name
    for pod in (each for each in found if "template" in each.get("spec", {})):
        spec = pod["spec"]
        selector = spec.get("selector", {}).get("matchLabels", {})
        labels = spec["template"]["metadata"]["labels"]
        assert selector.items() <= labels.items()
        assert not {"helm.sh/chart", "app.kubernetes.io/version"} & set(selector)
        assert all(len(str(label)) <= 63 for label in labels.values())


@pytest.mark.parametrize("name", scenarios())
def test_scenario(name: str) -> None:
    values = scenarios()[name]
    assert lint_errors(values) == []
    assert check_all(values)
    notes = texts(values)["NOTES.txt"]
    assert "release gpu in namespace cost" in notes
    assert "<no value>" not in notes
    assert "{{" not in notes


@pytest.mark.parametrize("path", SWITCHES, ids=".".join)
def test_switch(path: Path_) -> None:
    """From the defaults, and from everything on; and it changes something, or it promises nothing."""
    changes = []
    for base in ({}, scenarios()["all"]):
        before, after = flipped(path, base)
        changes.append(check_all(after) != objects(before) or texts(after) != texts(before))
    assert any(changes)
    assert lint_errors(after) == []


def test_there_are_switches_and_scenarios() -> None:
    assert len(SWITCHES) > 20
    assert {"minimal", "sqlite", "postgresql", "all", "openshift", "several-clusters"} <= set(scenarios())


def test_only_one_value_makes_a_container_root() -> None:
    roots = [
        name
        for name, values in scenarios().items()
        for pod in pods(objects(values)).values()
        if pod["spec"]["securityContext"].get("runAsUser") == 0
    ]
    assert roots == ["root-exporter"]
    assert defaults()["gpuExporter"]["podResources"] == "acl"


def test_the_checks_see_what_is_wrong() -> None:
    """The helpers above are what everything rests on: each must refuse its fault."""
    pod = next(iter(pods(objects({})).values()))
    bad: Object = {**pod, "spec": {**pod["spec"], "enableServiceLinks": True}}
    with pytest.raises(AssertionError):
        check_pod(bad, as_root=False)
    with pytest.raises(AssertionError):
        check_pod(pod, as_root=True)
    container = containers(pod)[0]
    with pytest.raises(AssertionError):
        check_container({**container, "securityContext": {}})
    for verbs in (["create"], ["get"], ["*"], ["list", "delete"]):
        with pytest.raises((AssertionError, KeyError)):
            check_rules([{"apiGroups": [""], "resources": ["secrets"], "verbs": verbs}])
    with pytest.raises(Exception, match="securityContxt"):
        check({**objects({})[0], "securityContxt": {}})
