"""gpucost advise: whether and when a job of a manifest will run, at what price, and what to change."""

from __future__ import annotations

import json
import shlex
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gpucost.cli.advise.advice_source import (
    AdviceSource,
    At,
    Namespace,
    Prices,
    State,
)
from gpucost.cli.state.state_command import (
    ContextName,
    ExtraResources,
    Kubeconfig,
    TeamLabels,
    Url,
)
from gpucost.cli.terminal.context import context_of, now_ms
from gpucost.cli.terminal.exit_codes import ExitCode, complain, fields_as
from gpucost.cli.terminal.output import stdout, write
from gpucost.domain.errors import InputError, LedgerError, SourceError

if TYPE_CHECKING:
    from rich.text import Text

    from gpucost.advisor.model.answers import Advice
    from gpucost.cli.advise.advice_screen import AdviceLayout
    from gpucost.cluster.objects.jobs import JobManifest

CODES: Mapping[str, int] = {"now": 0, "later": 0, "waits": 3, "never": 4, "unknown": 5}
"""With ``--exit-code``, by decision."""
_NOT_REPEATED = ("apply", "exit_code", "no_suggestions", "format_")


def advise(
    ctx: typer.Context,
    filename: Annotated[
        list[str],
        typer.Option("--filename", "-f", metavar="FILE", help="Manifests; - for stdin. Repeat it."),
    ],
    namespace: Namespace = "default",
    state: State = "",
    kubeconfig: Kubeconfig = None,
    context: ContextName = "",
    kubernetes_url: Url = "",
    prices: Prices = None,
    at: At = "",
    format_: Annotated[
        Literal["text", "json"], typer.Option("--format", help="text for people, json for programs.")
    ] = "text",
    no_suggestions: Annotated[
        bool, typer.Option("--no-suggestions", help="Only the answer; not what to change.")
    ] = False,
    apply: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Print the manifest changed as suggestion N says, nothing else."
        ),
    ] = None,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code",
            help="End with 0 where all run now or when nodes are added, 3 where one waits, 4 where one never "
            "runs, 5 where it cannot be told (of several the highest), and 2 where there is no answer.",
        ),
    ] = False,
    team_labels: TeamLabels = "",
    extra_resources: ExtraResources = "",
) -> None:
    """Will it run, when, at what price, and what to change: one answer for each job in the manifests.

    The first line is the answer, the lines below say why. Nothing is submitted, and nothing in the cluster is
    changed. Suggestions are numbered through all answers; each was advised on again with its change made, so
    what it promises is an answer too.

    gpucost advise -f job.yaml --apply 1 | kubectl apply -f - submits the job as suggestion 1 changes it.

    With --format json a list with one gpucost/Advice/v1 document for each job, also for a single one.
    """
    from gpucost.advisor.model.encoding import document
    from gpucost.cli.advise.advice_screen import AdviceLayout
    from gpucost.cli.advise.advice_source import STDIN

    if apply is not None and no_suggestions:
        raise InputError("--apply", apply, "none with --no-suggestions")
    asked = AdviceSource(
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
    with _told_apart(exit_code, context_of(ctx).debug):
        jobs, answers, currency = _answers(ctx, filename, asked, not no_suggestions)
        if apply is not None:
            write(_changed(apply, jobs, answers, format_), None)
            return
        if format_ == "json":
            write_json([document(each) for each in answers])
        else:
            was_piped = STDIN in (*filename, state)
            look = AdviceLayout(
                screen_width(), currency, "" if was_piped else command_of(ctx), was_piped=was_piped
            )
            print_text(_lines(jobs, answers, look))
    if exit_code:
        raise typer.Exit(max(CODES[each.decision.value] for each in answers))


def _answers(
    ctx: typer.Context, filename: Sequence[str], asked: AdviceSource, with_suggestions: bool
) -> tuple[Sequence[JobManifest], list[Advice], str]:
    """The jobs, an answer for each, and the currency of the prices."""
    from gpucost.advisor import advise as advisor
    from gpucost.cli.advise.advice_source import (
        STDIN,
        contents,
        currency_of,
        knowledge,
        manifests,
        server_of,
    )

    if STDIN in filename and asked.state == STDIN:
        raise InputError("--state", STDIN, "a file or a folder where the manifest is from standard input")
    files = contents(filename)
    # Reported before a cluster is asked; the files are parsed again once the time of the answer is known.
    for said in manifests(files, now_ms(), asked.namespace).skipped:
        complain(f"left out: {said}")
    remote = server_of(context_of(ctx), asked)
    if remote is not None:
        jobs = manifests(files, now_ms(), asked.namespace).jobs
        sent = [_placed(job.document, asked.namespace) for job in jobs]
        with fields_as({"metadata.namespace": "--namespace"}):
            answers = [remote.advice(each, suggestions=with_suggestions) for each in sent]
        return jobs, answers, currency_of(answers)
    known = knowledge(context_of(ctx), asked)
    jobs = manifests(files, known.overview.state.at_ms, asked.namespace).jobs
    answers = [advisor.advise(job, known, with_suggestions) for job in jobs]
    return jobs, answers, known.prices.currency if known.prices is not None else ""


def _placed(document: Mapping[str, Any], namespace: str) -> Mapping[str, Any]:
    """The manifest with a namespace where it names none: the server knows no ``--namespace``."""
    if document.get("kind") == "List":
        return {**document, "items": [_placed(each, namespace) for each in document["items"]]}
    return {**document, "metadata": {"namespace": namespace, **document.get("metadata", {})}}


@contextmanager
def _told_apart(with_codes: bool, debug: bool) -> Iterator[None]:
    """With ``--exit-code``, 3 and 4 are answers: errors end with 2 then."""
    try:
        yield
    except (SourceError, LedgerError) as error:
        if not with_codes:
            raise
        if debug:
            traceback.print_exc()
        complain(str(error))
        raise typer.Exit(ExitCode.USAGE) from None


def _lines(jobs: Sequence[JobManifest], answers: Sequence[Advice], look: AdviceLayout) -> Iterator[Text]:
    from rich.text import Text

    from gpucost.cli.advise.advice_screen import advice_lines

    for index, (job, answer) in enumerate(zip(jobs, answers, strict=True)):
        if index:
            yield Text()
        yield from advice_lines(answer, replace(look, is_new=_is_named_by_server(job.document)))
        look = replace(look, number=look.number + len(answer.suggestions))


def _is_named_by_server(document: Mapping[str, Any]) -> bool:
    """Whether it, or one of the pods of its group, has generateName and no name: kubectl apply refuses it."""
    objects = document["items"] if document.get("kind") == "List" else [document]
    return any(not each["metadata"].get("name") for each in objects)


def _changed(number: int, jobs: Sequence[JobManifest], answers: Sequence[Advice], format_: str) -> str:
    """The manifest of suggestion ``number``, as YAML or JSON. Raises InputError."""
    import yaml

    from gpucost.advisor.model.answers import SuggestedChangeKind
    from gpucost.advisor.suggest.patches import patched

    found = [(job, each) for job, answer in zip(jobs, answers, strict=True) for each in answer.suggestions]
    fitting = [
        str(at) for at, (_, each) in enumerate(found, 1) if each.change.kind is SuggestedChangeKind.MANIFEST
    ]
    if str(number) not in fitting:
        known = f"{', '.join(fitting)}: the suggestions that change the manifest"
        raise InputError("--apply", number, known if fitting else "none: no suggestion changes the manifest")
    job, suggestion = found[number - 1]
    document = patched(job.document, suggestion.change.operations)
    if format_ == "json":
        return json.dumps(document, indent=2) + "\n"
    return yaml.safe_dump(document, sort_keys=False)


# Shared with gpucost explain


def command_of(ctx: typer.Context) -> str:
    """The command as it was given, without the options that only change how its answer is shown."""
    root = ctx.find_root()
    words = [root.info_name or "gpucost", *_options(root)]
    return shlex.join([*words, str(ctx.info_name), *_options(ctx)]).replace(
        "'kubectl gpucost'", "kubectl gpucost"
    )


def _options(ctx: Any) -> Iterator[str]:
    for parameter in ctx.command.params:
        value = ctx.params.get(parameter.name)
        if parameter.name in _NOT_REPEATED or value in (None, "", False, ()) or value == parameter.default:
            continue
        option = max(parameter.opts, key=len)
        if value is True:
            yield option
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            yield from (option, str(each))


def write_json(value: Any) -> None:
    write(json.dumps(value, ensure_ascii=False, sort_keys=True, indent=2) + "\n", None)


def screen_width() -> int:
    return stdout(whole=True).width


def print_text(lines: Iterable[Text]) -> None:
    console = stdout(whole=True)
    with console.capture() as captured:
        for line in lines:
            console.print(line, soft_wrap=True)
    # Not by the console: it ends the process with 1 when the reader has closed the pipe.
    sys.stdout.write(captured.get())
    sys.stdout.flush()
