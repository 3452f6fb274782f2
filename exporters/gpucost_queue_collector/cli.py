"""The command ``gpucost-queue-collector``.

With ``--check`` it prints which parts of the cluster can be read, asked once, for the administrator who
installs it.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from gpucost.cluster.objects.state import CollectionStatus
from gpucost.domain.errors import InputError
from gpucost.kube.watch.cluster_watch import ClusterWatch
from gpucost_queue_collector.assemble import REFLECTORS, FirstFailureFilter, assemble, summary, watching
from gpucost_queue_collector.settings import PAGE, PREFIX, CollectorSettings, load_settings, named_by_variable

LONGEST_S = 60.0
_HEAD = ("COLLECTION", "VERSION", "OBJECTS", "PROBLEM")
NOT_INSTALLED = "not installed"
NO_ANSWER = "no answer yet"


def check(watch: ClusterWatch, longest_s: float = LONGEST_S) -> Iterator[str]:
    """The lines of a table of every collection, once each was answered or ``longest_s`` have passed; the last
    sums them up. ``watch`` must have been started; ``is_readable`` gives the verdict."""
    deadline = time.monotonic() + longest_s
    while not all(map(_is_answered, watch.statuses().values())) and time.monotonic() < deadline:
        time.sleep(0.02)
    statuses = watch.statuses()
    counts = watch.counts()
    rows = [_HEAD, *(_row(name, each, counts[name]) for name, each in statuses.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield summary(statuses)
    if not is_readable(statuses):
        yield f"What to do: {PAGE}, Collection errors."


def is_readable(statuses: Mapping[str, CollectionStatus]) -> bool:
    """Whether every collection was read, or is not there."""
    return all((each.synced or each.absent) and not each.problem for each in statuses.values())


def _is_answered(status: CollectionStatus) -> bool:
    return status.synced or status.absent or bool(status.problem)


def _row(name: str, status: CollectionStatus, count: int) -> tuple[str, str, str, str]:
    if status.problem:
        return name, "-", "-", status.problem
    if status.absent:
        return name, "-", "-", NOT_INSTALLED
    if not status.synced:
        return name, "-", "-", NO_ANSWER
    return name, status.version, str(count), ""


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
        REFLECTORS.addFilter(FirstFailureFilter())
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
    REFLECTORS.addFilter(FirstFailureFilter())
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
