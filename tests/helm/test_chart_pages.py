"""The chart's metadata and pages: versions, the table of values, what the guide says."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer.main
import yaml

from gpucost import __version__
from gpucost.cli.application import app
from tests.support.helm_chart import CHART, ROOT, merged, needs_helm, objects, scenarios, texts
from tests.support.helm_values import README, rows, written
from tests.support.pages import blocks, section, values_in

pytestmark = pytest.mark.fault(70)

NOTES = CHART / "templates" / "NOTES.txt"
GUIDES = {
    "install.md": (ROOT / "docs" / "install.md").read_text("utf-8"),
    "README.md": section(ROOT / "README.md", "In a cluster: from values to the first report"),
}
"""What leads a new user through an installation."""
guides = pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in GUIDES.items()])


def test_the_chart_is_of_the_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert chart["apiVersion"] == "v2"
    assert chart["appVersion"] == chart["version"] == __version__
    assert chart["kubeVersion"]
    assert chart["maintainers"]


def test_the_table_of_values_is_of_the_file() -> None:
    page = README.read_text("utf-8")
    assert written(page) == page, "python -m tests.support.helm_values writes it anew"
    assert len(list(rows())) > 100


def values_named(text: str) -> set[str]:
    """Values that a page gives on a command line, or names in backticks."""
    groups = "|".join(yaml.safe_load((CHART / "values.yaml").read_text("utf-8")))
    given = re.findall(r"--set(?:-file|-string)? ([\w.]+)=", text)
    return {*given, *re.findall(rf"`((?:{groups})\.[A-Za-z.]+)`", text)}


@pytest.mark.parametrize(
    "text",
    [
        *(pytest.param(text, id=name) for name, text in GUIDES.items()),
        pytest.param(README.read_text("utf-8"), id="the chart's README.md"),
        pytest.param(NOTES.read_text("utf-8"), id="NOTES.txt"),
    ],
)
def test_values_that_are_named_exist(text: str) -> None:
    known = [name for name, _, _ in rows()]
    for name in values_named(text):
        is_free = name.startswith("service.config.")
        assert is_free or any(each == name or each.startswith(f"{name}.") for each in known), name


@needs_helm
@guides
def test_values_of_the_guide_are_taken(text: str) -> None:
    values = values_in(text)
    assert values
    for each in values:
        assert objects(each)
        assert texts(each)["NOTES.txt"]
    assert objects(merged(*values))


@needs_helm
def test_the_guides_begin_with_the_same_values() -> None:
    first, second = (values_in(text)[0] for text in GUIDES.values())
    assert first == second


@needs_helm
@guides
def test_names_of_the_guide_are_those_of_the_release(text: str) -> None:
    """The guide installs a release called gpucost in a namespace of that name."""
    found = objects(scenarios()["all"], "gpucost", "gpucost")
    names = {f"{each['kind'].lower()}/{each['metadata']['name']}" for each in found}
    short = {"deploy": "deployment", "svc": "service", "ds": "daemonset", "pvc": "persistentvolumeclaim"}
    asked = re.findall(r"\b(deploy|svc|ds)/([-\w]+)", text)
    assert asked
    assert {f"{short[kind]}/{name}" for kind, name in asked} <= names


@needs_helm
def test_the_notes_lead_to_a_login_as_readme_does() -> None:
    notes = texts({}, "gpucost", "gpucost")["NOTES.txt"]
    steps = [line.strip() for line in notes.splitlines()]
    wanted = re.findall(r"^ +(.*(?:me\.key|svc/gpucost 8080).*)$", GUIDES["README.md"], re.MULTILINE)
    assert len(wanted) == 3
    assert set(wanted) <= set(steps)
    assert "$KEY" not in notes


@needs_helm
def test_the_notes_say_what_is_wrong_with_an_ingress() -> None:
    open_ = {"service": {"ingress": {"enabled": True, "host": "gpucost.example.com"}}}
    well = {"networkPolicies": {"apiClients": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]}}
    assert "MIND: without service.ingress.tlsSecret" in texts(merged(open_, well))["NOTES.txt"]
    closed = merged(open_, {"service": {"ingress": {"tlsSecret": "cert"}}}, well)
    assert "service.ingress.tlsSecret" not in texts(closed)["NOTES.txt"]


def test_links_of_the_charts_page_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", README.read_text("utf-8")):
        assert "://" in target or (README.parent / target).exists(), target


@pytest.mark.parametrize("text", [*GUIDES.values(), NOTES.read_text("utf-8")], ids=[*GUIDES, "NOTES.txt"])
def test_commands_of_the_guides_and_the_notes_exist(text: str) -> None:
    lines = "\n".join(blocks(text))
    commands = re.findall(r"(?:^|-- )gpucost ([a-z ]+[a-z])", lines or text, re.MULTILINE)
    assert commands
    for command in commands:
        found: Any = typer.main.get_command(app)
        for word in command.split():
            if not hasattr(found, "get_command"):
                break  # an argument
            context = found.make_context("gpucost", [], resilient_parsing=True)
            found = found.get_command(context, word)
            assert found is not None, command
