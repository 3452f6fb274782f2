"""The API server that the settings mean: who watches its objects, and who keeps the certificates in it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpucost.cluster.ownership import OwnerKeys
from gpucost.domain.errors import InputError, Remark
from gpucost.kube.connect.connection import connect
from gpucost.kube.connect.secure import SERVICE_ACCOUNT
from gpucost.service.watching import Watching
from gpucost.settings.types import milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpucost.domain.gpu import ResourceCatalog
    from gpucost.kube.certificates.keeper import Keeper
    from gpucost.kube.connect.httpx_transport import HttpxTransport
    from gpucost.service.advising_status import AdvisingStatus
    from gpucost.service.settings import Settings
    from gpucost.service.settings_detectors import DetectorsSettings


def api_server(settings: DetectorsSettings) -> HttpxTransport:
    """The way to the API server that the settings mean. Raises InputError."""
    kubeconfig = settings.kubeconfig if settings.state == "kubeconfig" else None
    return connect(os.environ, kubeconfig, settings.context)


def build_watching(settings: Settings, catalog: ResourceCatalog) -> Watching | None:
    """The cluster that the settings have the service watch; None for none. Raises InputError."""
    found = settings.detectors
    if found.state == "none":
        return None
    transport = api_server(found)
    cluster = found.cluster or settings.prometheus.cluster
    names, assumed = settings.advisor.names, settings.advisor.assumed
    return Watching.of(cluster, transport, catalog, OwnerKeys(), names, assumed)


def build_certificates(
    settings: Settings, status: AdvisingStatus, now: Callable[[], int]
) -> Callable[[Callable[[str], None]], Keeper] | None:
    """Who keeps the webhook's certificate, of who is to be told each one; None where others keep it. Nothing
    is asked yet. Raises InputError."""
    found = settings.webhook.certificates
    if not found.is_managed:
        return None
    # Here, since no other command makes certificates.
    from gpucost.kube.certificates.keeper import Keeper
    from gpucost.kube.certificates.kept import Wanted
    from gpucost.kube.certificates.objects import Objects

    objects = Objects(
        api_server(settings.detectors),
        found.namespace or _own_namespace(),
        found.secret_name,
        found.webhook_configuration,
    )
    lengths = milliseconds(found.lifetime), milliseconds(found.renew_before)
    wanted = Wanted(frozenset(found.dns_names), *lengths)
    return lambda show: Keeper(objects, wanted, now, show, status.certificate_failed)


def _own_namespace() -> str:
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
    except OSError:
        allowed = "a namespace, where no service account is mounted"
        raise InputError("webhook.certificates.namespace", Remark("missing"), allowed) from None
