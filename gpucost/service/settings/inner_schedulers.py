"""Settings of inner schedulers: which pods Slurm or Ray may divide among jobs, and where records are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from gpucost.domain.configfile import Text, wrong
from gpucost.domain.errors import ErrorRemark
from gpucost.settings.types import SettingsGroup


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise wrong(text, f"a regular expression ({error.msg})") from None
    return text


Expression = Annotated[str, AfterValidator(_expression)]


class InnerSchedulerSettings(SettingsGroup):
    """A Slurm or Ray whose nodes are pods; see [inner schedulers](inner-schedulers.md). Pods are named here
    alone: no record and no label can add one.
    """

    name: Text
    """Name of it, in problems and in the uids of its jobs (``NAME/1234``). Do not change it later."""

    kind: Literal["slurm", "ray"]
    """``slurm`` (Slinky, SUNK) or ``ray``."""

    path: Path
    """File or folder of its records: the output of ``sacct --parsable2`` or ``sacct --json``, answers of
    slurmrestd, answers of Ray's ``/api/jobs/``. Read with each window; files that begin with a dot or end in
    ``.tmp``, ``.part`` or ``~`` are not.
    """

    namespace: Text
    """Namespace of its pods. Who may make pods there may have them divided."""

    cluster: Text = "default"
    """Cluster of its pods, as ``prometheus.cluster`` or the label names it."""

    pods: Expression = ".+"
    """Regular expression that the whole name of a pod fits, such as ``slurm-worker-(.+)``."""

    owners: Expression = ""
    """Regular expression that the whole name of the pod's job fits: the NodeSet, the RayCluster. Unset: any
    job.
    """

    node_name: str = r"\g<0>"
    """Slurm's name of a pod's node, with groups of ``pods``: ``\\1``, ``gpu-\\1``. Unless set, the pod's
    name.
    """

    node_from: Literal["pod", "node", "short_node"] = "pod"
    """``pod``: Slurm's name of a pod's node is ``node_name``. ``node``: it is that of the Kubernetes node, as
    with the host's network. ``short_node``: it is that to its first dot, as in a NodeSet of Slinky that
    scales as a DaemonSet.
    """

    other_nodes: Expression = ""
    """Regular expression of Slurm nodes that are no pods. Jobs there are no problem."""

    teams: tuple[str, ...] = ()
    """Patterns with ``*`` and ``?`` of the accounts or teams that records may name; a job of another stays
    with its pod, and is a problem. Unset: any, for Slurm, which knows who may use an account. Ray believes
    what its users say, and needs this.
    """

    user_key: Text = "user"
    """Key of the user in the metadata of Ray's jobs."""

    team_key: Text = "team"
    """Key of the team in them."""

    gpus_key: Text = "num_gpus"
    """Key of the number of GPUs in them, since Ray's answer has none; ``entrypoint_num_gpus`` of the record
    where it is not there.
    """

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.kind == "ray":
            for key in ("node_name", "node_from", "other_nodes"):
                if key in self.model_fields_set:
                    raise wrong(getattr(self, key), "only with kind slurm: Ray's records name no nodes", key)
            if not self.teams:
                raise wrong(ErrorRemark("missing"), "the teams that jobs of Ray may name, or *", "teams")
        try:
            # An empty match has all groups, so that a reference to one that is not there shows.
            re.sub(f"{self.pods}|", self.node_name, "", count=1)
        except (re.error, IndexError):
            allowed = f"text, and groups that pods has, {self.pods}"
            raise wrong(self.node_name, allowed, "node_name") from None
        return self


InnerSchedulers = Annotated[tuple[InnerSchedulerSettings, ...], Field(max_length=100)]
