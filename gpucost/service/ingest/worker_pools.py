"""Where batches are read beside this process: in processes of this machine, or on the workers of Dask.

Both take a ``work`` that any process of the same gpucost can call with a batch, and keep what they do not
know to themselves: that a process was killed and its batches are read again by another, and who reads what.
A batch is nothing but a cluster and windows, and a result what ``Ledger.write_batch`` takes; no scheduler
ever sees a password, a token or the ledger, and only processes of this machine may be sent work with secrets.

What a worker says is wrong (a GpuCostError) is raised here. A batch with which processes die again and again
raises WorkersLost.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from signal import SIG_BLOCK, SIG_IGN, SIG_SETMASK, SIGINT, pthread_sigmask, signal
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from gpucost.domain.errors import ErrorRemark, GpuCostError, InputError, SourceError

if TYPE_CHECKING:
    # Processes start while this one has not loaded it yet.
    from gpucost.service.ingest.batch_reader import BatchResult, PendingResult, WindowBatch, WorkerPool

BatchWork: TypeAlias = "Callable[[WindowBatch], BatchResult]"

_AHEAD = 2
"""Batches per worker that are under way, or wait to be written: while one is read, the next waits there."""
_AT_ONCE = 2
_ATTEMPTS = 4
_WAIT_S = 30
_PORT, _CONNECT_S = 8786, 10
_EXTRA = "pip install 'gpucost[dask]'"


class WorkersLost(SourceError):
    """No worker could read a batch. Nothing was lost: the windows stay open and are read again."""


class LocalProcesses:
    """Up to ``count`` processes of this machine. Two start at once and import ``module``, which has their
    work, while this process goes on; the others start as batches come: mostly there are few or none."""

    def __init__(self, count: int, module: str) -> None:
        self.count = count
        self._module = module
        self.now = self._start()

    def _start(self) -> ProcessPoolExecutor:
        # A fork would inherit connections and locks.
        processes = ProcessPoolExecutor(self.count, get_context("spawn"), _begin)
        with _unheard_ctrl_c():
            for _ in range(_AT_ONCE):
                processes.submit(_load, self._module)
        return processes

    def replace(self, broken: ProcessPoolExecutor) -> None:
        """Where one process is killed, all of its pool end, and others take their place."""
        if broken is self.now:
            broken.shutdown(wait=False)
            self.now = self._start()


@contextmanager
def _unheard_ctrl_c() -> Iterator[None]:
    """A process that is begun here does not hear of Ctrl-C, not even while it loads Python."""
    before = pthread_sigmask(SIG_BLOCK, {SIGINT})
    try:
        yield
    finally:
        pthread_sigmask(SIG_SETMASK, before)


def _begin() -> None:
    """The process that has this one hears of Ctrl-C for both. This one ends with it, too, where that is
    killed: it would wait for work for ever."""
    signal(SIGINT, SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _load(module: str) -> None:
    import_module(module)  # which is not sent back


@contextmanager
def local_processes(count: int, module: str) -> Iterator[LocalProcesses | None]:
    """LocalProcesses that end with the context, whatever they do then; None for one, which is this process.

    Raises OSError where a machine lets no processes share anything."""
    if count == 1:
        yield None
        return
    others = active_children()
    processes = LocalProcesses(count, module)
    try:
        yield processes
    finally:
        for process in active_children():
            if process not in others:
                process.terminate()
        processes.now.shutdown(cancel_futures=True)


def memory_room_mib(root: Path = Path("/")) -> int | None:
    """How much memory this machine, or the container (a cgroup of version 2) that this process runs in, has
    left; None where the system does not say."""
    found = list[int]()
    with suppress(OSError, ValueError, StopIteration):
        lines = (root / "proc/meminfo").read_text("ascii").splitlines()
        found.append(int(next(each for each in lines if each.startswith("MemAvailable:")).split()[1]) >> 10)
    with suppress(OSError, ValueError, StopIteration):
        group = root / "sys/fs/cgroup"
        most = int((group / "memory.max").read_text("ascii"))  # ValueError for "max"
        lines = (group / "memory.stat").read_text("ascii").splitlines()
        # What files have in its cache is given back where it is needed.
        found.append(most - int(next(each for each in lines if each.startswith("anon ")).split()[1]) >> 20)
    return min(found, default=None)


class LocalPool:
    """Batches for ``processes``, of which each does ``work``."""

    def __init__(self, work: BatchWork, processes: LocalProcesses) -> None:
        self.width = processes.count * _AHEAD
        self._work, self.processes = work, processes

    def submit(self, batch: WindowBatch) -> PendingResult:
        return _LocalResult(self, batch)

    def begin(self, batch: WindowBatch) -> tuple[ProcessPoolExecutor, Future[BatchResult]]:
        processes = self.processes.now
        with _unheard_ctrl_c():  # it may begin another one
            try:
                return processes, processes.submit(self._work, batch)
            except BrokenProcessPool:
                self.processes.replace(processes)
                return self.processes.now, self.processes.now.submit(self._work, batch)


class _LocalResult:
    def __init__(self, pool: LocalPool, batch: WindowBatch) -> None:
        self._pool, self._batch = pool, batch
        self._processes, self._future = pool.begin(batch)

    def result(self) -> BatchResult:
        for _ in range(_ATTEMPTS):
            try:
                return self._future.result()
            except BrokenProcessPool:
                self._pool.processes.replace(self._processes)
                self._processes, self._future = self._pool.begin(self._batch)
        raise _lost(self._batch, f"a process that read it was killed {_ATTEMPTS} times")


@contextmanager
def dask_workers(work: BatchWork, address: str) -> Iterator[WorkerPool]:
    """The workers of the Dask scheduler at ``address`` (tcp:// or tls://), however many there are at a time.

    Raises InputError without the extra or, for tls://, without a certificate; SourceError where no scheduler
    answers, or it has no workers.
    """
    try:
        from distributed import Client, Security
    except ImportError:
        found = ErrorRemark("the packages of Dask are not installed")
        raise InputError("--on", found, f"{_EXTRA}: here, with the scheduler and on the workers") from None
    place = urlsplit(address)
    if place.scheme == "tls" and not (Security().tls_ca_file and Security().tls_client_cert):
        found = ErrorRemark("tls:// without a certificate")
        allowed = (
            "Dask's settings distributed.comm.tls.ca-file, and cert and key of distributed.comm.tls.client"
        )
        raise InputError("--on", found, allowed)
    try:
        # A client that finds nobody waits much longer.
        socket.create_connection((place.hostname or "", place.port or _PORT), _CONNECT_S).close()
        client = Client(address, set_as_default=False)
    except (OSError, ValueError) as error:
        raise SourceError(f"--on {address}: no Dask scheduler answers there: {error}") from None
    try:
        client.wait_for_workers(1, timeout=_WAIT_S)
    except TimeoutError:
        client.close()
        raise SourceError(f"--on {address}: the scheduler has no workers") from None
    try:
        yield _DaskPool(client, work)
    finally:
        client.close()


class _DaskPool:
    def __init__(self, client: Any, work: BatchWork) -> None:
        self._client, self._work = client, work

    @property
    def width(self) -> int:
        """Workers come and go, so it is asked anew; without any, a batch waits for the first."""
        threads: int = sum(self._client.nthreads().values())
        return _AHEAD * max(1, threads)

    def submit(self, batch: WindowBatch) -> PendingResult:
        # Not "pure": the same batch read later may find other data.
        return _DaskResult(self._client, self._client.submit(self._work, batch, pure=False), batch)


class _DaskResult:
    def __init__(self, client: Any, future: Any, batch: WindowBatch) -> None:
        self._client, self._future, self._batch = client, future, batch

    def result(self) -> BatchResult:
        """A batch whose worker is gone is given to another by the scheduler, several times."""
        try:
            self._wait()
            found: BatchResult = self._future.result()
        except GpuCostError:
            raise
        except Exception as error:
            raise _lost(self._batch, f"{type(error).__name__}: {error}") from error
        finally:
            self._future.release()
        return found

    def _wait(self) -> None:
        """Until it is done. Without a word of the scheduler's it would be for ever once all workers are
        gone."""
        without = 0
        while without < _ATTEMPTS and not self._future.done():
            with suppress(TimeoutError):
                self._future.result(timeout=_WAIT_S)
            without = 0 if self._client.nthreads() else without + 1
        if not self._future.done():
            raise _lost(self._batch, f"the scheduler has had no workers for {_ATTEMPTS * _WAIT_S} s")


def _lost(batch: WindowBatch, why: str) -> WorkersLost:
    return WorkersLost(f"{batch.cluster} {batch.span}: no worker could read it: {why}")
