"""The committed JSON and the page about the dashboards are those of the sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboards import boards
from dashboards.__main__ import main
from dashboards.docs import PAGE, questions, with_questions
from dashboards.grafana_json import GENERATED, encode, modern
from dashboards.panels import COLUMNS, UIDS
from tests.support.dashboard_queries import committed_boards, panels_of


def test_committed_files_are_what_the_sources_give() -> None:
    expected = {f"{board.uid}.json": encode(modern(board)) for board in boards()}
    committed = {path.name: path.read_text(encoding="utf-8") for path in GENERATED.iterdir()}
    assert committed.keys() == expected.keys(), "run: python -m dashboards"
    different = [name for name, text in expected.items() if committed[name] != text]
    assert different == [], "run: python -m dashboards"


def test_there_is_a_board_for_every_uid() -> None:
    assert {board["uid"] for board in committed_boards()} == set(UIDS)


def test_building_twice_gives_the_same_bytes() -> None:
    first, second = ([encode(modern(board)) for board in boards()] for _ in range(2))
    assert first == second


def test_panels_lie_beside_each_other_and_within_the_grid() -> None:
    for board in committed_boards():
        taken: dict[tuple[int, int], str] = {}
        for panel in board["panels"]:
            at = panel["gridPos"]
            assert at["x"] + at["w"] <= COLUMNS, f"{board['title']}, {panel['title']}: beyond the grid"
            for x in range(at["x"], at["x"] + at["w"]):
                for y in range(at["y"], at["y"] + at["h"]):
                    other = taken.setdefault((x, y), panel["title"])
                    assert other == panel["title"], f"{board['title']}: {panel['title']} lies on {other}"


def test_the_command_writes_boards_of_another_currency_elsewhere_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--currency", "EUR", str(tmp_path / "boards")])
    written = sorted(path.name for path in (tmp_path / "boards").iterdir())
    assert written == sorted(f"{board.uid}.json" for board in boards())
    assert all("_usd" not in path.read_text() for path in (tmp_path / "boards").iterdir())
    with pytest.raises(SystemExit):
        main(["--currency", "EUR"])
    assert "needs a folder of its own" in capsys.readouterr().err


def test_the_page_has_every_board_and_panel_as_they_are() -> None:
    page = PAGE.read_text(encoding="utf-8")
    listed = questions([modern(board) for board in boards()])
    assert page == with_questions(page, listed), "run: python -m dashboards.docs"


def test_the_page_names_every_panel_once_with_its_description() -> None:
    text = questions(committed_boards())
    for board in committed_boards():
        assert f"## {board['title']}" in text
        for panel in panels_of(board):
            row = f"| {panel['title']} | {panel['description'].replace('|', chr(92) + '|')} |"
            assert text.count(row) == 1
