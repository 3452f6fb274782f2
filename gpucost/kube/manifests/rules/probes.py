"""Probes and hooks of containers (pkg/apis/core/validation: validateProbe, validateLifecycle)."""

from __future__ import annotations

from gpucost.kube.manifests.rules.names import (
    HEADER_RULE,
    PORT_RULE,
    check_one_of,
    check_range,
    is_header,
    is_port_name,
)
from gpucost.kube.parse.reading import Part

PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_COUNTS = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
_GRACE_S = 30
_HIGHEST_PORT = 65535


def check_probe(container: Part, key: str, spec: Part) -> None:
    """One of ``PROBES``, where it is there."""
    if key not in container:
        return
    probe = container.part(key)
    _check_handler(probe, _HANDLERS[:-1], spec)
    for each in _COUNTS:
        check_range(probe, each, 0)
    grace = probe.whole("terminationGracePeriodSeconds")
    if key == "readinessProbe":
        if grace is not None:
            probe.flaw("terminationGracePeriodSeconds", grace, "none, of a readiness probe")
    else:
        check_range(probe, "terminationGracePeriodSeconds", 1)
        if (probe.whole("successThreshold") or 1) != 1:
            probe.flaw("successThreshold", probe.whole("successThreshold"), "1")


def check_lifecycle(container: Part, spec: Part) -> None:
    """What runs when a container starts and stops."""
    lifecycle = container.part("lifecycle")
    for key in ("postStart", "preStop"):
        if key in lifecycle:
            _check_handler(lifecycle.part(key), _HANDLERS, spec)


def _check_handler(holder: Part, kinds: tuple[str, ...], spec: Part) -> None:
    given = [key for key in kinds if key in holder]
    if len(given) != 1:
        holder.flaw("", given or None, f"one of {', '.join(kinds)}")
    for key in given[:1]:
        handler = holder.part(key)
        if key == "exec" and not handler.texts("command"):
            handler.flaw("command", None, "a command: it is required")
        elif key == "sleep":
            _check_sleep(handler, spec)
        elif key != "exec":
            _check_port(handler)
        if key == "httpGet":
            check_one_of(handler, "scheme", ("", "HTTP", "HTTPS"))
            for header in handler.parts("httpHeaders"):
                if not is_header(header.text("name")):
                    header.flaw("name", header.text("name") or None, HEADER_RULE)


def _check_sleep(handler: Part, spec: Part) -> None:
    grace = spec.whole("terminationGracePeriodSeconds")
    check_range(handler, "seconds", 0, max(_GRACE_S if grace is None else grace, 0))


def _check_port(handler: Part) -> None:
    port = handler.raw("port")
    if isinstance(port, str):
        if not is_port_name(port):
            handler.flaw("port", port, PORT_RULE)
    elif not 1 <= (port or 0) <= _HIGHEST_PORT:
        handler.flaw("port", port, f"between 1 and {_HIGHEST_PORT}, inclusive")
