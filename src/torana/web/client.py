"""An HTTP client for untrusted addresses: it connects only where the guard allows, and limits size and time.

It connects to the IP address that was checked, so a later DNS answer has no effect. The ``Host`` header and the
certificate check use the name of the host. It uses no cookies, no credentials, no proxy of the environment, and
no connection twice.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property

import anyio
import httpx2

from torana.web.decompression import InvalidCompression, Unpacker
from torana.web.errors import BadResponse, NotAllowed, PageTooLarge, TooSlow, Unreachable, WrongType
from torana.web.guard import Guard

#: The maximum size of a body, in bytes.
_MAX_BYTES = 5 * 1024 * 1024
#: The maximum duration of a request, in seconds.
_SECONDS = 30.0
#: Seconds for a connection; after that, the host's next address is tried.
_CONNECT = 10.0
_REDIRECTS = 5
_MAX_URL = 4096
#: The number of characters of an address in a message.
_NAMED = 120
_TYPE = re.compile(r"[a-z0-9.+-]{1,40}/[a-z0-9.+-]{1,80}")
_CHARSET = re.compile(r';\s*charset\s*=\s*"?([\w.:+-]{1,40})', re.IGNORECASE)
#: The number of characters of ``Content-Type`` in which a charset is searched.
_TYPE_READ = 200
#: A body may have ``_FREE_CHUNKS`` chunks, and one more for each ``_BYTES_PER_CHUNK`` bytes.
_FREE_CHUNKS, _BYTES_PER_CHUNK = 1_000, 64
_MOVED = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPage:
    #: The final address after all redirects, without a fragment.
    url: str
    status: int
    #: The media type in lower case, without parameters; ``application/octet-stream`` if the server names none.
    media_type: str
    #: The charset in lower case, as declared by the server, or None.
    charset: str | None
    body: bytes


@dataclass(frozen=True, kw_only=True)
class GuardedClient:
    """Fetches what the guard allows. It needs no closing.

    ``transport`` sends a request to the address in its URL; tests redirect it.
    """

    guard: Guard
    agent: str = "torana"
    tls: ssl.SSLContext | None = None
    transport: httpx2.AsyncBaseTransport | None = None

    async def get(
        self,
        url: str,
        *,
        max_bytes: int = _MAX_BYTES,
        seconds: float = _SECONDS,
        types: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        follow: bool = True,
    ) -> WebPage:
        """Fetch ``url``. With ``follow``, follow at most five redirects, each checked like the first address.

        ``types`` are the accepted media types, such as ``text/*``; none means all. ``headers`` may contain
        secrets: they are not sent to redirect targets. Raises a ``WebFault``, also for every response that is
        not a success.
        """
        request = httpx2.Request("GET", _parse(url), headers=_accept(types) | dict(headers or {}))
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
    ) -> WebPage:
        """Send ``content`` to ``url`` without following redirects. Otherwise like ``get``."""
        request = httpx2.Request("POST", _parse(url), content=content, headers=_accept(types) | dict(headers))
        return await self._fetch(request, max_bytes=max_bytes, seconds=seconds, types=types, follow=0)

    async def _fetch(
        self, request: httpx2.Request, *, max_bytes: int, seconds: float, types: Sequence[str], follow: int
    ) -> WebPage:
        try:
            with anyio.fail_after(seconds):
                for _ in range(follow + 1):
                    async with self._send(request) as response:
                        if response.status_code not in _MOVED:
                            return await _read_page(request.url, response, max_bytes=max_bytes, types=types)
                        request = _next(request, response, follow=follow)
        except TimeoutError as error:
            raise TooSlow(f"{_shorten_url(request.url)} did not respond within {seconds:g} s.") from error
        raise BadResponse(f"{_shorten_url(request.url)} has more than {follow} redirects.")

    @asynccontextmanager
    async def _send(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Response]:
        """Yield the response to a request, and close it at the end."""
        response = await self._connect(request)
        try:
            yield response
        except httpx2.TransportError as error:
            raise BadResponse(f"{_shorten_url(request.url)} did not send its whole response.") from error
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()

    async def _connect(self, request: httpx2.Request) -> httpx2.Response:
        """Return the response from the first of the host's addresses that accepts a connection."""
        url = request.url
        port = url.port or (443 if url.scheme == "https" else 80)
        failure: httpx2.TransportError | None = None
        for address in await self.guard.resolve(url.raw_host.decode("ascii"), port):
            try:
                return await self._transport.handle_async_request(self._pin_address(request, address))
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                failure = error
            except httpx2.TransportError as error:
                raise BadResponse(f"{_shorten_url(url)} did not send a valid HTTP response.") from error
        if "CERTIFICATE_VERIFY_FAILED" in str(failure):
            raise Unreachable(f"{url.host} has no trusted certificate for its name.") from failure
        raise Unreachable(f"{url.host} refuses connections.") from failure

    def _pin_address(self, request: httpx2.Request, address: str) -> httpx2.Request:
        name = request.url.raw_host.decode("ascii")
        headers = request.headers.copy()
        headers["Host"] = request.url.netloc.decode("ascii")
        headers["User-Agent"] = self.agent
        headers["Accept-Encoding"] = "gzip"
        return httpx2.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=headers,
            content=request.content,
            extensions={"sni_hostname": name.removesuffix("."), "timeout": {"connect": _CONNECT}},
        )

    @cached_property
    def _transport(self) -> httpx2.AsyncBaseTransport:
        # For httpx2 the host is an IP address, and many names can share one address. On a reused connection,
        # the certificate would not be checked for the second name.
        return self.transport or httpx2.AsyncHTTPTransport(
            verify=self.tls or httpx2.create_ssl_context(), limits=httpx2.Limits(max_keepalive_connections=0)
        )


def _parse(text: str) -> httpx2.URL:
    """Parse an address and check all of it except its host. The fragment is removed."""
    if len(text) > _MAX_URL:
        raise NotAllowed(f"The address is longer than {_MAX_URL} characters.")
    try:
        url = httpx2.URL(text.strip())
    except httpx2.InvalidURL as error:
        raise NotAllowed(f"This is not a web address: {error}") from error
    if url.scheme not in {"http", "https"}:
        raise NotAllowed("Only addresses that begin with http:// or https:// are fetched.")
    if url.userinfo:
        raise NotAllowed("An address with a user name or password in it is not fetched.")
    if not url.raw_host:
        raise NotAllowed("The address has no host.")
    if url.port is not None and not 0 < url.port < 65536:
        raise NotAllowed("The port of the address is not valid.")
    return url.copy_with(fragment=None)


def _shorten_url(url: httpx2.URL) -> str:
    """Return an address for messages, shortened, because it may come from an untrusted source."""
    return str(url)[:_NAMED]


def _accept(types: Sequence[str]) -> dict[str, str]:
    return {"Accept": ", ".join([*types, "*/*;q=0.1"]) if types else "*/*"}


def _next(request: httpx2.Request, response: httpx2.Response, *, follow: int) -> httpx2.Request:
    location = response.headers.get("location", "")
    if not follow:
        raise BadResponse(
            f"{_shorten_url(request.url)} redirects, and redirects are not followed.",
            status=response.status_code,
        )
    try:
        # A redirect without a location points to itself, and ends at the limit.
        url = _parse(str(request.url.join(location)))
    except (NotAllowed, httpx2.InvalidURL) as error:
        raise NotAllowed(f"{_shorten_url(request.url)} redirects to an address that is not allowed.") from error
    if request.url.scheme == "https" and url.scheme == "http":
        raise NotAllowed(
            f"{_shorten_url(request.url)} redirects to an unencrypted address, which is not followed."
        )
    return httpx2.Request("GET", url, headers={"Accept": request.headers["Accept"]})


async def _read_page(
    url: httpx2.URL, response: httpx2.Response, *, max_bytes: int, types: Sequence[str]
) -> WebPage:
    if not response.is_success:
        # Messages repeat only the status, no text of an untrusted server.
        raise BadResponse(f"{_shorten_url(url)} answered {response.status_code}.", status=response.status_code)
    content_type = response.headers.get("content-type", "")
    media_type = content_type.partition(";")[0].strip().lower() or "application/octet-stream"
    if types and not any(_fits(media_type, wanted) for wanted in types):
        known = media_type if _TYPE.fullmatch(media_type) else "of no known type"
        raise WrongType(f"{_shorten_url(url)} is {known}, which is not supported.")
    # httpx2's parser is not used: it calls the standard library's, which is quadratic and raises other errors.
    charset = _CHARSET.search(content_type, 0, _TYPE_READ)
    return WebPage(
        url=str(url),
        status=response.status_code,
        media_type=media_type,
        charset=charset[1].lower() if charset else None,
        body=await _body(url, response, max_bytes=max_bytes),
    )


def _fits(media_type: str, wanted: str) -> bool:
    return media_type == wanted or (wanted.endswith("/*") and media_type.startswith(wanted[:-1]))


async def _body(url: httpx2.URL, response: httpx2.Response, *, max_bytes: int) -> bytes:
    too_large = PageTooLarge(f"{_shorten_url(url)} is larger than {max_bytes:,} bytes.")
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    length = response.headers.get("content-length", "")
    if encoding == "identity" and length.isdecimal() and int(length[:20]) > max_bytes:
        raise too_large
    try:
        unpacker = Unpacker(encoding, limit=max_bytes)
        received = chunks = 0
        async for chunk in response.aiter_raw():
            received += len(chunk)
            chunks += 1
            if chunks > _FREE_CHUNKS + received // _BYTES_PER_CHUNK:
                raise BadResponse(f"{_shorten_url(url)} sent its body in too small pieces.")
            unpacker.feed(chunk)
            # The received bytes are limited too: a packed body may unpack to nothing.
            if unpacker.has_overflowed or received > max_bytes:
                raise too_large
        return unpacker.finish()
    except InvalidCompression as error:
        raise BadResponse(f"{_shorten_url(url)} sent a body that cannot be decompressed: {error}") from error
