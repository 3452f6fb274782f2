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
from gpucost_queue_collector.assemble import assemble
from gpucost_queue_collector.settings import PAGE, PREFIX, load_settings, named_by_variable

logger = logging.getLogger(__name__)

USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until SIGTERM or SIGINT. Exit status 0, or 2 for a setting that is wrong."""
    options = _parser().parse_args(arguments)
    if options.version:
        from importlib.metadata import version

        print(version("gpucost"))
        sys.exit(0)
    try:
        settings = load_settings(os.environ)
        logging.basicConfig(
            level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs every request
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        assembled = assemble(settings, os.environ)
        port = assembled.start()
    except InputError as error:
        print(f"gpucost-queue-collector: {named_by_variable(error)}", file=sys.stderr)
        sys.exit(USAGE_ERROR)
    logger.info("metrics on %s port %d", settings.listen_host, port)
    stop.wait()
    logger.info("stopping")
    assembled.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpucost-queue-collector",
        description="Who holds GPUs, who waits for them and why, and what is left of quota, for Prometheus.",
        epilog=f"Settings are environment variables, {PREFIX}REFRESH and others: see {PAGE}. "
        "For a look at the same on a terminal: gpucost state show.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version, and end")
    return parser
