"""Every detector has a page that says what the code does: its settings, its variants, and where it stands."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main

from gpucost.cli.application import app
from gpucost.detectors.engine.lifecycle import EXEMPT_LABEL
from gpucost.detectors.engine.registry import RULES
from gpucost.detectors.findings import FindingSeverity, WastePattern
from gpucost.detectors.rule_settings import ScopedSettings
from gpucost.service.settings.loader import load_settings
from gpucost.service.settings_docs import BEGIN, END, with_settings
from tests.detectors.worlds import Case

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "detectors"
INDEX = (FOLDER / "README.md").read_text("utf-8")
CODE = ROOT / "gpucost" / "detectors" / "rules"

VARIANTS: dict[WastePattern, set[str]] = {
    WastePattern.IDLE_ALLOCATION: {"whole", "partly"},
    WastePattern.OVERSIZED_REQUEST: {
        *("fits_smaller", "too_many_gpus", "serving_peak", "serving_memory"),
        *("low_efficiency", "memory_over_ask", "host_share"),
    },
    WastePattern.FRAGMENTATION: {"blocked", "blocked_many", "unusable", "jobs_spread", "gauge", "repack"},
    WastePattern.GANG_STALL: {"partial", "lost_rank", "deadlock", "straggler", "below_replicas"},
    WastePattern.MONOPOLY: {"tenant"},
    WastePattern.QUOTA_STARVATION: {"starved", "reserved"},
    WastePattern.NOT_ADVERTISED: {"none", "fewer"},
    WastePattern.RESERVED_UNUSED: {"unused"},
    WastePattern.PREEMPTION_WASTE: {"queue", "cycling", "ring", "below_threshold"},
    WastePattern.CPU_ONLY_PODS: {"blocked"},
    WastePattern.TOPOLOGY_SPREAD: {"spread"},
    WastePattern.UNHEALTHY_ALLOCATED: {"lost", "xid", "reported"},
    WastePattern.NVLINK_DOMAIN: {"rest", "taken_trays"},
}
"""Of each rule. What its code can say is held against this below."""


def page(pattern: WastePattern) -> str:
    return (FOLDER / f"{pattern.value}.md").read_text("utf-8")


def modules(pattern: WastePattern) -> list[Path]:
    """The modules of the rule: its package, or the one module that it is."""
    package = CODE / pattern.value
    return sorted(package.glob("*.py")) if package.is_dir() else [CODE / f"{pattern.value}.py"]


def test_there_is_a_page_for_every_rule_and_none_for_another() -> None:
    found = {path.stem for path in FOLDER.glob("*.md")} - {"README"}
    assert found == {pattern.value for pattern in RULES} == {pattern.value for pattern in WastePattern}


@pytest.mark.parametrize("pattern", WastePattern)
def test_the_settings_of_a_page_are_those_of_the_code(pattern: WastePattern) -> None:
    text = page(pattern)
    assert text.count(BEGIN) == text.count(END) == 1
    assert text == with_settings(text, pattern), "run: python -m gpucost.service.settings_docs docs/detectors"
    for key in RULES[pattern].settings.model_fields:
        assert f"| `{key}` | " in text.partition(BEGIN)[2]


@pytest.mark.parametrize("pattern", WastePattern)
def test_a_page_explains_what_every_page_must(pattern: WastePattern) -> None:
    heads = re.findall(r"^## (.*)$", page(pattern), re.MULTILINE)
    assert {"What to do", "What it cannot see", "Settings"} <= {*heads}
    assert {"Example", "An example"} & {*heads}
    assert {"Guards", "What holds it back"} & {*heads}
    assert {"Rule", "Rules", "The rule", "The rules"} & {*heads}


@pytest.mark.parametrize("pattern", WastePattern)
def test_a_page_explains_every_variant(pattern: WastePattern) -> None:
    written = page(pattern).partition(BEGIN)[0]
    assert not [variant for variant in VARIANTS[pattern] if f"`{variant}`" not in written]


@pytest.mark.parametrize("pattern", WastePattern)
def test_the_variants_are_those_that_the_code_can_say(pattern: WastePattern) -> None:
    texts = {text for path in modules(pattern) for text in _texts(path)}
    assert VARIANTS[pattern] <= texts, "a variant that the code does not know"
    said = {text for path in modules(pattern) for text in _said(path)}
    assert said <= VARIANTS[pattern], "a variant that is not in the table above"


@pytest.mark.parametrize("pattern", WastePattern)
def test_the_variants_are_those_that_the_cases_found(pattern: WastePattern) -> None:
    assert {case.variant for case in _cases(pattern)} <= VARIANTS[pattern]


def test_the_index_lists_every_rule_with_its_variants_and_bucket() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \| (.*?) \| (.*?) \| .* \|$", INDEX, re.MULTILINE)
    assert {name for name, link, _, _ in rows if name == link} == {pattern.value for pattern in WastePattern}
    for name, _, variants, bucket in rows:
        assert set(re.findall(r"`(\w+)`", variants)) == VARIANTS[WastePattern(name)], name
        listed = set(re.findall(r"`(\w+)`", bucket))
        assert listed == {*_claimed(WastePattern(name))}, name
        assert bool(listed) is (bucket != "shown only"), name


def test_the_index_says_the_severities_and_the_label() -> None:
    severities = [line for line in INDEX.splitlines() if re.match(r"\| `\w+` \| ", line)]
    assert [line.split("`")[1] for line in severities] == [severity.value for severity in FindingSeverity]
    assert EXEMPT_LABEL in INDEX


EXAMPLES = re.findall(r"^```yaml\n(.*?)^```$", INDEX, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", [each for each in EXAMPLES if each.startswith("detectors:")])
def test_the_examples_of_settings_can_be_loaded(text: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text, encoding="utf-8")
    found = load_settings(file).detectors
    assert found.model_fields_set
    assert len(found.exempt) == len(found.exemptions)


def test_the_examples_do_what_the_index_says_of_them(tmp_path: Path) -> None:
    (text,) = (each for each in EXAMPLES if "overrides:" in each)
    file = tmp_path / "settings.yaml"
    file.write_text(text, encoding="utf-8")
    idle = load_settings(file).detectors.rules.of(WastePattern.IDLE_ALLOCATION)
    hours = [
        getattr(idle.at("research-vision", "night"), key).total_seconds() / 3600
        for key in ("interactive", "serving", "batch")
    ]
    assert hours == [4, 6, 8]
    assert len(EXAMPLES) == 4


@pytest.mark.parametrize(
    "path", [FOLDER / "README.md", ROOT / "docs" / "waste.md"], ids=lambda path: path.name
)
def test_the_commands_of_a_page_exist(path: Path) -> None:
    lines = re.findall(r"^    gpucost ([^#\n]+)", path.read_text("utf-8"), re.MULTILINE)
    assert lines
    for line in lines:
        command: Any = typer.main.get_command(app)
        context, words = command.make_context("gpucost", [], resilient_parsing=True), shlex.split(line)
        while words and hasattr(command, "get_command"):
            command = command.get_command(context, words.pop(0))
            assert command is not None, line
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line


# Folders and hosts that only the author's machine has, and sections of papers that do not ship with it.
FOREIGN = re.compile(r"/tmp/|/home/|/root/|shared/reference|shared/traces|design\.md|antipatterns[ ,.]")


@pytest.mark.parametrize(
    "path",
    [*sorted(FOLDER.glob("*.md")), ROOT / "docs" / "waste.md", ROOT / "docs" / "settings.md"],
    ids=lambda path: path.name,
)
def test_pages_name_nothing_outside_the_project(path: Path) -> None:
    text = path.read_text("utf-8")
    assert FOREIGN.search(text) is None
    for named in re.findall(r"`((?:gpucost|tests|docs|benchmarks|exporters)/[\w./-]+)`", text):
        assert (ROOT / named).exists(), named


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.md")), ids=lambda path: path.name)
def test_links_to_sections_lead_to_a_heading(path: Path) -> None:
    for target, section in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", path.read_text("utf-8")):
        other = (path.parent / target if target else path).read_text("utf-8")
        heads = re.findall(r"^#+ (.*)$", other, re.MULTILINE)
        assert section in {_anchor(head) for head in heads}


def _anchor(head: str) -> str:
    return re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-")


def _texts(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _said(path: Path) -> Iterator[str]:
    """Texts that become a variant: assigned to one, or given as one to FindingDraft or to what makes it."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Assign):
            names = {target.id.lower() for target in node.targets if isinstance(target, ast.Name)}
            if any(name.endswith("variant") for name in names):
                yield from _chosen(node.value)
        elif isinstance(node, ast.Call):
            yield from (text for key in node.keywords if key.arg == "variant" for text in _chosen(key.value))
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            if name == "FindingDraft" and len(node.args) > 1:
                yield from _chosen(node.args[1])


def _chosen(node: ast.expr) -> Iterator[str]:
    """The texts that an expression can be, as far as they stand there."""
    if isinstance(node, ast.IfExp):
        yield from (*_chosen(node.body), *_chosen(node.orelse))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _claimed(pattern: WastePattern) -> Iterator[str]:
    """Buckets that the rule claims for in the cases that it must find."""
    rule = RULES[pattern]
    for case in _cases(pattern):
        world = case.positive() if callable(case.positive) else case.positive
        settings = ScopedSettings(rule.settings.model_validate(case.settings))
        drafts = rule.run(world.facts(), settings).drafts
        yield from (each.waste.value for draft in drafts for each in draft.episodes)


def _cases(pattern: WastePattern) -> Sequence[Case]:
    cases: Sequence[Case] = import_module(f"tests.detectors.case_{pattern.value}").CASES
    return cases
