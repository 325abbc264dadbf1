"""The routes: pages, made once for all who see the same, their updates, the files of the page, and
the JSON API."""

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slurm_hadar import users
from slurm_hadar.config import Config
from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.reports.job_report import JobReport
from slurm_hadar.reports.text import Explanation
from slurm_hadar.web import api, rendering
from slurm_hadar.web.controller_answers import SilentController
from slurm_hadar.web.feed import PageFeed
from slurm_hadar.web.fragments import PageFragments
from slurm_hadar.web.identity import Callers, RefusedCaller
from slurm_hadar.web.page_query import PageChoice, choice_of
from slurm_hadar.web.usage import UsageReports
from slurm_hadar.web.what_if import WhatIf

_KEEP_ALIVE_S = 15.0
_MOST_STREAMS, _MOST_STREAMS_PER_USER = 256, 16
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_FILES = {
    "style.css": "text/css",
    "live.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_MOST_PAGES = 128
"""Pages that are kept; one of 250 nodes takes half a megabyte."""


def application(feed: PageFeed, callers: Callers, site: Config, loopback: bool = False) -> ASGIApp:
    """The page as an ASGI application. ``loopback``: it is served on a TCP port, where a foreign
    name for this host is refused, which another site's script might use."""
    app = _App(feed, callers, site)
    middleware = [Middleware(_SafeHeaders)]
    if loopback:
        hosts = ["127.0.0.1", "localhost"]
        middleware.append(Middleware(TrustedHostMiddleware, allowed_hosts=hosts))
    return Starlette(
        routes=[
            Route("/", app.view("queue")),
            Route("/nodes", app.view("nodes")),
            Route("/timeline", app.view("timeline")),
            Route("/what-if", app.view("what-if")),
            Route("/report", app.view("report")),
            Route("/jobs/{job}", app.view("job")),
            Route("/events", app.events),
            Route("/static/{name}", app.file),
            *api.routes(feed, app.uid, lambda uid: app.usage.finished(app.own(uid))),
        ],
        middleware=middleware,
        exception_handlers={
            HTTPException: app.failed,
            HadarError: app.failed,
            RefusedCaller: app.failed,
            Exception: app.failed,
        },
        lifespan=app.lifespan,
    )


class _App:
    def __init__(self, feed: PageFeed, callers: Callers, site: Config) -> None:
        self._feed, self._callers, self._site = feed, callers, site
        self._what_if = WhatIf(feed, site.controller.policy)
        self.usage = UsageReports(feed, site, callers.controllers_uid)
        self._pages = Pages(feed, self._what_if, self.usage)
        self._streams: Counter[int] = Counter()

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with self._feed.looking():
            try:
                yield
            finally:
                self._what_if.close()
                self.usage.close()

    def uid(self, request: Request) -> int:
        """Who asks. Raises RefusedCaller."""
        peer = getattr(request.state, "peer", None)
        return self._callers.uid(peer, request.headers.getlist("x-remote-user"))

    def view(self, kind: str) -> Callable[[Request], Awaitable[Response]]:
        """The page of one kind."""

        async def page(request: Request) -> Response:
            uid = self.uid(request)
            choice = self._choice(uid, kind, {**request.query_params, **request.path_params})
            parts = await self._pages.parts(uid, choice, self.own(uid))
            shown = await self._feed.shown(uid)
            extra = {
                "site": self._site.site.name,
                "me": users.name_of(uid),
                "everything": self._callers.sees_everything(uid),
            }
            return HTMLResponse(rendering.page(parts, choice, shown, extra))

        return page

    def _choice(self, uid: int, kind: str, given: Mapping[str, str]) -> PageChoice:
        choice = choice_of(kind, given)
        if choice.kind == "what-if" and not self._callers.sees_everything(uid):
            raise RefusedCaller("what-if shows all jobs: root and the controller's user only")
        return choice

    def own(self, uid: int) -> str:
        """The name of a user who sees their own jobs; empty: all."""
        return "" if self._callers.sees_everything(uid) else users.name_of(uid)

    async def events(self, request: Request) -> Response:
        """Server-sent events: what changed of one page since the version that the browser has."""
        uid = self.uid(request)
        given = dict(request.query_params)
        choice = self._choice(uid, given.get("view", ""), given)
        if self._streams.total() >= _MOST_STREAMS or self._streams[uid] >= _MOST_STREAMS_PER_USER:
            raise HTTPException(503, "too many pages are open; close one, and load this one again")
        # An event that was read is the better witness than the address.
        version = request.headers.get("last-event-id") or given.get("version", "")
        return StreamingResponse(
            self._changes(uid, choice, version), media_type="text/event-stream",
            headers={"x-accel-buffering": "no"},
        )  # fmt: skip

    async def _changes(self, uid: int, choice: PageChoice, version: str) -> AsyncIterator[str]:
        self._streams[uid] += 1
        try:
            yield "retry: 2000\n\n"
            last = None
            while not self._feed.closing:
                generation = self._feed.generation
                try:
                    parts = await self._pages.parts(uid, choice, self.own(uid))
                except HadarError as error:
                    yield f"event: gone\ndata: {formatted(error)}\n\n"
                else:
                    if parts.version != version:
                        yield f"id: {parts.version}\ndata: {parts.since(last)}\n\n"
                    last, version = parts, parts.version
                await self._feed.news(generation, _KEEP_ALIVE_S)
                if generation == self._feed.generation:
                    yield ":\n\n"
        finally:
            self._streams[uid] -= 1
            if not self._streams[uid]:
                del self._streams[uid]

    async def file(self, request: Request) -> Response:
        """A file of the page itself."""
        self.uid(request)
        name = request.path_params["name"]
        if name not in _FILES:
            raise HTTPException(404, "no such file")
        found = resources.files("slurm_hadar.web") / "static" / name
        return Response(found.read_bytes(), media_type=_FILES[name])

    async def failed(self, request: Request, error: Exception) -> Response:
        """What is wrong, in a page or in JSON."""
        status, message = _status_of(error)
        if request.url.path.startswith("/api/"):
            return JSONResponse({"version": 1, "error": message}, status)
        base = "../" if request.url.path.startswith("/jobs/") else "./"
        return HTMLResponse(rendering.failure(status, message, base), status)


def formatted(error: HadarError) -> str:
    """An error as one line of an event."""
    return " ".join(str(error).split())


def _status_of(error: Exception) -> tuple[int, str]:
    if isinstance(error, RefusedCaller):
        return 403, str(error)
    if isinstance(error, HTTPException):
        return error.status_code, error.detail
    if isinstance(error, UsageError):
        return 404, str(error)
    if isinstance(error, SilentController | HadarError):
        return 503, str(error)
    return 500, f"a fault of slurm-hadar: {type(error).__name__}"


class _SafeHeaders:
    """Each answer carries the same headers; nothing but reading is taken."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(key.encode(), value.encode()) for key, value in _HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        await self._app(scope, receive, sending)


@dataclass(slots=True)
class _Made:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    generation: int = -1
    parts: PageFragments | None = None


class Pages:
    """Keeps the parts of the pages that are looked at."""

    def __init__(self, feed: PageFeed, what_if: WhatIf, usage: UsageReports) -> None:
        self._feed, self._what_if, self._usage = feed, what_if, usage
        self._made: OrderedDict[tuple[int, PageChoice], _Made] = OrderedDict()

    async def parts(self, uid: int, choice: PageChoice, own: str) -> PageFragments:
        """The page as it is now. Raises HadarError where it cannot be had."""
        key = (uid, choice)
        made = self._made.setdefault(key, _Made())
        self._made.move_to_end(key)
        while len(self._made) > _MOST_PAGES:
            self._made.popitem(last=False)
        async with made.lock:
            generation = self._feed.generation
            if made.parts is None or made.generation != generation:
                made.parts = await self._make(uid, choice, own)
                made.generation = generation
            return made.parts

    async def _make(self, uid: int, choice: PageChoice, own: str) -> PageFragments:
        shown = await self._feed.shown(uid)
        source, asked = self._feed.source, self._feed.asked
        if choice.kind == "what-if":
            return rendering.what_if(
                shown, self._what_if.of(choice.policy) if choice.policy else []
            )
        if choice.kind == "report":
            return rendering.report(shown, self._usage.of(own))
        if choice.kind == "nodes":
            return rendering.nodes(shown, choice)
        if choice.kind == "timeline":
            day = await self._feed.timeline(uid)
            return rendering.timeline(shown, choice, day, own)
        if choice.kind == "job":
            report: JobReport | None = None
            known: Explanation | None = None
            try:
                report = await asked(lambda: source.report(uid, choice.job))
                known = await asked(lambda: source.explain(uid, choice.job))
            except (UsageError, SilentController):
                # Another user's job, one that did not opt in, or the queue is Slurm's.
                pass
            return rendering.job(shown, choice, report, known)
        return rendering.queue(shown, choice, own)
