"""A diagnosis in a terminal, and as JSON for programs.

Names from outside are made safe to display; settings can be copied.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from gpucost.reports.base.display import name, visible
from gpucost.reports.doctor.model import (
    ClusterDiagnosis,
    DiagnosisFact,
    DiagnosisStep,
    FeatureVerdict,
    ServerDiagnosis,
)
from gpucost.reports.render.terminal_parts import (
    indented,
    new_table,
    print_block,
    print_parts,
)

_STYLES = {
    FeatureVerdict.YES: "green",
    FeatureVerdict.PART: "yellow",
    FeatureVerdict.NO: "red",
    FeatureVerdict.UNKNOWN: "bright_black",
}
_SENTENCE = 2_000


def headline(diagnosis: ServerDiagnosis) -> str:
    """The first line: the verdict, and what to do next."""
    if diagnosis.command:
        return f"{diagnosis.sentence} Next: {diagnosis.command}"
    step = diagnosis.first_step
    if step is not None:
        of = [name(each.cluster) for each in diagnosis.clusters if each.steps is diagnosis.steps]
        where = f" for cluster {of[0]}" if of and len(diagnosis.clusters) > 1 else ""
        return f"{diagnosis.sentence} Turn on first: {step.title} (step {diagnosis.first} below{where})"
    return diagnosis.sentence


def print_diagnosis(diagnosis: ServerDiagnosis, console: Console) -> None:
    """The headline; of each cluster its features and what was found; then what to turn on."""
    style = "bold green" if diagnosis.can_tell else "bold yellow"
    console.print(Text(visible(headline(diagnosis), _SENTENCE), style), soft_wrap=True)
    console.print()
    parts: list[RenderableType] = []
    for cluster in diagnosis.clusters:
        if len(diagnosis.clusters) > 1:
            parts.append(Text(f"Cluster {name(cluster.cluster)}", "bold"))
        parts += [_features(cluster), _facts(cluster.facts)]
    print_parts(parts, console)
    if len(diagnosis.clusters) < 2:
        print_steps(diagnosis.steps, console)
    else:
        for cluster in diagnosis.clusters:
            print_steps(cluster.steps, console, f" in cluster {name(cluster.cluster)}")
    if diagnosis.unread:
        unread = [DiagnosisFact(each.what, each.reason) for each in diagnosis.unread]
        print_parts([_facts(unread, "Not known, since the server did not answer")], console)


def print_steps(steps: Sequence[DiagnosisStep], console: Console, where: str = "") -> None:
    """The steps, numbered, those with the largest gain first."""
    if not steps:
        return
    console.print(Text(f" To turn on{where}", "bold"))
    for at, step in enumerate(steps, 1):
        gains = f"  → {', '.join(each.value for each in step.gains)}" if step.gains else ""
        heading = (f"{at}. {visible(step.title, _SENTENCE)}", "bold")
        console.print(indented(Text.assemble(heading, (visible(gains, 300), "cyan")), 1))
        if step.note:
            console.print(indented(Text(visible(step.note, _SENTENCE), "dim"), 4))
        for setting in step.settings:
            console.print(Text(f"    {visible(setting.where, 300)}:"))
            print_block(setting.text, console, indent=6)
    console.print()


def _features(cluster: ClusterDiagnosis) -> RenderableType:
    table = new_table("What this gives")
    table.add_column("feature", no_wrap=True)
    table.add_column("works", no_wrap=True)
    table.add_column("why", overflow="fold")
    for feature, found in cluster.features.items():
        verdict = Text(found.verdict.value, _STYLES[found.verdict])
        table.add_row(Text(feature.value), verdict, Text(visible(found.why, 400)))
    return table


def _facts(facts: Sequence[DiagnosisFact], title: str = "What is there") -> RenderableType:
    table = new_table(title)
    table.add_column("what", no_wrap=True)
    table.add_column("found", overflow="fold")
    for fact in facts:
        table.add_row(Text(visible(fact.what)), Text(visible(fact.found, 400)))
    return table


def as_json(diagnosis: ServerDiagnosis) -> str:
    """One object, ending in a newline."""
    document = {
        "prometheus": diagnosis.url,
        "month": diagnosis.month,
        "can_tell": diagnosis.can_tell,
        "verdict": diagnosis.sentence,
        "command": diagnosis.command or None,
        "turn_on": diagnosis.turn_on or None,
        "clusters": [_cluster(each) for each in diagnosis.clusters],
        "steps": [_step(each) for each in diagnosis.steps],
        "not_known": [{"what": each.what, "reason": each.reason} for each in diagnosis.unread],
    }
    return json.dumps(document, indent=2) + "\n"


def _cluster(cluster: ClusterDiagnosis) -> dict[str, Any]:
    return {
        "cluster": cluster.cluster,
        "can_tell": cluster.can_tell,
        "first_whole_month": cluster.first_whole,
        "features": {
            feature.name.lower(): {"name": feature.value, "works": found.verdict.value, "why": found.why}
            for feature, found in cluster.features.items()
        },
        "steps": [_step(each) for each in cluster.steps],
        "facts": [{"what": each.what, "found": each.found} for each in cluster.facts],
    }


def _step(step: DiagnosisStep) -> dict[str, Any]:
    return {
        "title": step.title,
        "gains": [feature.name.lower() for feature in step.gains],
        "note": step.note,
        "settings": [{"where": each.where, "text": each.text} for each in step.settings],
    }
