"""Users of Slurm and Ray who write what they like into their jobs, and a folder in which somebody plants
things."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from gpucost.attribution.attribute import attribute
from gpucost.domain.errors import DataProblemCode, InputError, shorten
from gpucost.domain.time import HOUR_MS, Window
from gpucost.pricing.price_book import PriceBook, default_book_text
from gpucost.service.wiring.source import open_source
from gpucost.telemetry.evidence.frame_rows import FrameRow
from gpucost.telemetry.inner.inner_jobs import InnerJob, JobRecords, known_runs
from gpucost.telemetry.inner.inner_source import ray_parser, read_slurm
from gpucost.telemetry.inner.pod_division import InnerScheduler, divide
from gpucost.telemetry.inner.ray_jobs import MetadataKeys
from gpucost.telemetry.inner.record_folder import RecordFolder
from gpucost.telemetry.inner.slurm_records import expand_hostlist
from gpucost.telemetry.recorded_source import record
from tests.support.frames import START, FlatRates, NamespaceTeams, build, hours, node, units
from tests.support.frames import pod as held
from tests.telemetry.inner.test_inner_source import LINES, load_settings, settings_file, write, write_bytes
from tests.telemetry.inner.test_pod_division import AT, RAY, T0, divided, job, known, pod

S = START // 1000
BOOK = PriceBook.parse(default_book_text(), "book")
READ_RAY = ray_parser(MetadataKeys("user", "team", "num_gpus"))
NAMES = (
    b"\xff\xfe\xed\xa0\x80",  # bytes that are no text
    rb"\ud800 \udc00 \udfff",  # halves of characters
    rb"x\u0000\n1|eve|red|COMPLETED\u001b[2J",
    b"<script>document.title='owned'</script>",
    b"x" * 100_000,
)


def answer(name: bytes) -> bytes:
    """Of slurmrestd: a job of a hostile name, and one of somebody else."""
    tres = b'{"allocated": [{"type": "gres", "name": "gpu", "count": 2}]}'
    jobs = (
        b'{"job_id": %d, "user": "%s", "account": "red", "name": "%s", "nodes": "w-1", "tres": %s, '
        b'"state": {"current": ["COMPLETED"]}, "time": {"start": %d, "end": %d}}'
        % (n, user, what, tres, S, S + 3600)
        for n, (user, what) in enumerate(((b"eve", name), (b"bob", b"train")), 1)
    )
    return b'{"jobs": [%s]}' % b", ".join(jobs)


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_name_of_a_job_stops_no_window_and_costs_no_other_job(tmp_path: Path, name: bytes) -> None:
    """A pod of 8 GPUs for two hours, of which two jobs have 2 for one: 2 + 2 h, and the pod 12."""
    frames = build([held("w-1", (0, 2), count=8, namespace="slurm")], [node(boards=8)], [units(8)])
    record(tmp_path / "recording", frames)
    file = write_bytes(tmp_path / "jobs.json", answer(name))
    os.utime(file, (S + 7200, S + 7200))
    cluster = str(frames.allocations["cluster"].iloc[0])
    entry = f"{{name: s, kind: slurm, path: '{file}', namespace: slurm, cluster: {cluster}}}"
    source = open_source(load_settings(settings_file(tmp_path, entry)), BOOK, lambda: START)
    found = source.read(cluster, hours(0, 2))
    lines = attribute(found, [hours(0, 2)], rates=FlatRates(("1", 0)), teams=NamespaceTeams()).flat()
    told = dict(zip(lines["user"], lines["board_ms"] / HOUR_MS, strict=True))
    assert told == {"eve": 2, "bob": 2, "": 12}
    assert found.problems == ()
    assert max(map(len, found.allocations["job"])) < 300


@pytest.mark.parametrize("field", ["user", "account"])
def test_halves_of_characters_where_they_name_somebody_are_refused(field: str) -> None:
    document = json.loads(answer(b"x"))
    document["jobs"][0][field] = "\ud800"
    found = read_slurm(json.dumps(document), "f")
    assert [each.user for each in found.jobs] == ["bob"]
    [sentence] = found.refused
    assert r"'\ud800' is not allowed" in sentence
    sentence.encode()


SECRET = {"auths": {"registry": {"auth": "c2VjcmV0"}}}


@pytest.mark.parametrize("document", [SECRET, [SECRET], {"jobs": SECRET}, "c2VjcmV0", ["c2VjcmV0"]])
def test_a_file_that_is_something_else_is_not_shown(document: Any) -> None:
    text = json.dumps(document)
    for read in (read_slurm, READ_RAY):
        told = read(text, "f")
        assert told.jobs == ()
        assert not re.search("c2VjcmV0|registry", "".join(told.refused))


def test_a_folder_gives_only_what_lies_in_it(tmp_path: Path) -> None:
    """Links in a mounted ConfigMap lead to a folder beside them; others lead away. A pipe has no end."""
    folder = tmp_path / "records"
    (folder / "..data").mkdir(parents=True)
    write(folder / "..data" / "a.txt", LINES[0])
    (folder / "a.txt").symlink_to(Path("..data") / "a.txt")
    write(tmp_path / "secret", "1|eve|red|COMPLETED|s3cret")
    (folder / "b.txt").symlink_to(tmp_path / "secret")
    (folder / "c.txt").symlink_to("c.txt")
    os.mkfifo(folder / "d.txt")
    found = RecordFolder(folder, read_slurm).runs()
    assert [run.job.user for run in found.runs] == ["alice"]
    assert found.refused == ()
    os.mkfifo(tmp_path / "pipe")
    [told] = RecordFolder(tmp_path / "pipe", read_slurm).runs().refused
    assert "a pipe, a device or a folder" in told


def test_values_that_are_nested_too_deep_to_print_are_refused() -> None:
    for depth in range(800, 1000, 3):
        found = READ_RAY('[{"status": ' + "[" * depth + "]" * depth + "}]", "f")
        assert len(found.refused) == 1
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert shorten(deep) == "a list too deep to print"


def test_one_bracket_holds_no_more_nodes_than_a_list() -> None:
    with pytest.raises(InputError, match="at most 65,536 nodes"):
        expand_hostlist("g[" + ",".join(["0-65534"] * 100_000) + "]", "f")


def test_who_is_not_believed_takes_nothing_from_others() -> None:
    """eve names a team that she may not, and more GPUs than there are, before bob begins: bob has his 2."""
    runs = known(job("eve", 0, 100, 1_000_000, team="nobody"), job("bob", 10, 100, 2))
    parts, problems = divided([pod("head", 0, 100, 8)], runs, 100, RAY)
    assert parts == {
        ("head", "set", 0, 10): 8,
        ("head", "ray/bob", 10, 100): 2,
        ("head", "set", 10, 100): 6,
    }
    told = {detail.partition(":")[0]: n for (_, detail), n in problems.items()}
    assert told["jobs of Ray name teams that its records may not name"] == 8 * 10 + 6 * 90


class _CountedJobs(InnerScheduler):
    """Counts how often a job is looked at."""

    looks = 0

    def may_name(self, team: str) -> bool:
        type(self).looks += 1
        return super().may_name(team)


def test_thousands_of_jobs_at_once_are_divided() -> None:
    """4,000 jobs of Ray that run at once, half of which tell no number, begin and end one after another: each
    of 8,000 stretches has 8 GPUs, whoever wants some. Looked at one by one they would take a minute."""
    jobs = tuple(
        InnerJob(f"{n:04}", "", "u", "red", 1 if n % 2 else None, (), T0 + n, T0 + 10_000 + n, True)
        for n in range(4000)
    )
    runs = known_runs([(T0 + HOUR_MS, JobRecords(jobs))])
    scheduler = _CountedJobs("r", "ray", "c", "ray", re.compile(".+"))
    rows, problems = divide([pod("head", 0, HOUR_MS, 8)], scheduler, runs, Window(T0, T0 + HOUR_MS))
    assert sum(int(str(row[AT["count"]])) * _length(row) for row in rows) == 8 * HOUR_MS
    assert _CountedJobs.looks == len(jobs)
    codes = {DataProblemCode.INNER_UNPLACED, DataProblemCode.INNER_UNKNOWN}
    assert {each.code for each in problems} == codes


def _length(row: FrameRow) -> int:
    return int(str(row[AT["end_ms"]])) - int(str(row[AT["start_ms"]]))
