"""Objects in files and back: what is kept, what must not be, and what is said of files that are no dumps."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucost.cluster.objects.state import CollectionStatus
from gpucost.domain.errors import InputError
from gpucost.kube.dumps.dump import (
    MOST_BYTES,
    ClusterStateBuilder,
    DumpContent,
    DumpOrigin,
    closing,
    line_of,
    named,
    opening,
    read_dump,
)
from gpucost.kube.dumps.scrub import scrubbed
from gpucost.kube.parse.yaml_documents import documents
from tests.cli.state_worlds import NOW
from tests.kube.every_object import ALL, EVERYTHING
from tests.support.objects.broken import JSON

POD = next(each for each in EVERYTHING if each["kind"] == "Pod" and each["metadata"]["uid"] == "u")
NODE = next(each for each in EVERYTHING if each["kind"] == "Node")


def gathered(items: Iterable[dict[str, Any]]) -> DumpContent:
    gathering = ClusterStateBuilder(ALL)
    for item in items:
        gathering.add(item)
    return gathering.loaded(NOW)


def loaded(source: Path | bytes, most_bytes: int = MOST_BYTES) -> DumpContent:
    gathering = ClusterStateBuilder(ALL)
    read_dump(source, gathering, most_bytes)
    return gathering.loaded(NOW + 1)


def a_list(items: Iterable[dict[str, Any]], kind: str = "List") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "items": list(items)}


def as_yaml(found: Any) -> str:
    """Without anchors for what is the same object in Python."""
    return yaml.safe_dump(json.loads(json.dumps(found)))


def a_dump(items: Iterable[dict[str, Any]], origin: DumpOrigin) -> str:
    return opening() + ",\n".join(line_of(item) for item in items) + closing(origin)


# There and back


def test_a_dump_of_ours_says_when_and_what_was_there() -> None:
    versions = {"pods": "v1", "nodes": "v1", "cohorts.kueue.x-k8s.io": ""}
    origin = DumpOrigin(NOW, versions, ["namespaces"])
    found = loaded(a_dump(EVERYTHING, origin).encode())
    assert found.state == gathered(map(scrubbed, EVERYTHING)).state
    assert (found.state.at_ms, found.is_dated, found.left_out) == (NOW, True, {})
    statuses = found.state.collections
    assert statuses["pods"] == CollectionStatus("v1", synced=True, seen_ms=NOW)
    # It is not forbidden after all: another file has some.
    assert statuses["namespaces"] == CollectionStatus("v1", synced=True, seen_ms=NOW)
    assert statuses["cohorts.kueue.x-k8s.io"].version == "v1beta2"
    empty = loaded(a_dump([], origin).encode()).state
    assert empty.collections["namespaces"] == CollectionStatus("", False, problem="forbidden", seen_ms=NOW)
    assert empty.collections["cohorts.kueue.x-k8s.io"].absent


def test_every_line_is_ascii_and_an_object() -> None:
    found = {**POD, "metadata": {**POD["metadata"], "labels": {"\u202e": "\x1b\n"}}}
    text = a_dump([found, NODE], DumpOrigin(NOW, {}))
    assert text.isascii()
    lines = text.splitlines()
    assert [json.loads(line.removesuffix(","))["kind"] for line in lines[1:-1]] == ["Pod", "Node"]
    assert json.loads(text)["kind"] == "List"


WHOLE = a_list(EVERYTHING)
TEXT = json.dumps(WHOLE)


@pytest.mark.parametrize(
    "content",
    [
        TEXT.encode(),
        json.dumps(WHOLE, indent=4).encode(),
        gzip.compress(TEXT.encode()),
        gzip.compress(TEXT[:999].encode()) + gzip.compress(TEXT[999:].encode()),
        TEXT.encode("utf-16"),
        TEXT.encode("utf-8-sig"),
        json.dumps(EVERYTHING).encode(),
        "\n".join(map(json.dumps, EVERYTHING)).encode(),
        json.dumps(a_list([a_list(EVERYTHING[:5]), a_list(EVERYTHING[5:])])).encode(),
        as_yaml(WHOLE).encode(),
        gzip.compress("---\n".join(map(as_yaml, EVERYTHING)).encode()),
    ],
    ids=[
        *("json", "indented", "gzip", "gzip parts", "utf-16", "bom", "array", "one after another", "lists"),
        *("yaml", "yaml documents"),
    ],
)
def test_every_form_gives_the_same_state(content: bytes, tmp_path: Path) -> None:
    expected = gathered(EVERYTHING)
    found = loaded(content)
    assert found.state == expected.state
    assert (found.is_dated, found.state.at_ms, found.left_out) == (False, NOW + 1, {})
    file = tmp_path / "any name"
    file.write_bytes(content)
    assert loaded(file).state == expected.state


def test_a_folder_is_all_its_dumps_together(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a.json").write_text(json.dumps(a_list(EVERYTHING[:9])), encoding="utf-8")
    (tmp_path / "b" / "c.yaml.gz").write_bytes(gzip.compress(as_yaml(a_list(EVERYTHING[9:])).encode()))
    (tmp_path / "b" / "notes.txt").write_text("not this one", encoding="utf-8")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "hidden.json").write_text("nor this", encoding="utf-8")
    assert loaded(tmp_path).state == gathered(EVERYTHING).state


def test_items_of_a_typed_list_need_not_say_their_kind() -> None:
    bare = [{key: POD[key] for key in POD if key not in ("apiVersion", "kind")}]
    assert list(loaded(json.dumps(a_list(bare, "PodList")).encode()).state.pods) == ["u"]


def test_times_in_yaml_without_quotes_stay_times() -> None:
    metadata = "{name: n, uid: u, creationTimestamp: 2026-10-24T00:00:00Z}"
    text = f"---\n# a remark\n- {{apiVersion: v1, kind: Namespace, metadata: {metadata}}}\n"
    found = loaded(text.encode()).state.namespaces["u"]
    assert (found.meta.created_ms, found.flaws) == (NOW, ())


def test_what_is_not_read_is_counted() -> None:
    strange = [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "uid": "s"}},
        {"apiVersion": "kueue.x-k8s.io/v9", "kind": "Workload", "metadata": {"name": "w", "uid": "w"}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "without uid"}},
        {},
    ]
    found = loaded(json.dumps(a_list([*strange, strange[0]])).encode())
    assert found.left_out == {
        "Secret (v1)": 2,
        "Workload (kueue.x-k8s.io/v9)": 1,
        "no kind (no apiVersion)": 1,
        "unreadable": 1,
    }


def test_the_newest_of_several_dumps_says_when() -> None:
    texts = [a_dump([POD], DumpOrigin(at_ms, {"pods": "v1"})) for at_ms in (NOW, NOW + 5, NOW - 5)]
    assert loaded("".join(texts).encode()).state.at_ms == NOW + 5


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"# only a remark\n", "empty"),
        (gzip.compress(TEXT.encode())[:-40], "a gzip file that is cut short or broken"),
        (b"\x1f\x8bnothing", "a gzip file that is cut short or broken"),
        (TEXT.encode()[: len(TEXT) // 2], "JSON that is cut short or broken in line 1 of 1"),
        (b'{"items": [}', "JSON that is cut short or broken in line 1 of 1"),
        (a_dump([POD], DumpOrigin(NOW, {})).encode()[:-2], "JSON that is cut short or broken in line 3 of 3"),
        (b"<!DOCTYPE html><html>login</html>", "a web page, or XML"),
        (b"\x80\x81\x82\x83", "not text"),
        (b"error: You must be logged in to the server", "kind: missing"),
        (b"No resources found", "'No resources found' is not allowed"),
        (b"a: [1", "neither JSON nor YAML"),
        (b"[1, 2]", "1 is not allowed"),
        (b'{"kind": "List", "items": {"a": 1}}', "items: {'a': 1} is not allowed"),
        (b'{"kind": "List", "items": ["pod"]}', "'pod' is not allowed"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"metadata": {"gpucost.io/state": {"takenAt": "x", "collections": {}}}}', "takenAt: 'x'"),
        (b'{"metadata": {"gpucost.io/state": {"takenAt": "2026-10-24T00:00:00Z"}}}', "gpucost.io/state: "),
    ],
)
def test_what_is_no_dump_is_refused_by_name(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "given.json"
    file.write_bytes(content)
    for source, name in ((file, str(file)), (tmp_path, str(file)), (content, "standard input")):
        with pytest.raises(InputError) as caught:
            loaded(source)
        assert str(caught.value).startswith(name)
        assert said in str(caught.value)


MERGED = "base: &base {kind: x}\nmore: {<<: *base}\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f"a: {'[' * 400_000}", "nested more than 100 deep"),
        ("\n".join(f"{' ' * depth}a:" for depth in range(101)), "nested more than 100 deep"),
        ("- &a [x]\n- [*a, *a]\n", "an anchor or alias (& or *)"),
        ("- *a\n", "an anchor or alias (& or *)"),
        (MERGED, "an anchor or alias (& or *)"),
        ("more: {<<: {kind: Pod}}\n", "a merge key (<<)"),
        ("kind: !!binary aGVsbG8=\n", "a tag (!)"),
        ("kind: !!python/object/apply:os.abort []\n", "a tag (!)"),
        ("? [a, b]\n: c\n", "a key that is a list or a mapping"),
        (json.dumps(a_list([a_list([a_list([POD])])])), "lists in lists of lists"),
        (json.dumps([[[POD]]]), "lists in lists of lists"),
        (json.dumps([[[[]]]]), "lists in lists of lists"),
    ],
    ids=range(12),
)
def test_what_grows_while_it_is_read_is_refused_by_name(content: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "given.yaml"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        loaded(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: 1\nb: 1.5\nc: true\nd: ~\ne:\n", {"a": 1, "b": 1.5, "c": True, "d": None, "e": None}),
        ("a: '1'\nb: \"true\"\nc: |\n  1\n", {"a": "1", "b": "true", "c": "1\n"}),
        ("'<<': a\nb: <<\nc: =\n", {"<<": "a", "b": "<<", "c": "="}),
        ("a: 2026-10-24T00:00:00Z\n", {"a": "2026-10-24T00:00:00Z"}),
        (f"a: {'1' * 65}\n", {"a": "1" * 65}),
        ("a: []\nb: {}\nc: [1, {d: [2]}]\n", {"a": [], "b": {}, "c": [1, {"d": [2]}]}),
        ("a: 1\na: 2\n", {"a": 2}),
    ],
)
def test_values_of_yaml(text: str, found: dict[str, Any]) -> None:
    assert [*documents("file", text)] == [found]


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_yaml_has_what_json_has(value: Any) -> None:
    assert [*documents("file", as_yaml([value]))] == [[json.loads(json.dumps(value))]]


def test_a_file_is_only_read_up_to_a_limit(tmp_path: Path) -> None:
    bomb, large, sparse = tmp_path / "bomb.json.gz", tmp_path / "large.json", tmp_path / "sparse.json"
    bomb.write_bytes(gzip.compress(b" " * (1 << 20) + TEXT.encode()))
    large.write_bytes(b" " * (1 << 20) + TEXT.encode())
    with sparse.open("wb") as file:
        file.truncate(20 << 30)
    for source in (bomb, large, bomb.read_bytes(), large.read_bytes()):
        with pytest.raises(InputError, match="more than 1 MiB, once inflated"):
            loaded(source, 1 << 20)
        assert loaded(source, 2 << 20).state.pods
    with pytest.raises(InputError, match=r"sparse\.json: more than 1 GiB, once inflated"):
        loaded(sparse)


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    pipe, device = tmp_path / "pipe.json", Path("/dev/zero")
    os.mkfifo(pipe)
    for source in (pipe, device):
        with pytest.raises(InputError, match=f"{source}: not a file"):
            loaded(source)
    (tmp_path / "pod.json").write_text(json.dumps(POD), encoding="utf-8")
    assert list(loaded(tmp_path).state.pods) == ["u"]


def test_links_lead_nowhere_out_of_a_folder(tmp_path: Path) -> None:
    folder, outside = tmp_path / "dumps", tmp_path / "outside"
    for each in (folder / "..data", outside):
        each.mkdir(parents=True)
    (outside / "node.json").write_text(json.dumps(NODE), encoding="utf-8")
    (folder / "..data" / "pod.json").write_text(json.dumps(POD), encoding="utf-8")
    (folder / "inside.json").symlink_to("..data/pod.json")
    (folder / "out.json").symlink_to(outside / "node.json")
    (folder / "outside").symlink_to(outside)
    (folder / "lost.json").symlink_to(outside / "missing.json")
    (folder / "loop.json").symlink_to("loop.json")
    (tmp_path / "way in").symlink_to(folder)
    for source in (folder, tmp_path / "way in"):
        found = loaded(source)
        assert (list(found.state.pods), list(found.state.nodes)) == (["u"], [])
        assert found.left_out == {
            "link out of the folder (out.json)": 1,
            "link out of the folder (outside)": 1,
        }


def test_a_place_without_dumps_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"no dump in it"):
        loaded(tmp_path)
    with pytest.raises(InputError, match=r"missing\.json: No such file or directory"):
        loaded(tmp_path / "missing.json")


@settings(max_examples=200, deadline=None)
@given(JSON, st.sampled_from(["List", "PodList", "Pod", ""]))
def test_no_document_does_more_than_be_refused(document: Any, kind: str) -> None:
    for content in (document, {"kind": kind, "items": document}, {"metadata": document}):
        with suppress(InputError):
            loaded(json.dumps(content).encode())


def test_an_object_of_a_typed_list_gets_its_kind() -> None:
    workloads = next(each for each in ALL if each.kind == "Workload")
    assert named(workloads, "v1beta1", {"metadata": {}})["apiVersion"] == "kueue.x-k8s.io/v1beta1"
    assert named(ALL[0], "v1", {"kind": ""}) == {"apiVersion": "v1", "kind": "Pod"}
