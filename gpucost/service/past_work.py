"""What servers did before the history that detectors read step by step, out of the ledger."""

from __future__ import annotations

from dataclasses import dataclass

from gpucost.detectors.past import PastWork
from gpucost.domain.errors import InputError
from gpucost.domain.holders import Bucket
from gpucost.domain.jobs import JobKind, WorkloadClass, workload_class
from gpucost.domain.scope import Scope
from gpucost.domain.time import Window
from gpucost.ledger import Ledger

_SERVES = sorted(kind.value for kind in JobKind if workload_class(kind) is WorkloadClass.SERVING)


@dataclass(frozen=True)
class PastServers:
    """What servers did in the ``length_ms`` before a history, in steps of ``step_ms``, out of the ledger."""

    ledger: Ledger
    length_ms: int
    step_ms: int

    def window(self, until_ms: int) -> Window:
        """Whole steps; the one in which ``until_ms`` lies is among them."""
        end_ms = -(-until_ms // self.step_ms) * self.step_ms
        return Window(end_ms - max(self.length_ms // self.step_ms, 1) * self.step_ms, end_ms)

    def read(self, cluster: str, window: Window) -> PastWork | None:
        """None where the ledger cannot be cut there, as within folded days, or has nothing. Raises
        LedgerError."""
        scope, only = Scope(None, frozenset({cluster})), {"job_kind": _SERVES, "bucket": (Bucket.HELD.value,)}
        try:
            rows = self.ledger.aggregate(
                scope, window, ("namespace", "job_uid"), filters=only, step_ms=self.step_ms
            )
        except InputError:
            return None
        rows = rows[rows["job_uid"] != ""]
        return None if rows.empty else PastWork(self.step_ms, rows)
