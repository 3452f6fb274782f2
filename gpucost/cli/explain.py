"""gpucost explain: what holds a job that exists, layer by layer."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from gpucost.cli.advise import print_text, screen_width, write_json
from gpucost.cli.advise_source import Asked, At, Prices, State, knowledge
from gpucost.cli.context import context_of
from gpucost.cli.state import ContextName, ExtraResources, Kubeconfig, TeamLabels, Url
from gpucost.domain.errors import InputError, Remark


def explain(
    ctx: typer.Context,
    subject: Annotated[
        str,
        typer.Argument(
            metavar="KIND/NAME",
            help="As kubectl takes it: pytorchjob/train, vcjob/sim, deploy/api, workload/job-train-1a2b3, "
            "pod/train-0.",
        ),
    ],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="Where it is; else default.")
    ] = "default",
    state: State = "",
    kubeconfig: Kubeconfig = None,
    context: ContextName = "",
    kubernetes_url: Url = "",
    prices: Prices = None,
    at: At = "",
    format_: Annotated[
        Literal["text", "json"], typer.Option("--format", "-f", help="text for people, json for programs.")
    ] = "text",
    team_labels: TeamLabels = "",
    extra_resources: ExtraResources = "",
) -> None:
    """Why a job does not run, or runs badly: the walk through quota, gang and placement, device, running.

    The first line is the answer: the first layer that holds it. Below it every layer, since when it is so,
    and the objects and fields that say so; then what to do.

    With --format json one gpucost/Explanation/v1 document.
    """
    from gpucost.advisor import explain as explainer
    from gpucost.advisor.encoding import document
    from gpucost.cli.advise_parts import Look
    from gpucost.cli.explain_screen import explanation_lines
    from gpucost.cli.kind_names import named

    kind, name = named(subject)
    asked = Asked(
        state,
        kubeconfig,
        context,
        kubernetes_url,
        at,
        prices,
        namespace,
        team_labels,
        extra_resources,
    )
    known = knowledge(context_of(ctx), asked)
    found = explainer.explain(kind, namespace, name, known)
    if found is None:
        remark = Remark(f"no {kind} {name} in namespace {namespace}")
        raise InputError("KIND/NAME", remark, "what is there; -n NAME says in which namespace")
    if format_ == "json":
        write_json(document(found))
        return
    currency = known.prices.currency if known.prices is not None else ""
    look = Look(screen_width(), currency)
    print_text(explanation_lines(found, known.overview.state.at_ms, look))
