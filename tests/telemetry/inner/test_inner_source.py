"""Files of records, the settings that name them, and a source that divides pods by them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpucost.attribution.attribute import attribute
from gpucost.contract.frames import ALLOCATIONS
from gpucost.domain.errors import ConfigError, DataProblemCode
from gpucost.domain.time import HOUR_MS
from gpucost.pricing.price_book import PriceBook, default_book_text
from gpucost.service.settings.loader import load_settings
from gpucost.service.wiring.inputs import parse_source
from gpucost.service.wiring.source import open_source
from gpucost.telemetry.inner.inner_source import InnerSource, read_slurm
from gpucost.telemetry.inner.record_folder import MOST_BYTES, RecordFolder
from gpucost.telemetry.inner.slurm_records import NEEDED
from gpucost.telemetry.recorded_source import record
from tests.support.frames import START, FlatRates, NamespaceTeams, build, hours, node, pod, units

S = START // 1000
BOOK = PriceBook.parse(default_book_text(), "book")
LINES = [
    f"1|alice|red|COMPLETED|{S}|{S + 1800}|w-1|gres/gpu=2",
    f"2|bob|blue|RUNNING|{S + 1800}|Unknown|w-1|gres/gpu=3",
]


def write(file: Path, *lines: str, at_s: int = S + 7200) -> None:
    file.write_text("\n".join(("|".join(NEEDED), *lines)) + "\n", encoding="utf-8")
    os.utime(file, (at_s, at_s))


def write_bytes(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file


def test_files_that_change_are_read_again_and_others_are_not(tmp_path: Path) -> None:
    seen: list[str] = []

    def parse(text: str, file: str) -> object:
        seen.append(Path(file).name)
        return read_slurm(text, file)

    folder = RecordFolder(tmp_path, parse)  # type: ignore[arg-type]
    write(tmp_path / "a.txt", LINES[0])
    write(tmp_path / "b.txt", LINES[1])
    for name in (".hidden", "c.tmp", "d.part", "e~"):
        write(tmp_path / name, "nonsense")
    assert [run.job.key for run in folder.runs().runs] == ["1", "2"]
    write(tmp_path / "b.txt", *LINES, at_s=S + 9000)
    assert folder.runs().as_of_ms == (S + 9000) * 1000
    assert folder.runs().refused == ()
    assert seen == ["a.txt", "b.txt", "b.txt"]
    (tmp_path / "a.txt").unlink()
    assert [run.job.key for run in folder.runs().runs] == ["1", "2"]


def test_what_cannot_be_read_is_refused_with_its_name(tmp_path: Path) -> None:
    missing = RecordFolder(tmp_path / "none.txt", read_slurm).runs()
    assert (missing.runs, missing.as_of_ms) == ((), None)
    assert missing.refused == (
        f"{tmp_path / 'none.txt'}: cannot be read (No such file or directory); "
        "allowed: a file of records, or a folder of them",
    )
    write(tmp_path / "good.txt", LINES[0])
    os.truncate(write_bytes(tmp_path / "bad.txt", b"x"), MOST_BYTES + 1)
    found = RecordFolder(tmp_path, read_slurm).runs()
    assert len(found.runs) == 1
    assert found.refused == (f"{tmp_path / 'bad.txt'}: too large; allowed: at most 64 MiB",)


def settings_file(folder: Path, entry: str) -> Path:
    file = folder / "settings.yaml"
    file.write_text(
        f"source: {{kind: recorded, path: '{folder / 'recording'}', inner_schedulers: [{entry}]}}",
        encoding="utf-8",
    )
    return file


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (
            "{name: a, kind: ray, path: p, namespace: n}",
            "teams: missing; allowed: the teams that jobs of Ray",
        ),
        ("{name: a, kind: ray, path: p, namespace: n, teams: ['*'], node_name: x}", "only with kind slurm"),
        ("{name: a, kind: pbs, path: p, namespace: n}", "kind: 'pbs' is not allowed"),
        ("{name: a, kind: slurm, path: p}", "namespace: missing"),
        ("{name: a, kind: slurm, path: p, namespace: n, pods: '('}", "pods: '(' is not allowed"),
        (
            r"{name: a, kind: slurm, path: p, namespace: n, pods: 'w-(.+)', node_name: '\2'}",
            r"node_name: '\\2' is not allowed; allowed: text, and groups that pods has, w-(.+)",
        ),
        (
            "{name: a, kind: slurm, path: p, namespace: n}, {name: a, kind: slurm, path: q, namespace: n}",
            "source.inner_schedulers[1].name: 'a' is not allowed; allowed: a name once",
        ),
    ],
)
def test_settings_that_are_wrong_name_their_place(tmp_path: Path, entry: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(settings_file(tmp_path, entry))
    assert told in str(caught.value)


def test_the_source_of_the_settings_divides_and_attribution_conserves(tmp_path: Path) -> None:
    """A recording, whose texts are categories: w-1 has 8 GPUs for two hours, of which alice has 2 for half of
    one, and bob 3 for one and a half. A pod of another namespace has the same name."""
    frames = build(
        [
            pod("w-1", (0, 2), count=8, namespace="slurm"),
            pod("w-2", (0, 2), count=1, namespace="rogue") | {"pod": "w-1", "user": ""},
        ],
        [node(boards=10)],
        [units(10)],
    )
    record(tmp_path / "recording", frames)
    write(tmp_path / "sacct.txt", *LINES)
    entry = f"{{name: s, kind: slurm, path: '{tmp_path / 'sacct.txt'}', namespace: slurm, cluster: c}}"
    cluster = str(frames.allocations["cluster"].iloc[0])
    settings = load_settings(settings_file(tmp_path, entry.replace("cluster: c", f"cluster: {cluster}")))
    source = open_source(settings, BOOK, lambda: START)
    assert isinstance(source, InnerSource)
    window = hours(0, 2)
    found = source.read(cluster, window)
    lines = attribute(found, [window], rates=FlatRates(("1", 0)), teams=NamespaceTeams()).flat()
    held = lines[lines["bucket"] == "held"]
    told = {(row.namespace, row.user): (row.board_ms, row.nano) for row in held.itertuples()}
    assert {key: ms / HOUR_MS for key, (ms, _) in told.items()} == {
        ("slurm", "alice"): 1.0,
        ("slurm", "bob"): 4.5,
        ("slurm", ""): 10.5,
        ("rogue", ""): 2.0,
    }
    assert {nano * HOUR_MS // ms for ms, nano in told.values()} == {10**9}
    assert lines["board_ms"].sum() == 10 * 2 * HOUR_MS
    assert found.problems == ()
    assert found.of_pods is not None
    assert source.history(cluster, window, {"demand"}).of_pods is None
    assert len(source.history(cluster, window, {ALLOCATIONS.name}).allocations) == len(found.allocations)
    assert (source.name, source.clusters()) == ("recorded recording", (cluster,))
    covered = source.covered(cluster)
    assert covered is not None
    assert covered.intersect(window) == window


def test_another_source_on_the_command_line_has_the_same_inner_schedulers(tmp_path: Path) -> None:
    settings = load_settings(settings_file(tmp_path, "{name: a, kind: slurm, path: p, namespace: n}"))
    for text in ("prometheus:http://localhost:9090", f"recorded:{tmp_path}"):
        assert isinstance(open_source(parse_source(text, settings), BOOK, lambda: START), InnerSource)


def test_records_that_come_late_change_what_is_read_again(tmp_path: Path) -> None:
    frames = build([pod("w-1", (0, 1), count=8, namespace="slurm")], [node(boards=8)], [units(8)])
    record(tmp_path / "recording", frames)
    cluster = str(frames.allocations["cluster"].iloc[0])
    entry = f"{{name: s, kind: slurm, path: '{tmp_path / 'records'}', namespace: slurm, cluster: {cluster}}}"
    source = open_source(load_settings(settings_file(tmp_path, entry)), BOOK, lambda: START)
    before = source.read(cluster, hours(0, 1))
    assert {(each.code, each.board_ms) for each in before.problems} == {
        (DataProblemCode.INNER_UNKNOWN, 8 * HOUR_MS),
        (DataProblemCode.INNER_UNKNOWN, None),
    }
    assert len(before.allocations) == 1
    (tmp_path / "records").mkdir()
    write(tmp_path / "records" / "today", *LINES)
    after = source.read(cluster, hours(0, 1))
    assert after.problems == ()
    assert set(after.allocations["user"]) == {"alice", "bob", ""}
