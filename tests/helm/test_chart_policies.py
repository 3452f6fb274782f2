"""NetworkPolicies: every port of every container, and who reaches it; what is let out, and where to."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import pytest

from tests.support.helm_chart import (
    Object,
    Values,
    at,
    containers,
    defaults,
    merged,
    needs_helm,
    objects,
    of_kind,
    one,
    pods,
    refusal,
    scenarios,
    value_at,
)

pytestmark = [needs_helm, pytest.mark.fault(70)]

NAMESPACE, SCRAPER, TENANT, INGRESS = "cost", "monitoring", "team-a", "ingress-nginx"
TENANTS_ADDRESS = "203.0.113.7"


def in_namespace(name: str) -> Object:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


DEFAULTS = defaults()
NAMED: Values = {
    "prometheus": [in_namespace(SCRAPER)],
    "prometheusPeers": [in_namespace(SCRAPER)],
    "kubernetesApi": {"cidrs": ["10.0.0.1/32"]},
    "webhookPeers": [{"ipBlock": {"cidr": "10.0.0.0/28"}}],
    "dcgmPeers": [in_namespace("gpu-operator")],
    "kueuePeers": [in_namespace("kueue-system")],
    "volcanoPeers": [in_namespace("volcano-system")],
    "issuerPeers": [{"ipBlock": {"cidr": "198.51.100.0/24"}}],
    "postgresql": {"peers": [{"ipBlock": {"cidr": "192.0.2.5/32"}}]},
}
"""Every peer, so that nothing is let anywhere."""

SWITCHES: dict[str, Values] = {
    "no exporter": {"gpuExporter": {"enabled": False}},
    "no collector": {"queueCollector": {"enabled": False}},
    "no service": {"service": {"enabled": False}},
    "postgresql": {"ledger": {"kind": "postgresql", "postgresql": {"secret": "database"}}},
    "webhook": {"webhook": {"enabled": True, "token": "0123456789abcdef"}},
    "everything asked": {
        "gpuExporter": {"dcgmUrl": "http://$(HOST_IP):9400/metrics"},
        "queueCollector": {
            "kueueMetrics": {"enabled": True},
            "settings": {"VOLCANO_METRICS_URL": "http://10.1.2.4:8080/metrics"},
        },
        "access": {
            "oidc": {"issuer": "https://dex.example.com:5556/dex"},
            "grants": [{"groups": ["platform"], "role": "admin"}],
        },
        "service": {"ingress": {"enabled": True, "host": "gpucost.example.com"}, "tls": {"secret": "tls"}},
        "networkPolicies": {"apiClients": [in_namespace(INGRESS)]},
    },
}


def combinations() -> Iterator[Values]:
    """Every scenario, as it is; and every switch with every other, with all peers named."""
    yield from scenarios().values()
    for chosen in product((False, True), repeat=len(SWITCHES)):
        named: Values = {"networkPolicies": NAMED}
        on = (values for values, is_on in zip(SWITCHES.values(), chosen, strict=True) if is_on)
        yield merged(named, *on)


def policy_of(found: Sequence[Object], pod: Object) -> Object:
    """The one policy that selects a pod."""
    labels = pod["metadata"]["labels"].items()
    [policy] = [
        each
        for each in of_kind(found, "NetworkPolicy")
        if each["spec"]["podSelector"]["matchLabels"].items() <= labels
    ]
    spec: Object = policy["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert policy["metadata"]["namespace"] == NAMESPACE
    return spec


def is_among(peers: Sequence[Mapping[str, Any]] | None, namespace: str, address: str) -> bool:
    """Whether a pod of a namespace, with an address, is one of ``peers``. None are all."""
    if peers is None:
        return True
    for peer in peers:
        block = peer.get("ipBlock")
        if block is not None:
            if ipaddress.ip_address(address) in ipaddress.ip_network(block["cidr"]):
                return True
            continue
        labels = peer.get("namespaceSelector", {}).get("matchLabels")
        # No selector of namespaces is the policy's own, an empty one all.
        if (labels or {}).items() <= {"kubernetes.io/metadata.name": namespace}.items() and (
            "namespaceSelector" in peer or namespace == NAMESPACE
        ):
            return True
    return False


def reached(spec: Object, port: str, namespace: str, address: str = TENANTS_ADDRESS) -> bool:
    """Whether the pods of a policy may be asked at a port by a pod elsewhere."""
    return any(
        port in {each["port"] for each in rule["ports"]} and is_among(rule.get("from"), namespace, address)
        for rule in spec["ingress"]
    )


def open_rules(spec: Object) -> list[Object]:
    """The rules that admit every client."""
    rules = [(rule, "from") for rule in spec["ingress"]] + [(rule, "to") for rule in spec["egress"]]
    return [rule for rule, key in rules if not rule.get(key)]


def said_to_be_open(values: Values) -> set[tuple[str | int, ...]]:
    """Ports of rules that values say ``any`` of."""
    policies = merged(DEFAULTS, values)["networkPolicies"]
    found: set[tuple[str | int, ...]] = set()
    if policies["kubernetesApi"]["cidrs"] == "any":
        found.add(tuple(policies["kubernetesApi"]["ports"]))
    if policies["webhookPeers"] == "any":
        found.add(("webhook",))
    if policies["issuerPeers"] == "any":
        found.add((443,))
    return found | {
        tuple(port["port"] for port in rule["ports"])
        for rule in policies["serviceEgress"]
        if rule["to"] == "any"
    }


@pytest.fixture(scope="module")
def rendered() -> list[tuple[Values, list[Object]]]:
    return [(values, objects(values, "gpu", NAMESPACE)) for values in combinations()]


def test_every_port_of_every_container_is_for_who_is_named_alone(
    rendered: list[tuple[Values, list[Object]]],
) -> None:
    looked_at: set[tuple[str, str]] = set()
    for values, found in rendered:
        policies = merged(DEFAULTS, values)["networkPolicies"]
        for name, pod in pods(found).items():
            spec = policy_of(found, pod)
            ports = {port["name"] for each in containers(pod) for port in each.get("ports", ())}
            assert {each["port"] for rule in spec["ingress"] for each in rule["ports"]} == ports, name
            for port in ports:
                looked_at.add((name, port))
                webhook = port == "webhook"
                assert reached(spec, port, TENANT) is (webhook and policies["webhookPeers"] == "any"), name
                clients = port == "http" and bool(policies["apiClients"])
                assert reached(spec, port, INGRESS) is (clients or reached(spec, port, TENANT)), name
                if policies["prometheus"] in ([], NAMED["prometheus"]) and not webhook:
                    url = merged(DEFAULTS, values)["prometheus"]["url"]
                    scraper = "openshift-monitoring" if "openshift" in url else SCRAPER
                    assert reached(spec, port, scraper), name
    assert looked_at == {
        ("DaemonSet/gpu-gpucost-gpu-exporter", "metrics"),
        ("Deployment/gpu-gpucost-queue-collector", "metrics"),
        ("Deployment/gpu-gpucost", "http"),
        ("Deployment/gpu-gpucost", "webhook"),
    }
    assert len(rendered) > 64


def test_no_rule_is_for_everybody_but_where_values_say_any(
    rendered: list[tuple[Values, list[Object]]],
) -> None:
    seen: set[tuple[str | int, ...]] = set()
    for values, found in rendered:
        for policy in of_kind(found, "NetworkPolicy"):
            for rule in open_rules(policy["spec"]):
                ports = tuple(each["port"] for each in rule["ports"])
                assert ports in said_to_be_open(values), policy["metadata"]["name"]
                seen.add(ports)
            for rule in [*policy["spec"]["ingress"], *policy["spec"]["egress"]]:
                assert rule["ports"], "no ports are all of them"
                assert all(rule.get("from", rule.get("to", ["any"])))
    assert {(443, 6443), ("webhook",), (443,)} <= seen


def test_the_enumeration_sees_a_port_that_is_open() -> None:
    """Each fault that the tests above are for must be seen by what they rest on."""
    [pod] = [each for name, each in pods(objects({})).items() if name.startswith("DaemonSet/")]
    spec = policy_of(objects({}), pod)
    for peers in ([{"namespaceSelector": {}}], [{"ipBlock": {"cidr": "0.0.0.0/0"}}], None):
        rule: Object = {"ports": [{"port": "metrics"}], **({} if peers is None else {"from": peers})}
        assert reached({**spec, "ingress": [rule]}, "metrics", TENANT)
    assert open_rules({"ingress": [{"ports": []}], "egress": [{"ports": [], "to": []}]})
    assert not reached(
        {**spec, "ingress": [{"ports": [{"port": "metrics"}], "from": [{"podSelector": {}}]}]},
        "metrics",
        TENANT,
    )
    with pytest.raises(ValueError, match="unpack"):
        policy_of([], pod)


def test_there_are_policies_until_somebody_says_no() -> None:
    assert defaults()["networkPolicies"]["enabled"] is True
    assert len(of_kind(objects({}), "NetworkPolicy")) == 3
    assert not of_kind(objects({"networkPolicies": {"enabled": False}}), "NetworkPolicy")


EMPTY: list[tuple[str, Values, object]] = [
    ("prometheus", {"prometheus": {"url": "https://thanos.example.com"}}, []),
    (
        "prometheusPeers",
        {
            "prometheus": {"url": "https://thanos.example.com"},
            "networkPolicies": {"prometheus": [in_namespace(SCRAPER)]},
        },
        [],
    ),
    ("dnsPeers", {}, []),
    ("dnsPeers", {}, None),
    ("kubernetesApi.cidrs", {}, []),
    ("kubernetesApi.cidrs", {}, None),
    ("webhookPeers", SWITCHES["webhook"], []),
    ("dcgmPeers", {"gpuExporter": {"dcgmUrl": "http://$(HOST_IP):9400/metrics"}}, []),
    (
        "kueuePeers",
        {"queueCollector": {"kueueMetrics": {"enabled": True, "url": "https://10.1.2.3:8443"}}},
        [],
    ),
    (
        "volcanoPeers",
        {"queueCollector": {"settings": {"VOLCANO_METRICS_URL": "http://10.1.2.4:8080/metrics"}}},
        [],
    ),
    ("postgresql.peers", SWITCHES["postgresql"], []),
    ("issuerPeers", {"access": SWITCHES["everything asked"]["access"]}, []),
    ("apiClients", {"service": {"ingress": {"enabled": True, "host": "gpucost.example.com"}}}, []),
    ("serviceEgress", {}, [{"to": [], "ports": [{"port": 25}]}]),
]


@pytest.mark.parametrize(("key", "values", "value"), EMPTY, ids=[key for key, _, _ in EMPTY])
def test_an_empty_list_is_nobody_and_is_refused_where_somebody_is_needed(
    key: str, values: Values, value: object
) -> None:
    said = refusal(merged(values, at(["networkPolicies", *key.split(".")], value)))
    assert f"networkPolicies.{key}: empty" in said
    assert "NetworkPolicyPeers, or any" in said


@pytest.mark.parametrize(
    ("url", "peer"),
    [
        ("http://prometheus-operated.monitoring.svc:9090", in_namespace("monitoring")),
        ("https://thanos.observability.svc.cluster.local/query", in_namespace("observability")),
        ("http://prometheus.monitoring.svc", in_namespace("monitoring")),
        ("http://prometheus:9090", {"podSelector": {}}),
    ],
)
def test_prometheus_is_in_the_namespace_of_its_address(url: str, peer: Object) -> None:
    found = objects({"prometheus": {"url": url}})
    for component in ("service", "queue-collector", "gpu-exporter"):
        assert one(found, "NetworkPolicy", component)["spec"]["ingress"][0]["from"] == [peer]
    assert one(found, "NetworkPolicy", "service")["spec"]["egress"][1]["to"] == [peer]


@pytest.mark.parametrize(
    ("url", "port", "named"),
    [
        ("http://$(HOST_IP):9400/metrics", 9400, [in_namespace("gpu-operator")]),
        ("http://dcgm.gpu.svc/metrics", 80, []),
        ("https://dcgm.gpu.svc", 443, []),
    ],
)
def test_the_exporter_is_let_out_to_the_port_of_an_address(url: str, port: int, named: list[Object]) -> None:
    values = {"networkPolicies": {"dcgmPeers": named}, "gpuExporter": {"dcgmUrl": url}}
    rules = one(objects(values), "NetworkPolicy", "gpu-exporter")["spec"]["egress"]
    assert rules[-1] == {"ports": [{"protocol": "TCP", "port": port}], "to": named or [in_namespace("gpu")]}


@pytest.mark.parametrize("named", [[], [in_namespace("schedulers")]])
def test_the_collector_is_let_out_to_schedulers_that_it_asks(named: list[Object]) -> None:
    url = "http://volcano-scheduler-service.volcano-system.svc:8080/metrics"
    collector: Values = {"kueueMetrics": {"enabled": True}, "settings": {"VOLCANO_METRICS_URL": url}}
    values = {"queueCollector": collector, "networkPolicies": {"volcanoPeers": named}}
    *_, kueue, volcano = one(objects(values), "NetworkPolicy", "queue-collector")["spec"]["egress"]
    assert kueue == {"ports": [{"protocol": "TCP", "port": 8443}], "to": [in_namespace("kueue-system")]}
    peers = named or [in_namespace("volcano-system")]
    assert volcano == {"ports": [{"protocol": "TCP", "port": 8080}], "to": peers}
    assert len(one(objects({}), "NetworkPolicy", "queue-collector")["spec"]["egress"]) == 2


def test_the_service_is_let_out_to_what_it_asks() -> None:
    values = merged(
        {
            "networkPolicies": {
                **NAMED,
                "prometheusPort": 10902,
                "serviceEgress": [{"to": "any", "ports": [{"port": 25}]}],
            }
        },
        {"prometheus": {"url": "https://thanos.example.com/query"}},
        SWITCHES["postgresql"],
        {"access": SWITCHES["everything asked"]["access"]},
    )
    egress = one(objects(values), "NetworkPolicy", "service")["spec"]["egress"]
    found = {tuple(each["port"] for each in rule["ports"]): rule.get("to") for rule in egress}
    assert found == {
        (53, 53): value_at(defaults(), ["networkPolicies", "dnsPeers"]),
        (10902, 443): NAMED["prometheusPeers"],
        (443, 6443): [{"ipBlock": {"cidr": "10.0.0.1/32"}}],
        (5432,): NAMED["postgresql"]["peers"],
        (5556,): NAMED["issuerPeers"],
        (25,): None,
    }


@pytest.mark.parametrize(("ports", "port"), [([5353], 5353), (None, 53)])
def test_dns_answers_at_other_ports(ports: list[int] | None, port: int) -> None:
    """A policy sees the port of the pod, not that of the Service before it. Values of an older release have
    no such ports, which must not open all."""
    found = of_kind(objects({"networkPolicies": {"dnsPorts": ports}}), "NetworkPolicy")
    assert found
    for policy in found:
        dns = [{"protocol": each, "port": port} for each in ("UDP", "TCP")]
        assert policy["spec"]["egress"][0]["ports"] == dns, policy["metadata"]["name"]
