"""How a job ended, as its Workload, its status or its pods say."""

from __future__ import annotations

from gpucost.advisor.answers import Evidence, Layer, LayerAnswer, Verdict
from gpucost.advisor.existing import Existing
from gpucost.cluster.kueue import WorkloadState
from gpucost.cluster.pods import PodPhase

_MOST_PODS = 3


def end_of(found: Existing) -> LayerAnswer | None:
    """That it has ended, of which no layer has to be asked any more; None where it has not, or nothing says.

    Of a job: what its Workload says, else its status. Of plain pods: that all of them have ended.
    """
    job, workload = found.object, found.workload
    if workload is not None and workload.state is WorkloadState.FINISHED:
        said = workload.conditions["Finished"]
        fact = Evidence(
            f"workload/{workload.meta.name}", "status.conditions[Finished]", said.reason, said.message
        )
        how = f"it has finished ({said.reason or 'Finished'})"
        how += f": {said.message}" if said.message else ""
        return _end(how, said.reason == "Failed", workload.finished_ms, fact)
    if job is not None and job.ended_ms is not None:
        counted = [
            Evidence(
                f"{job.kind.lower()}/{job.meta.name}", f"status.{name}", f"{amount:,}", f"pods that {name}"
            )
            for name, amount in (("succeeded", job.succeeded), ("failed", job.failed))
            if amount
        ]
        if bool(job.failed) == bool(job.succeeded):
            return _end("it has ended", False, job.ended_ms, *counted)
        return _end(
            "it has failed" if job.failed else "it is complete", bool(job.failed), job.ended_ms, *counted
        )
    if job is None and found.pods and all(pod.has_ended for pod in found.pods):
        failed = [pod for pod in found.pods if pod.phase is PodPhase.FAILED]
        facts = [
            Evidence(f"pod/{pod.meta.name}", "status.phase", pod.phase.value, "it has ended")
            for pod in (failed or found.pods)[:_MOST_PODS]
        ]
        times = [pod.ended_ms for pod in found.pods if pod.ended_ms is not None]
        how = "it has failed" if failed else "it is complete"
        return _end(how, bool(failed), max(times, default=None), *facts)
    return None


def _end(says: str, has_failed: bool, since_ms: int | None, *facts: Evidence) -> LayerAnswer:
    verdict = Verdict.UNKNOWN if has_failed else Verdict.PASSED
    return LayerAnswer(Layer.RUNNING, verdict, says, since_ms, facts)
