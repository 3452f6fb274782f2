"""Microsoft's Philly trace as frames: 149 nodes of 8 GPUs, 68,503 real jobs placed by a FIFO replay.

Node numbers of the trace are per virtual cluster, so a node here is ``VC-NUMBER``. A job has one pod per
node. A virtual cluster is namespace, queue and team at once. The trace names no GPU model; a V100 stands
in. Licence of the data: CC BY 4.0, cite Jeon et al., ATC 2019; it is read where it lies, never copied.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from gpucost.attribution.frames import ClusterFrames, conform
from gpucost.contract.frames import ALLOCATIONS, CAPACITY, HOLDER_COLUMNS, NODES, OBSERVED
from gpucost.domain.time import DAY_MS, HOUR_MS, SECOND_MS, Window, parse_instant

CLUSTER = "philly"
START_MS = parse_instant("2017-10-01T00:00:00Z")
ALL_DAYS = 61
GPUS_PER_NODE = 8
DEFAULT_TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
# The exporters go on for a while after the last window, as a source must see what comes after its end.
AFTERWARDS_MS = HOUR_MS
_GPU = "nvidia.com/gpu"
_MODEL = "Tesla-V100-SXM2-16GB"


@dataclass(frozen=True)
class Philly:
    """``jobs``: the trace as it is; ``reference``: its independent totals, by virtual cluster."""

    jobs: pd.DataFrame
    reference: dict[str, dict[str, float]]

    @classmethod
    def load(cls, traces: Path) -> Philly:
        """Read ``traces/philly-vc``. Raises FileNotFoundError when it is not there."""
        folder = traces / "philly-vc"
        jobs = pd.read_csv(folder / "replay_fifo.csv.gz", dtype={"nodes": "str", "vc": "str"})
        reference = json.loads((folder / "reference.json").read_text(encoding="utf-8"))
        return cls(jobs, reference["replay"]["by_vc"])

    def reference_ms(self) -> dict[str, int]:
        """GPU milliseconds per virtual cluster inside the two months, from reference.json."""
        return {vc: round(row["gpu_hours_inside_window"] * HOUR_MS) for vc, row in self.reference.items()}

    def expected_ms(self, days: int) -> dict[str, int]:
        """The same for the first ``days`` days, by plain arithmetic on the rows of the trace."""
        limit = days * DAY_MS
        start = (self.jobs["start_s"] * SECOND_MS).clip(upper=limit)
        end = ((self.jobs["start_s"] + self.jobs["run_s"]) * SECOND_MS).clip(upper=limit)
        held = ((end - start) * self.jobs["num_gpus"]).groupby(self.jobs["vc"]).sum()
        return {vc: int(held.get(vc, 0)) for vc in self.reference}

    def node_names(self) -> list[str]:
        return [f"{vc}-{n:02d}" for vc, row in self.reference.items() for n in range(int(row["nodes"]))]

    def pods(self) -> pd.DataFrame:
        """One row per job and node: job, vc, node, count, start_ms, end_ms."""
        rows = self.jobs.assign(place=self.jobs["nodes"].str.split("|")).explode("place", ignore_index=True)
        place = rows["place"].str.split(":", expand=True)
        start_ms = START_MS + rows["start_s"] * SECOND_MS
        return pd.DataFrame(
            {
                "job": rows["job"],
                "vc": rows["vc"],
                "node": rows["vc"] + "-" + place[0].str.zfill(2),
                "count": place[1].astype("int64"),
                "start_ms": start_ms,
                "end_ms": start_ms + rows["run_s"] * SECOND_MS,
            }
        )

    def frames(self, days: int) -> ClusterFrames:
        """What a collector would have recorded from the start until a while after ``days`` days."""
        watched = Window(START_MS, START_MS + days * DAY_MS + AFTERWARDS_MS)
        pods = self.pods()
        pods = pods[pods["start_ms"] < watched.end_ms].reset_index(drop=True)
        nth = pods.groupby("job").cumcount().astype("str")
        empty = dict.fromkeys((column.name for column in HOLDER_COLUMNS), "")
        allocations = pd.DataFrame({**empty, "node": pods["node"], "count": pods["count"]}).assign(
            cluster=CLUSTER,
            namespace=pods["vc"],
            queue=pods["vc"],
            cluster_queue=pods["vc"],
            team_label=pods["vc"],
            pod=pods["job"] + "-" + nth,
            pod_uid=pods["job"] + "-" + nth + "-uid",
            job=pods["job"],
            job_uid=pods["job"] + "-uid",
            job_kind="Job",
            resource=_GPU,
            start_ms=pods["start_ms"],
            end_ms=pods["end_ms"].clip(upper=watched.end_ms),
        )
        return ClusterFrames(
            allocations=conform(allocations, ALLOCATIONS),
            nodes=self._nodes(watched),
            capacity=self._capacity(watched),
            observed=conform(pd.DataFrame([_span(watched)]), OBSERVED),
        )

    def _nodes(self, watched: Window) -> pd.DataFrame:
        nothing = dict.fromkeys(("instance_type", "capacity_type", "region", "zone", "pool"), "")
        common = {**_span(watched), **nothing, "product": _MODEL, "boards": GPUS_PER_NODE, "labels": "{}"}
        return conform(pd.DataFrame([{**common, "node": name} for name in self.node_names()]), NODES)

    def _capacity(self, watched: Window) -> pd.DataFrame:
        counts = dict.fromkeys(("expected", "capacity", "allocatable"), GPUS_PER_NODE)
        common = {**_span(watched), **counts, "resource": _GPU, "replicas": 1, "schedulable": 1}
        return conform(pd.DataFrame([{**common, "node": name} for name in self.node_names()]), CAPACITY)


def _span(window: Window) -> dict[str, object]:
    return {"cluster": CLUSTER, "start_ms": window.start_ms, "end_ms": window.end_ms}
