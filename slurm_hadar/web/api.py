"""``/api/v1``: the objects that ``--json`` prints, and the OpenAPI document that describes them."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from slurm_hadar import __version__
from slurm_hadar.reports.cluster import ClusterView, JobTimeline, NodeRow
from slurm_hadar.reports.job_report import JobReport
from slurm_hadar.reports.status import Overview
from slurm_hadar.reports.text import Explanation
from slurm_hadar.reports.usage import UsageReport
from slurm_hadar.slurm.commands import checked_id
from slurm_hadar.web.feed import PageFeed

_PREFIX = "/api/v1"
_KINDS: dict[str, tuple[str, str, Any]] = {
    "/status": ("status", "What hadar status --json prints, of all jobs.", Overview),
    "/nodes": ("nodes", "The nodes, their GPUs and the jobs on them.", list[NodeRow]),
    "/timeline": ("timeline", "Where the jobs of the last day were, and their moves.", JobTimeline),
    "/report": (
        "report",
        "What hadar report --json prints of the last week; others than operators: "
        "of their own jobs.",
        UsageReport,
    ),
    "/jobs/{job}": ("explain", "What hadar explain JOB --json prints.", Explanation),
    "/jobs/{job}/report": ("doctor", "What hadar doctor JOB --json prints.", JobReport),
}


def routes(
    feed: PageFeed,
    uid_of: Callable[[Request], int],
    usage_of: Callable[[int], Awaitable[UsageReport]],
) -> list[Route]:
    """The routes. ``uid_of``: who asks, or an exception that becomes an answer; ``usage_of``: what
    that user may know of the week's GPU use."""

    async def cluster(request: Request) -> tuple[int, ClusterView]:
        uid = uid_of(request)
        return uid, (await feed.shown(uid)).view

    async def status(request: Request) -> Response:
        _, view = await cluster(request)
        return _answer("status", asdict(view.overview))

    async def nodes(request: Request) -> Response:
        _, view = await cluster(request)
        return _answer("nodes", [asdict(node) for node in view.nodes])

    async def timeline(request: Request) -> Response:
        uid = uid_of(request)
        return _answer("timeline", asdict(await feed.timeline(uid)))

    async def usage(request: Request) -> Response:
        return _answer("report", asdict(await usage_of(uid_of(request))))

    async def explain(request: Request) -> Response:
        uid, job = uid_of(request), checked_id(request.path_params["job"])
        return _answer("explain", asdict(await feed.asked(lambda: feed.source.explain(uid, job))))

    async def report(request: Request) -> Response:
        uid, job = uid_of(request), checked_id(request.path_params["job"])
        return _answer("doctor", asdict(await feed.asked(lambda: feed.source.report(uid, job))))

    async def description(request: Request) -> Response:
        uid_of(request)
        return JSONResponse(document())

    found = {
        "/status": status,
        "/nodes": nodes,
        "/timeline": timeline,
        "/report": usage,
        "/jobs/{job}": explain,
        "/jobs/{job}/report": report,
        "/openapi.json": description,
    }
    return [Route(_PREFIX + path, answer) for path, answer in found.items()]


def document() -> dict[str, Any]:
    """The OpenAPI document (3.1)."""
    schemas: dict[str, Any] = {}
    paths = {}
    for path, (command, words, kind) in _KINDS.items():
        schema = TypeAdapter(kind).json_schema(
            mode="serialization", ref_template="#/components/schemas/{model}"
        )
        schemas |= schema.pop("$defs", {})
        paths[_PREFIX + path] = {"get": _operation(path, command, words, schema)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "slurm-hadar",
            "version": __version__,
            "description": "Read-only. Each user sees what Slurm and hadar show to them.",
        },
        "paths": paths,
        "components": {"schemas": {**schemas, "Error": _object(error={"type": "string"})}},
    }


def _operation(path: str, command: str, words: str, schema: dict[str, Any]) -> dict[str, Any]:
    found = _object(command={"const": command}, result=schema)
    error = {"$ref": "#/components/schemas/Error"}
    operation: dict[str, Any] = {
        "operationId": command,
        "summary": words,
        "responses": {
            "200": _content("The answer.", found),
            "403": _content("It is not known who asks, or they may not ask here.", error),
            "404": _content("No such job that this user may see.", error),
            "503": _content("No controller answers, or it cannot answer now.", error),
        },
    }
    if "{job}" in path:
        operation["parameters"] = [
            {
                "name": "job",
                "in": "path",
                "required": True,
                "schema": {"type": "string"},
                "description": "Job ID, such as 123 or 84_2.",
            }
        ]
    return operation


def _object(**properties: Any) -> dict[str, Any]:
    found = {"version": {"const": 1}, **properties}
    return {"type": "object", "required": list(found), "properties": found}


def _content(words: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": words, "content": {"application/json": {"schema": schema}}}


def _answer(command: str, result: object) -> Response:
    return JSONResponse({"version": 1, "command": command, "result": result})
