"""Whatever labels kube-state-metrics is configured to show, the doctor says what a report then has.

The recorded servers are asked through a client that shows labels of nodes and pods as OpenCost gave them,
which are all, as if kube-state-metrics had been configured to show some: each subset is a row of the table.
What a report has is counted line by line, and against the script of the recording.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, combinations
from typing import Any

import pytest

from gpucost.attribution.attribute import attribute
from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.teams import TeamRules
from gpucost.attribution.usage_lines import Attribution
from gpucost.contract import kube_state as ksm
from gpucost.contract.probe import SeriesPresence
from gpucost.domain.gpu import ResourceCatalog
from gpucost.domain.time import DAY_MS, Month, Window
from gpucost.reports.doctor.diagnose import diagnose
from gpucost.reports.doctor.model import DoctorFeature, FeatureFinding, FeatureVerdict
from gpucost.service.wiring.source_checks import read_trial
from gpucost.telemetry.doctor.cluster_probe import probe
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader
from gpucost.telemetry.prometheus.promql import PromQL
from gpucost.telemetry.prometheus.query_response import QueryResponse
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.upstream.kube_reader import UpstreamSettings
from gpucost.telemetry.upstream.opencost_series import read_billed, read_prices
from gpucost.telemetry.upstream.upstream_source import UpstreamSource
from tests.support.existing.totals import book
from tests.support.prometheus import needs_prometheus
from tests.support.recorded import SERVERS, recorded_json, recorded_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus]

NOW = 1_795_385_220_000
NOVEMBER = Month(2026, 11)
WHOLE = SeriesPresence(NOVEMBER.window.start_ms, NOW, 1)
COSTLY = (
    *("nvidia.com/gpu.product", "nvidia.com/gpu.count", "nvidia.com/gpu.replicas"),
    *("nvidia.com/mig-1g.10gb.count", "nvidia.com/mig-1g.10gb.replicas"),
)
PLACES = ("node.kubernetes.io/instance-type", "topology.kubernetes.io/region", "topology.kubernetes.io/zone")
LABELLED = (ksm.NODE_LABELS, ksm.POD_LABELS)


class LabelledClient(PrometheusClient):
    """Shows ``shown`` of the labels that objects had, and no other, as kube-state-metrics' own. Raw samples
    are asked for by ``query`` too. Each question is put to the server once: what is shown of an answer is
    another matter."""

    shown: frozenset[str] = frozenset()

    @cached_property
    def _answers(self) -> dict[str, tuple[int, bytes]]:
        return {}

    def _send(self, path: str, form: Mapping[str, Any] | None) -> tuple[int, bytes]:
        key = f"{path} {form}"
        if key not in self._answers:
            self._answers[key] = super()._send(path, form)
        return self._answers[key]

    def query(self, expression: PromQL, at_ms: int) -> QueryResponse:
        return self._relabelled(super().query(self._widened(expression), at_ms))

    def label_names(self, selector: PromQL, start_ms: int, end_ms: int) -> QueryResponse:
        found = super().label_names(self._widened(selector), start_ms, end_ms)
        kept = [each for each in found.result if self._shows(each["label"])]
        return replace(found, result=kept)

    def _widened(self, expression: PromQL) -> PromQL:
        """Labels from OpenCost; of a selector of several names, which has others too, from either."""
        found = str(expression)
        for name in LABELLED:
            found = re.sub(rf'({name}\{{[^}}]*job=~)"[^"]*"', r'\1"opencost"', found)
            found = re.sub(
                rf'(__name__=~"[^"]*{name}[^}}]*job=~)"[^"]*"', r'\1"kube-state-metrics|opencost"', found
            )
        return PromQL(found)

    def _relabelled(self, found: QueryResponse) -> QueryResponse:
        kept = []
        for series in found.result:
            labels = series["metric"]
            is_labelled = labels.get("__name__") in LABELLED
            if "job" in labels and labels.get("__name__", "").startswith("kube_"):
                if is_labelled is not (labels["job"] == "opencost"):
                    continue
                labels = {**labels, "job": "kube-state-metrics"}
            kept.append({**series, "metric": {k: v for k, v in labels.items() if self._shows(k)}})
        return replace(found, result=kept)

    def _shows(self, label: str) -> bool:
        return not label.startswith("label_") or label in self.shown


@dataclass(frozen=True)
class LabelCase:
    labels: tuple[str, ...]
    has_dcgm: bool

    @property
    def name(self) -> str:
        shown = ",".join(each.rpartition("/")[2] for each in self.labels)
        return f"{shown or 'none'}{'' if self.has_dcgm else ' without dcgm-exporter'}"

    @property
    def settings(self) -> PrometheusSourceSettings:
        jobs = {} if self.has_dcgm else {"DCGM_": ("none",), "dcgm_": ("none",)}
        return PrometheusSourceSettings(jobs=jobs)


@dataclass(frozen=True)
class ReportRead:
    """What a report has of half an hour, counted line by line."""

    frames: ClusterFrames
    attribution: Attribution
    window: Window
    reader: ClusterReader
    history: ClusterFrames

    @cached_property
    def opencost(self) -> tuple[set[str], bool]:
        """The nodes that OpenCost prices, and whether it bills any pod with GPUs."""
        prices = read_prices(self.reader, self.window)
        priced = {node for (_, node), known in prices.items() if known.gpu or known.total}
        nodes, pods = read_billed(self.reader, self.window)
        return priced, any(pod.unit_ms for pod in pods) and bool(nodes)

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.attribution.flat().to_dict("records")
        return found

    @cached_property
    def held(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["bucket"] == "held"]

    def bills_what_was_held(self, *, parts_only: bool) -> bool:
        """By the script: whether each pod has the time of the part of a GPU that it held."""
        billed: dict[str, int] = {}
        for line in self.held:
            billed[line["pod_uid"]] = billed.get(line["pod_uid"], 0) + line["board_ms"]
        for pod in recorded_json("truth.json"):
            if pod["scheduled"] is None or (parts_only and pod["shareOfAGpu"] == 1):
                continue
            end = NOW if pod["ended"] is None else int(pod["ended"] * 1000)
            there = self.window.overlap_ms(int(pod["scheduled"] * 1000), end)
            units = sum(pod["units"].values())
            if not _is_near(billed.get(pod["uid"], 0), there * pod["shareOfAGpu"] * units):
                return False
        return True

    def is_priced(self) -> bool:
        return all(line["rate_id"] for line in self.lines if line["bucket"] != "overcommitted")

    def share(self, said: str) -> tuple[bool, bool]:
        """Of what is held: whether all, and whether any, has it."""
        has = [bool(line[said]) for line in self.held if line["board_ms"]]
        return all(has), any(has)

    def expects(self) -> tuple[bool, bool]:
        """Of nodes: whether of all, and of any, it is known how many units they should have."""
        known: dict[str, bool] = {}
        for row in self.frames.capacity.to_dict("records"):
            is_known = row["expected"] >= 0 or max(row["capacity"], row["allocatable"]) <= 0
            known[row["node"]] = known.get(row["node"], True) and is_known
        return all(known.values()), any(known.values())


def _is_near(found: float, truth: float) -> bool:
    return abs(found - truth) <= max(0.02 * truth, 20_000)


@dataclass(frozen=True)
class Desk:
    """One recorded server, to be asked with any labels."""

    client: LabelledClient
    histories: dict[bool, ClusterFrames] = field(default_factory=dict)

    def history(self, source: UpstreamSource, case: LabelCase, window: Window) -> ClusterFrames:
        """What detectors are shown of it: labels say nothing about what is measured, so it is read once."""
        if case.has_dcgm not in self.histories:
            self.histories[case.has_dcgm] = source.history(source.clusters()[0], window)
        return self.histories[case.has_dcgm]

    def asked(self, case: LabelCase) -> tuple[Mapping[DoctorFeature, FeatureFinding], ReportRead]:
        """The doctor's verdicts, as of a whole month, as when samples begin is another matter; and the half
        hour of a report that it read."""
        self.client.shown = frozenset(map(ksm.label_name, case.labels))
        settings = replace(case.settings, history_ms=DAY_MS)
        source = UpstreamSource(self.client, settings, UpstreamSettings(), now=lambda: NOW)
        read: list[ReportRead] = []

        def attributed(frames: ClusterFrames, window: Window) -> Attribution:
            found = attribute(frames, [window], rates=book().rates, teams=TeamRules.default())
            name, history = str(frames.observed["cluster"].iloc[0]), self.history(source, case, window)
            reader = ClusterReader(self.client, settings, name, window)
            read.append(ReportRead(frames, found, window, reader, history))
            return found

        facts = probe(
            *(self.client, case.settings, ResourceCatalog(), NOVEMBER, NOW, None),
            lambda cluster, _: read_trial(source, cluster, attributed),
        )
        assert facts.unread == ()
        [cluster] = facts.clusters
        whole = dict.fromkeys(cluster.seen or {}, WHOLE)
        diagnosis = diagnose(replace(facts, clusters=(replace(cluster, seen=whole),)))
        [report] = read
        return diagnosis.clusters[0].features, report


@pytest.fixture(scope="module")
def desks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Desk]]:
    with ExitStack() as stack:
        found = {}
        for server in SERVERS:
            url = stack.enter_context(recorded_prometheus(server, tmp_path_factory.mktemp(server)))
            found[server] = Desk(stack.enter_context(LabelledClient(url)))
        yield found


def subsets(labels: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(combinations(labels, size) for size in range(len(labels) + 1))


TABLE = [
    *(LabelCase((*labels, "team"), has_dcgm) for labels in subsets(COSTLY) for has_dcgm in (True, False)),
    *(LabelCase((label,), has_dcgm=True) for label in (*PLACES, "team")),
]
SHORT = [case for case in TABLE if not set(case.labels) & set(COSTLY[3:])]
WORST_FIRST = (FeatureVerdict.NO, FeatureVerdict.UNKNOWN, FeatureVerdict.PART, FeatureVerdict.YES)


def expected(has: ReportRead) -> Mapping[DoctorFeature, tuple[bool, bool]]:
    """By feature, whether a report has all of it, and whether any."""
    use = {
        DoctorFeature.BUSY: "observed_ms",
        DoctorFeature.SM: "sm_observed_ms",
        DoctorFeature.TENSOR: "tensor_observed_ms",
        DoctorFeature.MEMORY: "memory_observed_ms",
        DoctorFeature.ENERGY: "energy_observed_ms",
    }
    lacks, nodes = has.history.lacks, {str(line["node"]) for line in has.held if line["node"]}
    priced, is_billed = has.opencost
    is_whole = has.is_priced() and has.bills_what_was_held(parts_only=False)
    return {
        DoctorFeature.COST: (is_whole, True),
        DoctorFeature.TEAMS: (all(has.share(each)[0] for each in ("team_label", "project", "user")), True),
        DoctorFeature.QUEUES: has.share("queue"),
        DoctorFeature.UNADVERTISED: (has.expects()[0], True),
        DoctorFeature.JOBS: has.share("job"),
        DoctorFeature.IDLE: (False, "activity" not in lacks and len(has.history.activity) > 0),
        DoctorFeature.QUOTAS: (False, "quotas" not in lacks),
        DoctorFeature.BROKEN: ("health" not in lacks, "health" not in lacks),
        DoctorFeature.LIVE: (False, not {"demand", "stalls", "evictions"} & lacks.keys()),
        DoctorFeature.PRICES: (nodes <= priced, bool(nodes & priced)),
        DoctorFeature.COMPARE: (
            is_whole and is_billed and nodes <= priced,
            is_billed and bool(nodes & priced),
        ),
        # No exporter of the recording shows every GPU that is held.
        **{feature: (False, has.share(column)[1]) for feature, column in use.items()},
    }


def differences(case: LabelCase, said: Mapping[DoctorFeature, FeatureFinding], has: ReportRead) -> list[str]:
    """Features of which the doctor says other than what the report has."""
    found = []
    for feature, (is_all, is_any) in expected(has).items():
        verdict = FeatureVerdict.YES if is_all else FeatureVerdict.PART if is_any else FeatureVerdict.NO
        if said[feature].verdict is not verdict:
            found.append(f"{case.name}: {feature.value}: {said[feature]}, and the report {verdict.value}")
    assert {*expected(has), DoctorFeature.SHARING} == {*DoctorFeature}
    sharing = said[DoctorFeature.SHARING]
    promises = sharing.verdict is FeatureVerdict.YES or sharing.why.startswith("costs yes")
    if promises and not has.bills_what_was_held(parts_only=True):
        found.append(f"{case.name}: {sharing}, and the report bills something else")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("server", SERVERS)
def test_every_verdict_is_what_the_report_has(desks: Mapping[str, Desk], server: str) -> None:
    """For each subset of labels; and all of them give nothing that is worse than what some of them give."""
    read = {case: desks[server].asked(case) for case in (TABLE if server == "p1" else SHORT)}
    assert [each for case, (said, has) in read.items() for each in differences(case, said, has)] == []
    assert {said[DoctorFeature.COST].verdict for said, _ in read.values()} == {
        FeatureVerdict.YES,
        FeatureVerdict.PART,
    }
    for has_dcgm in (True, False):
        alike = {case: said for case, (said, _) in read.items() if case.has_dcgm is has_dcgm}
        most = alike[max(alike, key=lambda case: len(case.labels))]
        for case, said in alike.items():
            worse = [each for each in DoctorFeature if _rank(most[each]) < _rank(said[each])]
            assert worse == [], case.name


def _rank(finding: FeatureFinding) -> int:
    return WORST_FIRST.index(finding.verdict)
