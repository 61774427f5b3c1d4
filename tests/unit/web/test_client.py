"""The guarded client against well-behaved and hostile servers."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from contextlib import nullcontext
from email.message import Message
from ipaddress import ip_address

import pytest
from tests.standins.web import PUBLIC, SITE, Internet

from torana.web import BadResponse, NotAllowed, PageTooLarge, TooSlow, Unreachable, WebFault, WrongType
from torana.web.guard import Interfaces

_URL = f"http://{SITE}"


async def test_page_is_fetched(web: Internet) -> None:
    web.page("/a", "<p>Olá</p>", type="Text/HTML; charset=ISO-8859-1")
    page = await web.client().get(f"{_URL}/a?b=c#d", types=["text/*"])
    assert (page.url, page.status) == (f"{_URL}/a?b=c", 200)
    assert (page.media_type, page.charset, page.body) == ("text/html", "iso-8859-1", "<p>Olá</p>".encode())
    (seen,) = web.seen
    assert (seen.method, seen.path) == ("GET", "/a?b=c")
    assert seen.headers["host"] == SITE
    assert seen.headers["user-agent"] == "torana"
    assert web.dialled == [(PUBLIC, None)]


async def test_host_header_contains_the_port(web: Internet) -> None:
    web.page("/")
    await web.client().get(f"http://{SITE}:8080/")
    assert web.seen[0].headers["host"] == f"{SITE}:8080"
    assert web.dialled == [(PUBLIC, 8080)]


async def test_internationalized_name_is_encoded(web: Internet) -> None:
    web.names["xn--bcher-kva.test"] = [[PUBLIC]]
    web.page("/")
    await web.client().get("http://bücher.test/")
    assert web.seen[0].headers["host"] == "xn--bcher-kva.test"


async def test_next_address_is_tried_when_one_fails(web: Internet, unused_tcp_port: int) -> None:
    web.page("/", "here")
    web.names[SITE] = [["93.184.215.15", PUBLIC]]
    web.dead["93.184.215.15"] = unused_tcp_port
    assert (await web.client().get(f"{_URL}/")).body == b"here"
    assert [address for address, _ in web.dialled] == ["93.184.215.15", PUBLIC]


async def test_refused_connection_is_reported(web: Internet, unused_tcp_port: int) -> None:
    web.dead[PUBLIC] = unused_tcp_port
    with pytest.raises(Unreachable, match=f"{SITE} refuses connections"):
        await web.client().get(f"{_URL}/")


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://site.test/",
        "gopher://site.test/",
        "data:text/plain,hello",
        "javascript:alert(1)",
        "//site.test/",
        "site.test",
        "",
        "http://",
        "http:///path",
        "http://user:secret@site.test/",
        "http://user@site.test/",
        "http://site.test\\@127.0.0.1/",
        "http://127.0.0.1/",
        "http://127.0.0.1.nip.test@127.0.0.1/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::1]:8080/",
        "http://[fe80::1%25eth0]/",
        "http://127。0。0。1/",
        "http://１２７.０.０.１/",
        "http://%31%32%37.0.0.1/",
        "http://0x7f.1/",
        "http://2130706433/",
        "http://127.1/",
        "http://localhost:18789/v1/turns",
        "http://ⓛocalhost/",
        "http://169.254.169.254/latest/meta-data/",
        "http://metadata/",
        "http://site.test:99999/",
        "http://site.test:0/",
        "http://site.test:x/",
        "http://[::1",
        "http://site.test/\x00",
        "http://site.test/" + "a" * 5000,
    ],
)
async def test_forbidden_urls_are_refused(web: Internet, url: str) -> None:
    web.page("/", "never")
    with pytest.raises(NotAllowed):
        await web.client().get(url)
    assert web.dialled == []


async def test_allowed_host_may_be_private(web: Internet) -> None:
    web.page("/", "mine")
    assert (await web.client(allow=["127.0.0.1"]).get("http://127.0.0.1/")).body == b"mine"


@pytest.mark.parametrize("own", ["198.41.0.4", "64:ff9b::c629:4"])
async def test_redirect_to_this_machine_is_refused(web: Internet, own: str) -> None:
    web.names["own.test"] = [[own]]
    web.moved("/", "http://own.test/")
    interfaces = Interfaces(addresses=frozenset({ip_address("198.41.0.4")}))
    with pytest.raises(NotAllowed, match="an address of this machine"):
        await web.client(interfaces=lambda: interfaces).get(f"{_URL}/")
    assert [seen.path for seen in web.seen] == ["/"]


async def test_name_that_changes_to_this_machine_is_refused(web: Internet) -> None:
    web.names["rebound.test"] = [[PUBLIC], ["198.41.0.4"]]
    web.page("/", "theirs")
    client = web.client(interfaces=lambda: Interfaces(addresses=frozenset({ip_address("198.41.0.4")})))
    assert (await client.get("http://rebound.test/")).body == b"theirs"
    with pytest.raises(NotAllowed, match="an address of this machine"):
        await client.get("http://rebound.test/")


async def test_denied_host_is_refused(web: Internet) -> None:
    with pytest.raises(NotAllowed, match="web_deny"):
        await web.client(deny=[SITE]).get(f"{_URL}/")


async def test_proxy_settings_of_the_environment_are_ignored(
    web: Internet, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    web.page("/", "direct")
    assert (await web.client().get(f"{_URL}/")).body == b"direct"


async def test_no_cookie_is_sent_back(web: Internet) -> None:
    web.page("/", headers={"Set-Cookie": "a=b"})
    web.page("/first", status=302, headers={"Set-Cookie": "a=b", "Location": "/"})
    client = web.client()
    await client.get(f"{_URL}/first")
    await client.get(f"{_URL}/")
    assert [seen.headers.get("cookie") for seen in web.seen] == [None] * 3


async def test_redirects_are_followed(web: Internet) -> None:
    web.names["other.test"] = [["1.1.1.1"]]
    web.moved("/a", "b?c=d", status=301)
    web.moved("/b", "//other.test/c", status=307)
    web.page("/c", "there")
    page = await web.client().get(f"{_URL}/a")
    assert (page.url, page.body) == ("http://other.test/c", b"there")
    assert [address for address, _ in web.dialled] == [PUBLIC, PUBLIC, "1.1.1.1"]


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest/meta-data/iam/security-credentials/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:a9fe:a9fe]/",
        "http://localhost/",
        "http://0/",
        "http://0x7f.1/",
        "//127.0.0.1/",
        "file:///etc/passwd",
        "FILE:/etc/passwd",
        "gopher://127.0.0.1:6379/_FLUSHALL",
        "data:text/plain,hello",
        "http://user:pass@site.test/",
        "http://inside.test/",
        "http://[",
    ],
)
async def test_redirects_to_forbidden_urls_are_refused(web: Internet, location: str) -> None:
    web.names["inside.test"] = [["10.0.0.1"]]
    web.moved("/", location)
    with pytest.raises(NotAllowed):
        await web.client().get(f"{_URL}/")
    assert len(web.dialled) == 1


async def test_endless_redirects_are_refused(web: Internet) -> None:
    web.moved("/a", "/b")
    web.moved("/b", "/a")
    with pytest.raises(BadResponse, match="more than 5 redirects"):
        await web.client().get(f"{_URL}/a")
    assert len(web.seen) == 6


async def test_redirect_without_location_is_refused(web: Internet) -> None:
    web.page("/", status=302)
    with pytest.raises(BadResponse, match="redirects"):
        await web.client().get(f"{_URL}/")


async def test_dns_rebinding_is_refused(web: Internet) -> None:
    """The client does not resolve a name twice, and checks the address where a redirect resolves it again."""
    web.names["rebound.test"] = [[PUBLIC], ["127.0.0.1"]]
    web.page("/", "fine")
    web.moved("/again", "http://rebound.test/")
    client = web.client()
    assert (await client.get("http://rebound.test/")).body == b"fine"
    assert web.names["rebound.test"] == [["127.0.0.1"]]
    with pytest.raises(NotAllowed):
        await client.get("http://rebound.test/")
    web.names["rebound.test"] = [[PUBLIC], ["127.0.0.1"]]
    with pytest.raises(NotAllowed):
        await client.get("http://rebound.test/again")
    assert [address for address, _ in web.dialled] == [PUBLIC, PUBLIC]


@pytest.mark.parametrize("status", [304, 400, 403, 404, 500, 599])
async def test_error_status_is_raised(web: Internet, status: int) -> None:
    web.page("/", status=status)
    with pytest.raises(BadResponse) as raised:
        await web.client().get(f"{_URL}/")
    assert raised.value.status == status


async def test_informational_status_without_response_is_refused(web: Internet) -> None:
    web.page("/", status=199)
    with pytest.raises(BadResponse, match="did not send a valid HTTP response") as raised:
        await web.client().get(f"{_URL}/")
    assert raised.value.status is None


async def test_empty_page_is_fetched(web: Internet) -> None:
    web.page("/", status=204)
    assert (await web.client().get(f"{_URL}/")).body == b""


async def test_only_accepted_media_types_are_fetched(web: Internet) -> None:
    web.page("/pdf", "%PDF", type="application/pdf")
    web.page("/none", "x", type="")
    with pytest.raises(WrongType, match="application/pdf"):
        await web.client().get(f"{_URL}/pdf", types=["text/*", "application/json"])
    assert web.seen[0].headers["accept"].startswith("text/*, application/json")
    assert (await web.client().get(f"{_URL}/pdf", types=["application/pdf"])).body == b"%PDF"
    assert (await web.client().get(f"{_URL}/none")).media_type == "application/octet-stream"


@pytest.mark.parametrize(
    ("header", "charset"),
    [
        ('text/html; charset=KOI8-R;x="' + ";" * 90_000, "koi8-r"),
        ('text/html;charset="koi8-r"', "koi8-r"),
        ("text/html; a=b ; Charset = koi8-r ; c=d", "koi8-r"),
        ('text/html;x="' + ";" * 90_000, None),
        (f"text/html; charset*{'9' * 5000}=koi8-r", None),
        ("text/html; charset=", None),
        ("text/html; xcharset=koi8-r", None),
    ],
    ids=["beyond", "quoted", "oddly written", "semicolons", "numbered", "empty", "another"],
)
async def test_charset_of_the_server_is_parsed(
    web: Internet, monkeypatch: pytest.MonkeyPatch, header: str, charset: str | None
) -> None:
    """The client avoids the standard library's parser, which takes seconds for some headers."""
    monkeypatch.delattr(Message, "get_content_charset")
    web.page("/", "x", type=header)
    page = await web.client().get(f"{_URL}/")
    assert (page.media_type, page.charset) == ("text/html", charset)


async def test_page_with_a_large_content_length_is_refused(web: Internet) -> None:
    web.page("/", "x" * 1001)
    with pytest.raises(PageTooLarge, match="larger than 1,000 bytes"):
        await web.client().get(f"{_URL}/", max_bytes=1000)
    assert len((await web.client().get(f"{_URL}/", max_bytes=1001)).body) == 1001


async def test_endless_body_is_refused(web: Internet) -> None:
    async def pour(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    web.play("/", pour)
    with pytest.raises(PageTooLarge):
        await web.client().get(f"{_URL}/", max_bytes=100_000)


async def test_compressed_page_is_decompressed_within_the_limit(web: Internet) -> None:
    plain = b"hello " * 100
    parts = gzip.compress(plain[:100]) + gzip.compress(plain[100:])
    web.page("/", parts, headers={"Content-Encoding": "gzip"})
    assert (await web.client().get(f"{_URL}/", max_bytes=600)).body == plain
    with pytest.raises(PageTooLarge):
        await web.client().get(f"{_URL}/", max_bytes=599)
    assert web.seen[0].headers["accept-encoding"] == "gzip"


@pytest.mark.parametrize("size", [2_000_001, 100_000_000])
async def test_decompression_bomb_is_refused(web: Internet, size: int) -> None:
    bomb = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = bomb.compress(bytes(size)) + bomb.flush()
    web.page("/", packed, headers={"Content-Encoding": "gzip"})
    with pytest.raises(PageTooLarge):
        await web.client().get(f"{_URL}/", max_bytes=2_000_000)


async def test_endless_empty_gzip_members_are_refused(web: Internet) -> None:
    empty = gzip.compress(b"")

    async def pour(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\n\r\n")
        while True:
            writer.write(empty * 1000)
            await writer.drain()

    web.play("/", pour)
    with pytest.raises(PageTooLarge):
        await web.client().get(f"{_URL}/", max_bytes=100_000)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b"not packed at all"),
        ("deflate", zlib.compress(b"hello")),
        ("gzip", gzip.compress(b"hello" * 1000)[:-20]),
        ("gzip", gzip.compress(b"hello" * 1000)[:-1]),
        ("br", b"hello"),
        ("gzip, gzip", gzip.compress(gzip.compress(b"hello"))),
    ],
    ids=["not packed", "packed otherwise", "cut off", "without its end", "another's name", "packed twice"],
)
async def test_undecompressible_bodies_are_refused(web: Internet, encoding: str, body: bytes) -> None:
    web.page("/", body, headers={"Content-Encoding": encoding})
    with pytest.raises(BadResponse, match="cannot be decompressed"):
        await web.client().get(f"{_URL}/")


async def test_slow_response_times_out(web: Internet) -> None:
    """No single byte is late, but the whole response is."""

    async def trickle(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    web.play("/", trickle)
    with pytest.raises(TooSlow, match=r"did not respond within 0\.3 s"):
        await web.client().get(f"{_URL}/", seconds=0.3)


async def test_silent_server_times_out(web: Internet) -> None:
    async def wait(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    web.play("/", wait)
    with pytest.raises(TooSlow):
        await web.client().get(f"{_URL}/", seconds=0.2)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x00\xff" * 1000,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: \xff\xfe\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://\xc3\xa9\xe2\x80\xa8/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://a.b:99999999/\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_invalid_http_responses_are_refused(web: Internet, said: bytes) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(said)

    web.play("/", answer)
    with pytest.raises(WebFault):
        await web.client().get(f"{_URL}/")


@pytest.mark.parametrize(("size", "is_read"), [(1, False), (64, True)])
async def test_many_tiny_chunks_are_refused(web: Internet, size: int, is_read: bool) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(2_000):
            writer.write(b"%x\r\n%s\r\n" % (size, b"a" * size))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    web.play("/", answer)
    with nullcontext() if is_read else pytest.raises(BadResponse, match="too small pieces"):
        assert len((await web.client().get(f"{_URL}/")).body) == 2_000 * size


async def test_extra_headers_are_not_sent_to_another_host(web: Internet) -> None:
    web.names["other.test"] = [[PUBLIC]]
    web.moved("/", "http://other.test/there")
    web.page("/there")
    await web.client().get(f"{_URL}/", headers={"X-Key": "secret"})
    assert [seen.headers.get("x-key") for seen in web.seen] == ["secret", None]


async def test_redirect_is_refused_without_follow(web: Internet) -> None:
    web.names["other.test"] = [[PUBLIC]]
    web.moved("/", "http://other.test/")
    with pytest.raises(BadResponse, match="redirects are not followed"):
        await web.client().get(f"{_URL}/", follow=False)
    assert len(web.seen) == 1


async def test_post_sends_body_and_headers(web: Internet) -> None:
    web.page("/", '{"a": 1}', type="application/json")
    page = await web.client().post(f"{_URL}/", content=b"{}", headers={"Content-Type": "application/json"})
    assert page.body == b'{"a": 1}'
    (seen,) = web.seen
    assert (seen.method, seen.body, seen.headers["content-type"]) == ("POST", b"{}", "application/json")
