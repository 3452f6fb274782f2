"""Builders of what talks to the API server: the watcher of its objects, and the keeper of the webhook's
certificate."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpucost.cluster.objects.metadata import OwnerKeys
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.kube.connect.connection import connect
from gpucost.kube.connect.credentials import SERVICE_ACCOUNT
from gpucost.service.advisor.cluster_watcher import ClusterWatcher, DumpedCluster
from gpucost.settings.types import milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpucost.domain.gpu import ResourceCatalog
    from gpucost.kube.certificates.keeper import CertificateKeeper
    from gpucost.kube.connect.httpx_transport import HttpxTransport
    from gpucost.service.advisor.status import AdvisorStatus
    from gpucost.service.settings.detectors import DetectorsSettings
    from gpucost.service.settings.model import Settings


def api_server(settings: DetectorsSettings) -> HttpxTransport:
    """A transport to the API server of the settings. Raises InputError."""
    kubeconfig = settings.kubeconfig if settings.state == "kubeconfig" else None
    return connect(os.environ, kubeconfig, settings.context)


def build_watching(
    settings: Settings, catalog: ResourceCatalog, now: Callable[[], int]
) -> ClusterWatcher | DumpedCluster | None:
    """The watcher of the cluster that the settings name; None where they name none. Raises InputError."""
    found = settings.detectors
    if found.state == "none":
        return None
    cluster = found.cluster or settings.prometheus.cluster
    names, assumed = settings.advisor.names, settings.advisor.assumed
    if found.dump is not None:
        return DumpedCluster.of(cluster, found.dump, catalog, OwnerKeys(), now(), assumed)
    transport = api_server(found)
    return ClusterWatcher.of(cluster, transport, catalog, OwnerKeys(), names, assumed)


def build_certificates(
    settings: Settings, status: AdvisorStatus, now: Callable[[], int]
) -> Callable[[Callable[[str], None]], CertificateKeeper] | None:
    """The keeper of the webhook's certificate, to be given a function that is called with each new one; None
    where the certificate is kept otherwise. No request is made yet. Raises InputError."""
    found = settings.webhook.certificates
    if not found.is_managed:
        return None
    # Imported here, since no other command makes certificates.
    from gpucost.kube.certificates.certificate_pair import CertificateSpec
    from gpucost.kube.certificates.keeper import CertificateKeeper, CertificateObjects

    objects = CertificateObjects(
        api_server(settings.detectors),
        found.namespace or _own_namespace(),
        found.secret_name,
        found.webhook_configuration,
    )
    lengths = milliseconds(found.lifetime), milliseconds(found.renew_before)
    wanted = CertificateSpec(frozenset(found.dns_names), *lengths)
    return lambda show: CertificateKeeper(objects, wanted, now, show, status.certificate_failed)


def _own_namespace() -> str:
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
    except OSError:
        allowed = "a namespace, where no service account is mounted"
        raise InputError("webhook.certificates.namespace", ErrorRemark("missing"), allowed) from None
