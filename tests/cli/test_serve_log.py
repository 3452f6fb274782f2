"""What a signal writes into the log."""

from __future__ import annotations

import logging
import signal
import threading

import pytest

from gpucost.cli.commands.serve import signals


def test_a_stop_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="gpucost.cli.commands.serve")
    asked = threading.Event()
    with signals(asked.set):
        signal.raise_signal(signal.SIGTERM)
        assert asked.wait(60)
        for thread in threading.enumerate():
            if thread.name == "stopping":
                thread.join()
    assert "stopping: SIGTERM" in caplog.messages
