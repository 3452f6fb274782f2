"""Settings of the GPU exporter; docs/gpu-exporter.md has their table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from gpucost.domain.configfile import wrong
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.settings import environment
from gpucost.settings.types import Duration, ExistingFile, LogLevel, Names, UrlOrEmpty, between
from gpucost_exporter_base.scrape_access import ScrapeSettings

PREFIX = "GPUCOST_GPU_EXPORTER_"
PAGE = "docs/gpu-exporter.md"


def _path_or_none(value: object) -> object:
    return value or None


class ExporterSettings(ScrapeSettings):
    """All have defaults that fit a DaemonSet on a node whose driver the container runtime injects."""

    node: Annotated[str, Field(max_length=253)] = ""
    """Name of the Kubernetes node, from ``spec.nodeName``. Empty: the host's name, which is the node's only
    with ``hostNetwork``, or at a node's shell.
    """

    listen_port: Annotated[int, Field(ge=0, le=65535)] = 9836
    """Port to listen on, 0 to 65535. 0 takes a free one."""

    interval: Annotated[
        Duration, between(timedelta(milliseconds=100), timedelta(seconds=1), "100ms to 1s")
    ] = timedelta(seconds=1)
    """Time between two looks at the GPUs, 100ms to 1s. Counters are brought up to date at each, and besides
    whenever a pod on the node appears, finishes or goes.
    """

    driver_timeout: Annotated[Duration, between(timedelta(seconds=1), timedelta(minutes=1), "1s to 1m")] = (
        timedelta(seconds=5)
    )
    """How long the driver may take to answer, 1s to 1m; then its process is killed and started anew."""

    kubelet_socket: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    """Socket of the kubelet's pod-resources API. Mount its folder, since the kubelet makes it anew."""

    kubelet_interval: Annotated[
        Duration, between(timedelta(milliseconds=200), timedelta(seconds=30), "200ms to 30s")
    ] = timedelta(seconds=5)
    """Time between two questions to the kubelet, 200ms to 30s. Events of pods on the node cause one too."""

    extra_resources: Names = ()
    """Further resource names that are NVIDIA GPUs, with commas between them: for a device plugin that renames
    them.
    """

    processes: bool = False
    """true or false: whether GPUs that several pods share are split by the SM share of each process. Needs
    the host's process ids: ``hostPID: true``, or the host's ``/proc`` at ``proc_root``. Without it equal
    shares are used, and ``method`` says so.
    """

    proc_root: Path = Path("/proc")
    """Where the host's ``/proc`` is."""

    dcgm_url: UrlOrEmpty = ""
    """Address of this node's dcgm-exporter, such as ``http://127.0.0.1:9400/metrics``: for what NVML lacks
    (SM and tensor activity before Hopper). Not asked when empty.
    """

    dcgm_interval: Annotated[Duration, between(timedelta(seconds=1), timedelta(minutes=1), "1s to 1m")] = (
        timedelta(seconds=10)
    )
    """Time between two questions to dcgm-exporter, 1s to 1m. It collects every 30 s by default."""

    state_dir: Annotated[Path | None, BeforeValidator(_path_or_none)] = Path("/var/lib/gpucost-gpu-exporter")
    """Folder on the node where counters survive a restart. Empty: they begin at 0 at each start."""

    kubernetes: Literal["auto", "in-cluster", "url", "off"] = "auto"
    """auto, in-cluster, url or off: where pod UIDs and the ends of pods come from. The API server as seen
    from a pod (``in-cluster``), the one at ``kubernetes_url`` (``url``), or nowhere (``off``): then a pod's
    uid is empty, and a pod is finished when the kubelet no longer lists it. ``auto`` is ``in-cluster`` in a
    pod, and else ``off``.
    """

    kubernetes_url: UrlOrEmpty = ""
    """Address of the API server when ``kubernetes`` is ``url``."""

    kubernetes_token_file: ExistingFile | None = None
    """File with the bearer token for ``kubernetes_url``; read anew at each request."""

    kubernetes_ca_file: ExistingFile | None = None
    """PEM file of the certificate authority of ``kubernetes_url``, instead of the system's."""

    log_level: LogLevel = "info"
    """Least severe messages that are logged: debug, info, warning or error."""

    @property
    def node_name(self) -> str:
        """``node``, else the host's name."""
        return self.node or os.uname().nodename

    @model_validator(mode="after")
    def _url_with_kind(self) -> Self:
        if (self.kubernetes == "url") != bool(self.kubernetes_url):
            found = self.kubernetes_url or ErrorRemark("missing")
            raise wrong(found, "an address when kubernetes is url, and none otherwise", "kubernetes_url")
        return self


def load_settings(environ: Mapping[str, str]) -> ExporterSettings:
    """The settings in ``environ``. Raises ConfigError naming the variable, the value and what is allowed."""
    # A manifest's empty variable is one that is not set, but for a folder that is not wanted.
    optional = {variable(key) for key in ExporterSettings.model_fields} - {variable("state_dir")}
    return environment.from_environment(
        ExporterSettings, PREFIX, environment.without_empty(environ, optional), PAGE
    )


def variable(key: str) -> str:
    """The environment variable of a setting."""
    return environment.variable(PREFIX, key)


def named_by_variable(error: InputError) -> InputError:
    """``error``, with the variable in place of the key of a setting."""
    return environment.named_by_variable(error, ExporterSettings, PREFIX)
