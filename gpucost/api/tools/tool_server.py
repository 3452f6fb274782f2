"""The server of the protocol over the catalog of tools. Only this module needs the package ``mcp``: it is
imported when somebody asks.

No state is kept between requests: a server is made for each request over HTTP, and answers with the API that
it was given for it. There is no session that another caller could use.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)
from starlette.types import ASGIApp, Message, Receive, Scope

import gpucost
from gpucost.api.server.errors import ApiError
from gpucost.api.tools.api_questions import AskApi, ToolRefusal
from gpucost.api.tools.tool_arguments import input_schema, read_arguments
from gpucost.api.tools.tool_catalog import INSTRUCTIONS, TOOLS, GpuCostTool
from gpucost.domain.errors import InputError

_REMAINDER = {
    "type": "object",
    "properties": {
        "what": {"type": "string", "description": "the list or part, by its place in `answer`"},
        "shown": {"type": "integer", "description": "entries that are shown"},
        "all": {"type": ["integer", "null"], "description": "entries that there are; null is not counted"},
        "ask": {
            "type": ["object", "null"],
            "description": "arguments to add, to see more of it; null: ask for less at once",
        },
    },
    "required": ["what", "shown", "all", "ask"],
}
OUTPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "answer": {
            "type": "object",
            "description": "a document of gpucost's API, described by its `schema`",
            "properties": {"schema": {"type": "string"}},
            "required": ["schema"],
        },
        "more": {"type": "array", "description": "what the answer leaves out", "items": _REMAINDER},
    },
    "required": ["answer", "more"],
    "additionalProperties": False,
}


def tool_server(ask: AskApi) -> Server[Any]:
    """A server whose tools ask with ``ask``."""

    async def list_tools(_: Any, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[_described(name) for name in TOOLS])

    async def call_tool(_: Any, params: CallToolRequestParams) -> CallToolResult:
        tool = TOOLS.get(params.name)
        if tool is None:
            known = ", ".join(TOOLS)
            raise MCPError(INVALID_PARAMS, f"there is no such tool; allowed: {known}")
        return await _called(tool, ask, params.arguments or {})

    server: Server[Any] = Server(
        "gpucost",
        version=gpucost.__version__,
        title="gpucost",
        instructions=INSTRUCTIONS,
        get_tool_input_schema=lambda name: _described(name).input_schema if name in TOOLS else None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    server.middleware.clear()  # the SDK's tracing: the service has a log of its own
    return server


@cache
def _described(name: str) -> Tool:
    """What clients are told of a tool; the same for all of them."""
    tool = TOOLS[name]
    return Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=input_schema(tool.arguments),
        output_schema=OUTPUT_SCHEMA,
        annotations=ToolAnnotations(
            title=tool.title,
            read_only_hint=True,
            destructive_hint=False,
            idempotent_hint=True,
            open_world_hint=False,
        ),
    )


async def _called(tool: GpuCostTool, ask: AskApi, arguments: dict[str, Any]) -> CallToolResult:
    try:
        given = read_arguments(tool.arguments, arguments)
        found = (await tool.run(ask, given)).document()
    except (ApiError, InputError) as error:
        return _refused(ToolRefusal.of(error))
    except ToolRefusal as error:
        return _refused(error)
    return CallToolResult(content=[_text(found)], structured_content=found)


def _refused(error: ToolRefusal) -> CallToolResult:
    found = {"error": error.document}
    return CallToolResult(content=[_text(found)], structured_content=found, is_error=True)


def _text(found: dict[str, Any]) -> TextContent:
    return TextContent(text=json.dumps(found, ensure_ascii=False))


async def exchange(ask: AskApi, scope: Scope, receive: Receive, most_bytes: int) -> list[Message]:
    """The ASGI messages that answer one POST: JSON in one piece."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    manager = StreamableHTTPSessionManager(
        tool_server(ask), json_response=True, stateless=True, max_request_body_size=most_bytes
    )
    async with manager.run():
        app: ASGIApp = manager.handle_request
        await app(scope, receive, send)
    return sent


async def serve_stdio(ask: AskApi) -> None:
    """Answer on this process's stdin and stdout until stdin ends."""
    server = tool_server(ask)
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())
