"""CONTRIBUTING.md and the tour in gpucost/__init__.py name only what is there."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import gpucost

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TOUR = gpucost.__doc__ or ""

_FILE = re.compile(r"[\w.-]+\.(?:py|md|yaml|yml|toml|json|txt|j2|tpl|c)")
OUTSIDE = ("../shared",)
"""Beside the repository; a clone may lack it."""
CHANGES = {
    *("a detector", "a metric", "a column of the monthly report", "a price rule", "a channel", "an alert"),
    *("a panel of a dashboard", "a command", "a kind of job", "a rule of a scheduler"),
    "a page",
}


def quoted(text: str) -> list[str]:
    """What stands in backticks, blocks of code left out."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def paths(text: str) -> set[str]:
    """Quoted words that look like a file or a folder: with a slash, or with the ending of a file."""
    found = {each for each in quoted(text) if re.fullmatch(r"[\w./-]+", each) and not each.startswith("--")}
    return {each for each in found if "/" in each or _FILE.fullmatch(each)} - {*OUTSIDE}


def dotted_names(text: str) -> set[str]:
    return {each for each in quoted(text) if re.fullmatch(r"gpucost\w*(\.\w+)+", each)}


def doors(text: str) -> list[str]:
    """Modules of the tour: alone, or first on an indented line."""
    return re.findall(r"^    ([\w/]+\.py)\b", text, re.MULTILINE)


def is_there(path: str, page: str = "") -> bool:
    """A bare name of a file is at the top, or in a folder that the page names."""
    if (ROOT / path).exists():
        return True
    folders = {str(Path(each).parent) for each in paths(page)}
    return "/" not in path and any((ROOT / folder / path).exists() for folder in folders)


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    try:
        if find_spec(name) is not None:
            return True
    except ModuleNotFoundError:
        pass
    module, _, attribute = name.rpartition(".")
    if not module or find_spec(module) is None:
        return False
    return hasattr(__import__(module, fromlist=[attribute]), attribute)


def test_every_path_of_the_page_is_there() -> None:
    found = paths(PAGE)
    assert len(found) > 100
    assert sorted(path for path in found if not is_there(path, PAGE)) == []


def test_every_dotted_name_of_the_page_resolves() -> None:
    assert sorted(name for name in dotted_names(PAGE) if not resolves(name)) == []


def test_every_test_that_is_to_be_copied_by_name_is_there() -> None:
    for function, file in re.findall(r"`(test_\w+)`\s+in\s+`(tests/[\w/]+\.py)`", PAGE):
        assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8"), function


def test_every_name_beside_a_file_stands_in_it() -> None:
    """A file with a name in brackets behind it: `gpucost/kube/parse/collections.py` (`_JOBS`)."""
    found = re.findall(r"`([\w./-]+\.py)` \(((?:`\w+`(?:, )?)+)", PAGE)
    assert len(found) > 5
    for file, names in found:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert [name for name in re.findall(r"\w+", names) if not re.search(rf"\b{name}\b", text)] == [], file


def test_the_page_has_the_likely_changes() -> None:
    heads = re.findall(r"^### \.\.\. (.*)$", PAGE, re.MULTILINE)
    assert set(heads) == CHANGES
    assert len(heads) == len(CHANGES)
    parts = re.split(r"^### .*$", PAGE.partition("## What is generated")[0], flags=re.MULTILINE)[1:]
    for head, part in zip(heads, parts, strict=True):
        for word in ("Test to copy:", "Written anew:", "Checked by:"):
            assert word in part, f"{head}: {word}"


def test_every_door_of_the_tour_is_there_and_says_enough() -> None:
    found = doors(TOUR)
    assert len(found) == len(set(found)) >= 20
    for door in found:
        file = ROOT / door if door.startswith("exporters/") else ROOT / "gpucost" / door
        text = file.read_text(encoding="utf-8")
        head = text.removeprefix('"""').partition('"""')[0].splitlines()
        assert 15 <= len(head) <= 25, f"{door}: {len(head)} lines"


def test_every_package_of_the_tour_is_there() -> None:
    listed = TOUR.partition("A tour of five minutes")[0]
    names = {
        name
        for names in re.findall(r"^    (\w+(?:, \w+)*)  ", listed, re.MULTILINE)
        for name in names.split(", ")
    }
    packages = {path.parent.name for path in (ROOT / "gpucost").glob("*/__init__.py")}
    assert packages - names <= {"demo"}, "a package without a line"
    assert names <= packages


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see `gpucost/nothing.py` and `make test`", {"gpucost/nothing.py"}),
        ("`gpucost/cli/` and `pyproject.toml`", {"gpucost/cli/", "pyproject.toml"}),
        ("`../shared` and `<!-- /rule -->` and `GET /v1/jobs`", set()),
        ("```\n`a/b.py`\n```\n`c/d.py`", {"c/d.py"}),
    ],
)
def test_what_looks_like_a_path(text: str, found: set[str]) -> None:
    assert paths(text) == found


def test_what_is_not_there_is_seen() -> None:
    assert not is_there("gpucost/nothing.py")
    assert not resolves("gpucost.nothing")
    assert not resolves("gpucost.domain.time.Nothing")
    assert resolves("gpucost.domain.time")
    assert resolves("gpucost.domain.time.Window")
    assert dotted_names("`gpucost.nothing` and `detectors.history`") == {"gpucost.nothing"}
