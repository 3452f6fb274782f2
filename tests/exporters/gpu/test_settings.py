"""The settings: what is wrong is named with its variable, its value and what is allowed; the page has all."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path

import pytest

from gpucost.domain.errors import ConfigError, InputError
from gpucost.settings.types import settings_table
from gpucost_gpu_exporter.settings import (
    PAGE,
    PREFIX,
    ExporterSettings,
    load_settings,
    named_by_variable,
    variable,
)

ROOT = Path(__file__).parents[3]


def load(**values: str) -> ExporterSettings:
    return load_settings({variable(key): value for key, value in values.items()})


def test_defaults_fit_a_daemonset() -> None:
    settings = load()
    assert settings == ExporterSettings()
    assert (settings.node, settings.node_name) == ("", os.uname().nodename)
    assert settings.interval == timedelta(seconds=1)
    assert (settings.listen_port, settings.kubernetes) == (9836, "auto")
    assert settings.kubelet_socket == Path("/var/lib/kubelet/pod-resources/kubelet.sock")


def test_values() -> None:
    settings = load(
        node="gpu-7",
        listen_port="0",
        interval="250ms",
        dcgm_url="http://127.0.0.1:9400/metrics",
        extra_resources="example.com/gpu, example.com/mig",
        processes="true",
        state_dir="",
    )
    assert (settings.node, settings.listen_port, settings.processes) == ("gpu-7", 0, True)
    assert settings.interval == timedelta(milliseconds=250)
    assert settings.dcgm_url == "http://127.0.0.1:9400/metrics"
    assert settings.extra_resources == ("example.com/gpu", "example.com/mig")
    assert settings.state_dir is None


def test_an_empty_node_is_the_host() -> None:
    assert load(node="").node_name == os.uname().nodename
    assert load(node="gpu-7").node_name == "gpu-7"


def test_an_empty_variable_is_the_default_but_for_the_folder_that_is_not_wanted() -> None:
    keys = [key for key in ExporterSettings.model_fields if key != "state_dir"]
    assert load(**dict.fromkeys(keys, "")) == ExporterSettings()
    assert load(state_dir="").state_dir is None
    with pytest.raises(ConfigError, match="unknown setting"):
        load(intervall="")


@pytest.mark.parametrize("level", ["DEBUG", "Debug", "debug"])
def test_a_log_level_in_any_case(level: str) -> None:
    assert load(log_level=level).log_level == "debug"


@pytest.mark.parametrize(
    ("key", "value", "shown", "allowed"),
    [
        ("node", "n" * 254, "nnn", "Name of the Kubernetes node"),
        ("listen_port", "99999", "'99999'", "0 to 65535"),
        ("listen_port", "http", "'http'", "0 to 65535"),
        ("interval", "2s", "'2s'", "100ms to 1s"),
        ("interval", "50ms", "'50ms'", "100ms to 1s"),
        ("interval", "fast", "'fast'", "a whole number and a unit"),
        ("interval", "-1s", "'-1s'", "a whole number and a unit"),
        ("driver_timeout", "500ms", "'500ms'", "1s to 1m"),
        ("kubelet_interval", "1h", "'1h'", "200ms to 30s"),
        ("dcgm_interval", "1h", "'1h'", "1s to 1m"),
        ("dcgm_url", "localhost:9400", "'localhost:9400'", "http:// or https://"),
        ("dcgm_url", "http://a:secret@h/metrics", "user info", "without user info"),
        ("processes", "maybe", "'maybe'", "true or false"),
        ("kubernetes", "yes", "'yes'", "auto, in-cluster, url or off"),
        ("kubernetes_token_file", "/no/such/token", "'/no/such/token'", "the path of a file that exists"),
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


@pytest.mark.parametrize(
    "values", [{"kubernetes": "url"}, {"kubernetes_url": "http://127.0.0.1:8001"}], ids=["without", "unasked"]
)
def test_an_address_of_the_api_server_without_its_kind(values: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(**values)
    assert caught.value.field == "GPUCOST_GPU_EXPORTER_KUBERNETES_URL"
    assert "an address when kubernetes is url" in caught.value.allowed


def test_an_unknown_variable() -> None:
    with pytest.raises(ConfigError, match="GPUCOST_GPU_EXPORTER_INTERVALL: unknown setting") as caught:
        load(intervall="1s")
    assert caught.value.allowed == "GPUCOST_GPU_EXPORTER_INTERVAL (did you mean this?)"
    with pytest.raises(ConfigError) as caught:
        load(something_else_altogether="red")
    assert caught.value.allowed == f"a name from {PAGE}"


def test_variables_that_kubernetes_sets_for_a_service_of_that_name_are_none_of_ours() -> None:
    load_settings(
        {
            "GPUCOST_GPU_EXPORTER_SERVICE_HOST": "10.0.0.1",
            "GPUCOST_GPU_EXPORTER_PORT": "tcp://10.0.0.1:9836",
            "GPUCOST_GPU_EXPORTER_PORT_9836_TCP_ADDR": "10.0.0.1",
        }
    )


def test_an_error_of_a_part_gets_the_name_of_the_variable() -> None:
    assert named_by_variable(InputError("listen_port", "x", "y")).field == f"{PREFIX}LISTEN_PORT"
    other = InputError("--seconds", 0, "1 to 60")
    assert named_by_variable(other) is other


def test_the_page_has_the_table_of_settings() -> None:
    page = (ROOT / PAGE).read_text()
    found = re.search(r"^<!-- settings -->\n(.*?)^<!-- /settings -->$", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    assert found[1].strip().splitlines() == list(settings_table(ExporterSettings, variable))


def test_the_table_is_the_same_on_every_machine() -> None:
    assert os.uname().nodename not in "\n".join(settings_table(ExporterSettings, variable)).split("`")
