"""Releases beside each other, long names, odd names; what a change of values does to names and pods."""

from __future__ import annotations

import re

import pytest

from gpucost.service.wiring import configuration
from tests.support.helm_chart import (
    Object,
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

EVERYTHING: Values = merged(scenarios()["all"], {"service": {"schedulers": {"kueue": {"enabled": True}}}})
LABEL = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
LONGEST = 53
"""Of a release's name, by Helm."""


def keys(found: list[Object]) -> set[tuple[str, str, str]]:
    return {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in found}


@pytest.mark.parametrize(
    ("one_", "other"),
    [
        (("gpu", "a"), ("gpu2", "a")),
        (("gpu", "a"), ("gpu", "b")),
        (("b-c", "a"), ("c", "a-b")),
        ((f"{'x' * 52}a", "a"), (f"{'x' * 52}b", "a")),
        (("gpucost", "a"), ("gpucost-a", "a")),
    ],
)
def test_two_releases_do_not_collide(one_: tuple[str, str], other: tuple[str, str]) -> None:
    first, second = (keys(objects(EVERYTHING, *each)) for each in (one_, other))
    assert not first & second


@pytest.mark.parametrize("name", ["x" * LONGEST, f"{'x' * 26}.{'y' * 26}", "1st", "a.b", "gpucost"])
def test_any_name_of_a_release_is_valid(name: str) -> None:
    for each in objects(EVERYTHING, name, "n" * 63):
        own = each["metadata"]["name"]
        if each["kind"] in ("Service", "Deployment", "DaemonSet", "Job", "ConfigMap", "ServiceAccount"):
            assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", own), own
        else:
            assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", own), own
        assert all(re.fullmatch(LABEL, str(value)) for value in each["metadata"]["labels"].values())


def test_a_release_called_as_the_chart_is_not_called_twice() -> None:
    assert one(objects({}, "gpucost"), "Deployment", "service")["metadata"]["name"] == "gpucost"
    assert one(objects({}, "prod"), "Deployment", "service")["metadata"]["name"] == "prod-gpucost"


def test_selectors_outlive_upgrades() -> None:
    """What may change with a release's values is in no selector, which Kubernetes never lets change."""
    others = {"commonLabels": {"a": "b"}, "gpuExporter": {"podLabels": {"c": "d"}}}
    before, after = (
        {
            each["metadata"]["name"]: each["spec"]["selector"]
            for each in of_kind(found, "Deployment", "DaemonSet")
        }
        for found in (objects({}), objects(others))
    )
    assert before == after


def test_selectors_tell_components_apart() -> None:
    found = objects(EVERYTHING)
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(found).items()}
    for service in of_kind(found, "Service"):
        selector = service["spec"]["selector"].items()
        assert sum(selector <= each.items() for each in labels.values()) == 1, service["metadata"]["name"]
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        for each in of_kind(found, kind):
            spec = each["spec"]
            selector = (spec.get("selector") or spec["podSelector"])["matchLabels"].items()
            assert sum(selector <= of.items() for of in labels.values()) == 1, each["metadata"]["name"]


def job(values: Values) -> str:
    [found] = of_kind(objects(values), "Job")
    return str(found["metadata"]["name"])


def test_another_image_makes_another_job() -> None:
    """The pod of a Job cannot be changed, so an upgrade that would change it must make another."""
    values = scenarios()["postgresql"]
    assert job(values) == job(merged(values, {"queueCollector": {"replicas": 2}}))
    assert job(values) != job(merged(values, {"service": {"image": {"tag": "2"}}}))
    assert job(values) != job(merged(values, {"ledger": {"postgresql": {"key": "other"}}}))
    assert not of_kind(objects(scenarios()["sqlite"]), "Job")


def sum_of(values: Values) -> str:
    found = one(objects(values), "Deployment", "service")
    return str(found["spec"]["template"]["metadata"]["annotations"]["checksum/start"])


FIXED: dict[str, Values] = {
    "api.tls_cert_file": {"service": {"tls": {"secret": "a"}}},
    "api.tls_key_file": {"service": {"tls": {"secret": "a"}}},
    "log.format": {"service": {"config": {"log": {"format": "text"}}}},
    "webhook.*": {"service": {"config": {"webhook": {"deadline_ms": 100}}}},
}
NEVER_CHANGED = {"api.host", "api.port"}
"""The chart refuses them."""


def test_what_cannot_be_reloaded_makes_a_new_pod_and_nothing_else_does() -> None:
    assert {*FIXED, *NEVER_CHANGED} == set(configuration._FIXED)
    before = sum_of({})
    assert all(sum_of(each) != before for each in FIXED.values())
    assert sum_of(scenarios()["postgresql"]) != before
    assert sum_of({"service": {"priceBook": "version: 1"}}) == before
    assert sum_of({"service": {"config": {"notify": {"most_per_hour": 5}}}}) == before
    assert sum_of({"prometheus": {"url": "http://other:9090"}}) == before


def test_the_ledger_stays_when_the_release_goes() -> None:
    [claim] = of_kind(objects({}), "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert not of_kind(objects(scenarios()["sqlite"]), "PersistentVolumeClaim")
