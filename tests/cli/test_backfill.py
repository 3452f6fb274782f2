"""Back-fills with several workers: whatever becomes of them, the ledger is that of one process."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from signal import SIG_BLOCK, SIGINT, pthread_sigmask

import pandas as pd
import pytest

from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.teams import TeamRules
from gpucost.domain.errors import InputError, LedgerUnavailable, SourceError
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window
from gpucost.ledger.ledger import Ledger
from gpucost.service.ingest.batch_reader import ReadyWindows, WindowBatch, results_in_order
from gpucost.service.ingest.status import WindowFailure
from gpucost.service.ingest.worker_pools import LocalPool, WorkersLost, local_processes, memory_room_mib
from gpucost.service.settings.loader import load_settings
from gpucost.service.settings.model import Settings
from gpucost.service.wiring import adhoc_month
from gpucost.service.wiring.ingest_workers import DaysOrder, WorkerOrder, open_workers, read_by, read_days
from gpucost.service.wiring.inputs import load_book, load_teams, parse_source
from gpucost.service.wiring.source import TrialLook
from gpucost.telemetry.recorded_source import record
from tests.support.dask_cluster import dask_scheduler, dask_worker
from tests.support.doomed_work import killed_always, killed_at_first
from tests.support.frames import START, build, node, pod, units

ROOT = Path(__file__).parents[2]
CLUSTERS = ("east", "north", "west")
DAYS = 30
MONTH = Window(START, START + DAYS * DAY_MS)
NOW_MS = MONTH.end_ms + 40 * DAY_MS
PROGRAM = "from gpucost.cli import main; main()"


def recording(folder: Path, days: int = DAYS, clusters: tuple[str, ...] = CLUSTERS) -> None:
    """Nodes of 8 GPUs, on which a pod follows the other every seven hours."""
    hours = days * 24.0
    names = ("n1", "n2")
    found = build(
        pods=[
            pod(
                f"{name}-{start}",
                (start, min(start + 6.5, hours)),
                count=3 + start % 5,
                node=name,
                namespace=f"t{start % 4}",
            )
            for name in names
            for start in range(0, days * 24, 7)
        ],
        nodes=[node(name) for name in names],
        capacity=[units(name=name) for name in names],
        observed=[(0, hours)],
    )
    kinds = ("allocations", "nodes", "capacity", "observed", "signals")
    each = [[getattr(found, kind).assign(cluster=cluster) for cluster in clusters] for kind in kinds]
    record(
        folder,
        ClusterFrames(*(pd.concat(frames, ignore_index=True).astype({"cluster": "str"}) for frames in each)),
    )


def ingest(folder: Path, name: str, url: str, *words: str) -> subprocess.Popen[str]:
    settings = folder / f"{name}.yaml"
    settings.write_text(f'ledger: {{url: "{url}"}}\ndetectors: {{enabled: false}}\n', encoding="utf-8")
    line = ["--config", str(settings), "ingest", "--source", f"recorded:{folder / 'recording'}", *words]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *line],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return output


def ledgers(*urls: str) -> list[list[object]]:
    """Every window of each, and the digest of the month once it is closed."""
    found: list[list[object]] = []
    for url in urls:
        with Ledger.open(url, now=lambda: NOW_MS) as ledger:
            assert ledger.verify() == ()
            windows = [
                (cluster, info.window, info.state, info.version, info.digest, info.source)
                for cluster in CLUSTERS
                for info in ledger.windows(MONTH, cluster)
            ]
            closed = ledger.close_month(
                Month.of(START), author="test", reason="a test", min_coverage=Fraction(0)
            )
            found.append([*windows, closed.digest])
    return found


def written(url: str) -> int:
    """How many windows the ledger has, as another process sees it."""
    try:
        with Ledger.open(url, now=lambda: NOW_MS, create=False) as ledger:
            return sum(len(ledger.windows(MONTH, cluster)) for cluster in CLUSTERS)
    except LedgerUnavailable:
        return 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.postgres
def test_a_month_of_three_clusters_with_a_worker_killed_and_one_added(
    tmp_path: Path, postgres_url: str
) -> None:
    recording(tmp_path / "recording")
    one, few, many = (f"sqlite:///{tmp_path / name}.db" for name in ("one", "few", "many"))
    finished(ingest(tmp_path, "one", one))
    finished(ingest(tmp_path, "few", few, "--workers", "2"))
    for name, url in (("many", many), ("postgres", postgres_url)):
        (tmp_path / name).mkdir()
        with ExitStack() as stack:
            address = stack.enter_context(dask_scheduler(tmp_path / name))
            first, _ = (stack.enter_context(dask_worker(address)) for _ in range(2))
            process = ingest(tmp_path, name, url, "--on", address)
            while written(url) < 24 * DAYS // 2:
                assert process.poll() is None
                time.sleep(0.05)
            first.send_signal(signal.SIGKILL)
            stack.enter_context(dask_worker(address))
            assert process.poll() is None, "it was killed in the middle"
            finished(process)
    found = ledgers(one, few, many, postgres_url)
    assert len(found[0]) == len(CLUSTERS) * 24 * DAYS + 1
    assert found[0] == found[1] == found[2] == found[3]


# What a process imports at its start.
DOOMED = "tests.support.doomed_work"


def batches(days: int) -> list[WindowBatch]:
    return [WindowBatch("c", (day,)) for day in Window(START, START + days * DAY_MS).split(DAY_MS)]


def test_results_come_in_the_order_of_time_whatever_is_killed(tmp_path: Path) -> None:
    with local_processes(2, DOOMED) as processes:
        assert processes is not None
        pool = LocalPool(partial(killed_at_first, tmp_path), processes)
        found = [result.parts[0].window for result in results_in_order(pool, batches(6))]
    assert found == [batch.span for batch in batches(6)]
    assert len(list(tmp_path.iterdir())) == 2, "both were killed"


def test_processes_start_as_batches_come() -> None:
    before = {*active_children()}
    with local_processes(8, DOOMED):
        assert len({*active_children()} - before) == 2
    assert {*active_children()} <= before


def test_processes_end_with_the_one_that_has_them() -> None:
    """It is killed, and cannot say so."""
    code = f"""
import os, signal, time
from multiprocessing import active_children
from gpucost.service.ingest.worker_pools import local_processes
if __name__ == "__main__":
    with local_processes(2, {DOOMED!r}) as processes:
        processes.now.submit(os.getpid).result()
        print(*(each.pid for each in active_children()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""
    # The pipe ends once nobody has it any more.
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == -signal.SIGKILL
    assert len(found.stdout.split()) == 2


def test_memory_is_that_of_the_machine_or_of_the_container_where_that_is_less(tmp_path: Path) -> None:
    """Of the cache of files nothing counts as taken."""
    assert memory_room_mib(tmp_path) is None
    found = memory_room_mib()
    assert sys.platform != "linux" or (found is not None and found > 0)

    def write(name: str, text: str) -> None:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="ascii")

    write("proc/meminfo", "MemTotal: 8388608 kB\nMemFree: 1024 kB\nMemAvailable: 6291456 kB\n")
    assert memory_room_mib(tmp_path) == 6144
    write("sys/fs/cgroup/memory.max", "max\n")
    assert memory_room_mib(tmp_path) == 6144
    write("sys/fs/cgroup/memory.max", f"{2 << 30}\n")
    write("sys/fs/cgroup/memory.stat", f"anon {512 << 20}\nfile {1 << 30}\n")
    assert memory_room_mib(tmp_path) == 1536
    write("sys/fs/cgroup/memory.max", f"{16 << 30}\n")
    assert memory_room_mib(tmp_path) == 6144


@pytest.mark.parametrize(
    ("room_mib", "cost_only", "with_use"),
    [(None, 4, 4), (100_000, 4, 4), (4_005, 0, 0), (4_006, 1, 0), (8_012, 2, 1), (0, 0, 0)],
)
def test_as_many_processes_read_days_as_there_are_cores_and_memory_for(
    monkeypatch: pytest.MonkeyPatch, room_mib: int | None, cost_only: int, with_use: int
) -> None:
    """256 MiB each, and 3 MiB of each node, or 6 with use."""
    monkeypatch.setattr(adhoc_month, "_cores", lambda: 4)
    monkeypatch.setattr(adhoc_month, "memory_room_mib", lambda: room_mib)
    assert adhoc_month._processes(1250, reads_use=False) == cost_only
    assert adhoc_month._processes(1250, reads_use=True) == with_use


def test_every_stretch_without_a_day_is_named_once() -> None:
    days = [*Window(START, START + 7 * DAY_MS).split(DAY_MS)]
    found = adhoc_month._untried("c", days, {days[0], days[4]}, [WindowFailure("c", days[2], "X", "")])
    assert [each.window for each in found] == [
        days[1],
        days[3],
        Window(days[5].start_ms, days[6].end_ms),
    ]


def test_processes_hear_of_no_ctrl_c_while_they_begin() -> None:
    """Python would print an error of its own where it is interrupted while it loads."""
    before = pthread_sigmask(SIG_BLOCK, ())
    with local_processes(2, DOOMED) as processes:
        assert processes is not None
        assert SIGINT in processes.now.submit(pthread_sigmask, SIG_BLOCK, ()).result()
    assert pthread_sigmask(SIG_BLOCK, ()) == before


@pytest.mark.slow
def test_a_batch_that_kills_every_process_is_given_up() -> None:
    with local_processes(2, DOOMED) as processes:
        assert processes is not None
        pool = LocalPool(killed_always, processes)
        with pytest.raises(WorkersLost, match="killed 4 times"):
            list(results_in_order(pool, batches(1)))


def order(config: Path, source: str) -> WorkerOrder:
    settings = load_settings(config)
    book, teams = load_book(settings.pricing.book), load_teams(settings.teams.rules)
    return WorkerOrder.of(config, source, parse_source(source, settings), book, teams)


def test_a_worker_of_other_settings_or_another_version_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads its own files: here they change after the order was given."""
    recording(tmp_path / "recording", 1, ("east",))
    rules, config = tmp_path / "teams.yaml", tmp_path / "gpucost.yaml"
    config.write_text(f"teams: {{rules: {rules}}}\nprometheus: {{bearer_token: s3cret}}\n", encoding="utf-8")
    rules.write_text("version: 1\nrules: [{team_from: namespace}]\n", encoding="utf-8")
    source = f"recorded:{tmp_path / 'recording'}"
    given = order(config, source)
    day = WindowBatch("east", tuple(Window(START, START + DAY_MS).split(HOUR_MS)))
    assert len(read_by(given, day).parts) == 1
    assert b"s3cret" not in pickle.dumps((given, day))
    rules.write_text("version: 1\nrules: [{team: all, namespace: '*'}]\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"another team rules; allowed: the same"):
        read_by(replace(given, run="later"), day)
    rules.write_text("version: 1\nrules: [{team_from: namespace}]\n", encoding="utf-8")
    monkeypatch.setattr("gpucost.__version__", "0.0.1")
    with pytest.raises(InputError, match=r"another gpucost"):
        read_by(replace(given, run="last"), day)


def test_results_are_small_and_go_to_another_process_whole(tmp_path: Path) -> None:
    recording(tmp_path / "recording", 1, ("east",))
    (tmp_path / "gpucost.yaml").write_text("", encoding="utf-8")
    given = order(tmp_path / "gpucost.yaml", f"recorded:{tmp_path / 'recording'}")
    day = WindowBatch("east", tuple(Window(START, START + DAY_MS).split(HOUR_MS)))
    sent = pickle.dumps(read_by(given, day), protocol=5)
    [part] = pickle.loads(sent).parts
    assert isinstance(part, ReadyWindows)
    lines = sum(window.totals.line_count for window in part.prepared.windows)
    assert len(sent) < 2_000 * lines


def test_days_of_a_report_are_read_each_by_itself_and_what_fails_is_told_in_its_place(tmp_path: Path) -> None:
    recording(tmp_path / "recording", 2, ("east",))
    settings = parse_source(f"recorded:{tmp_path / 'recording'}", Settings())
    look = TrialLook(NOW_MS, MONTH)
    given = DaysOrder.of(settings, load_book(None), TeamRules.default(), look)
    days = tuple(Window(START, START + 3 * DAY_MS).split(DAY_MS))
    found = read_days(pickle.loads(pickle.dumps(given)), WindowBatch("east", days))
    first, second, third = found.parts
    assert isinstance(first, ReadyWindows)
    assert isinstance(second, ReadyWindows)
    assert isinstance(third, WindowFailure)
    assert (first.batch.windows, second.batch.windows, third.window) == (days[:1], days[1:2], days[2])
    assert found.is_whole


def test_where_dask_is_not_installed_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"not installed; allowed: pip install 'gpucost\[dask\]'"):
        run_with(tmp_path, on="tcp://127.0.0.1:1")


def test_an_address_at_which_no_scheduler_can_answer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="such as tcp://scheduler:8786"):
        run_with(tmp_path, on="http://scheduler:8786")
    with pytest.raises(InputError, match=r"tls:// without a certificate; .* distributed\.comm\.tls\.ca-file"):
        run_with(tmp_path, on="tls://127.0.0.1:1")
    with pytest.raises(SourceError, match="no Dask scheduler answers there"):
        run_with(tmp_path, on="tcp://127.0.0.1:1")


def run_with(folder: Path, on: str) -> None:
    (folder / "gpucost.yaml").write_text("", encoding="utf-8")
    with open_workers(order(folder / "gpucost.yaml", f"recorded:{folder}"), on=on, processes=None):
        raise AssertionError
