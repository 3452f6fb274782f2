"""Real Chromium without a screen: pictures and PDFs of local HTML files. Nothing is fetched."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="the chromium binary is not installed")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
_TIMEOUT_S = 90


def screenshot(page: Path, png: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> Path:
    """A picture of ``page`` at ``width`` x ``height`` pixels."""
    scheme = ("--blink-settings=preferredColorScheme=0",) if dark else ()
    _run(page, f"--screenshot={png}", f"--window-size={width},{height}", *scheme)
    return png


def print_to_pdf(page: Path, pdf: Path) -> Path:
    """``page`` as its print style lays it out."""
    _run(page, f"--print-to-pdf={pdf}", "--no-pdf-header-footer")
    return pdf


def dump_dom(page: Path) -> str:
    """The document as Chromium has it after loading: what its parser made of the markup."""
    return _run(page, "--dump-dom")


def console_messages(page: Path) -> list[str]:
    """What the browser wrote to its console: errors of the page, and what its policy refused."""
    log = _run(page, "--enable-logging=stderr", "--dump-dom", stream="stderr")
    return [line for line in log.splitlines() if ":CONSOLE" in line]


def _run(page: Path, *arguments: str, stream: str = "stdout") -> str:
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(prefix="gpucost-chromium-", ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", *arguments, page.resolve().as_uri()]
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(
            f"chromium ended with {done.returncode}: {done.stderr.decode(errors='replace')[-2000:]}"
        )
    output: bytes = getattr(done, stream)
    return output.decode(errors="replace")
