"""The command ``gpucost-queue-collector``."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence

from gpucost.domain.errors import InputError
from gpucost_queue_collector.assemble import assemble, watching
from gpucost_queue_collector.check import check, is_readable
from gpucost_queue_collector.journal import REFLECTORS, FirstOfEach
from gpucost_queue_collector.settings import PAGE, PREFIX, CollectorSettings, load_settings, named_by_variable

logger = logging.getLogger(__name__)

_EPILOG = f"""\
Settings are environment variables. All have defaults; those that are needed most:

  {PREFIX}KUBECONFIG   a kubeconfig file; by default those of the
                                       variable KUBECONFIG, the pod's own service
                                       account, or ~/.kube/config
  {PREFIX}CONTEXT      the context in it
  {PREFIX}LISTEN_PORT  the port for Prometheus, 9837
  {PREFIX}TEAM_LABELS  labels that name a pod's team
  {PREFIX}REPLICAS     how many collectors run, for an alert
  {PREFIX}LOG_LEVEL    debug, info, warning or error

All of them, manifests and queries: {PAGE}.
For a look at the same on a terminal: gpucost state show.
"""
UNREADABLE = 1
USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until SIGTERM or SIGINT. Exit status 0, or 2 for a setting that is wrong; with ``--check``, 1 when
    a part of the cluster cannot be read."""
    options = _parser().parse_args(arguments)
    if options.version:
        from importlib.metadata import version

        print(version("gpucost"))
        sys.exit(0)
    try:
        settings = load_settings(os.environ)
        if options.check:
            sys.exit(_check(settings))
        _serve(settings)
    except InputError as error:
        print(f"gpucost-queue-collector: {named_by_variable(error)}", file=sys.stderr)
        sys.exit(USAGE_ERROR)


def _serve(settings: CollectorSettings) -> None:
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs every request
    if settings.log_level != "debug":
        REFLECTORS.addFilter(FirstOfEach())
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    assembled = assemble(settings, os.environ)
    port = assembled.start()
    logger.info("metrics on %s port %d", settings.listen_host, port)
    stop.wait()
    logger.info("stopping")
    assembled.close()


def _check(settings: CollectorSettings) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")  # the server's own words, to stderr
    REFLECTORS.addFilter(FirstOfEach())
    with watching(settings, os.environ) as watch:
        for line in check(watch):
            print(line)
        return 0 if is_readable(watch.statuses()) else UNREADABLE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpucost-queue-collector",
        description="Who holds GPUs, who waits for them and why, and what is left of quota, for Prometheus.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="read everything once, print what can and cannot be read, and end: with status 0, or 1",
    )
    parser.add_argument("--version", action="store_true", help="print the version, and end")
    return parser
