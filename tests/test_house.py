"""The house stays one in which a stranger finds things; and a tree that is not in order is caught."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests import house
from tests.house import HouseCount, SourceModule
from tests.support.slow_tests import listed

PAGE = '"""What lives here.\n\nWhat must not.\n"""\n'


def tree(root: Path, files: dict[str, str]) -> list[SourceModule]:
    for name, text in files.items():
        path = root / "gpucost" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return house.source_modules(root)


@cache
def sources() -> list[SourceModule]:
    """Of this repository; read when a test asks, not by every worker."""
    return house.source_modules(house.ROOT)


def figures(root: Path, files: dict[str, str]) -> HouseCount:
    return house.count(tree(root, files))


def test_tests_that_are_listed_as_long_are_there() -> None:
    root = Path(__file__).parents[1]
    for name in listed():
        file, _, test = name.partition("::")
        first = test.partition("::")[0]  # a function or a class
        assert re.search(rf"\b{first}\b", (root / file).read_text(encoding="utf-8")), name


def test_the_house_is_in_order() -> None:
    assert house.broken(sources()) == []


def test_all_parts_are_counted() -> None:
    assert {each.path.parts[0] for each in sources()} == set(house.PARTS)
    assert not any(each.path.name.endswith("_pb2.py") for each in sources())


def test_modules_and_lines(tmp_path: Path) -> None:
    found = figures(
        tmp_path,
        {"__init__.py": PAGE, "a.py": "x = 1\n" * 99, "b.py": "x = 1\n" * 100, "c_pb2.py": "", "d/e.py": ""},
    )
    assert (found.modules, found.median, found.short) == (3, 99, 2)
    assert found.folders == {"gpucost": 2, "gpucost/d": 1}
    assert found.largest_folder == 2


def test_an_empty_tree_has_no_figures(tmp_path: Path) -> None:
    found = figures(tmp_path, {})
    assert (found.modules, found.median, found.largest_folder, found.one_word_share) == (0, 0, 0, 0.0)


def test_classes_of_one_word_and_of_two_modules(tmp_path: Path) -> None:
    found = figures(
        tmp_path,
        {
            "a.py": "class Told: pass\nclass PriceBook: pass\nclass _Own: pass\n",
            "b.py": "class PriceBook:\n    class Told: pass\nclass _Own: pass\nclass DRA: pass\n",
        },
    )
    assert found.one_word == ("DRA", "Told")
    assert found.one_word_share == 0.5
    assert found.twice == {"PriceBook": ("gpucost/a.py", "gpucost/b.py")}
    assert set(found.twice_private) == {"PriceBook", "_Own"}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.py": "x = 1\n" * 601}, "gpucost/a.py has more than 600 lines"),
        ({f"m{n}.py": "" for n in range(25)}, "gpucost has 25 modules, more than 24"),
        ({"b/__init__.py": '"""One line."""\n'}, "gpucost/b/__init__.py has a docstring of 1 lines"),
        ({"b/__init__.py": "import os\n"}, "gpucost/b/__init__.py has a docstring of 0 lines"),
        (
            {f"f{n}/m{m}.py": "" for n in range(40) for m in range(20)},
            f"800 modules, more than {house.MOST_MODULES}",
        ),
        ({"a.py": "class Told: pass\nclass PriceBook: pass\n"}, "50% of public classes are one word"),
        (
            {f"{name}.py": "".join(f"class OfBoth{n}: pass\n" for n in range(11)) for name in "ab"},
            "11 names of classes stand in two modules or more: OfBoth0",
        ),
    ],
)
def test_a_bad_tree_is_caught(tmp_path: Path, files: dict[str, str], said: str) -> None:
    (found,) = house.broken(tree(tmp_path, {"__init__.py": PAGE, **files}))
    assert found.startswith(said)


def test_what_is_at_the_limit_is_in_order(tmp_path: Path) -> None:
    files = {f"m{n:02}.py": "x = 1\n" * 600 for n in range(24)}
    assert house.broken(tree(tmp_path, {"__init__.py": PAGE, **files})) == []


def test_the_table_has_now_before_and_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert house.main(["--no-times"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["now", "before", "limit"]
    now = house.count(sources()).modules
    assert lines[1].split()[-4:] == [str(now), "868", "<=", str(house.MOST_MODULES)]


def test_a_command_that_fails_has_no_time() -> None:
    assert house.cpu_seconds(("true",), times=1) >= 0
    with pytest.raises(house.subprocess.CalledProcessError):
        house.cpu_seconds(("false",), times=1)
