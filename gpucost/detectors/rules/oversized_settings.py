"""What is too much: the settings of oversized requests."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from gpucost.cluster.mig_fit import MEMORY_ROOM
from gpucost.detectors.settings import DetectorSettings
from gpucost.settings.types import Duration

_ZERO = timedelta(0)


class Settings(DetectorSettings):
    """Parts are 0 to 1. Utilisation is that of SMs: the busy signal is near 1 on healthy and on wasteful jobs
    alike."""

    least_run: Duration = Field(timedelta(minutes=61), ge=timedelta(minutes=5))
    """How long a job must have held its GPUs. JDS."""

    warm_up: Duration = Field(timedelta(minutes=10), ge=_ZERO)
    """Time after a pod's start that is not judged. Ours."""

    rest: Duration = Field(timedelta(minutes=60), ge=timedelta(minutes=5))
    """Rests of the whole job of at least this length are not judged here but by idle_allocation. Ours."""

    serving_history: Duration = Field(timedelta(hours=24), ge=_ZERO)
    """How long servers must have been seen: their load comes in bursts, once a day or more. Ours."""

    peak_room: float = Field(0.7, gt=0, le=1)
    """Part of the SMs that a server is told to do with, for its busiest step to take at most: bursts within a
    step of minutes are not seen. Ours."""

    serving_saves: float = Field(0.25, gt=0, le=1)
    """Part of what a server holds that it must be able to do without at its peak, to be told so. Ours."""

    least_replicas: int = Field(2, ge=1)
    """No fewer replicas are proposed: one may fail. Ours."""

    team_gpu_hours: float = Field(24.0, ge=0)
    """GPU-hours in seven days that a team's jobs which one variant finds must have held together, before any
    of them is reported; a shorter history needs its part of them. JDS, per user."""

    small_sm: float = Field(0.15, gt=0, le=1)
    """Mean SM activity up to which a job may fit a smaller part of a board. JDS has 15 to 20 %."""

    memory_room: float = Field(MEMORY_ROOM, gt=0, le=1)
    """Part of a slice's memory that the job's 99th percentile may take: JDS' margin of 20 %."""

    most_host_gib: float = Field(32.0, gt=0)
    """GiB of host memory per GPU above which a job is told to ask for less of it too. JDS."""

    most_cores: float = Field(12.0, gt=0)
    """Cores per GPU above which a job is told to ask for fewer of them too. JDS."""

    used_activity: float = Field(0.05, gt=0, le=1)
    """A GPU counts as used when its 95th percentile of activity is at least this. Ours."""

    unused_for: Duration = Field(timedelta(minutes=60), ge=timedelta(minutes=5))
    """How long at most half of a job's GPUs must have been used. Ours."""

    low_sm: float = Field(0.25, gt=0, le=1)
    """Mean SM activity of a team up to which it is shown. JDS; jobstats' red and black are 15 and 25 %."""

    target_sm: float = Field(0.5, gt=0, le=1)
    """Mean SM activity that a team could reach. JDS: half is "the cluster mean value"."""

    low_gpu_hours: float = Field(50.0, ge=0)
    """GPU-hours a team must have held for that. JDS."""

    low_part_of_cluster: float = Field(0.02, ge=0, le=1)
    """Part of the cluster's GPU-hours it must have held. JDS."""

    low_top: int = Field(15, ge=1)
    """How many teams are shown at most. JDS."""

    low_most_memory: float = Field(0.75, gt=0, le=1)
    """Jobs with more of the GPU memory in use than this, on average, are left out. Ours."""

    cores_over_ratio: float = Field(1.5, ge=1)
    """Cores per GPU, in shares of what the node has per GPU, above which a pod asks for too many. JDS: 18 of
    12."""

    memory_over_ratio: float = Field(1.05, ge=1)
    """The same for host memory. JDS: 250 of 240 GB."""

    half_memory: float = Field(0.5, gt=0, le=1)
    """Part of a large GPU's memory that a job may take and still be called a job for the smaller GPU of the
    family. Perlmutter: 55 % of the jobs that asked for 80 GB."""
