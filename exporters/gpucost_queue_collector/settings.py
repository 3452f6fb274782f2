"""Settings of the queue collector; docs/queue-collector.md has their table."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from gpucost.cluster.views.sharing_rules import KAI_RESERVATIONS, share_dimensions
from gpucost.domain.configfile import wrong
from gpucost.domain.errors import InputError
from gpucost.settings import environment
from gpucost.settings.types import Duration, ExistingFile, LogLevel, Names, UrlOrEmpty, between
from gpucost_exporter_base.scrape_access import ScrapeSettings

PREFIX = "GPUCOST_QUEUE_COLLECTOR_"
PAGE = "docs/queue-collector.md"


class CollectorSettings(ScrapeSettings):
    """All have defaults that fit a Deployment in the cluster that it watches."""

    listen_port: Annotated[int, Field(ge=0, le=65535)] = 9837
    """A whole number from 0 to 65535: the port to listen on. 0 takes a free one."""

    refresh: Annotated[Duration, between(timedelta(seconds=1), timedelta(seconds=30), "1s to 30s")] = (
        timedelta(seconds=5)
    )
    """1s to 30s: the time between two renewals of the series. Starts and ends of pods do not depend on it;
    queues and gangs are that old at most, but on clusters so large that renewing takes long: it takes no more
    than a fifth of the time.
    """

    replicas: Annotated[int, Field(ge=1, le=10)] = 1
    """A whole number from 1 to 10: how many collectors run. All watch everything and export the same; this is
    only exported, so that an alert can tell when one is missing.
    """

    kubeconfig: ExistingFile | None = None
    """A kubeconfig file that says how to reach the API server. By default the files of the variable
    ``KUBECONFIG``, else the service account of the pod that this runs in, else ``~/.kube/config``.
    """

    context: str = ""
    """Context of the kubeconfig; its current one by default."""

    kubernetes_url: UrlOrEmpty = ""
    """Address of an API server that needs no credentials (``kubectl proxy``), instead of a kubeconfig."""

    most_per_namespace: Annotated[int, Field(ge=1, le=1_000_000)] = 2_000
    """A whole number from 1 to 1,000,000: how many waiting pods, waiting jobs, workloads, gangs and
    LocalQueues of one namespace have series of their own, each kind by itself: the oldest, but workloads with
    quota and gangs with GPUs first. Those beyond are one row, ``__others__``. Pods that hold GPUs always have
    their series.
    """

    extra_resources: Names = ()
    """Further resource names of which each unit is a whole GPU, with commas between them."""

    share_dimensions: Names = ()
    """By which capacity the devices of a driver are divided among claims that consume parts of them, as
    ``driver=capacity`` with commas between them, such as ``gpu.amd.com=computeUnits``. Then by this one only:
    a claim that consumes none of it has an unknown part, which is a problem. Of drivers that are not named,
    by ``memory``, or by the only capacity that a claim consumes.
    """

    kai_namespace: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")] = KAI_RESERVATIONS
    """Name of the namespace in which KAI Scheduler makes the pods that reserve GPUs for fractions. Pods of
    other namespaces are never taken for reservations: it must be one in which tenants can make no pods.
    """

    team_labels: Names = ("gpucost.io/team", "team")
    """Labels or annotations that name the team, with commas between them: the first that a pod has, else
    its job, else its namespace. Likewise the next two.
    """

    project_labels: Names = ("gpucost.io/project", "project")
    """Labels or annotations that name the project."""

    user_labels: Names = ("gpucost.io/user", "user", "hub.jupyter.org/username")
    """Labels or annotations that name the user; the last is what JupyterHub puts on notebooks."""

    node_labels: Names = ()
    """Node labels to export as ``label_*`` of ``gpucost_node_info``, for prices that depend on them."""

    kueue_metrics_url: UrlOrEmpty = ""
    """Address of Kueue's own metrics, for its version and waits; in a standard installation
    ``https://kueue-controller-manager-metrics-service.kueue-system.svc:8443/metrics``. Not asked when empty.
    """

    volcano_metrics_url: UrlOrEmpty = ""
    """Address of the Volcano scheduler's own metrics. Not asked when empty."""

    metrics_token_file: ExistingFile | None = None
    """File with the bearer token for both; read anew at each request. It is only sent over https."""

    metrics_ca_file: ExistingFile | None = None
    """PEM file of the authority that signed their certificates, instead of the system's."""

    metrics_insecure: bool = False
    """true or false: whether their certificates go unverified. Kueue signs its own unless told otherwise."""

    log_level: LogLevel = "info"
    """debug, info, warning or error: the least severe messages that are logged."""

    @field_validator("share_dimensions")
    @classmethod
    def _known_dimensions(cls, found: tuple[str, ...]) -> tuple[str, ...]:
        try:
            share_dimensions(found)
        except InputError as error:
            raise wrong(error.value, error.allowed) from None
        return found

    @model_validator(mode="after")
    def _one_way_in(self) -> Self:
        if self.kubernetes_url and (self.kubeconfig or self.context):
            raise wrong(self.kubernetes_url, "none where a kubeconfig or context is given", "kubernetes_url")
        return self


def load_settings(environ: Mapping[str, str]) -> CollectorSettings:
    """The settings in ``environ``. Raises ConfigError naming the variable, the value and what is allowed."""
    names = {variable(key) for key in CollectorSettings.model_fields}
    return environment.from_environment(
        CollectorSettings, PREFIX, environment.without_empty(environ, names), PAGE
    )


def variable(key: str) -> str:
    """The environment variable of a setting."""
    return environment.variable(PREFIX, key)


def named_by_variable(error: InputError) -> InputError:
    """``error``, with the variable in place of the key of a setting."""
    return environment.named_by_variable(error, CollectorSettings, PREFIX)
