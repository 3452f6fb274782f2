"""Reading the configuration again while the service runs.

What is new is read, checked and built next to what runs. Only if all of that works it takes over: new
requests go to the new app, those in flight end on the old one, the old loops end, and then the new begin, so
that no two of them ever work. Whatever is wrong, everything stays as it was: a service runs what its files
say, or what they said before, and no mixture.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpucost.api.listener import Front
from gpucost.api.running import Running
from gpucost.domain.errors import GpuCostError
from gpucost.service.configuration import Configuration, fingerprint, read_as_seen
from gpucost.service.operations_status import OperationsStatus

logger = logging.getLogger(__name__)

_IN_FLIGHT_S = 10.0
_FIRST_STATE_S = 10.0
_LOOK_S = 0.05
_SETTLES_S = 0.2
_CLOSING_S = 20.0


@dataclass(eq=False)
class Reloading:
    """``read`` gives the configuration of now, ``build`` what is to run for it, ``taken`` is told both once
    they have taken over. ``file`` is the settings file, ``seen`` the fingerprint of the files from before
    ``configuration`` was read; without it, that of now."""

    read: Callable[[], Configuration]
    build: Callable[[Configuration], Running]
    taken: Callable[[Configuration, Running], None]
    configuration: Configuration
    running: Running
    front: Front
    status: OperationsStatus
    now: Callable[[], int]
    file: Path | None = None
    seen: str = ""
    _asked: threading.Event = field(default_factory=threading.Event)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._complaint = ""
        self._seen = self.seen or self._fingerprint()
        self._thread = threading.Thread(target=self._run, name="gpucost-reload", daemon=True)
        self.status.config_loaded(self.now(), self.configuration.hash)

    def start(self) -> None:
        """Begin to look at the files."""
        self._thread.start()

    def ask(self) -> None:
        """Read everything again now, whether or not a file changed. Signal handlers may."""
        self._asked.set()

    def stop(self) -> None:
        """Begin nothing more; signal handlers may."""
        self._stopped.set()
        self._asked.set()
        self.running.stop.set()

    def close(self) -> None:
        """End what runs. What is being written is finished."""
        self.stop()
        if self._thread.ident is not None:
            self._thread.join(_CLOSING_S)
        self.running.close()

    def look(self) -> bool:
        """Reload if a file has other content than what is in force; whether something new was taken. What was
        refused is tried at each look, since a file that was missing may be there now, and said once."""
        if self._settled() != self._seen:
            return self._reload()
        if self._complaint:
            self._complaint = ""
            self.status.config_loaded(self.now(), self.configuration.hash)
            logger.info("the configuration is again the one in force")
        return False

    def reload(self) -> bool:
        """Read everything again; whether it was taken. What is wrong is logged with its field."""
        self._settled()
        self._complaint = ""
        return self._reload()

    def _reload(self) -> bool:
        try:
            found, seen = read_as_seen(self.read, self.file, self.configuration.files())
            fixed = self.configuration.fixed_changes(found)
            if fixed:
                return self._refuse(f"{', '.join(fixed)} cannot change while the service runs: restart it")
            running = self.build(found)
        except GpuCostError as error:
            return self._refuse(str(error))
        except Exception as error:
            return self._refuse(f"unexpected {type(error).__name__}", error)
        self._take_over(found, running)
        # From before the reading: what was written since, while old requests ended too, is for the next look.
        self._complaint, self._seen = "", seen
        return True

    def _refuse(self, complaint: str, cause: Exception | None = None) -> bool:
        self.status.config_refused()
        if complaint != self._complaint:
            logger.error(
                "configuration not taken, going on with the one before: %s", complaint, exc_info=cause
            )
        self._complaint = complaint
        return False

    def _take_over(self, found: Configuration, running: Running) -> None:
        old = self.running
        running.watch()
        self._wait(_FIRST_STATE_S, lambda: running.knows_state or not old.knows_state)
        if self._stopped.is_set():
            running.discard()
            return
        self.front.swap(running.app)
        self.configuration, self.running = found, running
        self.taken(found, running)
        old.stop.set()
        self._wait(_IN_FLIGHT_S, lambda: self.front.in_flight(old.app) == 0)
        old.close()
        if self._stopped.is_set():
            running.stop.set()
        running.start()
        self.status.config_loaded(self.now(), found.hash)
        logger.info("new configuration taken, hash %s", found.hash)

    def _run(self) -> None:
        while not self._stopped.is_set():
            watch_s = self.configuration.settings.reload.watch.total_seconds()
            asked = self._asked.wait(watch_s or None)
            if self._stopped.is_set():
                return
            self._asked.clear()
            try:
                if asked:
                    self.reload()
                else:
                    self.look()
            except Exception:  # nothing may end the looking
                logger.exception("the configuration cannot be looked at")

    def _settled(self) -> str:
        """The content once it stays the same for a moment: nobody reads half of what is being written."""
        seen = self._fingerprint()
        while seen != self._seen and not self._stopped.wait(_SETTLES_S):
            again = self._fingerprint()
            if again == seen:
                break
            seen = again
        return seen

    def _fingerprint(self) -> str:
        return fingerprint(self.configuration.files(), self.file)

    def _wait(self, seconds: float, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while not until() and time.monotonic() < deadline:
            if self._stopped.wait(_LOOK_S):
                return
