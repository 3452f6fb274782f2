"""The proof of the whole stack: an idle job becomes a finding, an alert and a message, and all three end.

Everything is asked where people would look: gpucost's API, Alertmanager's, and the chat room.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote
from urllib.request import urlopen

from gpucost.demo.chat import Said
from gpucost.demo.full import Full
from gpucost.demo.incident import JOB, NAMESPACE, TEAM
from gpucost.domain.errors import GpuCostError

ALERT = "GpuCostIdleAllocation"
LONGEST_S = 240.0
"""Prometheus looks for the idle hours that are given to it once a minute; the rest takes seconds."""
_PAUSE_S = 0.5
_RESOLVED = "Resolved"

T = TypeVar("T")


class NotShown(GpuCostError):
    """What should have happened did not, within LONGEST_S; the message says what there was instead."""


@dataclass
class Check:
    """One run on a stack that has just started. ``say`` is told each step as it is seen."""

    full: Full
    say: Callable[[str], object]
    sleep: Callable[[float], object] = time.sleep
    _begun_s: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Raises NotShown."""
        self._begin(f"job {NAMESPACE}/{JOB} of team {TEAM} holds GPUs and does nothing")
        self.full.stack.begin(self.full.incident)
        finding = self._wait("a finding", self._finding)
        number = str(finding["id"])
        self._tell(f"finding {number}: {finding['summary']}")
        alert = self._wait("an alert", lambda: self._alert(number))
        self._tell(f"alert {ALERT}: {alert['annotations']['description']}")
        said = self._wait("a message that names the alert too", lambda: self._message(ALERT))
        self._complete(said, finding)
        self._tell(f"message: {said.lines[0]}")
        self._begin("the job ends")
        self.full.incident.end(time.time_ns() // 1_000_000)
        self._wait("the finding's end", lambda: self._state(number) == "resolved" or None)
        self._tell(f"finding {number} is resolved")
        self._wait("the alert's end", lambda: True if self._alert(number) is None else None)
        self._tell(f"alert {ALERT} is resolved")
        over = self._wait("the message's end, and its answer", lambda: self._over(said))
        self._once(said)
        self._tell(f"message: {over.lines[0]}")

    def _finding(self) -> Mapping[str, Any] | None:
        found = self._get(f"{self.full.service}/v1/findings?pattern=idle_allocation&team={TEAM}")
        rows = (row for row in found["findings"] if row["subject"]["name"] == JOB)
        return next(rows, None)

    def _state(self, number: str) -> str:
        return str(self._get(f"{self.full.service}/v1/findings/{number}")["finding"]["state"])

    def _alert(self, number: str) -> Mapping[str, Any] | None:
        matchers = "&".join(
            f"filter={quote(each)}" for each in (f'alertname="{ALERT}"', f'finding="{number}"')
        )
        found = self._get(f"{self.full.stack.alertmanager}/api/v2/alerts?active=true&{matchers}")
        return next(iter(found), None)

    def _message(self, word: str) -> Said | None:
        """The first message about the job, once it holds ``word``."""
        about = (each for each in self._conversation() if not each.thread)
        found = next(about, None)
        return found if found is not None and any(word in line for line in found.lines) else None

    def _over(self, opened: Said) -> Said | None:
        """The message, once it says that it is over and was answered: the one comes just before the other."""
        is_answered = any(each.thread == opened.id for each in self._conversation())
        return self._message(_RESOLVED) if is_answered else None

    def _conversation(self) -> list[Said]:
        said = self.full.stack.chat.room.said
        first = next((each for each in said if any(JOB in line for line in each.lines)), None)
        if first is None:
            return []
        return [each for each in said if first.id in (each.id, each.thread) or JOB in " ".join(each.lines)]

    def _complete(self, said: Said, finding: Mapping[str, Any]) -> None:
        """The message has the amount, the job, the team and the action."""
        text = "\n".join(said.lines)
        patch = str(finding["action"]["patch"]).splitlines()
        wanted = {"the amount": "USD ", "the job": JOB, "the team": TEAM, "the action": "".join(patch[:1])}
        missing = [what for what, word in wanted.items() if word not in text]
        if missing or not patch:
            raise NotShown(f"the message lacks {', '.join(missing) or 'an action'}: {text}")

    def _once(self, opened: Said) -> None:
        """It was one message, replaced, with one answer that says that it is over."""
        conversation = self._conversation()
        roots = [each for each in conversation if not each.thread]
        answers = [each for each in conversation if each.thread == opened.id]
        if len(roots) != 1 or len(answers) != 1:
            raise NotShown(f"{len(roots)} messages with {len(answers)} answers, where 1 with 1 was due")

    def _wait(self, what: str, look: Callable[[], T | None]) -> T:
        until_s = time.monotonic() + LONGEST_S
        while time.monotonic() < until_s:
            found = look()
            if found is not None:
                return found
            self.sleep(_PAUSE_S)
        raise NotShown(f"{what} was not seen within {LONGEST_S:.0f} s; logs: {self.full.stack.folder}")

    def _begin(self, what: str) -> None:
        self._begun_s = time.monotonic()
        self.say(f"         {what}")

    def _tell(self, what: str) -> None:
        self.say(f"{time.monotonic() - self._begun_s:6.1f} s {what}")

    @staticmethod
    def _get(url: str) -> Any:
        with urlopen(url, timeout=30) as answer:
            return json.load(answer)
