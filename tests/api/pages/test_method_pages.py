"""The method: docs as pages, whose links lead somewhere and whose headings are where templates say; and
commands that pages name."""

from __future__ import annotations

import re
import tomllib
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import typer

from gpucost.api.pages import method_pages
from gpucost.api.pages.method_pages import TOPICS, method_text, page_link, page_names
from gpucost.cli.application import app
from gpucost.reports.base.page_addresses import METHODOLOGY, method_page
from tests.api.conftest import Clients

ROOT = Path(__file__).parents[3]
TEMPLATES = ROOT / "gpucost" / "api" / "pages" / "templates"
NAMED = re.compile(r"""to\.method_page\("([^"]*)"(?:, "([^"]*)")?\)""")


def test_every_page_is_shown(clients: Clients) -> None:
    for name in page_names():
        got = clients.vera.get(method_page("", name), headers={"Accept": "text/html"})
        assert got.status_code == 200
        assert "style=" not in got.text
        assert "<h1 id=" in got.text


def test_every_link_within_the_method_leads_to_a_heading() -> None:
    for name in page_names():
        for href in re.findall(r'href="([^"]*)"', method_text(name).html):
            found = urlsplit(unescape(href))
            if found.scheme:
                continue
            there = name
            if found.path:
                there = unquote(found.path).removeprefix("/method").removeprefix("/") or METHODOLOGY
            assert there in page_names()
            if found.fragment:
                assert unquote(found.fragment) in method_text(there).anchors, f"{name}: {href}"


def test_every_anchor_that_templates_name_exists() -> None:
    found = [
        (template.name, *names)
        for template in TEMPLATES.glob("*.j2")
        for names in NAMED.findall(template.read_text("utf-8"))
    ]
    assert found
    for template, anchor, page in found:
        assert not anchor or anchor in method_text(page or METHODOLOGY).anchors, f"{template}: {anchor}"


def test_headings_are_named_as_on_github() -> None:
    assert "use-over-time" in method_text(METHODOLOGY).anchors
    assert method_text(METHODOLOGY).anchors[0] == "methodology"


@pytest.mark.parametrize(
    ("href", "name", "there"),
    [
        ("prices.md", METHODOLOGY, "/method/prices"),
        ("../methodology.md#shares", "detectors/README", "/method#shares"),
        ("#shares", METHODOLOGY, "#shares"),
        ("decisions/0001-dealing.md", METHODOLOGY, ""),
        ("../../secrets.md", METHODOLOGY, ""),
        ("https://kubernetes.io", METHODOLOGY, "https://kubernetes.io"),
    ],
)
def test_links_between_pages(href: str, name: str, there: str) -> None:
    assert page_link(href, name) == there


@pytest.mark.parametrize(
    "page", ["../README", "..%2f..%2fpyproject", "nothing", "waste.md", "", "decisions/x"]
)
def test_only_listed_pages_are_read(clients: Clients, page: str) -> None:
    got = clients.vera.get(f"/method/{page}")
    assert got.status_code == 404


def test_raw_html_is_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "waste.md").write_text(
        "# A\n<!-- gone -->\n<script>x</script>\n\n![p](p.png) [b](javascript:b)\n"
    )
    monkeypatch.setattr(method_pages, "docs_folder", lambda: tmp_path)
    found = method_text.__wrapped__("waste").html
    assert "<script" not in found
    assert "gone" not in found
    assert "<img" not in found
    assert 'href="javascript' not in found


def test_the_wheel_has_every_page() -> None:
    packed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]
    there = packed["wheel"]["force-include"]
    for name in TOPICS:
        if not name.startswith("detectors/"):
            assert there[f"docs/{name}.md"] == f"gpucost/api/pages/docs/{name}.md"
    assert there["docs/detectors"] == "gpucost/api/pages/docs/detectors"


def named_commands() -> list[str]:
    """In the templates of all pages, with a month where one is filled in."""
    said = "".join(each.read_text("utf-8") for each in TEMPLATES.glob("*.j2"))
    found = re.findall(
        r"""(?:<code>|")gpucost ([^<"]+)(?:</code>|")""", said.replace("{{ month }}", "2026-10")
    )
    return sorted(set(found))


@pytest.mark.parametrize("words", named_commands())
def test_a_command_that_a_page_names_is_understood(words: str) -> None:
    """As far as the parser of arguments goes: it raises for what is not there, and for what is missing."""
    command, rest = typer.main.get_command(app), words.split()
    while children := getattr(command, "commands", {}):
        command = children[rest.pop(0)]
    command.make_context("gpucost", rest)


def test_all_commands_of_pages_are_read() -> None:
    assert len(named_commands()) >= 5
