"""The builder of inner schedulers: rules of the settings, and the files of their records."""

from __future__ import annotations

import re

from gpucost.service.settings.inner_schedulers import InnerSchedulerSettings
from gpucost.telemetry.inner.inner_source import RecordedScheduler, ray_parser, read_slurm
from gpucost.telemetry.inner.pod_division import InnerScheduler, NodeNameSource
from gpucost.telemetry.inner.ray_jobs import MetadataKeys
from gpucost.telemetry.inner.record_folder import RecordFolder


def recorded_scheduler(found: InnerSchedulerSettings) -> RecordedScheduler:
    """One entry of the settings. Nothing is read yet."""
    keys = MetadataKeys(found.user_key, found.team_key, found.gpus_key)
    scheduler = InnerScheduler(
        name=found.name,
        kind=found.kind,
        cluster=found.cluster,
        namespace=found.namespace,
        pods=re.compile(found.pods),
        owners=re.compile(found.owners) if found.owners else None,
        node_name=found.node_name,
        node_from=NodeNameSource(found.node_from),
        teams=found.teams or ("*",),
        elsewhere=re.compile(found.other_nodes) if found.other_nodes else None,
    )
    parse = read_slurm if found.kind == "slurm" else ray_parser(keys)
    return RecordedScheduler(scheduler, RecordFolder(found.path, parse))
