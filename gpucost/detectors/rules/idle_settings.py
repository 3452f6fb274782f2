"""How long GPUs may do nothing: the settings of idle allocation."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from gpucost.detectors.settings import DetectorSettings
from gpucost.settings.types import Duration


def _minutes(count: int) -> timedelta:
    return timedelta(minutes=count)


class Settings(DetectorSettings):
    """How long GPUs may do nothing, by what they are held for."""

    start_grace: Duration = Field(_minutes(10), ge=timedelta(0))
    """Time after a pod gets its GPUs that is never called idle: images, data, compilation. Ours;
    gpu-pruner has 5 minutes."""

    longest_start: Duration = Field(_minutes(30), ge=timedelta(0))
    """A pod whose GPUs have not worked yet is left alone until it is this old. Ours."""

    batch_from_start: Duration = Field(_minutes(60), ge=_minutes(5))
    """How long a batch job may idle that never used a GPU. JDS' first warning."""

    batch_stop_from_start: Duration = Field(_minutes(120), ge=_minutes(5))
    """From when on such a job should be suspended, and not only looked at. JDS cancels then."""

    batch: Duration = Field(_minutes(240), ge=_minutes(5))
    """How long a batch job may idle that has worked before, or whose start is not known. JDS' sliding
    warning."""

    batch_stop: Duration = Field(_minutes(300), ge=_minutes(5))
    """From when on such a job should be suspended. JDS cancels then."""

    interactive: Duration = Field(_minutes(60), ge=_minutes(5))
    """How long a notebook or an interactive cluster may idle. SageMaker's shortest."""

    serving: Duration = Field(_minutes(240), ge=_minutes(5))
    """How long a server may idle. On a real serving fleet work follows on 86 % of the stretches of 30 minutes
    without any, and still on 37 % of those of 240."""

    serving_risk: float = Field(0.1, gt=0, lt=1)
    """How likely a server may be to work again for it to be called idle. Where nothing counts its requests,
    the upper end of a 95 % interval must lie below it, by past gaps of servers of the same cluster. Ours."""

    serving_ahead: Duration = Field(_minutes(24 * 60), ge=_minutes(60))
    """Within which time it may not work again; as long as it has been idle where that is longer. What is
    known of servers (``detectors.history`` and ``detectors.past``) must be longer than both. Ours."""

    unknown: Duration = Field(_minutes(240), ge=_minutes(5))
    """How long a pod may idle of which nothing says what it is for: as patient as with servers. Ours."""

    partly: Duration = Field(_minutes(60), ge=_minutes(5))
    """How long some GPUs of a job may idle while others work; for servers it is ``serving`` where that is
    longer. Ours."""

    idle_watts: float | None = Field(None, gt=0)
    """Watts of a whole board at which its power contradicts that it idles. Unset: a level by model, such as
    100 W for an A100, 150 W for an H100 and 40 W for an L4; for others 100 W, or one and a half times the
    least it drew. gpu-pruner and ours."""

    def after(self, workload_class: str, from_start: bool) -> timedelta:
        """How long a whole job of a class may idle."""
        if workload_class == "batch":
            return self.batch_from_start if from_start else self.batch
        return {"interactive": self.interactive, "serving": self.serving}.get(workload_class, self.unknown)

    def stop_after(self, workload_class: str, from_start: bool) -> timedelta:
        if workload_class == "batch":
            return self.batch_stop_from_start if from_start else self.batch_stop
        return self.after(workload_class, from_start)

    def partly_after(self, workload_class: str) -> timedelta:
        return max(self.partly, self.serving) if workload_class == "serving" else self.partly

    @property
    def shortest(self) -> timedelta:
        return min(
            self.batch_from_start, self.batch, self.interactive, self.serving, self.unknown, self.partly
        )
