"""A client for what strangers name: it goes only where the guard lets it, and takes only so much.

The connection is made to the very address that was judged, so that a name that answers otherwise a moment later
changes nothing; name and certificate stay those of the host. There are no cookies, no credentials, no proxy of
the environment and no connection that is used twice.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property

import anyio
import httpx

from torana.web.faults import AnsweredBadly, NotAllowed, TooLarge, TooSlow, Unreachable, WrongType
from torana.web.guard import Guard
from torana.web.unpacking import PackedBadly, Unpacker

#: Bytes of a body.
_MAX_BYTES = 5 * 1024 * 1024
#: Seconds for all of it.
_SECONDS = 30.0
#: Seconds in which a connection must stand; then the host's next address is tried.
_CONNECT = 10.0
_REDIRECTS = 5
_MAX_URL = 4096
#: Characters of an address that a message repeats.
_NAMED = 120
_TYPE = re.compile(r"[a-z0-9.+-]{1,40}/[a-z0-9.+-]{1,80}")
_CHARSET = re.compile(r';\s*charset\s*=\s*"?([\w.:+-]{1,40})', re.IGNORECASE)
#: Characters of a ``Content-Type`` in which a charset is looked for.
_TYPE_READ = 200
_MOVED = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What was found at an address."""

    #: Where it was in the end, after all redirects, without a fragment.
    url: str
    status: int
    #: In lower case, without parameters; ``application/octet-stream`` where the server names none.
    media_type: str
    #: In lower case, as the server names it, if it does.
    charset: str | None
    body: bytes


class GuardedClient:
    """Fetches what the guard allows. Use it as long as you like; there is nothing to close.

    ``transport`` carries a request to the address in its URL: tests lead it elsewhere.
    """

    def __init__(
        self,
        *,
        guard: Guard,
        agent: str = "torana",
        tls: ssl.SSLContext | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._guard = guard
        self._agent = agent
        self._tls = tls
        self._given = transport

    async def get(
        self,
        url: str,
        *,
        max_bytes: int = _MAX_BYTES,
        seconds: float = _SECONDS,
        types: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        follow: bool = True,
    ) -> Page:
        """Fetch ``url``; with ``follow`` through at most five redirects, each judged like the first address.

        ``types`` are the media types that are taken, such as ``text/*``; none means all. ``headers`` may be
        secrets: no redirect takes them along. Raises a ``WebFault``; also for every answer that is not a
        success.
        """
        request = httpx.Request("GET", _parse(url), headers=_accept(types) | dict(headers or {}))
        redirects = _REDIRECTS if follow else 0
        return await self._fetch(request, max_bytes=max_bytes, seconds=seconds, types=types, follow=redirects)

    async def post(
        self,
        url: str,
        *,
        content: bytes,
        headers: Mapping[str, str],
        max_bytes: int = _MAX_BYTES,
        seconds: float = _SECONDS,
        types: Sequence[str] = (),
    ) -> Page:
        """Send ``content`` to ``url``; no redirect is followed. Otherwise as ``get``."""
        request = httpx.Request("POST", _parse(url), content=content, headers=_accept(types) | dict(headers))
        return await self._fetch(request, max_bytes=max_bytes, seconds=seconds, types=types, follow=0)

    async def _fetch(
        self, request: httpx.Request, *, max_bytes: int, seconds: float, types: Sequence[str], follow: int
    ) -> Page:
        try:
            with anyio.fail_after(seconds):
                for _ in range(follow + 1):
                    async with self._sent(request) as response:
                        if response.status_code not in _MOVED:
                            return await _read(request.url, response, max_bytes=max_bytes, types=types)
                        request = _next(request, response, follow=follow)
        except TimeoutError as error:
            raise TooSlow(f"{_cut(request.url)} was not there within {seconds:g} s.") from error
        raise AnsweredBadly(f"{_cut(request.url)} is behind more than {follow} redirects.")

    @asynccontextmanager
    async def _sent(self, request: httpx.Request) -> AsyncGenerator[httpx.Response]:
        """The answer to one request, closed in the end."""
        response = await self._connected(request)
        try:
            yield response
        except httpx.TransportError as error:
            raise AnsweredBadly(f"{_cut(request.url)} broke off in the middle of its answer.") from error
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()

    async def _connected(self, request: httpx.Request) -> httpx.Response:
        """The answer of the first of the host's addresses that takes a connection."""
        url = request.url
        port = url.port or (443 if url.scheme == "https" else 80)
        failure: httpx.TransportError | None = None
        for address in await self._guard.resolve(url.raw_host.decode("ascii"), port):
            try:
                return await self._transport.handle_async_request(self._pinned(request, address))
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = error
            except httpx.TransportError as error:
                raise AnsweredBadly(f"{_cut(url)} did not answer as a web server does.") from error
        raise Unreachable(_why_not(url, failure)) from failure

    def _pinned(self, request: httpx.Request, address: str) -> httpx.Request:
        name = request.url.raw_host.decode("ascii")
        headers = request.headers.copy()
        headers["Host"] = request.url.netloc.decode("ascii")
        headers["User-Agent"] = self._agent
        headers["Accept-Encoding"] = "gzip"
        return httpx.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=headers,
            content=request.content,
            extensions={"sni_hostname": name.removesuffix("."), "timeout": {"connect": _CONNECT}},
        )

    @cached_property
    def _transport(self) -> httpx.AsyncBaseTransport:
        # To httpx the host is an address, which many names share: a connection that is kept would be used for
        # a name whose certificate was never seen on it.
        return self._given or httpx.AsyncHTTPTransport(
            verify=self._tls or httpx.create_ssl_context(), limits=httpx.Limits(max_keepalive_connections=0)
        )


def _parse(text: str) -> httpx.URL:
    """The address, judged as far as that is possible without its host; without its fragment."""
    if len(text) > _MAX_URL:
        raise NotAllowed(f"The address is longer than {_MAX_URL} characters.")
    try:
        url = httpx.URL(text.strip())
    except httpx.InvalidURL as error:
        raise NotAllowed(f"This is not an address of the web: {error}") from error
    if url.scheme not in {"http", "https"}:
        raise NotAllowed("Only addresses that begin with http:// or https:// are fetched.")
    if url.userinfo:
        raise NotAllowed("An address with a user name or password in it is not fetched.")
    if not url.raw_host:
        raise NotAllowed("The address names no host.")
    if url.port is not None and not 0 < url.port < 65536:
        raise NotAllowed("The address has an impossible port.")
    return url.copy_with(fragment=None)


def _cut(url: httpx.URL) -> str:
    """How an address is named in what people and the model read: it may have come from a stranger."""
    return str(url)[:_NAMED]


def _accept(types: Sequence[str]) -> dict[str, str]:
    return {"Accept": ", ".join([*types, "*/*;q=0.1"]) if types else "*/*"}


def _next(request: httpx.Request, response: httpx.Response, *, follow: int) -> httpx.Request:
    """The request that a redirect asks for."""
    location = response.headers.get("location", "")
    if not follow:
        raise AnsweredBadly(f"{_cut(request.url)} has moved, and is not followed.", status=response.status_code)
    try:
        # As UTF-8 or else as Latin-1; a redirect without a location leads back to itself, and so to an end.
        url = _parse(str(request.url.join(location)))
    except (NotAllowed, httpx.InvalidURL) as error:
        raise NotAllowed(f"{_cut(request.url)} redirects to where nobody is led from here.") from error
    if request.url.scheme == "https" and url.scheme == "http":
        raise NotAllowed(f"{_cut(request.url)} redirects to what is not encrypted, and is not followed.")
    return httpx.Request("GET", url, headers={"Accept": request.headers["Accept"]})


async def _read(url: httpx.URL, response: httpx.Response, *, max_bytes: int, types: Sequence[str]) -> Page:
    if not response.is_success:
        # Nothing is repeated here of what a stranger says beside the number.
        raise AnsweredBadly(f"{_cut(url)} answered {response.status_code}.", status=response.status_code)
    said = response.headers.get("content-type", "")
    media_type = said.partition(";")[0].strip().lower() or "application/octet-stream"
    if types and not any(_fits(media_type, wanted) for wanted in types):
        known = media_type if _TYPE.fullmatch(media_type) else "of no known type"
        raise WrongType(f"{_cut(url)} is {known}, which is not read here.")
    return Page(
        url=str(url),
        status=response.status_code,
        media_type=media_type,
        charset=_charset(said),
        body=await _body(url, response, max_bytes=max_bytes),
    )


def _charset(content_type: str) -> str | None:
    # Not httpx's, which has the standard library parse the header: quadratic, and with errors of its own.
    found = _CHARSET.search(content_type, 0, _TYPE_READ)
    return found[1].lower() if found else None


def _fits(media_type: str, wanted: str) -> bool:
    return media_type == wanted or (wanted.endswith("/*") and media_type.startswith(wanted[:-1]))


async def _body(url: httpx.URL, response: httpx.Response, *, max_bytes: int) -> bytes:
    too_large = TooLarge(f"{_cut(url)} is larger than {max_bytes:,} bytes.")
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    length = response.headers.get("content-length", "")
    if encoding == "identity" and length.isdecimal() and int(length[:20]) > max_bytes:
        raise too_large
    try:
        unpacker = Unpacker(encoding, limit=max_bytes)
        received = 0
        async for chunk in response.aiter_raw():
            received += len(chunk)
            unpacker.feed(chunk)
            # What unpacks to nothing has an end too.
            if unpacker.overflowed or received > max_bytes:
                raise too_large
        return unpacker.finish()
    except PackedBadly as error:
        raise AnsweredBadly(f"{_cut(url)} sent a body that cannot be unpacked: {error}") from error


def _why_not(url: httpx.URL, failure: httpx.TransportError | None) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(failure):
        return f"{url.host} has no certificate for its name that can be trusted."
    return f"{url.host} takes no connection."
