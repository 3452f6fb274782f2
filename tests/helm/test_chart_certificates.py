"""Managed certificates, kept with the objects and the rights that the chart makes, and with no other."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from typing import Any

import pytest

from gpucost.domain.time import DAY_MS
from gpucost.kube.certificates.certificate_pair import CertificateSpec, facts_of, kept_in
from gpucost.kube.certificates.keeper import CertificateKeeper, CertificateObjects
from gpucost.kube.connect.connection import connect_url
from gpucost.service.settings.model import Settings
from tests.support.helm_chart import (
    IS_THERE,
    Object,
    needs_helm,
    objects,
    of_kind,
    one,
    rendered_settings,
    scenarios,
)
from tests.support.written_objects import ObjectServer, object_server

pytestmark = [needs_helm, pytest.mark.fault(70)]

RENDERED = objects(scenarios()["webhook-managed"]) if IS_THERE else []
NOW_MS = 1_783_000_000_000


def rules_of_the_service() -> list[dict[str, Any]]:
    """What its account may do, through the bindings that name it."""
    account = one(RENDERED, "Deployment", "service")["spec"]["template"]["spec"]["serviceAccountName"]
    bound = {
        each["roleRef"]["name"]
        for each in of_kind(RENDERED, "RoleBinding", "ClusterRoleBinding")
        if each["subjects"][0]["name"] == account
    }
    roles = of_kind(RENDERED, "Role", "ClusterRole")
    return [rule for each in roles if each["metadata"]["name"] in bound for rule in each["rules"]]


def path(found: Object) -> str:
    group, _, _ = found["apiVersion"].rpartition("/")
    namespace = found["metadata"].get("namespace")
    within = f"/namespaces/{namespace}" if namespace else ""
    plural = f"{found['kind'].lower()}s"
    return f"/{f'apis/{group}' if group else 'api'}/v1{within}/{plural}/{found['metadata']['name']}"


def is_empty(found: Object) -> bool:
    """What gpucost puts data in. Kubernetes does into that of an account's token."""
    return "data" not in found and found.get("type") != "kubernetes.io/service-account-token"


SECRET, CONFIGURATION = (
    next((path(each) for each in of_kind(RENDERED, kind) if is_empty(each)), "")
    for kind in ("Secret", "ValidatingWebhookConfiguration")
)


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with object_server(rules_of_the_service()) as found:
        for each in of_kind(RENDERED, "Secret", "ValidatingWebhookConfiguration"):
            found.put(path(each), each)
        yield found


def test_the_keeper_needs_no_more_than_the_chart_gives(server: ObjectServer) -> None:
    config = rendered_settings(RENDERED)
    webhook = {key: value for key, value in config["webhook"].items() if key != "token_file"}
    given = {"webhook": {**webhook, "token": "0123456789abcdef"}}
    kept = Settings.model_validate(given).webhook.certificates
    assert kept.namespace is not None
    shown, errors, clock = list[str](), list[str](), [NOW_MS]
    transport = connect_url(server.url)
    there = CertificateObjects(transport, kept.namespace, kept.secret_name, kept.webhook_configuration)
    wanted = CertificateSpec(frozenset(kept.dns_names), 90 * DAY_MS, 30 * DAY_MS)
    keeper = CertificateKeeper(
        there, wanted, lambda: clock[0], shown.append, errors.append, rng=random.Random(8)
    )
    before = server.objects[CONFIGURATION]
    try:
        for days in (0, 70, 1, 1):
            clock[0] += days * DAY_MS
            assert keeper.turn() == keeper.every_s, errors
    finally:
        transport.close()
    assert len(shown) == 2, "made, and renewed after 60 days"
    assert {status for _, _, status in server.asked} == {200}
    secret, configuration = server.objects[SECRET], server.objects[CONFIGURATION]
    newest = kept_in(secret, clock[0]).newest
    service = before["webhooks"][0]["clientConfig"]["service"]
    assert facts_of(newest, clock[0]).names == {f"{service['name']}.{service['namespace']}.svc"}
    [hook] = configuration["webhooks"]
    assert newest.authority in base64.b64decode(hook["clientConfig"].pop("caBundle")).decode()
    assert [hook] == before["webhooks"]
    assert secret["type"] == "Opaque", "an API server refuses another type"
    assert secret["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    others = {each for each in server.objects if each not in (SECRET, CONFIGURATION)}
    assert others
    assert not others & {asked for _, asked, _ in server.asked}
