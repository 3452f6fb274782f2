"""Settings of the detectors: when they run, what they need to find, where other rules hold."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from typing import Any, Literal, Self

from pydantic import ValidationError, model_validator

from gpucost.detectors.engine.lifecycle import FindingExemption
from gpucost.detectors.findings import WastePattern
from gpucost.detectors.rule_settings import (
    LATELY_MS,
    CpuOnlyPodsSettings,
    DetectorSettings,
    FragmentationSettings,
    GangStallSettings,
    IdleAllocationSettings,
    MonopolySettings,
    NotAdvertisedSettings,
    NvlinkDomainSettings,
    OversizedRequestSettings,
    PreemptionWasteSettings,
    QuotaStarvationSettings,
    ReservedUnusedSettings,
    RuleSettings,
    ScopedSettings,
    SettingsOverride,
    TopologySpreadSettings,
    UnhealthyAllocatedSettings,
    overridden,
)
from gpucost.domain.configfile import Instant, config_error, wrong
from gpucost.domain.errors import ErrorRemark
from gpucost.settings.types import Duration, ExistingFile, SettingsGroup

_FIVE_MINUTES = timedelta(minutes=5)
_NODE_SCOPED = (
    *(WastePattern.NOT_ADVERTISED, WastePattern.UNHEALTHY_ALLOCATED, WastePattern.CPU_ONLY_PODS),
    WastePattern.NVLINK_DOMAIN,
)


_BEGINNINGS = ("start_grace", "longest_start")
_STEPS = timedelta(minutes=15)
# Conditions that must last for so long before rules claim the time.
_MIN_DURATION_KEYS: dict[WastePattern, tuple[str, ...]] = {
    WastePattern.IDLE_ALLOCATION: (
        *("batch_from_start", "batch", "interactive", "serving", "unknown", "partly"),
        *_BEGINNINGS,
    ),
    WastePattern.FRAGMENTATION: ("after",),
    WastePattern.QUOTA_STARVATION: ("after",),
    WastePattern.NVLINK_DOMAIN: ("after",),
    WastePattern.GANG_STALL: ("after",),
    WastePattern.OVERSIZED_REQUEST: ("unused_for",),
}


class OverrideSettings(SettingsGroup):
    """Other settings of one detector for some namespaces or queues. The first entry that applies counts."""

    detector: WastePattern
    """Name of the detector, such as ``idle_allocation``."""

    namespaces: tuple[str, ...] = ()
    """Shell patterns, such as ``research-*``. Empty: every namespace."""

    queues: tuple[str, ...] = ()
    """Shell patterns of ClusterQueues or Volcano queues. Empty: every queue."""

    settings: dict[str, Any]
    """The settings of the detector that are different there, under their own names."""


class ExemptionSettings(SettingsGroup):
    """Findings that are kept, but raise no alert and are posted nowhere, until a day."""

    until: Instant
    """A day (its midnight UTC) or an instant. Every exemption ends: write a new one if it is still needed."""

    reason: str
    """Why, for whoever reads this later."""

    detectors: tuple[WastePattern, ...] = ()
    """Names of detectors. Empty: all of them."""

    namespaces: tuple[str, ...] = ()
    """Shell patterns of namespaces. Empty: any."""

    queues: tuple[str, ...] = ()
    """Shell patterns of queues. Empty: any."""

    teams: tuple[str, ...] = ()
    """Shell patterns of teams. Empty: any."""

    users: tuple[str, ...] = ()
    """Shell patterns of users. Empty: any."""

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if not (self.detectors or self.namespaces or self.queues or self.teams or self.users):
            raise wrong(
                ErrorRemark("nothing is named"), "at least one of detectors, namespaces, queues, teams, users"
            )
        return self


class DetectorsSettings(SettingsGroup):
    """When detectors look, and with how much history. Each detector has a group of its own below this one."""

    enabled: bool = True
    """Whether ``gpucost serve`` looks for anti-patterns and keeps the waste ledger."""

    interval: Duration = _FIVE_MINUTES
    """Pause between two evaluations of live findings. As long as a step of activity: looking more often sees
    nothing new.
    """

    history: Duration = timedelta(days=1)
    """How much history live findings are found in, at least a day: several rules count over 24 hours. Longer
    by itself where something must be idle for longer to be found.
    """

    quota_history: Duration = timedelta(days=28)
    """How much history of quotas is looked at, once an hour, for quota that lies fallow. Four weeks hold what
    is used at month end only; never longer than what the source holds.
    """

    past: Duration = timedelta(days=14)
    """How much of the ledger before that is looked at, hour by hour, for how long servers idle before they
    work again. One of which nothing counts the requests is found only where enough is known of others.
    """

    after: Duration = timedelta(hours=5)
    """How much after it: then its assessment is final. Longer than what rules need by default to be sure that
    something is idle (four hours for serving, and its start), and longer by itself where they need more.
    """

    state: Literal["none", "in-cluster", "kubeconfig", "dump"] = "none"
    """Whether the service watches the cluster's objects itself: ``in-cluster`` by its service account, or by
    ``kubeconfig``. Rules that need the state of now (CPU-only pods, topology, shapes with CPU and memory) say
    that they lack it when nobody watches. With ``dump`` the advisor, and commands that name no cluster,
    answer from a file: it is of when it was taken, so rules do not use it.
    """

    kubeconfig: ExistingFile | None = None
    """Kubeconfig file with ``state: kubeconfig``; else the usual one."""

    context: str = ""
    """Context in it; its current one when empty."""

    dump: ExistingFile | None = None
    """The file with ``state: dump``, as ``gpucost state dump`` writes it, to try things without a cluster.
    Read once.
    """

    cluster: str = ""
    """Name of the watched cluster in the source. ``prometheus.cluster`` when empty."""

    idle_allocation: IdleAllocationSettings = IdleAllocationSettings()
    oversized_request: OversizedRequestSettings = OversizedRequestSettings()
    fragmentation: FragmentationSettings = FragmentationSettings()
    gang_stall: GangStallSettings = GangStallSettings()
    monopoly: MonopolySettings = MonopolySettings()
    quota_starvation: QuotaStarvationSettings = QuotaStarvationSettings()
    not_advertised: NotAdvertisedSettings = NotAdvertisedSettings()
    reserved_unused: ReservedUnusedSettings = ReservedUnusedSettings()
    preemption_waste: PreemptionWasteSettings = PreemptionWasteSettings()
    cpu_only_pods: CpuOnlyPodsSettings = CpuOnlyPodsSettings()
    topology_spread: TopologySpreadSettings = TopologySpreadSettings()
    unhealthy_allocated: UnhealthyAllocatedSettings = UnhealthyAllocatedSettings()
    nvlink_domain: NvlinkDomainSettings = NvlinkDomainSettings()

    overrides: tuple[OverrideSettings, ...] = ()
    """Where other settings of a detector hold."""

    exemptions: tuple[ExemptionSettings, ...] = ()
    """What is known and agreed for a time. A workload exempts itself with the label
    ``gpucost.io/exempt-until: 2026-12-31``.
    """

    @model_validator(mode="after")
    def _fit(self) -> Self:
        for name, least in (
            ("interval", timedelta(seconds=10)),
            ("history", timedelta(days=1)),
            ("past", timedelta(days=1)),
        ):
            if getattr(self, name) < least:
                raise wrong(str(getattr(self, name)), f"at least {least}", name)
        if self.interval > timedelta(minutes=30):
            raise wrong(
                str(self.interval), "at most 30m: what comes and goes in between is not seen", "interval"
            )
        if self.state != "kubeconfig" and (self.kubeconfig or self.context):
            raise wrong(self.state, "kubeconfig where a kubeconfig or context is given", "state")
        if (self.state == "dump") != (self.dump is not None):
            found = ErrorRemark("missing") if self.dump is None else str(self.dump)
            raise wrong(found, "a file when state is dump, and nothing otherwise", "dump")
        for n, override in enumerate(self.overrides):
            self._override(n, override)
        return self

    @cached_property
    def longest(self) -> timedelta:
        """The longest that anything must last to be found, overrides included, with what it begins with."""
        lengths = [timedelta(0)]
        for pattern, names in _MIN_DURATION_KEYS.items():
            scoped = self.rules.of(pattern)
            for each in (scoped.default, *(override.settings for override in scoped.overrides)):
                values = {name: getattr(each, name) for name in names}
                begins = [values[name] for name in _BEGINNINGS if name in values]
                lengths.append(max(values.values()) + max(begins, default=timedelta(0)))
        return max(lengths) + _STEPS

    @property
    def looks_back(self) -> timedelta:
        """``history``, or longer where a rule needs it."""
        return max(self.history, self.longest)

    @property
    def looks_before(self) -> timedelta:
        """How much before a day is read for the waste ledger: always the same, so that a final assessment
        depends on nothing else. A day; longer only where something must last longer than half a day to be
        found.
        """
        lately = timedelta(milliseconds=LATELY_MS)
        return lately * (1 + -(-self.longest // lately))

    @property
    def looks_after(self) -> timedelta:
        """``after``, or longer where a rule needs it: a final assessment must not change when more data
        comes."""
        return max(self.after, self.longest)

    @cached_property
    def rules(self) -> RuleSettings:
        """The settings of every rule, with their overrides."""
        return RuleSettings({pattern: self._scoped(pattern) for pattern in WastePattern})

    @property
    def exempt(self) -> tuple[FindingExemption, ...]:
        return tuple(
            FindingExemption(
                each.until, each.reason, each.detectors, each.namespaces, each.queues, each.teams, each.users
            )
            for each in self.exemptions
        )

    def _scoped(self, pattern: WastePattern) -> ScopedSettings[DetectorSettings]:
        mine = [(n, each) for n, each in enumerate(self.overrides) if each.detector is pattern]
        return ScopedSettings(
            self.of(pattern),
            tuple(
                SettingsOverride(each.namespaces, each.queues, self._override(n, each)) for n, each in mine
            ),
        )

    def of(self, pattern: WastePattern) -> DetectorSettings:
        """The settings of a rule where no override applies."""
        found = getattr(self, pattern.value)
        assert isinstance(found, DetectorSettings)
        return found

    def _override(self, n: int, override: OverrideSettings) -> DetectorSettings:
        if override.detector in _NODE_SCOPED:
            allowed = "a detector of jobs, queues or teams: nodes have no namespace and no queue"
            raise wrong(override.detector.value, allowed, "overrides", n, "detector")
        base, place = self.of(override.detector), ("overrides", n, "settings")
        for key in DetectorSettings.model_fields:
            if key in override.settings:
                found = ErrorRemark("it cannot differ by namespace or queue")
                raise wrong(found, f"{key} in the group {override.detector}", *place, key)
        try:
            return overridden(base, override.settings)
        except ValidationError as error:
            first = config_error(error, "", type(base))
            raise wrong(first.value, first.allowed, *place, first.field) from None
