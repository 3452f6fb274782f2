"""Run times of a replay: each run that ends is learnt before the next question."""

from __future__ import annotations

from gpucost.advisor.wait.run_times import PastRun, RunTimes


class AdaptiveRunTimes(RunTimes):
    """Run times that go on learning; not to be shared between threads."""

    def learn(self, run: PastRun) -> None:
        """The run that ended last."""
        self._learn(run)
