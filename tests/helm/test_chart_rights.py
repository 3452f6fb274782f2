"""What each account may do, against what the code asks for."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from gpucost.cluster.objects.scheduler_config import NAMES
from gpucost.kube.parse.collections import collections
from tests.support.helm_chart import (
    ROOT,
    Values,
    merged,
    needs_helm,
    objects,
    of_kind,
    one,
    pods,
    scenarios,
)

pytestmark = [needs_helm, pytest.mark.fault(70)]

WEBHOOK: Values = scenarios()["webhook-managed"]
WATCHED = sorted({(each.group, each.plural) for each in collections()})


def rules(values: Values, component: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = one(objects(values), "ClusterRole", component)["rules"]
    return found


def read(rules: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return sorted(
        (group, name)
        for rule in rules
        if rule["verbs"] == ["list", "watch"]
        for group in rule["apiGroups"]
        for name in rule["resources"]
    )


def documented(page: str) -> list[tuple[str, str]]:
    """What the role in a page of docs/ allows."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    found = [each for block in blocks if "kind: ClusterRole\n" in block for each in yaml.safe_load_all(block)]
    [role] = [each for each in found if each["kind"] == "ClusterRole"]
    return read(role["rules"])


@pytest.mark.parametrize("component", ["queue-collector", "service"])
def test_who_watches_the_cluster_may_read_what_is_watched_and_no_more(component: str) -> None:
    assert read(rules({}, component)) == WATCHED == documented("queue-collector.md")
    assert all(rule["verbs"] == ["list", "watch"] for rule in rules({}, component))


@pytest.mark.parametrize("component", ["queue-collector", "service"])
def test_groups_that_the_cluster_does_not_have_need_no_rule(component: str) -> None:
    values = {"cluster": {"apiGroups": ["kueue.x-k8s.io", "ray.io"]}}
    own = {"", "scheduling.k8s.io", "policy", "batch", "apps", "resource.k8s.io"}
    assert read(rules(values, component)) == [
        each for each in WATCHED if each[0] in {*own, "kueue.x-k8s.io", "ray.io"}
    ]
    assert {group for group, _ in read(rules({"cluster": {"apiGroups": []}}, component))} == own


def test_the_exporter_reads_pods_and_slices() -> None:
    source = "".join(
        file.read_text("utf-8") for file in (ROOT / "exporters" / "gpucost_gpu_exporter").rglob("*.py")
    )
    assert read(rules({}, "gpu-exporter")) == documented("gpu-exporter.md")
    assert "resourceslices" in source
    assert "/api/v1/pods" in source


def test_who_reads_nothing_has_no_token() -> None:
    found = objects(scenarios()["no-host"])
    assert {each["metadata"]["name"] for each in of_kind(found, "ClusterRole")} == {
        "gpu-gpucost-queue-collector.cost"
    }
    tokens = {name: pod["spec"]["automountServiceAccountToken"] for name, pod in pods(found).items()}
    assert tokens == {
        "DaemonSet/gpu-gpucost-gpu-exporter": False,
        "Deployment/gpu-gpucost-queue-collector": True,
        "Deployment/gpu-gpucost": False,
    }
    assert all(each["automountServiceAccountToken"] is False for each in of_kind(found, "ServiceAccount"))


def test_the_job_has_no_token() -> None:
    found = pods(objects(scenarios()["all"]))
    [job] = [pod for name, pod in found.items() if name.startswith("Job/")]
    assert job["spec"]["automountServiceAccountToken"] is False


def test_tokens_are_reviewed_where_that_is_on() -> None:
    grants = [{"groups": ["platform"], "role": "admin"}]
    on = rules({"access": {"kubernetes": {"enabled": True}, "grants": grants}}, "service")
    added = [rule for rule in on if rule not in rules({}, "service")]
    reviews = {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}
    assert added == [reviews]


def test_managed_certificates_reach_two_objects_by_name() -> None:
    found = objects(WEBHOOK)
    [configuration] = of_kind(found, "ValidatingWebhookConfiguration")
    [role] = of_kind(found, "Role")
    [rule] = role["rules"]
    [secret] = [each for each in of_kind(found, "Secret") if each["type"] == "Opaque" and "data" not in each]
    assert rule["resourceNames"] == [secret["metadata"]["name"]]
    assert rule["verbs"] == ["get", "update"]
    [patch] = [each for each in rules(WEBHOOK, "service") if "patch" in each["verbs"]]
    assert patch["resourceNames"] == [configuration["metadata"]["name"]]
    others = [scenarios()[name] for name in ("webhook-own", "webhook-cert-manager")]
    assert not any(of_kind(objects(each), "Role") for each in others)


def test_the_schedulers_configuration_is_read_by_name() -> None:
    switches = {"kueue": {"enabled": True}, "volcano": {"enabled": True}}
    found = {
        each["metadata"]["namespace"]: each
        for each in of_kind(objects({"service": {"schedulers": switches}}), "Role")
    }
    names = [
        f"{namespace}/{rule['resourceNames'][0]}"
        for namespace, role in found.items()
        for rule in role["rules"]
    ]
    assert sorted(names) == sorted(
        (NAMES.kueue_config, NAMES.kueue_manager, NAMES.volcano_config, NAMES.volcano_scheduler)
    )
    assert not of_kind(objects({}), "Role")


def test_bindings_lead_from_an_account_to_a_role() -> None:
    found = objects(merged(scenarios()["all"], {"webhook": {"certificates": "managed"}}))
    accounts = {
        (each["metadata"]["namespace"], each["metadata"]["name"]) for each in of_kind(found, "ServiceAccount")
    }
    roles = {
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
        for each in of_kind(found, "Role", "ClusterRole")
    }
    bound = set()
    for each in of_kind(found, "RoleBinding", "ClusterRoleBinding"):
        ref, [subject] = each["roleRef"], each["subjects"]
        bound.add((ref["kind"], each["metadata"].get("namespace"), ref["name"]))
        assert (subject["namespace"], subject["name"]) in accounts
    # An account for its token alone is bound to nothing.
    accounts = {each for each in accounts if not each[1].endswith("-scrape")}
    assert bound == roles
    # The Job has the service's account, without its token.
    used = {pod["spec"]["serviceAccountName"] for pod in pods(found).values()}
    assert used == {name for _, name in accounts}
