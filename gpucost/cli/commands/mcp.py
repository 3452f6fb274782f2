"""gpucost mcp: the tools of assistants, over stdio."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import typer

from gpucost.cli.terminal.context import CommandContext, context_of, now_ms
from gpucost.cli.terminal.exit_codes import complain
from gpucost.domain.errors import ErrorRemark, GpuCostError, InputError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from gpucost.api.tools.api_questions import ApiQuestion, AskApi
    from gpucost.cli.remote.api_client import RemoteApi
    from gpucost.ledger.ledger import Ledger
    from gpucost.service.advisor.advisor_service import AdvisorService


def mcp(ctx: typer.Context) -> None:
    """Answer an assistant on stdin and stdout, by the Model Context Protocol: reports, jobs, findings,
    advice. Nothing is changed.

    An assistant starts it by itself: docs/mcp.md says how it is told to. It asks the server that you are
    logged in to, and sees what your key may see; without a login it reads the ledger of the settings.
    """
    if find_spec("mcp") is None:
        raise InputError("gpucost mcp", ErrorRemark("its package is not installed"), "gpucost[server,mcp]")
    import asyncio

    from gpucost.api.tools.tool_server import serve_stdio

    context = context_of(ctx)
    remote = context.remote(quietly=True)
    if remote is not None:
        complain(f"answering an assistant on stdin and stdout, as {remote.url} does; Ctrl-C ends it")
        asyncio.run(serve_stdio(asking(remote)))
        return
    with _own_app(context) as app:
        complain("answering an assistant on stdin and stdout, from its own ledger; Ctrl-C ends it")
        asyncio.run(serve_stdio(_of_app(app)))


def asking(remote: RemoteApi) -> AskApi:
    """Asks a server, as whoever is logged in there."""
    from anyio.to_thread import run_sync

    from gpucost.api.tools.api_questions import ToolRefusal, answer_of

    async def ask(question: ApiQuestion) -> Any:
        try:
            content = await run_sync(partial(remote.content, question.path, question.query, question.body))
        except GpuCostError as error:
            raise ToolRefusal.of(error) from None
        return answer_of(200, content)

    return ask


def _of_app(app: FastAPI) -> AskApi:
    from gpucost.api.tools.api_questions import InProcessApi

    return InProcessApi(app, {"Host": "localhost"})


@contextmanager
def _own_app(context: CommandContext) -> Iterator[FastAPI]:
    """The API over the ledger of the settings, for this process only: it listens nowhere, and asks for no
    key."""
    from fractions import Fraction

    from gpucost.api.app import create_app
    from gpucost.service.wiring.inputs import load_policy
    from gpucost.service.wiring.ledger import accounts_of

    settings, teams = context.settings, context.teams
    policy = load_policy(settings.charges.policy, teams)
    with context.ledger() as ledger, _advising(context, ledger) as advising:
        yield create_app(
            ledger,
            settings.api.model_copy(update={"auth": "off", "rate": 0}),
            now=now_ms,
            quotas=teams.quotas,
            budgets=teams.budgets,
            plans=teams.budget_plans,
            accounts=accounts_of(teams),
            advising=advising,
            named_teams=teams.names,
            policy=policy,
            close_coverage=Fraction(settings.ledger.close_coverage),
        )


@contextmanager
def _advising(context: CommandContext, ledger: Ledger) -> Iterator[AdvisorService | None]:
    """The advisor over the cluster that ``detectors.state`` names, watched while the block runs; None where
    it names none."""
    settings = context.settings
    if settings.detectors.state == "none":
        yield None
        return
    from gpucost.service.wiring.advisor import build_advising
    from gpucost.service.wiring.cluster import build_watching
    from gpucost.service.wiring.pipeline import build_rules

    book = context.book(settings)
    catalog = build_rules(settings.attribution, book, context.teams).catalog
    watching = build_watching(settings, catalog, now_ms)
    assert watching is not None
    advising = build_advising(settings.advisor, watching, book, context.teams, ledger)
    watching.start()
    advising.start()
    try:
        yield advising
    finally:
        advising.close()
        watching.close()
