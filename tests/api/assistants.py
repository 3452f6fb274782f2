"""An assistant: the SDK's own client of the Model Context Protocol, against an app in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import httpx2
from fastapi import FastAPI
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, Tool

from gpucost.access.keys import format_key
from tests.api.conftest import SECRETS

A = TypeVar("A")


def bearer(key_id: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {format_key(key_id, SECRETS[key_id])}"}


def as_assistant(
    app: FastAPI, headers: Mapping[str, str], do: Callable[[Client], Awaitable[A]], mode: str = "auto"
) -> A:
    """What ``do`` gives, with a client that sends ``headers`` too."""

    async def run() -> A:
        async with (
            httpx2.AsyncClient(
                transport=httpx2.ASGITransport(app), headers=dict(headers), trust_env=False
            ) as http,
            Client(streamable_http_client("http://localhost/mcp", http_client=http), mode=mode) as client,
        ):
            return await do(client)

    return asyncio.run(run())


def tools(app: FastAPI, headers: Mapping[str, str]) -> list[Tool]:
    async def listed(client: Client) -> list[Tool]:
        return list((await client.list_tools()).tools)

    return as_assistant(app, headers, listed)


def called(
    app: FastAPI,
    headers: Mapping[str, str],
    calls: Sequence[tuple[str, Mapping[str, Any]]],
    mode: str = "auto",
) -> list[CallToolResult]:
    """The results of calls of tools, one after the other."""

    async def each(client: Client) -> list[CallToolResult]:
        found = []
        for name, arguments in calls:
            result = await client.call_tool(name, dict(arguments))
            assert isinstance(result, CallToolResult)
            found.append(result)
        return found

    return as_assistant(app, headers, each, mode)


def answered(app: FastAPI, key_id: str, tool: str, **arguments: Any) -> dict[str, Any]:
    """The structured content of one call, which is no error."""
    (found,) = called(app, bearer(key_id), [(tool, arguments)])
    assert not found.is_error, found.structured_content
    assert isinstance(found.structured_content, dict)
    return found.structured_content


def refused(app: FastAPI, key_id: str, tool: str, **arguments: Any) -> dict[str, Any]:
    """The error of one call."""
    (found,) = called(app, bearer(key_id), [(tool, arguments)])
    assert found.is_error
    assert isinstance(found.structured_content, dict)
    error: dict[str, Any] = found.structured_content["error"]
    return error
