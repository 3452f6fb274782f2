"""Settings of the advisor and the webhook: pools that can be built, schedulers by name, a safe webhook."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from gpucost.advisor.model.settings import AdvisorSettings, AutoscaledPool
from gpucost.cluster.objects.scheduler_config import (
    INITIAL_SHARE,
    NAMES,
    STRATEGIES,
    VOLCANO_ACTIONS,
    KueueConfig,
    SchedulerConfigs,
    SchedulerNames,
    VolcanoConfig,
)
from gpucost.domain.configfile import described
from gpucost.domain.errors import ConfigError
from gpucost.service.settings.advisor import AdvisingSettings, WebhookSettings
from gpucost.service.settings.loader import environment_names, load_settings
from gpucost.service.settings.model import Settings
from gpucost.settings.types import groups_in

POOL = "{name: h100, labels: {gpu: h100}, allocatable: {cpu: 95500m, nvidia.com/gpu: 8}, most: 4"
TOKEN = "hunter2-hunter2-hunter2"


def load(folder: Path, text: str) -> Settings:
    file = folder / "settings.yaml"
    file.write_text(text, encoding="utf-8")
    return load_settings(file)


def test_the_defaults_are_those_of_the_advisor() -> None:
    settings = AdvisingSettings()
    assert settings.advisor() == AdvisorSettings(budget_s=5.0)
    assert settings.names == NAMES
    assert settings.assumed(SchedulerConfigs()) == SchedulerConfigs()


def test_all_of_it_reaches_the_advisor(tmp_path: Path) -> None:
    text = (
        "advisor:\n"
        "  horizon: 36h\n"
        "  samples: 100\n"
        "  most_suggestions: 3\n"
        "  budget: 2s\n"
        f"  pools: [{POOL}, taints: ['nvidia.com/gpu=present:NoSchedule'], ready_after: 90s}}]\n"
        "  kueue: {config: queues/own}\n"
        "  volcano: {scheduler: batch/own}\n"
    )
    found = load(tmp_path, text).advisor
    pool = AutoscaledPool(
        "h100",
        {"gpu": "h100"},
        {"cpu": "95500m", "nvidia.com/gpu": "8"},
        4,
        1.5,
        ("nvidia.com/gpu=present:NoSchedule",),
    )
    assert found.advisor() == AdvisorSettings(36.0, 100, 3, (pool,), 2.0)
    assert found.names == SchedulerNames("queues/own", NAMES.kueue_manager, NAMES.volcano_config, "batch/own")


def test_every_setting_is_an_environment_variable_and_says_what_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {*environment_names()}
    groups = {**groups_in(AdvisingSettings)}
    assert {*groups} == {"kueue", "volcano"}
    for group, model in groups.items():
        assert model.__doc__
        for key in model.model_fields:
            assert described(model, key), key
            assert f"GPUCOST_ADVISOR__{group}__{key}".upper() in names
    keys = WebhookSettings.model_fields.keys() - groups_in(WebhookSettings)
    assert {f"GPUCOST_WEBHOOK__{key}".upper() for key in keys} <= names
    monkeypatch.setenv("GPUCOST_ADVISOR__KUEUE__FAIR_SHARING", "true")
    monkeypatch.setenv("GPUCOST_ADVISOR__POOLS", '[{"name": "a", "allocatable": {"cpu": "4"}, "most": 1}]')
    found = load_settings().advisor
    assert found.kueue.fair_sharing
    assert found.pools[0].ready_after == timedelta(minutes=10)


# What is assumed


def test_what_was_read_is_not_assumed() -> None:
    settings = AdvisingSettings.model_validate(
        {"kueue": {"fair_sharing": True, "version": "v1"}, "volcano": {"actions": ("allocate",)}}
    )
    read = SchedulerConfigs(KueueConfig("v0.19.2", is_read=True), VolcanoConfig("v1.15.1", is_read=True))
    assert settings.assumed(read) == read


def test_what_nobody_could_read_is_assumed_and_said() -> None:
    settings = AdvisingSettings.model_validate(
        {
            "kueue": {"fair_sharing": True, "strategies": [INITIAL_SHARE], "version": "v0.18.6"},
            "volcano": {"actions": ("allocate", "preempt"), "version": "v1.14.4"},
        }
    )
    found = settings.assumed(SchedulerConfigs(KueueConfig("v0.19.2")))
    assert (found.kueue.version, found.kueue.fair_sharing) == ("v0.19.2", True)
    assert found.kueue.strategies == (INITIAL_SHARE,)
    assert found.kueue.unread == (
        "advisor.kueue.fair_sharing, advisor.kueue.strategies of gpucost's settings are assumed",
    )
    assert not found.kueue.is_read
    assert (found.volcano.version, found.volcano.actions) == ("v1.14.4", ("allocate", "preempt"))
    assert found.volcano.tiers == VolcanoConfig().tiers
    assert found.volcano.unread == ("advisor.volcano.actions of gpucost's settings are assumed",)
    only_plugins = AdvisingSettings.model_validate({"volcano": {"plugins": ("gang", "capacity")}})
    volcano = only_plugins.assumed(SchedulerConfigs()).volcano
    assert (volcano.actions, volcano.tiers) == (VOLCANO_ACTIONS, (("gang", "capacity"),))


# What is refused

WRONG = {
    "no quantity": (
        f"advisor: {{pools: [{POOL.replace('95500m', 'many')}}}]}}",
        "advisor.pools[0].allocatable.cpu",
        "'many'",
        "quantity",
    ),
    "a negative quantity": (
        f"advisor: {{pools: [{POOL.replace(': 8', ': -8')}}}]}}",
        "advisor.pools[0].allocatable.nvidia.com/gpu",
        "'-8'",
        "not negative",
    ),
    "true for a quantity": (
        f"advisor: {{pools: [{POOL.replace(': 8', ': true')}}}]}}",
        "advisor.pools[0].allocatable.nvidia.com/gpu",
        "True",
        "",
    ),
    "nothing on a node": (
        "advisor: {pools: [{name: a, allocatable: {}, most: 1}]}",
        "advisor.pools[0].allocatable",
        "nothing",
        "quantities by resource",
    ),
    "no taint": (
        f"advisor: {{pools: [{POOL}, taints: [gpu]}}]}}",
        "advisor.pools[0].taints",
        "'gpu'",
        "key=value:effect",
    ),
    "an unknown effect": (
        f"advisor: {{pools: [{POOL}, taints: ['gpu:NoWay']}}]}}",
        "advisor.pools[0].taints",
        "'gpu:NoWay'",
        "NoSchedule",
    ),
    "no node at all": (
        f"advisor: {{pools: [{POOL.replace('most: 4', 'most: 0')}}}]}}",
        "advisor.pools[0].most",
        "0",
        "1 to 100,000",
    ),
    "no size": (
        "advisor: {pools: [{name: a, allocatable: {cpu: 1}}]}",
        "advisor.pools[0].most",
        "missing",
        "Most nodes",
    ),
    "a delay without a unit": (
        f"advisor: {{pools: [{POOL}, ready_after: 10}}]}}",
        "advisor.pools[0].ready_after",
        "10",
        "a whole number and a unit",
    ),
    "a delay of a week": (
        f"advisor: {{pools: [{POOL}, ready_after: 1w}}]}}",
        "advisor.pools[0].ready_after",
        "1w",
        "1s to 1d",
    ),
    "two pools of one name": (
        f"advisor: {{pools: [{POOL}}}, {POOL}}}]}}",
        "advisor.pools",
        "['h100', 'h100']",
        "all different",
    ),
    "too far ahead": ("advisor: {horizon: 91d}", "advisor.horizon", "91d", "1h to 90d"),
    "too few samples": ("advisor: {samples: 1}", "advisor.samples", "1", "10 to 1,000"),
    "a typo": ("advisor: {kueue: {confg: a/b}}", "advisor.kueue.confg", "unknown key", "config"),
    "a name without a namespace": (
        "advisor: {kueue: {config: kueue-manager-config}}",
        "advisor.kueue.config",
        "'kueue-manager-config'",
        "a namespace and a name",
    ),
    "a path for a name": (
        "advisor: {volcano: {scheduler: 'a/b?x'}}",
        "advisor.volcano.scheduler",
        "'a/b?x'",
        "a namespace and a name",
    ),
    "strategies the other way round": (
        f"advisor: {{kueue: {{strategies: [{', '.join(reversed(STRATEGIES))}]}}}}",
        "advisor.kueue.strategies",
        "LessThanInitialShare",
        "in this order",
    ),
    "a webhook without a token": ("webhook: {enabled: true}", "webhook.token", "missing", "token_file"),
    "a token that ends a path": (
        f"webhook: {{token: '{TOKEN}/x'}}",
        "webhook.token",
        "not fit for a path",
        "16 to 128",
    ),
    "a short token": ("webhook: {token: hunter2}", "webhook.token", "not fit for a path", "16 to 128"),
    **{
        f"a token with {what}": (
            f"webhook: {{token: '{token}'}}",
            "webhook.token",
            "not fit for a path",
            "a-z",
        )
        for what, token in {
            "capitals": "Hunter2-hunter2-hunter2",
            "an underscore": "hunter2_hunter2_hunter2",
            "a tilde": "hunter2~hunter2~hunter2",
            "a dash first": "-hunter2-hunter2-hunter2",
            "a dash before a dot": "hunter2-hunter2-.hunter2",
            "two dots": "hunter2-hunter2..hunter2",
        }.items()
    },
    "three tokens": (
        f'webhook: {{token: "{TOKEN}\\n{TOKEN}-2\\n{TOKEN}-3"}}',
        "webhook.token",
        "not fit for a path",
        "or two of these",
    ),
    "a list for a token": ("webhook: {token: [hunter2]}", "webhook.token", "not shown", ""),
    "a webhook in the open without TLS": (
        f"webhook: {{enabled: true, host: 0.0.0.0, token: {TOKEN}}}",
        "webhook.tls_cert_file",
        "missing",
        "loopback",
    ),
    "no time at all": ("webhook: {deadline_ms: 1}", "webhook.deadline_ms", "1", "10 to 10,000"),
    "nothing in flight": ("webhook: {in_flight: 0}", "webhook.in_flight", "0", "1 to 1,024"),
}


@pytest.mark.fault(67)
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named_with_its_field(case: str, tmp_path: Path) -> None:
    text, key, value, allowed = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert caught.value.field == key
    assert value in str(caught.value)
    assert allowed in caught.value.allowed
    assert "hunter2" not in str(caught.value)


# The webhook


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    file = tmp_path / "tls.crt"
    file.write_text("x", encoding="ascii")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"webhook: {{tls_cert_file: {file}}}")
    assert caught.value.field == "webhook.tls_key_file"
    both = f"tls_cert_file: {file}, tls_key_file: {file}"
    found = load(tmp_path, f"webhook: {{enabled: true, host: 0.0.0.0, token: {TOKEN}, {both}}}").webhook
    assert found.tls_cert_file == file
    assert (found.port, found.deadline_ms) == (8443, 150)


def test_the_token_may_stand_in_a_file_and_is_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n", encoding="ascii")
    settings = load(tmp_path, f"webhook: {{enabled: true, token_file: {file}}}")
    assert settings.webhook.secret_token() == TOKEN
    file.write_text(f"{TOKEN}\n{TOKEN}.next\n", encoding="ascii")
    both = load(tmp_path, f"webhook: {{enabled: true, token_file: {file}}}").webhook.secret_token()
    assert both == f"{TOKEN}\n{TOKEN}.next"
    inline = load(tmp_path, f"webhook: {{token: {TOKEN}}}")
    assert inline.webhook.secret_token() == TOKEN
    assert "hunter2" not in repr(inline)
    with pytest.raises(ConfigError, match="not both"):
        load(tmp_path, f"webhook: {{token: {TOKEN}, token_file: {file}}}")


def test_a_webhook_that_is_off_needs_nothing() -> None:
    assert WebhookSettings().secret_token() is None


MANAGED = f"""
webhook:
  enabled: true
  host: 0.0.0.0
  token: {TOKEN}
  certificates: {{mode: managed, dns_names: [gpucost-webhook.gpucost.svc]}}
"""


def test_a_managed_certificate_is_tls_beyond_loopback(tmp_path: Path) -> None:
    found = load(tmp_path, MANAGED).webhook.certificates
    assert (found.secret_name, found.webhook_configuration, found.namespace) == (
        "gpucost-webhook-tls",
        "gpucost",
        None,
    )
    assert (found.lifetime, found.renew_before) == (timedelta(days=90), timedelta(days=30))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("mode: managed", "dns_names"),
        ("mode: managed, dns_names: [Gpu Cost]", "dns_names"),
        ("mode: managed, dns_names: [a.svc, a.svc]", "dns_names"),
        ("mode: by-hand", "mode"),
        ("secret_name: ../other", "secret_name"),
        ("webhook_configuration: ''", "webhook_configuration"),
        ("lifetime: 59m", "lifetime"),
        ("renew_before: 90d", "renew_before"),
        ("renew_before: 9m", "renew_before"),
    ],
)
def test_certificates_that_cannot_be_kept_are_refused(tmp_path: Path, change: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, f"webhook: {{certificates: {{{change}}}}}")
    assert f"webhook.certificates.{says}" in str(raised.value)


def test_files_and_a_managed_certificate_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "tls.crt"
    file.write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"webhook\.tls_cert_file"):
        load(tmp_path, f"{MANAGED}  tls_cert_file: {file}\n  tls_key_file: {file}\n")
