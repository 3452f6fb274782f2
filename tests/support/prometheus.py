"""A real Prometheus on a free loopback port, holding blocks made from OpenMetrics text."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.ports import free_port

PROMETHEUS = shutil.which("prometheus")
PROMTOOL = shutil.which("promtool")
MISSING = "the prometheus and promtool binaries are not installed (Debian: apt-get install prometheus)"

# Small data, and little time: without this, both spend a third of it on collecting garbage.
_ENVIRONMENT = {**os.environ, "GOGC": "400"}

needs_prometheus = pytest.mark.skipif(PROMETHEUS is None or PROMTOOL is None, reason=MISSING)


def create_blocks(text: Iterable[str], data: Path) -> None:
    """Add blocks with the samples of one OpenMetrics text (ending in ``# EOF``) to the folder ``data``.

    promtool reads the whole text once per block, so for months of samples call this once per day or so.
    """
    data.mkdir(parents=True, exist_ok=True)
    source = data.parent / f"{data.name}.openmetrics"
    with source.open("w", encoding="utf-8") as file:
        file.writelines(text)
    arguments = [PROMTOOL or "promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet"]
    arguments += ["--max-block-duration=24h", str(source), str(data)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=_ENVIRONMENT)
    source.unlink()
    if done.returncode != 0:
        raise RuntimeError(f"promtool refused the samples: {done.stderr or done.stdout}")


@contextmanager
def running_prometheus(
    data: Path,
    *flags: str,
    scrape_configs: Sequence[Mapping[str, object]] = (),
    external_labels: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Start Prometheus on the blocks in ``data``; yield its URL once it is ready; stop it at the end.

    ``scrape_configs`` and ``external_labels`` are those parts of its configuration; by default it scrapes
    nothing, and has none.
    """
    log = data.parent / f"{data.name}.log"
    address = f"127.0.0.1:{free_port()}"
    arguments = prometheus_command(
        data, address, *flags, scrape_configs=scrape_configs, external_labels=external_labels
    )
    with (
        log.open("w") as output,
        subprocess.Popen(arguments, stdout=output, stderr=output, env=_ENVIRONMENT) as process,
    ):
        try:
            _wait_ready(process, f"http://{address}/-/ready", log)
            yield f"http://{address}"
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


def prometheus_command(
    data: Path,
    address: str,
    *flags: str,
    scrape_configs: Sequence[Mapping[str, object]] = (),
    external_labels: Mapping[str, str] | None = None,
) -> list[str]:
    """The command that serves the blocks in ``data`` at ``address``; its configuration is written beside."""
    data.mkdir(parents=True, exist_ok=True)
    config = data.parent / f"{data.name}.yml"
    said = {
        "global": {"external_labels": dict(external_labels or {})},
        "scrape_configs": list(scrape_configs),
    }
    config.write_text(json.dumps(said))  # JSON is YAML too
    return [
        PROMETHEUS or "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address={address}",
        "--log.level=warn",
        *flags,
    ]


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"prometheus stopped at once: {log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise RuntimeError(f"prometheus was not ready after {seconds} s: {log.read_text()[-2000:]}")
