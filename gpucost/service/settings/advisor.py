"""Settings of the advisor and of its admission webhook: horizon and limits, node pools, schedulers."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from gpucost.advisor.model.settings import AdvisorSettings, AutoscaledPool
from gpucost.cluster.objects.scheduler_config import (
    FINAL_SHARE,
    INITIAL_SHARE,
    NAMES,
    STRATEGIES,
    SchedulerConfigs,
    SchedulerNames,
    checked_name,
)
from gpucost.domain.configfile import Text, checked, wrong
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.service.settings.api import is_loopback
from gpucost.settings.secret_files import ALLOWED, read_small, tokens_of
from gpucost.settings.types import Duration, ExistingFile, SettingsGroup, between, secret

_ORDERS = (STRATEGIES, (FINAL_SHARE,), (INITIAL_SHARE,))


def _quantity(value: object) -> object:
    """A number is a quantity too, as in a manifest."""
    is_number = isinstance(value, (int, Decimal)) and not isinstance(value, bool)
    return str(value) if is_number else value


Quantity = Annotated[str, BeforeValidator(_quantity)]
ObjectName = Annotated[str, checked(checked_name)]


class PoolSettings(SettingsGroup):
    """Nodes of one kind that an autoscaler adds when pods wait for them. Jobs that fit there run later."""

    name: Text
    """Name of the pool, in answers."""

    labels: dict[str, str] = Field(default_factory=dict)
    """Labels that all its nodes carry. What differs between them, such as a rack, does not belong here. Nodes
    with all of these labels count as the pool's; without any, those of a pool of its name.
    """

    allocatable: dict[str, Quantity]
    """What one node has for pods, as Kubernetes quantities: ``{cpu: 95500m, memory: 900Gi, nvidia.com/gpu:
    8}``.
    """

    taints: tuple[str, ...] = ()
    """Taints of its nodes: ``key=value:effect`` or ``key:effect``."""

    most: Annotated[int, Field(ge=1, le=100_000)]
    """Most nodes it may have, those that are there included: 1 to 100,000."""

    ready_after: Annotated[
        Duration, between(timedelta(seconds=1), timedelta(days=1), "a duration from 1s to 1d")
    ] = timedelta(minutes=10)
    """From the moment pods wait to a node that runs them, from a second to a day. Ten minutes are usual for a
    GPU machine and its driver; look at what yours take.
    """

    @model_validator(mode="after")
    def _makes_nodes(self) -> Self:
        if not self.allocatable:
            raise wrong(
                ErrorRemark("nothing"), "quantities by resource, such as nvidia.com/gpu: 8", "allocatable"
            )
        from gpucost.advisor.placement.node_pools import new_nodes

        try:
            new_nodes(self.pool(), 1)
        except InputError as error:
            key = error.field.removeprefix(f"pools.{self.name}.").partition(".")
            raise wrong(error.value, error.allowed, *filter(None, key[::2])) from None
        return self

    def pool(self) -> AutoscaledPool:
        minutes = self.ready_after / timedelta(minutes=1)
        return AutoscaledPool(self.name, self.labels, self.allocatable, self.most, minutes, self.taints)


class KueueSettings(SettingsGroup):
    """Where Kueue's configuration stands, and what holds where the advisor may not read it."""

    config: ObjectName = NAMES.kueue_config
    """ConfigMap with Kueue's Configuration, as ``namespace/name``. Kueue's own name by default; Helm puts a
    release before it.
    """

    manager: ObjectName = NAMES.kueue_manager
    """Deployment of Kueue's manager, as ``namespace/name``: its image says the version, its arguments may
    hold feature gates.
    """

    version: str = ""
    """Version to assume where the Deployment does not say it, such as ``v0.19.2``. Empty: not known."""

    fair_sharing: bool = False
    """Whether fair sharing is on, where the Configuration cannot be read. Off, as Kueue's own default."""

    strategies: tuple[str, ...] = STRATEGIES
    """Its preemption strategies there, in Kueue's order: one of the two, or both."""

    @model_validator(mode="after")
    def _as_kueue_allows(self) -> Self:
        if self.strategies not in _ORDERS:
            allowed = f"{FINAL_SHARE}, {INITIAL_SHARE}, or both in this order"
            raise wrong(list(self.strategies), allowed, "strategies")
        return self


class VolcanoSettings(SettingsGroup):
    """Where Volcano's configuration stands, and what holds where the advisor may not read it."""

    config: ObjectName = NAMES.volcano_config
    """ConfigMap with ``volcano-scheduler.conf``, as ``namespace/name``. That of a release named volcano by
    default.
    """

    scheduler: ObjectName = NAMES.volcano_scheduler
    """Deployment of Volcano's scheduler, as ``namespace/name``: its image says the version."""

    version: str = ""
    """Version to assume where the Deployment does not say it, such as ``v1.15.1``. Empty: not known."""

    actions: tuple[str, ...] = ()
    """Actions in order, such as ``enqueue, allocate, preempt, backfill``, where the configuration cannot be
    read. Empty: those of Volcano's chart, which has neither preempt nor reclaim.
    """

    plugins: tuple[str, ...] = ()
    """Plugins in order, where the configuration cannot be read. Empty: those of Volcano's chart."""


class AdvisingSettings(SettingsGroup):
    """How far the advisor looks. Each scheduler has a group of its own."""

    horizon: Annotated[
        Duration, between(timedelta(hours=1), timedelta(days=90), "a duration from 1h to 90d")
    ] = timedelta(days=7)
    """How far ahead the wait is simulated, from an hour to 90 days. Beyond a week past run times say little;
    whoever waits longer is told so.
    """

    samples: Annotated[int, Field(ge=10, le=1_000)] = 40
    """How often the queue is simulated for one answer, 10 to 1,000. Of 40 the ninth decile is between the
    fourth and fifth longest; more take longer in proportion.
    """

    most_suggestions: Annotated[int, Field(ge=0, le=20)] = 5
    """Most suggestions in one answer, 0 to 20, best first. Each one is an advice of its own."""

    budget: Annotated[
        Duration, between(timedelta(milliseconds=100), timedelta(minutes=1), "a duration from 100ms to 1m")
    ] = timedelta(seconds=5)
    """For the wait and the suggestions of one answer of the API, from 100ms to a minute. What is there by
    then is the answer, which says so: a wait from fewer simulations, fewer suggestions.
    """

    pools: tuple[PoolSettings, ...] = ()
    """Pools of nodes that an autoscaler adds to. None: what fits on no node that is there has to wait."""

    kueue: KueueSettings = KueueSettings()
    volcano: VolcanoSettings = VolcanoSettings()

    @model_validator(mode="after")
    def _one_pool_of_a_name(self) -> Self:
        names = [each.name for each in self.pools]
        if len(set(names)) < len(names):
            raise wrong(names, "names that are all different", "pools")
        return self

    def advisor(self) -> AdvisorSettings:
        """The settings that the advisor itself uses."""
        hours = self.horizon / timedelta(hours=1)
        pools = tuple(each.pool() for each in self.pools)
        return AdvisorSettings(
            hours, self.samples, self.most_suggestions, pools, self.budget / timedelta(seconds=1)
        )

    @property
    def names(self) -> SchedulerNames:
        """Where the configurations of the schedulers are."""
        return SchedulerNames(
            self.kueue.config, self.kueue.manager, self.volcano.config, self.volcano.scheduler
        )

    def assumed(self, found: SchedulerConfigs) -> SchedulerConfigs:
        """What was read; where something could not be read, what is set here, marked as assumed."""
        kueue, volcano = found.kueue, found.volcano
        kueue = replace(kueue, version=kueue.version or self.kueue.version)
        volcano = replace(volcano, version=volcano.version or self.volcano.version)
        if not kueue.is_read:
            kueue = replace(
                kueue,
                fair_sharing=self.kueue.fair_sharing,
                strategies=self.kueue.strategies,
                unread=(*kueue.unread, *_assumed(self.kueue, "advisor.kueue", "fair_sharing", "strategies")),
            )
        if not volcano.is_read:
            volcano = replace(
                volcano,
                actions=self.volcano.actions or volcano.actions,
                tiers=(self.volcano.plugins,) if self.volcano.plugins else volcano.tiers,
                unread=(*volcano.unread, *_assumed(self.volcano, "advisor.volcano", "actions", "plugins")),
            )
        return SchedulerConfigs(kueue, volcano)


def _assumed(group: SettingsGroup, name: str, *keys: str) -> tuple[str, ...]:
    given = [f"{name}.{key}" for key in keys if key in group.model_fields_set]
    return (f"{', '.join(given)} of gpucost's settings are assumed",) if given else ()


_MANY_NAMES = 8
_DNS_NAME = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*"
)


def _dns_name(text: str) -> str:
    """A name as objects of Kubernetes and hosts have it. Raises InputError."""
    if not _DNS_NAME.fullmatch(text):
        raise InputError("name", text, "a-z, 0-9, dashes and dots, such as gpucost-webhook")
    return text


DnsName = Annotated[str, checked(_dns_name)]


class CertificateSettings(SettingsGroup):
    """Where the webhook's certificate is from: files that others renew, or gpucost makes and renews it."""

    mode: Literal["files", "managed"] = "files"
    """``files``: ``tls_cert_file`` and ``tls_key_file``, renewed by cert-manager or by hand. ``managed``:
    gpucost makes an authority and a certificate, keeps them in a Secret, writes the authority into the
    webhook's configuration, and renews both; nothing has to be restarted.
    """

    secret_name: DnsName = "gpucost-webhook-tls"
    """Secret that holds certificate and key. Replicas of the service share it."""

    namespace: DnsName | None = None
    """Namespace of that Secret. When it is not set, the pod's own, as the folder of its service account says.
    """

    webhook_configuration: DnsName = "gpucost"
    """ValidatingWebhookConfiguration whose webhooks all get the authority as ``caBundle``."""

    dns_names: tuple[DnsName, ...] = ()
    """Names that the certificate is for, 1 to 8: that of the webhook's Service, ``NAME.NAMESPACE.svc``, which
    is the one that the API server asks for. Needed when managed.
    """

    lifetime: Annotated[
        Duration, between(timedelta(hours=1), timedelta(days=397), "a duration from 1h to 397d")
    ] = timedelta(days=90)
    """How long a certificate holds, from an hour to 397 days. Ninety days are usual for certificates that
    renew themselves.
    """

    renew_before: Duration = timedelta(days=30)
    """A new one is made when less than this is left; shorter than ``lifetime``. A third of it by default, so
    that a month of failures costs nothing.
    """

    @model_validator(mode="after")
    def _can_be_kept(self) -> Self:
        if not timedelta(minutes=10) <= self.renew_before < self.lifetime:
            allowed = f"a duration from 10m to less than the lifetime, {self.lifetime}"
            raise wrong(str(self.renew_before), allowed, "renew_before")
        least = 1 if self.is_managed else 0
        if not least <= len(set(self.dns_names)) == len(self.dns_names) <= _MANY_NAMES:
            found = list(self.dns_names) or ErrorRemark("missing")
            allowed = f"{least} to {_MANY_NAMES} different names, such as gpucost-webhook.gpucost.svc"
            raise wrong(found, allowed, "dns_names")
        return self

    @property
    def is_managed(self) -> bool:
        return self.mode == "managed"


class WebhookSettings(SettingsGroup):
    """The admission webhook: advice as warnings for whoever submits. It allows everything, and changes
    nothing."""

    enabled: bool = False
    """Whether ``gpucost serve`` answers admission reviews, of the cluster it watches: ``detectors.state``."""

    host: str = "127.0.0.1"
    """Address to listen on. Loopback by default; the API server needs another one, and TLS with it."""

    port: Annotated[int, Field(ge=0, le=65535)] = 8443
    """TCP port, 0 to 65535; 0 takes a free one."""

    tls_cert_file: ExistingFile | None = None
    """PEM file of the certificate chain that the API server gets, for the name of the webhook's Service. Read
    again when it changes. Needed beyond loopback.
    """

    tls_key_file: ExistingFile | None = None
    """PEM file of its private key, without a password."""

    client_ca_file: ExistingFile | None = None
    """PEM file of the authorities of which the API server must have a certificate. Handshakes without one
    fail then; the token is needed all the same. Not set: none is asked for.
    """

    certificates: CertificateSettings = CertificateSettings()

    token: SecretStr | None = None
    """Secret end of the webhook's path, ``/v1/admission/TOKEN``: 16 to 128 of a-z, 0-9, dashes and dots, with
    a letter or digit at both ends and beside each dot, as API servers demand. Who knows it may ask; needed
    when the webhook is enabled. Two of them, a line each, are both taken.
    """

    token_file: ExistingFile | None = None
    """File whose content is the token, for mounted secrets; a second line is a token that is taken too, so
    that one can take the place of the other. Read again when it changes: from then on only what it holds is
    known.
    """

    deadline_ms: Annotated[int, Field(ge=10, le=10_000)] = 150
    """Milliseconds until an answer, 10 to 10,000: a review whose advice is not ready by then gets none. 150
    leave the API server's call below the 200 that a person does not notice.
    """

    in_flight: Annotated[int, Field(ge=1, le=1_024)] = 32
    """Most reviews that are worked on or wait, 1 to 1,024. One more is allowed at once, without advice. Four
    times of what 50 a second need within the deadline.
    """

    @model_validator(mode="after")
    def _is_safe(self) -> Self:
        token = self.secret_token()
        if token is not None and not tokens_of(token):
            raise wrong(ErrorRemark("not fit for a path"), ALLOWED, "token")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            key = "tls_cert_file" if self.tls_cert_file is None else "tls_key_file"
            raise wrong(ErrorRemark("missing"), "tls_cert_file and tls_key_file together", key)
        if self.certificates.is_managed and self.tls_cert_file is not None:
            raise wrong(str(self.tls_cert_file), "none where certificates.mode is managed", "tls_cert_file")
        has_tls = self.tls_cert_file is not None or self.certificates.is_managed
        if self.client_ca_file is not None and not has_tls:
            allowed = "none without TLS: tls_cert_file and tls_key_file, or certificates.mode: managed"
            raise wrong(str(self.client_ca_file), allowed, "client_ca_file")
        if not self.enabled:
            return self
        if token is None:
            raise wrong(
                ErrorRemark("missing"), "a token, or token_file, where the webhook is enabled", "token"
            )
        if not has_tls and not is_loopback(self.host):
            allowed = (
                f"tls_cert_file and tls_key_file, or certificates.mode: managed, with {self.host}; none on a "
                "loopback host only"
            )
            raise wrong(ErrorRemark("missing"), allowed, "tls_cert_file")
        return self

    def secret_token(self) -> str | None:
        """The token itself, or two of them, a line each."""
        if self.token is None and self.token_file is not None:
            return read_small(self.token_file).decode().strip()
        return secret(self.token, self.token_file, "token")
