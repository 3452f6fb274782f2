"""The diagnosis alone: facts in, verdicts and settings out."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from gpucost.cluster.objects.metadata import OwnerKeys
from gpucost.contract.probe import (
    ClusterProbe,
    DuplicateSeries,
    ForeignJob,
    GpuSeries,
    InnerRecords,
    NodeSeries,
    PodSeries,
    ScrapeGaps,
    ScrapeJob,
    SeriesPresence,
    ServerProbe,
    UnansweredQuery,
)
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Month, iso
from gpucost.reports.doctor.diagnose import diagnose
from gpucost.reports.doctor.model import (
    DiagnosisStep,
    DoctorFeature,
    DoctorRequirements,
    FeatureVerdict,
    ServerDiagnosis,
)
from gpucost.reports.doctor.output import as_json, print_diagnosis
from gpucost.reports.doctor.steps import retention_ms

OCTOBER = Month(2026, 10)
START, END = OCTOBER.window.start_ms, OCTOBER.window.end_ms
NOW = END + 5 * DAY_MS
WHOLE = SeriesPresence(START, END, 744)
FIELDS = ("busy", "graphics", "sm", "tensor", "memory_used", "memory_free", "energy", "xid")
PODS = PodSeries(
    pods=4,
    with_uid=4,
    with_node=4,
    resources=("nvidia.com/gpu",),
    namespaces=("research",),
    names=frozenset(
        {
            *("kube_pod_status_phase", "kube_pod_start_time", "kube_pod_status_scheduled_time"),
            *("kube_pod_owner", "kube_job_owner", "kube_pod_container_status_running"),
        }
    ),
    owners=frozenset({"Job"}),
    labels=frozenset({"label_team", "label_project", "label_user", "label_kueue_x_k8s_io_queue_name"}),
    annotations=frozenset(),
    namespace_labels=frozenset(),
    job_labels=frozenset(),
)
NODES = NodeSeries(
    nodes=2,
    resources=("nvidia.com/gpu",),
    names=frozenset({"kube_node_info", "kube_node_status_capacity"}),
    labels=frozenset(
        {"label_nvidia_com_gpu_product", "label_nvidia_com_gpu_count", "label_nvidia_com_gpu_replicas"}
    ),
    products=("NVIDIA-H100-80GB-HBM3",),
)
GPUS = GpuSeries(rows=8, held=4, fields=dict.fromkeys(FIELDS, 8))
CLUSTER = ClusterProbe(
    cluster="default",
    series={"kube_node_created": 2, "node_gpu_hourly_cost": 2, "kueue_cluster_queue_nominal_quota": 1},
    seen={"state": WHOLE, "gpus": WHOLE},
    pods=PODS,
    nodes=NODES,
    gpus=GPUS,
    scrapes=(ScrapeJob("kube-state-metrics", 1, 0, 30_000),),
    gaps=ScrapeGaps(END - START, 0, 0, START, 5 * MINUTE_MS),
)


def found(
    cluster: ClusterProbe = CLUSTER, wanted: DoctorRequirements | None = None, **more: Any
) -> ServerDiagnosis:
    asked = more.pop("asked", OCTOBER.window)
    at = more.pop("at_ms", NOW)
    clusters = more.pop("clusters", (cluster,))
    facts = ServerProbe("http://prometheus:9090", NOW, at, "2026-10", asked, clusters=clusters, **more)
    return diagnose(facts, wanted)


def works(diagnosis: ServerDiagnosis) -> dict[DoctorFeature, FeatureVerdict]:
    return {feature: each.verdict for feature, each in diagnosis.clusters[0].features.items()}


def titles(diagnosis: ServerDiagnosis) -> list[str]:
    return [step.title for step in diagnosis.steps]


def step(diagnosis: ServerDiagnosis, start: str) -> DiagnosisStep:
    [one] = [each for each in diagnosis.steps if each.title.startswith(start)]
    return one


def test_all_there_is_all_told() -> None:
    diagnosis = found()
    assert diagnosis.can_tell
    assert diagnosis.sentence == "The cost of October 2026 can be told."
    assert diagnosis.command == "gpucost report 2026-10 --prometheus http://prometheus:9090"
    lacking = {each for each, verdict in works(diagnosis).items() if verdict is not FeatureVerdict.YES}
    assert lacking == {DoctorFeature.QUOTAS, DoctorFeature.LIVE}
    assert list(works(diagnosis)) == list(DoctorFeature)


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("v0.19.2", "v0.19.2: the rules that the advisor follows"),
        ("v0.18.6", "v0.18.6: Kueue v0.18.6 runs, an older minor version"),
        ("v0.20.0", "v0.20.0: Kueue v0.20.0 runs, a newer minor version"),
    ],
)
def test_which_kueue_runs_stands_beside_the_rules_that_are_followed(version: str, said: str) -> None:
    facts = {
        each.what: each.found
        for each in found(replace(CLUSTER, schedulers={"kueue": version})).clusters[0].facts
    }
    assert facts["Kueue's version"].startswith(said)


def test_a_kueue_that_does_not_say_its_version_is_no_row() -> None:
    for schedulers in ({}, {"kueue": ""}, {"volcano": "v1"}):
        clusters = found(replace(CLUSTER, schedulers=schedulers)).clusters
        assert "Kueue's version" not in {each.what for each in clusters[0].facts}


PARTS: Mapping[str, tuple[PodSeries, DoctorFeature, str]] = {
    "no node": (replace(PODS, with_node=0), DoctorFeature.COST, "requests name no node"),
    "no times": (
        replace(PODS, names=frozenset({"kube_pod_status_phase", "kube_pod_owner", "kube_job_owner"})),
        DoctorFeature.COST,
        "begins at its first scrape",
    ),
    "no job owners": (
        replace(PODS, names=(PODS.names or frozenset()) - {"kube_job_owner"}),
        DoctorFeature.JOBS,
        "without kube_job_owner",
    ),
    "no user": (
        replace(PODS, labels=frozenset({"label_team", "label_project"})),
        DoctorFeature.TEAMS,
        "names user",
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_what_is_missing_of_pods_is_named(name: str) -> None:
    pods, feature, words = PARTS[name]
    diagnosis = found(replace(CLUSTER, pods=pods))
    finding = diagnosis.clusters[0].features[feature]
    assert finding.verdict is FeatureVerdict.PART
    assert words in finding.why
    assert diagnosis.can_tell


def test_dropped_series_are_asked_for_by_name() -> None:
    names = (PODS.names or frozenset()) - {"kube_job_owner", "kube_pod_status_phase"}
    diagnosis = found(replace(CLUSTER, pods=replace(PODS, names=names)))
    assert step(diagnosis, "Keep kube_").title == "Keep kube_job_owner, kube_pod_status_phase"


def test_a_time_that_another_stands_in_for_is_not_asked_for() -> None:
    names = (PODS.names or frozenset()) - {"kube_pod_start_time"}
    assert not any(
        title.startswith("Keep") for title in titles(found(replace(CLUSTER, pods=replace(PODS, names=names))))
    )


def test_ends_without_phases_are_told() -> None:
    names = (PODS.names or frozenset()) - {"kube_pod_status_phase"}
    cost = found(replace(CLUSTER, pods=replace(PODS, names=names))).clusters[0].features[DoctorFeature.COST]
    assert cost.verdict is FeatureVerdict.PART
    assert "a pod counts as ended once one of its containers has" in cost.why


def test_a_comparison_needs_what_opencost_bills_by() -> None:
    running = "kube_pod_container_status_running"
    without = replace(CLUSTER, pods=replace(PODS, names=(PODS.names or frozenset()) - {running}))
    diagnosis = found(without)
    assert works(diagnosis)[DoctorFeature.COMPARE] is FeatureVerdict.PART
    assert step(diagnosis, f"Keep {running}").gains == (DoctorFeature.COMPARE,)
    no_prices = replace(without, series={"kube_node_created": 2})
    assert not any(title.startswith("Keep") for title in titles(found(no_prices)))


@pytest.mark.parametrize("lacking", [1, 4])
def test_requests_without_uid_cannot_be_told(lacking: int) -> None:
    diagnosis = found(replace(CLUSTER, pods=replace(PODS, with_uid=4 - lacking)))
    assert (works(diagnosis)[DoctorFeature.COST], diagnosis.can_tell) == (FeatureVerdict.NO, False)
    assert diagnosis.turn_on == "metric_relabel_configs must not drop uid (labeldrop, labelkeep)"
    first = shown(diagnosis, width=400).splitlines()[0]
    assert first.endswith("Turn on first: Keep the label uid of kube-state-metrics' series (step 1 below)")
    # What labels are for is not lost for want of labels.
    assert not any(title.startswith("Export") for title in titles(diagnosis))


def test_labels_that_are_exported_stay() -> None:
    nodes = replace(
        NODES,
        labels=frozenset(
            {
                *("label_nvidia_com_gpu_product", "label_karpenter_sh_nodepool", "label_example_com_rack"),
                *("label_nvidia_com_mig_1g_10gb_count", "label_agentpool"),
            }
        ),
    )
    pods = replace(
        PODS, labels=frozenset({"label_app", "label_kueue_x_k8s_io_pod_group_name"}), job_labels=None
    )
    one = step(found(replace(CLUSTER, nodes=nodes, pods=pods)), "Export the labels")
    of_nodes, of_pods, *_ = one.settings[1].text.splitlines()[1:]
    for key in ("karpenter.sh/nodepool", "nvidia.com/mig-1g.10gb.count", "agentpool", "nvidia.com/gpu.count"):
        assert of_nodes.replace("[", ",").replace("]", ",").count(f",{key},") == 1
    assert "nvidia.com/mig-1g.10gb.product" not in of_nodes
    assert ",kueue.x-k8s.io/pod-group-name]" in of_pods
    assert "nodes example_com_rack; pods app." in one.note
    assert "What is exported now of jobs is not known: keep it." in one.note


def test_the_hours_of_the_month_are_those_that_it_has() -> None:
    facts = {each.what: each.found for each in found().clusters[0].facts}
    assert facts["kube-state-metrics"] == "all of the month, in 744 of 744 hours"


def test_inner_schedulers_of_the_cluster_are_told_with_what_is_read_of_them() -> None:
    lab = InnerRecords("default", "lab", "ray", "/records/ray", 0, None, ("/records/ray: missing", "more"))
    slinky = InnerRecords("default", "slinky", "slurm", "/records/slurm", 12, NOW, ())
    told = found(inner=(slinky, lab, replace(lab, cluster="other", name="elsewhere"))).clusters[0].facts
    facts = {each.what: each.found for each in told}
    assert facts["slurm slinky"] == f"12 runs with GPUs in /records/slurm, as of {iso(NOW)}"
    assert facts["ray lab"] == (
        "0 runs with GPUs in /records/ray, no file; 2 records refused: /records/ray: missing"
    )
    assert facts["rules of inner schedulers"].startswith("2026-")
    assert not any("elsewhere" in each for each in facts)
    assert "rules of inner schedulers" not in {each.what for each in found().clusters[0].facts}


def test_what_is_there_no_more_was_there_in_the_month() -> None:
    diagnosis = found(replace(CLUSTER, gpus=None))
    busy = diagnosis.clusters[0].features[DoctorFeature.BUSY]
    assert busy.verdict is FeatureVerdict.PART
    assert busy.why == "in the month until 2026-11-01T00:00:00Z, no series of dcgm-exporter (now)"


def test_two_jobs_of_a_kind_are_told_with_the_one_that_shows_most() -> None:
    jobs = {"gpucost_jobs": {"a": 1, "b: x": 2}, "kube_state_metrics_jobs": {"ksm": 2}}
    diagnosis = found(replace(CLUSTER, jobs=jobs))
    one = step(diagnosis, "Say which scrape job")
    assert one.settings[0].text == 'prometheus:\n  gpucost_jobs: ["b: x"]'
    facts = {each.what: each.found for each in diagnosis.clusters[0].facts}
    assert facts["jobs of gpucost"].startswith("2 give its series: b: x (2 targets), a (1 target)")
    assert "jobs of kube-state-metrics" not in facts


def test_a_job_that_is_not_believed_is_named_with_its_claim_and_not_advised() -> None:
    other = ForeignJob(
        "pods", ("tenant",), "gpucost's queue collector", "gpucost_jobs", ("ours",), 5 * HOUR_MS
    )
    jobs = {"gpucost_jobs": {"ours": 1, "pods": 2}}
    diagnosis = found(replace(CLUSTER, jobs=jobs, strangers=(other,)))
    one = step(diagnosis, "Find out who gives series of gpucost's queue collector")
    assert one.settings[0].text == "prometheus:\n  gpucost_jobs: [ours]"
    assert "Job pods in namespace tenant" in one.note
    assert "claim 5.0 GPU-hours of the last day" in one.note
    assert "Say which scrape job of gpucost is right" not in titles(diagnosis)


@pytest.mark.parametrize(
    ("others", "title", "not_to_do"),
    [
        ({"gpucost_jobs": ("collector",)}, "Name the scrape job of gpucost", "kube-state-metrics"),
        ({"kube_state_metrics_jobs": ("ksm",)}, "Name the scrape job of kube", "kube-state-metrics"),
        ({"dcgm_exporter_jobs": ("dcgm",)}, "Name the scrape job of dcgm", "dcgm-exporter"),
    ],
)
def test_what_a_setting_hides_need_not_be_scraped_again(
    others: dict[str, tuple[str, ...]], title: str, not_to_do: str
) -> None:
    nothing = ClusterProbe(CLUSTER.cluster, seen={}, others=others)
    diagnosis = found(nothing)
    assert titles(diagnosis)[0].startswith(title)
    assert f"Let Prometheus scrape {not_to_do}" not in titles(diagnosis)
    hidden = next(iter(others))
    why = diagnosis.clusters[0].features[DoctorFeature.COST].why
    assert (f"prometheus.{hidden}" in why) is (hidden != "dcgm_exporter_jobs")


def test_team_labels_of_namespaces_and_annotations_count() -> None:
    by_namespace = replace(PODS, labels=frozenset(), namespace_labels=frozenset({"label_team"}))
    finding = found(replace(CLUSTER, pods=by_namespace)).clusters[0].features[DoctorFeature.TEAMS]
    assert finding.why.startswith("team from team; no exported label names project, user")
    keys = OwnerKeys(("example.com/squad",), ("example.com/project",), ("example.com/who",))
    named = frozenset({"annotation_example_com_squad", "annotation_example_com_project"})
    beside = replace(PODS, annotations=named, labels=frozenset({"label_example_com_who"}))
    diagnosis = found(replace(CLUSTER, pods=beside), DoctorRequirements(keys))
    assert works(diagnosis)[DoctorFeature.TEAMS] is FeatureVerdict.YES
    lists = step(diagnosis, "Export the labels")
    assert lists.gains == (DoctorFeature.QUEUES,)
    assert "pods=[example.com/squad,example.com/project,example.com/who,kueue" in lists.settings[0].text


@pytest.mark.trap(4)
def test_mig_slices_without_a_busy_field_are_busy_by_graphics() -> None:
    """Whole GPUs have both, slices only the second: as there is one for each row, all are known."""
    mixed = replace(GPUS, rows=8, fields={"busy": 2, "graphics": 6, "memory_used": 8}, profiles=("1g.10gb",))
    assert works(found(replace(CLUSTER, gpus=mixed)))[DoctorFeature.BUSY] is FeatureVerdict.YES
    without = replace(mixed, fields={"busy": 2, "memory_used": 8})
    diagnosis = found(replace(CLUSTER, gpus=without))
    assert diagnosis.clusters[0].features[DoctorFeature.BUSY].why == "of 2 of 8 GPUs and slices (now)"
    lines = step(diagnosis, "Let dcgm-exporter give").settings[0].text.splitlines()
    assert "DCGM_FI_PROF_GR_ENGINE_ACTIVE, gauge, Ratio of time the graphics engine is active." in lines
    assert not any(line.startswith(("DCGM_FI_DEV_GPU_UTIL,", "DCGM_FI_DEV_FB_USED,")) for line in lines)


@pytest.mark.trap(8)
def test_profiling_that_some_gpus_lack_is_told_and_not_asked_for() -> None:
    """The field is exported: GPUs that lack it cannot give it, whatever is set."""
    some = replace(GPUS, fields={**GPUS.fields, "sm": 6})
    diagnosis = found(replace(CLUSTER, gpus=some))
    assert diagnosis.clusters[0].features[DoctorFeature.SM].why == "of 6 of 8 GPUs (now)"
    assert not any(title.startswith("Let dcgm-exporter give") for title in titles(diagnosis))


def test_rows_that_name_no_pod_are_of_no_use_to_pods() -> None:
    diagnosis = found(replace(CLUSTER, gpus=replace(GPUS, held=0)))
    assert works(diagnosis)[DoctorFeature.BUSY] is FeatureVerdict.NO
    assert step(diagnosis, "Let dcgm-exporter say").settings[0].text == "DCGM_EXPORTER_KUBERNETES=true"


@pytest.mark.trap(23)
def test_shared_gpus_want_every_pod_named() -> None:
    shared = replace(CLUSTER, nodes=replace(NODES, resources=("nvidia.com/gpu.shared",)))
    assert step(found(shared), "Let dcgm-exporter name").settings[0].text == "KUBERNETES_VIRTUAL_GPUS=true"
    named = replace(shared, gpus=replace(GPUS, replicas=8))
    assert not any(title.startswith("Let dcgm-exporter name") for title in titles(found(named)))
    assert works(found(named))[DoctorFeature.SHARING] is FeatureVerdict.YES


@pytest.mark.trap(31)
def test_a_unit_that_nothing_tells_is_no_yes() -> None:
    unclear = replace(GPUS, unclear_units=("DCGM_FI_DEV_GPU_UTIL_RATIO",))
    diagnosis = found(replace(CLUSTER, gpus=unclear))
    assert works(diagnosis)[DoctorFeature.BUSY] is FeatureVerdict.PART
    assert works(diagnosis)[DoctorFeature.MEMORY] is FeatureVerdict.YES


def test_an_exporter_that_came_late_gives_a_part_of_the_month() -> None:
    late = replace(CLUSTER, seen={"state": WHOLE, "gpus": SeriesPresence(START + 10 * DAY_MS, END, 500)})
    finding = found(late).clusters[0].features[DoctorFeature.BUSY]
    assert (finding.verdict, finding.why) == (FeatureVerdict.PART, "samples begin 2026-10-11T00:00:00Z")
    assert found(late).can_tell


def test_kueue_without_quotas_is_told_the_switch() -> None:
    pending = replace(CLUSTER, series={"kube_node_created": 2, "kueue_pending_workloads": 4})
    diagnosis = found(pending)
    assert works(diagnosis)[DoctorFeature.QUOTAS] is FeatureVerdict.PART
    assert step(diagnosis, "Let Kueue").settings[0].text == "metrics:\n  enableClusterQueueResources: true"
    assert not any(title.startswith("Let Kueue") for title in titles(found()))


@pytest.mark.parametrize(
    ("labels", "start"),
    [
        (("prometheus_replica",), "Name the labels"),
        (("__replica__", "instance"), "Name the labels"),
        (("job", "prometheus"), "Scrape kube-state-metrics once"),
        (("instance", "pod"), "Scrape kube-state-metrics once"),
    ],
)
def test_copies_are_members_or_two_jobs(labels: tuple[str, ...], start: str) -> None:
    twice = replace(CLUSTER, doubles=(DuplicateSeries("kube-state-metrics", 4, labels),))
    one = step(found(twice, DoctorRequirements(replica_labels=("zone",))), start)
    if start == "Name the labels":
        assert one.settings[0].text == f"prometheus:\n  replica_labels: [zone, {labels[0]}]"
    else:
        assert one.gains == ()


def test_slow_and_broken_targets_are_named() -> None:
    slow = replace(CLUSTER, scrapes=(ScrapeJob('ksm"', 3, 1, 4 * MINUTE_MS),))
    diagnosis = found(slow)
    assert step(diagnosis, "Scrape more often").settings[0].text == "scrape_interval: 30s"
    assert step(diagnosis, "Mend the targets").settings[0].text == 'up{job="ksm\\""} == 0'


@pytest.mark.parametrize(
    ("retention", "is_short"),
    [("15d", True), ("15d or 10GiB", True), ("1y", False), (None, True), ("0s", True)],
)
def test_retention_is_the_reason_only_where_it_is_short(retention: str | None, is_short: bool) -> None:
    late = replace(CLUSTER, seen={"state": SeriesPresence(START + 20 * DAY_MS, END, 260)})
    diagnosis = found(late, retention=retention)
    assert not diagnosis.can_tell
    assert ("Keep samples for the month and the month after it" in titles(diagnosis)) is is_short
    expected = "" if is_short else "gpucost report 2026-11 --prometheus http://prometheus:9090"
    assert diagnosis.command == expected
    assert "Nothing mends that month; the first whole month is 2026-11, over on 2026-12-01" in (
        diagnosis.sentence
    )
    assert diagnosis.turn_on == ("--storage.tsdb.retention.time=62d" if is_short else "")


def test_ages_are_read_as_prometheus_writes_them() -> None:
    assert retention_ms("1w2d") == 9 * DAY_MS
    assert retention_ms("36h or 5GB") == 36 * HOUR_MS
    assert [retention_ms(text) for text in ("", None, "0s", "soon", "5", "5d!")] == [None] * 6


def test_what_came_after_the_month_is_not_missing() -> None:
    """Installed this month, asked for the last: what is named is when there will be a whole month."""
    young = replace(CLUSTER, seen={}, gaps=None)
    diagnosis = found(young, retention="1y")
    assert "no sample is of that month" in diagnosis.sentence
    assert "the first whole month is 2026-12" in diagnosis.sentence
    assert not any("scrape kube-state-metrics" in title for title in titles(diagnosis))


def test_the_collector_needs_nothing_else() -> None:
    own = ClusterProbe("a", {"gpucost_state_up": 1, "gpucost_pod_gpu_busy_seconds_total": 9}, {"own": WHOLE})
    diagnosis = found(own)
    assert diagnosis.can_tell
    yes = {each for each, verdict in works(diagnosis).items() if verdict is FeatureVerdict.YES}
    assert yes >= {
        DoctorFeature.COST,
        DoctorFeature.TEAMS,
        DoctorFeature.QUOTAS,
        DoctorFeature.BUSY,
        DoctorFeature.IDLE,
        DoctorFeature.LIVE,
    }


def test_a_collector_of_last_week_leaves_the_month_to_kube_state_metrics() -> None:
    seen = {"own": SeriesPresence(END - 5 * DAY_MS, END, 120), "state": WHOLE}
    diagnosis = found(replace(CLUSTER, seen=seen, series={**CLUSTER.series, "gpucost_state_up": 1}))
    assert diagnosis.can_tell
    cost = diagnosis.clusters[0].features[DoctorFeature.COST]
    assert cost.why == "requests, lifetimes and capacity from kube-state-metrics"
    assert works(diagnosis)[DoctorFeature.LIVE] is FeatureVerdict.YES


def test_of_several_clusters_one_that_can_be_told_is_enough() -> None:
    lost = ClusterProbe("edge", {"DCGM_FI_DEV_GPU_UTIL": 1}, {}, PodSeries(), NodeSeries())
    diagnosis = found(clusters=(lost, replace(CLUSTER, cluster="prod")))
    assert diagnosis.can_tell
    assert diagnosis.sentence == "The cost of October 2026 can be told (of prod; not of edge)."
    assert [each.can_tell for each in diagnosis.clusters] == [False, True]
    assert diagnosis.clusters[0].steps[0].title == "Let Prometheus scrape kube-state-metrics"


def test_of_several_clusters_the_step_to_begin_with_is_named_with_its_own() -> None:
    no_uid = replace(CLUSTER, cluster="prod", pods=replace(PODS, with_uid=0))
    diagnosis = found(clusters=(replace(no_uid, cluster="edge"), no_uid))
    assert shown(diagnosis, width=400).splitlines()[0].endswith("(step 1 below for cluster edge)")


def test_not_known_is_not_no() -> None:
    blind = ClusterProbe("default", CLUSTER.series, None, None, None)
    diagnosis = found(blind, unread=(UnansweredQuery("GPU requests of pods", "422: too many samples"),))
    verdicts = works(diagnosis)
    assert not diagnosis.can_tell
    assert {
        verdicts[each] for each in (DoctorFeature.COST, DoctorFeature.TEAMS, DoctorFeature.UNADVERTISED)
    } == {FeatureVerdict.UNKNOWN}
    assert "Not known" in shown(diagnosis)


def shown(diagnosis: ServerDiagnosis, width: int = 100) -> str:
    screen = io.StringIO()
    print_diagnosis(diagnosis, Console(file=screen, width=width, color_system=None, force_terminal=False))
    return screen.getvalue()


def test_hostile_names_are_shown_as_what_they_are() -> None:
    evil = "\x1b]0;owned\x07\u202e[bold]x[/bold]"
    hostile = replace(
        CLUSTER,
        cluster=evil,
        gpus=replace(GPUS, models=(evil,), held=0),
        scrapes=(ScrapeJob(evil, 1, 1, 600_000),),
        doubles=(DuplicateSeries("kube-state-metrics", 1, (evil,)),),
    )
    diagnosis = found(
        clusters=(hostile, replace(CLUSTER, cluster="b", seen={})), unread=(UnansweredQuery(evil, evil),)
    )
    text = shown(diagnosis)
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert "\\x1b]0;owned\\x07\\u202e[bold]x" in text.replace("\n", "")
    assert json.loads(as_json(diagnosis))["clusters"][0]["cluster"] == evil


def test_settings_can_be_copied_from_a_narrow_screen() -> None:
    bare = replace(CLUSTER, pods=replace(PODS, labels=frozenset()), nodes=replace(NODES, labels=frozenset()))
    diagnosis = found(bare)
    for each in diagnosis.steps:
        for setting in each.settings:
            for line in setting.text.splitlines():
                assert f"      {line}\n" in shown(diagnosis, width=40)
    assert shown(diagnosis, width=40).splitlines()[0].endswith(diagnosis.command)
