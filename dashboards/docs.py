"""``python -m dashboards.docs``: bring the list of panels in docs/dashboards.md up to date."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dashboards import boards
from dashboards.grafana_json import Json, modern

PAGE = Path(__file__).parent.parent / "docs" / "dashboards.md"
BEGIN, END = "<!-- panels -->\n", "<!-- /panels -->\n"


def questions(of: Sequence[Json]) -> str:
    """Every dashboard with its panels and how to read them, in Markdown."""
    parts = []
    for board in of:
        parts += [f"## {board['title']}\n", f"{board['description']} File: `{board['uid']}.json`.\n"]
        for panel in board["panels"]:
            if panel["type"] == "row":
                parts += [f"### {panel['title']}\n", "| panel | how to read it |\n| --- | --- |"]
            else:
                parts.append(f"| {_cell(panel['title'])} | {_cell(panel['description'])} |")
    return _spaced(parts)


def with_questions(page: str, text: str) -> str:
    """``page`` with the part between its marks replaced. Raises ValueError when a mark is missing."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"the page must have {BEGIN.strip()} and {END.strip()} once each")
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _spaced(parts: Sequence[str]) -> str:
    """Lines of a table stay together, all other lines are separated by an empty line."""
    lines: list[str] = []
    for part in parts:
        if lines and not part.startswith("| ") and lines[-1].startswith("| "):
            lines.append("")
        lines.append(part)
    return "\n".join(lines) + "\n"


def main() -> None:
    text = questions([modern(board) for board in boards()])
    PAGE.write_text(with_questions(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")


if __name__ == "__main__":
    main()
