"""What /healthz and /readyz answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from gpucost_exporter_base.messages import Request, Response, text

logger = logging.getLogger(__name__)


class Health:
    """Named checks. Each returns what is wrong in words, or an empty string, and must not block."""

    def __init__(self, checks: Mapping[str, Callable[[], str]]) -> None:
        self._checks = dict(checks)

    def problems(self) -> dict[str, str]:
        """What is wrong now, by the name of the check. A check that raises is itself a problem."""
        found = {name: self._problem(name) for name in self._checks}
        return {name: problem for name, problem in found.items() if problem}

    def answer(self, request: Request) -> Response:  # noqa: ARG002 the form of a route
        """The route: 200 and ``ok``, or 503 and a line for each problem."""
        problems = self.problems()
        if not problems:
            return text(200, "ok")
        return text(503, "\n".join(f"{name}: {problem}" for name, problem in problems.items()))

    def _problem(self, name: str) -> str:
        try:
            return self._checks[name]()
        except Exception as error:
            logger.exception("the health check %s failed", name)
            return f"the check failed: {error!r}"
