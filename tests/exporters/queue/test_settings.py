"""The settings: what is wrong is named with its variable, its value and what is allowed; the page has all."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from gpucost.cluster.objects.metadata import OwnerKeys
from gpucost.domain.errors import ConfigError, InputError
from gpucost.settings.types import settings_table
from gpucost_queue_collector.settings import (
    PAGE,
    PREFIX,
    CollectorSettings,
    load_settings,
    named_by_variable,
    variable,
)

ROOT = Path(__file__).parents[3]


def load(**values: str) -> CollectorSettings:
    return load_settings({variable(key): value for key, value in values.items()})


def test_defaults_fit_a_deployment() -> None:
    settings = load()
    assert settings == CollectorSettings()
    assert (settings.listen_host, settings.listen_port) == ("0.0.0.0", 9837)
    assert (settings.refresh, settings.replicas) == (timedelta(seconds=5), 1)
    assert (settings.kubeconfig, settings.context, settings.kubernetes_url) == (None, "", "")


def test_owners_are_found_as_gpucost_state_show_finds_them() -> None:
    settings = load()
    assert OwnerKeys(settings.team_labels, settings.project_labels, settings.user_labels) == OwnerKeys()


def test_values(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("")
    settings = load(
        listen_port="0",
        refresh="30s",
        replicas="2",
        kubeconfig=str(config),
        context="prod",
        extra_resources="example.com/gpu, example.com/npu",
        team_labels="cost-centre",
        metrics_insecure="true",
        log_level="DEBUG",
    )
    assert (settings.listen_port, settings.replicas, settings.context) == (0, 2, "prod")
    assert settings.refresh == timedelta(seconds=30)
    assert settings.kubeconfig == config
    assert settings.extra_resources == ("example.com/gpu", "example.com/npu")
    assert settings.team_labels == ("cost-centre",)
    assert settings.metrics_insecure
    assert settings.log_level == "debug"


def test_an_empty_variable_is_the_default() -> None:
    assert load(**dict.fromkeys(CollectorSettings.model_fields, "")) == CollectorSettings()


@pytest.mark.parametrize(
    ("key", "value", "shown", "allowed"),
    [
        ("listen_port", "99999", "'99999'", "0 to 65535"),
        ("listen_port", "http", "'http'", "A whole number from 0 to 65535"),
        ("refresh", "500ms", "'500ms'", "1s to 30s"),
        ("refresh", "2m", "'2m'", "1s to 30s"),
        ("refresh", "often", "'often'", "a whole number and a unit"),
        ("replicas", "0", "'0'", "1 to 10"),
        ("replicas", "x", "'x'", "A whole number from 1 to 10"),
        ("replicas", "11", "'11'", "1 to 10"),
        ("kubeconfig", "/no/such/config", "'/no/such/config'", "the path of a file that exists"),
        ("kubernetes_url", "localhost:8001", "'localhost:8001'", "http:// or https://"),
        ("kubernetes_url", "http://a:secret@h", "user info", "without user info"),
        ("metrics_insecure", "maybe", "'maybe'", "true or false"),
        ("log_level", "loud", "'loud'", "debug, info, warning or error"),
    ],
)
def test_a_wrong_value(key: str, value: str, shown: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(**{key: value})
    assert caught.value.field == variable(key)
    assert shown in str(caught.value)
    assert allowed in caught.value.allowed
    assert "secret" not in str(caught.value)


def test_one_way_to_the_api_server() -> None:
    with pytest.raises(ConfigError) as caught:
        load(kubernetes_url="http://127.0.0.1:8001", context="prod")
    assert caught.value.field == "GPUCOST_QUEUE_COLLECTOR_KUBERNETES_URL"
    assert caught.value.allowed == "none where a kubeconfig or context is given"


def test_an_unknown_variable() -> None:
    with pytest.raises(ConfigError, match="GPUCOST_QUEUE_COLLECTOR_REFRSH: unknown setting") as caught:
        load(refrsh="5s")
    assert caught.value.allowed == "GPUCOST_QUEUE_COLLECTOR_REFRESH (did you mean this?)"


# As the kubelet sets them for a service gpucost-queue-collector with the port named metrics.
OF_A_SERVICE = {
    "SERVICE_HOST": "10.0.0.1",
    "SERVICE_PORT": "9837",
    "SERVICE_PORT_METRICS": "9837",
    "PORT": "tcp://10.0.0.1:9837",
    "PORT_9837_TCP": "tcp://10.0.0.1:9837",
    "PORT_9837_TCP_PROTO": "tcp",
    "PORT_9837_TCP_PORT": "9837",
    "PORT_9837_TCP_ADDR": "10.0.0.1",
}


def test_variables_that_kubernetes_sets_for_a_service_of_that_name_are_none_of_ours() -> None:
    load_settings({f"{PREFIX}{name}": value for name, value in OF_A_SERVICE.items()})
    load_settings({f"{PREFIX}SERVICE_HOST": "fd00::1", f"{PREFIX}PORT": "udp://[fd00::1]:9837"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "9999"),
        ("PORT", ""),
        ("PORT_9837_TCP", "9837"),
        ("PORT_9837_TCP_PROTO", "http"),
        ("PORT_9837_TCP_ADDR", "example.com"),
        ("SERVICE_HOST", "example.com"),
        ("SERVICE_PORT", "tcp://10.0.0.1:9837"),
        ("SERVICE_PORT", "9999"),
    ],
)
def test_a_variable_of_a_service_with_what_kubernetes_does_not_set_is_a_mistake(
    name: str, value: str
) -> None:
    with pytest.raises(ConfigError, match="unknown setting") as caught:
        load_settings({f"{PREFIX}{name}": value})
    assert caught.value.field == f"{PREFIX}{name}"
    if name == "PORT":
        assert caught.value.allowed == f"{PREFIX}LISTEN_PORT (did you mean this?)"


def test_an_error_of_a_part_gets_the_name_of_the_variable() -> None:
    assert named_by_variable(InputError("listen_port", "x", "y")).field == f"{PREFIX}LISTEN_PORT"
    other = InputError("KUBECONFIG", "x", "y")
    assert named_by_variable(other) is other


def test_the_page_has_the_table_of_settings() -> None:
    page = (ROOT / PAGE).read_text()
    found = re.search(r"^<!-- settings -->\n(.*?)^<!-- /settings -->$", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    assert found[1].strip().splitlines() == list(settings_table(CollectorSettings, variable))


def test_devices_are_divided_by_a_capacity_that_their_driver_publishes() -> None:
    settings = load(share_dimensions="gpu.amd.com=computeUnits, gpu.nvidia.com=memory")
    assert settings.share_dimensions == ("gpu.amd.com=computeUnits", "gpu.nvidia.com=memory")
    assert load().share_dimensions == ()


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("gpu.amd.com=cores", "for gpu.amd.com one of memory, computeUnits, simdUnits"),
        ("gpu.amd.com", "for gpu.amd.com one of memory, computeUnits, simdUnits"),
        ("nic.example.com=bandwidth", "driver=capacity, of gpu.nvidia.com, gpu.amd.com"),
        ("gpu.amd.com=memory,gpu.amd.com=simdUnits", "gpu.amd.com once"),
    ],
)
def test_another_capacity_is_refused_with_those_that_there_are(text: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(share_dimensions=text)
    assert variable("share_dimensions") in str(refused.value)
    assert allowed in str(refused.value)


def test_the_namespace_of_reservations_is_one() -> None:
    assert load(kai_namespace="kai-reservations").kai_namespace == "kai-reservations"
    with pytest.raises(ConfigError):
        load(kai_namespace="Not A Namespace")
