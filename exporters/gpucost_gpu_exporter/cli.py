"""The command ``gpucost-gpu-exporter``."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence

from gpucost.domain.errors import InputError
from gpucost_gpu_exporter.assemble import FIRST_PODS_S, GpuExporterProcess, assemble, boot_id
from gpucost_gpu_exporter.settings import (
    PAGE,
    PREFIX,
    ExporterSettings,
    load_settings,
    named_by_variable,
)
from gpucost_gpu_exporter.state_file import StateFile
from gpucost_gpu_exporter.text_report import render

logger = logging.getLogger(__name__)

USAGE_ERROR = 2
LOOK_S = 2.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until SIGTERM or SIGINT. Exit status 0, or 2 for a setting that is wrong."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.seconds is not None and not options.once:
        parser.error("--seconds is for --once")
    if options.version:
        print(_version())
        sys.exit(0)
    try:
        settings = load_settings(os.environ)
        # A person wants the table; messages about normal operation would stand above it.
        _log_to_stderr("warning" if options.once and settings.log_level == "info" else settings.log_level)
        code = _once(settings, options.seconds) if options.once else _serve(settings)
    except InputError as error:
        print(f"gpucost-gpu-exporter: {named_by_variable(error)}", file=sys.stderr)
        code = USAGE_ERROR
    sys.exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpucost-gpu-exporter",
        description="Counters of GPU time and energy per GPU and per pod of this node, for Prometheus.",
        epilog=f"Settings are environment variables, {PREFIX}NODE and others: see {PAGE}.",
        allow_abbrev=False,
    )
    parser.add_argument("--once", action="store_true", help="look for a moment, print a table, and end")
    parser.add_argument(
        "--seconds", type=float, metavar="S", help=f"how long --once looks, 1 to 60 (default {LOOK_S:.0f})"
    )
    parser.add_argument("--version", action="store_true", help="print the version, and end")
    return parser


def _version() -> str:
    from importlib.metadata import version  # some megabytes, which the exporter need not keep

    return version("gpucost")


def _serve(settings: ExporterSettings) -> int:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    state_file = StateFile(settings.state_dir, boot_id())
    while not state_file.acquire():
        # As in a rollout: two exporters at once would count everything twice.
        logger.warning("another exporter has %s; waiting for it to end", settings.state_dir)
        if stop.wait(2):
            return 0
    assembled = assemble(settings, os.environ, state_file)
    port = assembled.start()
    logger.info("node %s: metrics on %s port %d", settings.node_name, settings.listen_host, port)
    stop.wait()
    logger.info("stopping")
    assembled.close()
    return 0


def _once(settings: ExporterSettings, asked: float | None) -> int:
    seconds = LOOK_S if asked is None else asked
    if not 1 <= seconds <= 60:
        raise InputError("--seconds", seconds, "1 to 60")
    # A table for a person: it neither listens nor touches the counters of the exporter that runs here.
    assembled = assemble(settings, os.environ, StateFile(None, ""), listens=False)
    print(_look(assembled, seconds), end="")
    return 0


def _look(assembled: GpuExporterProcess, seconds: float) -> str:
    for reflector in assembled.reflectors:
        reflector.start()
    if assembled.dcgm:
        assembled.dcgm.poll()
    try:
        assembled.wait_for_pods(FIRST_PODS_S)
        assembled.holders.refresh()
        before = assembled.exporter.collect()
        time.sleep(seconds)
        return render(before, assembled.exporter.collect())
    finally:
        assembled.close()


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
