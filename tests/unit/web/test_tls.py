"""Certificates are checked against the host name, although the connection goes to an address."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.standins.servers import certify
from tests.standins.web import PUBLIC, SITE, Internet, internet

from torana.web import GuardedClient, NotAllowed, Unreachable


@pytest.fixture
async def web(tmp_path: Path) -> AsyncGenerator[Internet]:
    """A fake internet with encryption and a certificate for the site."""
    await certify(tmp_path, SITE)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    async with internet(context) as play:
        yield play


@pytest.fixture
def client(web: Internet, tmp_path: Path) -> GuardedClient:
    """A client that trusts the certificate."""
    return web.client(tls=ssl.create_default_context(cafile=tmp_path / "certificate.pem"))


async def test_certificate_for_the_name_is_accepted(web: Internet, client: GuardedClient) -> None:
    web.page("/", "safe")
    assert (await client.get(f"https://{SITE}/")).body == b"safe"
    assert (await client.get(f"https://{SITE}./")).body == b"safe"
    assert web.seen[0].headers["host"] == SITE


async def test_certificate_for_another_name_is_refused(web: Internet, client: GuardedClient) -> None:
    web.names["other.test"] = [[PUBLIC]]
    web.page("/", "safe")
    await client.get(f"https://{SITE}/")
    with pytest.raises(Unreachable, match=r"other\.test has no trusted certificate for its name"):
        await client.get("https://other.test/")
    assert len(web.seen) == 1


async def test_untrusted_certificate_is_refused(web: Internet) -> None:
    with pytest.raises(Unreachable, match="no trusted certificate"):
        await web.client().get(f"https://{SITE}/")


async def test_redirect_from_https_to_http_is_refused(web: Internet, client: GuardedClient) -> None:
    web.moved("/", f"http://{SITE}/plain")
    with pytest.raises(NotAllowed, match="unencrypted"):
        await client.get(f"https://{SITE}/")
