"""The screens of ``gpucost advise`` and ``gpucost explain``: lines fit, and say no more than is known."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gpucost.advisor.model.answers import (
    AdviceSubject,
    LayerVerdict,
    SchedulingDecision,
    SchedulingLayer,
)
from gpucost.cli.advise.advice_screen import (
    MARKS,
    AdviceLayout,
    advice_lines,
    explanation_lines,
    since,
)
from gpucost.cli.advise.advise_command import CODES
from gpucost.reports.render.advice_text import MOST_ROWS, advice_facts, quantity
from tests.cli.advise_answers import ADVICE, EXPLANATION, GPU, NOW, OTHER_QUEUE, VICTIM, WAIT, WAITS

AGAIN = "gpucost advise -f job.yaml"
WIDTHS = [60, 80, 140]
EVIL = "[red]x[/red]\x1b[2J\u202e\r\n2. now"


def advice(answer: object = WAITS, width: int = 80, **more: object) -> list[str]:
    found = answer if not more else replace(answer, **more)  # type: ignore[type-var]
    return [line.plain for line in advice_lines(found, AdviceLayout(width, "USD", AGAIN))]  # type: ignore[arg-type]


def explanation(width: int = 80, **more: object) -> list[str]:
    found = replace(EXPLANATION, **more)  # type: ignore[arg-type]
    return [line.plain for line in explanation_lines(found, NOW, AdviceLayout(width, "USD"))]


SCREEN = """\
train-llm (PyTorchJob, team-nlp): waits about 3 h (p90 9 h), then runs on 4
    nodes · USD 98.32/h
  held by     quota (WaitingForQuota)
  quota       ml lends no more: 56 of 64 GPUs of flavor h100 in use, 16 asked; 8
              short
  placement   once quota is there, 4 of 6 free nodes of h100 fit it
  why         its priority is 0
  gets        worker: 4 pods, flavor h100 (nvidia.com/gpu, cpu), flavor default
              (memory); 2 on gpu-01, 2 on gpu-02
  borrows     2.5 cpu of flavor h100, lent 1 level up in the cohorts
              16 GPUs of flavor h100, lent 1 level up in the cohorts
  ahead       3 workloads in queue ml
  wait        about 3 h (p90 9 h), from 40 simulations of the queue; run times
              of 40 jobs of team nlp
              18 of 20 ranges given so far held
  price       USD 98.32/h; prices from H100/on-demand
              USD 294.96 for a run of 3 h, the median of like jobs
  what to do
    1. queue research has 24 lendable GPUs of h100: now, USD 98.00/h
       mind: its team pays
       in pytorchjob/train-llm:
         metadata:
           labels:
             kueue.x-k8s.io/queue-name: research
       gpucost advise -f job.yaml --apply 1 | kubectl apply -f -
    2. 8 more GPUs of quota for queue ml: waits about 20 min (p90 longer than 7
       d)
       for an administrator, in clusterqueue/ml:
         spec:
           resourceGroups:
           - flavors:
             - name: h100
               resources:
               - name: nvidia.com/gpu
                 nominalQuota: 72
       kubectl patch clusterqueue ml --type=json -p '[…]'
  evidence
    · clusterqueue/ml
      spec.resourceGroups[0].flavors[0].resources[0].nominalQuota = 64: its own
      quota
  rules       Kueue 0.19.2
  differs     the cluster runs Kueue v0.19.1
  assumed     jobs of like names run as long as before
"""

WALK = """\
train-llm (PyTorchJob, team-nlp): 2 of its 4 pods have no node, since
    2026-10-21T00:00:00Z (3 d)
  quota               ✓ passed       since 2026-10-20T00:00:00Z (4 d)
      admitted to queue ml
  gang and placement  ✗ holds it     since 2026-10-21T00:00:00Z (3 d)
      minMember is 2 below 4 replicas, so half of the gang started and waits for
      the rest
      · podgroup/train-llm spec.minMember = 2: 4 pods are needed
  device              ? unknown
      no node says how many GPUs it should have
  running             · not reached
  outlook     waits about 3 h (p90 9 h), then runs on 4 nodes
"""


def test_the_answer_comes_first_and_the_why_below_it() -> None:
    assert advice() == SCREEN.splitlines()


def test_the_walk_through_the_layers() -> None:
    lines = explanation()
    assert lines[: WALK.count("\n")] == WALK.splitlines()
    assert "  what to do" in lines
    assert not any("--apply" in line for line in lines), "what exists is patched, not submitted"


def test_where_there_is_room_the_answer_is_one_line() -> None:
    first = "train-llm (PyTorchJob, team-nlp): waits about 3 h (p90 9 h), then runs on 4 nodes · USD 98.32/h"
    assert advice(width=140)[0] == first
    assert advice(width=10_000)[0] == first
    assert max(map(len, advice(width=10_000))) < 200, "a pipe has no columns of blanks"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("decision", SchedulingDecision)
def test_every_decision_fits_and_is_in_the_first_line(decision: SchedulingDecision, width: int) -> None:
    lines = advice(ADVICE[decision], width)
    says = ADVICE[decision].says.split()
    assert lines[0].startswith(f"train-llm (PyTorchJob, team-nlp): {says[0]} {says[1]}")
    copied = [OTHER_QUEUE.change.patch, "--apply", "kubectl patch"]
    for line in lines:
        assert cell_len(line) <= width or any(each in line for each in copied)
        assert line == line.rstrip()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_walk_fits(width: int) -> None:
    lines = explanation(width)
    assert all(cell_len(line) <= width or "kubectl patch" in line for line in lines)
    for step in EXPLANATION.steps:
        row = next(line for line in lines if line.startswith(f"  {step.layer.value} "))
        assert step.verdict.value in row


def test_what_is_not_known_is_not_said() -> None:
    text = "\n".join(advice(price=None, wait=None, ahead=None))
    assert "  price       unknown\n" in text
    assert "  wait        unknown\n" in text
    assert "ahead" not in text
    for decision in (SchedulingDecision.NEVER, SchedulingDecision.UNKNOWN):
        answer = ADVICE[decision]
        lines = advice(replace(WAITS, decision=decision, wait=None, price=None, why=(), says=answer.says))
        labels = {line[2:12].rstrip() for line in lines[1:] if line[2] != " "}
        assert labels == {"held by", "evidence", "rules", "differs", "assumed", "what to do"}


def test_where_the_why_says_it_no_figure_says_it_again() -> None:
    lines = advice(price=None, why=("price: unknown: no price for GPU model X in prices.yaml",))
    said = [line for line in lines if line.startswith("  price")]
    assert said == ["  price       unknown: no price for GPU model X in prices.yaml"]


def test_lines_of_the_why_stand_under_their_labels() -> None:
    lines = advice(
        why=("note: one", "quota: two", "note: three", "http://x: four"), layer=SchedulingLayer.NONE
    )
    assert lines[2:6] == [
        "  note        one",
        "              three",
        "  quota       two",
        "  why         http://x: four",
    ]


def test_a_wait_without_end_and_without_history() -> None:
    assert "longer than 7 d, which is as far as was simulated" in " ".join(
        " ".join(advice(wait=replace(WAIT, p50_ms=None, p90_ms=None))).split()
    )
    text = "\n".join(advice(wait=replace(WAIT, held=None, given=0)))
    assert "how often such ranges held is not known here" in text
    assert "given so far" not in text


def test_a_price_without_a_run_time() -> None:
    price = WAITS.price
    assert price is not None
    text = " ".join(advice(price=replace(price, per_hour=4_200_000, run_ms=None, for_run=None)))
    assert "USD 0.0042/h" in text, "what costs something never costs nothing"
    assert "for the whole run unknown: no history says how long like jobs run" in text


def test_long_lists_are_cut_and_say_so() -> None:
    victims = tuple(replace(VICTIM, subject=AdviceSubject("Job", "ns", f"job-{at}")) for at in range(30))
    nodes = {f"node-{at:02}": 1 for at in range(MOST_ROWS + 1)}
    pods = replace(WAITS.pod_sets[0], nodes=nodes)
    text = " ".join(" ".join(advice(victims=victims, pod_sets=(pods,))).split())
    assert f"ns/job-{MOST_ROWS - 1} (Job)" in text
    assert f"and {30 - MOST_ROWS} more (--format json has them)" in text
    assert f"ns/job-{MOST_ROWS} " not in text
    assert f"node-{MOST_ROWS:02}" in text, "a last one is rather shown than announced"


@pytest.mark.parametrize("width", WIDTHS)
def test_foreign_text_is_only_shown(width: int) -> None:
    subject = AdviceSubject(EVIL, EVIL, EVIL * 100)
    evil = advice(
        width=width,
        subject=subject,
        says=EVIL,
        why=(EVIL, f"quota: {EVIL}"),
        reason=EVIL,
        queue=EVIL,
        rules=EVIL,
        drift=(EVIL,),
        assumptions=(EVIL,),
        victims=(replace(VICTIM, subject=subject, queue=EVIL, reason=EVIL, units={EVIL: 1}),),
        evidence=(replace(WAITS.evidence[0], object=EVIL, field=EVIL, value=EVIL, meaning=EVIL),),
        pod_sets=(replace(WAITS.pod_sets[0], name=EVIL, flavors={EVIL: EVIL}, nodes={EVIL: 1}),),
        suggestions=(replace(OTHER_QUEUE, says=EVIL, caveat=EVIL),),
    )
    evil += explanation(width, subject=subject, says=EVIL, steps=(replace(EXPLANATION.steps[1], says=EVIL),))
    text = "\n".join(evil)
    assert not {"\x1b", "\r", "\u202e"} & set(text)
    assert "[red]x" in text
    assert sum(line.lstrip().startswith("2. now") for line in evil) == 0, "no line of its own"
    assert all(cell_len(line) <= width or "--apply" in line or "kubectl" in line for line in evil)


def test_a_patch_of_hostile_lines_is_escaped_and_whole() -> None:
    change = replace(OTHER_QUEUE.change, patch=f"a: \x1b[2J{'x' * 300}\nb: 1\n")
    lines = advice(suggestions=(replace(OTHER_QUEUE, change=change),))
    assert f"         a: \\x1b[2J{'x' * 300}" in lines
    assert "         b: 1" in lines


@settings(max_examples=60, deadline=None)
@given(st.text(), st.text(), st.integers(20, 200))
def test_any_text_at_any_width(name: str, says: str, width: int) -> None:
    for line in advice(width=width, subject=AdviceSubject("Job", "ns", name), says=says, suggestions=()):
        assert cell_len(line) <= width
        assert all(char.isprintable() or unicodedata.category(char) == "Zs" for char in line)


def test_marks_are_not_needed_to_read_the_walk() -> None:
    lines = explanation()
    assert all(any(verdict.value in line for line in lines) for verdict in LayerVerdict)
    plain = "\n".join(lines).encode("ascii", "replace").decode()
    assert "gang and placement  ? holds it" in plain


def test_a_walk_without_dates_advice_or_steps() -> None:
    lines = explanation(
        since_ms=None, steps=(), advice=None, actions=(), assumptions=(), layer=SchedulingLayer.NONE
    )
    assert lines == [
        "train-llm (PyTorchJob, team-nlp): 2 of its 4 pods have no node",
        "  rules       Kueue 0.19.2",
    ]


def test_the_page_shows_these_screens_and_names_every_line_and_decision() -> None:
    page = (Path(__file__).parents[2] / "docs" / "advise.md").read_text(encoding="utf-8")
    assert SCREEN in page
    assert "\n".join(explanation()) in page
    labels = [*advice_facts(WAITS), "held by", "evidence", "rules", "differs", "assumed", "outlook"]
    assert [each for each in labels if f"`{each}`" not in page] == []
    assert [each for each in SchedulingDecision if f"| `{each}` | " not in page] == []
    assert [each for each in LayerVerdict if f"| `{MARKS[each]} {each}` | " not in page] == []
    codes = {
        each: next(line for line in page.splitlines() if line.startswith(f"| `{each}` "))
        for each in SchedulingDecision
    }
    assert {each: line.split()[-2] for each, line in codes.items()} == {
        each: str(CODES[each]) for each in SchedulingDecision
    }


def test_since_when_clocks_disagree() -> None:
    assert since(NOW + 1_000, NOW) == "since 2026-10-24T00:00:01Z"


@pytest.mark.parametrize(
    ("resource", "amount", "said"),
    [
        (GPU, 1, "1 GPU"),
        (GPU, 2_000, "2,000 GPUs"),
        ("nvidia.com/mig-1g.10gb", 4, "4 mig-1g.10gb"),
        ("cpu", 2_500, "2.5 cpu"),
        ("memory", 64 << 30, "64.0 GiB of memory"),
    ],
)
def test_amounts_as_people_say_them(resource: str, amount: int, said: str) -> None:
    assert quantity(resource, amount) == said
