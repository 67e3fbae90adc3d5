"""The server itself: the tools and the records of :class:`memwall.mcp_server.calls.ToolCalls`, spoken as the Model
Context Protocol over standard input and output, or over HTTP on this machine. The official SDK speaks its versions
2025-11-25 and 2026-07-28."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import anyio
import mcp_types as types
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from pydantic import AnyHttpUrl

from memwall.core.errors import MemwallError, UsageError, unknown
from memwall.core.scratch import scratch
from memwall.core.structure import one_line
from memwall.core.version import __version__
from memwall.mcp_server.answer import compact, output_schema
from memwall.mcp_server.calls import ServerLimits, ToolCalls
from memwall.mcp_server.records import PAGE, SCHEME
from memwall.mcp_server.tools import TOOLS, input_schema
from memwall.report.json_schema import RECORDS, schema_text

#: where it listens: this machine alone
HOST = "127.0.0.1"
#: sessions of clients over HTTP at a time, and bytes of a request
_MOST_SESSIONS, _MOST_REQUEST_BYTES = 64, 1 << 20
#: characters of an error
_MOST_OF_AN_ERROR = 600
#: how the handle of a record's schema begins
_SCHEMAS = "memwall://schema/"
INSTRUCTIONS = f"""memwall models where the time of a model goes on GPUs and TPUs that are not there. Targets \
are files below the server's folder, or handles of records. Figures are in base SI units: seconds, bytes, FLOP/s. \
An answer is short; its record, under {SCHEME}ID, is a resource, with the page in {SCHEME}ID/text/1. A handle as the \
target spares the trace: profile once, then explain or compare the record. A time has an 80 % interval, low_s to \
high_s, and bound_s is what no kernel beats. An option in a sentence is a property: --what-if X is what_if: [X]."""

Context = ServerRequestContext[Any, Any]


def build(limits: ServerLimits) -> Server[ToolCalls]:
    """The server: a client's requests and what answers them."""

    @asynccontextmanager
    async def lifespan(_: Server[ToolCalls]) -> AsyncIterator[ToolCalls]:
        with scratch("mcp") as own:
            async with anyio.create_task_group() as group:
                calls = ToolCalls(limits, own, group)
                calls.start()
                try:
                    yield calls
                finally:
                    calls.stop()
                    group.cancel_scope.cancel()

    return Server(
        "memwall",
        version=__version__,
        instructions=INSTRUCTIONS,
        lifespan=lifespan,
        get_tool_input_schema=lambda name: input_schema(name) if name in TOOLS else None,
        on_list_tools=_list_tools,
        on_call_tool=_call_tool,
        on_list_resources=_list_resources,
        on_list_resource_templates=_list_templates,
        on_read_resource=_read_resource,
    )


async def _list_tools(context: Context, params: Any) -> types.ListToolsResult:
    hints = types.ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)
    return types.ListToolsResult(
        tools=[
            types.Tool(
                name=name,
                description=tool.about,
                input_schema=input_schema(name),
                output_schema=output_schema(tool.report),
                annotations=hints,
            )
            for name, tool in TOOLS.items()
        ]
    )


async def _call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """A wrong call is an answer that says so in a line, for the model that made it to read."""
    told = count(1)

    async def say(message: str) -> None:
        await context.session.report_progress(next(told), message=message)

    try:
        if params.name not in TOOLS:
            raise unknown("tool named", params.name[:60], TOOLS)
        calls: ToolCalls = context.lifespan_context
        answer = await calls.ask(params.name, params.arguments or {}, say)
    except MemwallError as error:
        return types.CallToolResult(content=[types.TextContent(text=one_line(error, _MOST_OF_AN_ERROR))], is_error=True)
    return types.CallToolResult(content=[types.TextContent(text=compact(answer))], structured_content=answer)


async def _list_resources(context: Context, params: Any) -> types.ListResourcesResult:
    calls: ToolCalls = context.lifespan_context
    records = [
        types.Resource(uri=handle, name=f"the record of a call of {tool}", mime_type="application/json")
        for handle, tool in calls.records.known()
    ]
    schemas = [
        types.Resource(
            uri=f"{_SCHEMAS}{name}", name=f"the JSON schema of memwall.{name}/1", mime_type="application/json"
        )
        for name in RECORDS
    ]
    return types.ListResourcesResult(resources=[*records, *schemas])


async def _list_templates(context: Context, params: Any) -> types.ListResourceTemplatesResult:
    about = {
        f"{SCHEME}{{id}}": "a whole record, JSON",
        f"{SCHEME}{{id}}/json/{{page}}": f"a page of a record, {PAGE:,} characters of its JSON; the first is 1",
        f"{SCHEME}{{id}}/text/{{page}}": f"a page of what memwall prints, {PAGE:,} characters; the first is 1",
        f"{_SCHEMAS}{{name}}": "the JSON schema of a kind of record",
    }
    return types.ListResourceTemplatesResult(
        resource_templates=[types.ResourceTemplate(uri_template=uri, name=name) for uri, name in about.items()]
    )


async def _read_resource(context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    uri = str(params.uri)
    calls: ToolCalls = context.lifespan_context
    try:
        text, kind = _schema(uri) if uri.startswith(_SCHEMAS) else calls.records.read(uri)
    except MemwallError as error:
        raise MCPError(code=types.INVALID_PARAMS, message=str(error)) from None
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, text=text, mime_type=kind)])


def _schema(uri: str) -> tuple[str, str]:
    name = uri.removeprefix(_SCHEMAS)
    if name not in RECORDS:
        raise unknown("schema named", name[:60], RECORDS)
    return schema_text(name), "application/json"


# -- transports --------------------------------------------------------------------------------------------------------


async def over_stdio(limits: ServerLimits) -> None:
    """Serve the program that started this one, until it closes its end."""
    server = build(limits)
    async with stdio_server() as (inward, outward):
        await server.run(inward, outward, server.create_initialization_options())


class _OneToken:
    """Takes the token that was printed, and no other."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def verify_token(self, token: str) -> AccessToken | None:
        """The rights of a token; None where it is another."""
        is_it = hmac.compare_digest(token.encode(), self._token.encode())
        return AccessToken(token=token, client_id="memwall", scopes=[]) if is_it else None


async def over_http(limits: ServerLimits, port: int, say: Callable[[str], None]) -> None:
    """Serve clients on this machine that have the token, which ``say`` tells with the address; port 0 takes any that is
    free. A page of a browser gets nothing: Origin and Host are checked. Raises ``UsageError``: the port is taken."""
    import socket

    import uvicorn

    token = secrets.token_urlsafe(32)
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except OSError as error:
        raise UsageError(f"cannot listen on port {port}: {error.strerror}; --port N for another") from None
    address = f"http://{HOST}:{listening.getsockname()[1]}"
    application = build(limits).streamable_http_app(
        host=HOST,
        max_sessions=_MOST_SESSIONS,
        max_request_body_size=_MOST_REQUEST_BYTES,
        auth=AuthSettings(issuer_url=AnyHttpUrl(address), resource_server_url=None),
        token_verifier=_OneToken(token),
    )
    say(f"{address}/mcp; Authorization: Bearer {token}")
    await uvicorn.Server(uvicorn.Config(application, log_level="warning")).serve([listening])
