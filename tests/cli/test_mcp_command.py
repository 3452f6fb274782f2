"""``gpucost mcp`` as an assistant starts it: a process, asked by the SDK's client on stdin and stdout."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult
from typer.testing import CliRunner

from gpucost.api.tools.tool_catalog import TOOLS
from gpucost.api.tools.tool_server import tool_server
from gpucost.cli.application import app
from gpucost.cli.commands import mcp as command
from gpucost.cli.remote.api_client import RemoteApi
from gpucost.cli.remote.server_target import ServerCredential, ServerTarget
from gpucost.cli.terminal.exit_codes import ExitCode
from tests.cli.api_server import SECRET, Server, served
from tests.cli.findings_worlds import copied

ROOT = Path(__file__).parents[2]
MONTH = "2026-10"
START = ("-c", "from gpucost.cli import main; main()")
CALLS: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("report", {"month": MONTH}),
    ("allocations", {"window": MONTH, "group_by": "team"}),
    ("findings", {}),
    ("statement", {"month": MONTH}),
    ("job", {"name": "nobody"}),
    ("explain", {"kind": "Job", "namespace": "x", "name": "y"}),
)


async def _asked(client: Client) -> list[CallToolResult]:
    """The answers to all calls, after the list of the tools."""
    assert {tool.name for tool in (await client.list_tools()).tools} == set(TOOLS)
    found = [await client.call_tool(name, dict(arguments)) for name, arguments in CALLS]
    return [each for each in found if isinstance(each, CallToolResult)]


def told(words: Sequence[str], **environment: str) -> list[CallToolResult]:
    """What a process answers."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "exporters")))
    server = StdioServerParameters(
        command=sys.executable,
        args=[*START, *words, "mcp"],
        env={**os.environ, "PYTHONPATH": path, **environment},
        cwd=ROOT,
    )

    async def run() -> list[CallToolResult]:
        async with Client(server) as client:
            return await _asked(client)

    return asyncio.run(run())


def told_here(server: Server, key: str) -> list[CallToolResult]:
    """What a process that is logged in with this key would answer, without one."""
    remote = RemoteApi(ServerTarget(server.url, ServerCredential(server.key(key))))

    async def run() -> list[CallToolResult]:
        async with Client(tool_server(command.asking(remote))) as client:
            return await _asked(client)

    return asyncio.run(run())


def messages(found: Sequence[CallToolResult]) -> list[str]:
    return [each.structured_content["error"]["message"] for each in found]


@pytest.fixture(scope="module")
def folder(day_looked_at: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("assistant")
    copied(day_looked_at, place)
    return place


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with served(f"sqlite:///{folder / 'ledger.db'}", folder / "keys") as found:
        yield found


def test_a_process_over_a_ledger_and_one_over_a_server_say_the_same(folder: Path, server: Server) -> None:
    own = told(["--config", str(folder / "settings.yaml")])
    remote = told(["--server", server.url], GPUCOST_TOKEN_FILE=str(server.key("root")))
    assert [each.is_error for each in own] == [False, False, False, False, True, True]
    for (tool, _), one, other in zip(CALLS, own[:4], remote[:4], strict=False):
        if tool == "findings":  # their age moves with the clock
            assert other.structured_content["answer"].keys() == one.structured_content["answer"].keys()
        else:
            assert other.structured_content == one.structured_content
    for found in (own, remote):
        assert "no such job" in messages(found[4:])[0]
        assert "watches no cluster" in messages(found[4:])[1]


def test_a_client_asks_the_service_itself_over_http(server: Server) -> None:
    """A listener, a connection, and the same answers as through a process of one's own."""
    headers = {"Authorization": f"Bearer {server.key('vera').read_text(encoding='utf-8').strip()}"}

    async def run() -> list[CallToolResult]:
        async with (
            httpx2.AsyncClient(headers=headers, trust_env=False, timeout=None) as http,
            Client(streamable_http_client(f"{server.url}/mcp", http_client=http)) as client,
        ):
            return await _asked(client)

    found, other = asyncio.run(run()), told_here(server, "vera")
    assert [each.structured_content for each in found[:2]] == [each.structured_content for each in other[:2]]
    assert [each.is_error for each in found] == [each.is_error for each in other]


def test_who_is_logged_in_is_told_what_the_key_may_see(server: Server) -> None:
    found = told_here(server, "vera")
    assert found[0].structured_content["answer"]["teams_in_scope"] == ["vision"]
    assert {row["group"]["team"] for row in found[1].structured_content["answer"]["rows"]} <= {"vision"}
    assert all("may not read this" in said for said in messages(told_here(server, "prom")))
    server.key("revoked").write_text("gpc_root_of-somebody-else\n", encoding="utf-8")
    told_off = told_here(server, "revoked")
    assert all("does not accept it" in said for said in messages(told_off))
    assert SECRET not in json.dumps([each.model_dump(mode="json") for each in (*found, *told_off)])


def test_a_ledger_that_is_not_there_ends_it_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text(f"ledger: {{url: 'sqlite:///{tmp_path}/none.db'}}\n")
    result = CliRunner().invoke(app, ["--config", str(tmp_path / "settings.yaml"), "mcp"])
    assert (result.exit_code, result.stdout) == (ExitCode.LEDGER, "")
    assert result.stderr.startswith("gpucost: ledger.url")


def test_what_is_no_message_gets_no_answer_and_ends_nothing(folder: Path) -> None:
    """The log and errors go to stderr: stdout is the protocol's."""
    lines = ("nonsense", "[" * 10_000, json.dumps({"jsonrpc": "2.0", "method": "notifications/x"}), "")
    done = subprocess.run(
        [sys.executable, *START, "--config", str(folder / "settings.yaml"), "mcp"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in done.stdout.splitlines())


def test_without_its_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    result = CliRunner().invoke(app, ["mcp"])
    assert result.exit_code == ExitCode.USAGE
    assert "gpucost[server,mcp]" in result.stderr
