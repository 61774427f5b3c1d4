"""Hosts that are refused, allowed and denied, in every notation."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.web import Guard, NotAllowed, TooSlow, Unreachable, guard
from torana.web.guard import Interfaces, InterfacesUnreadable, Resolver


def _answering(*answer: str) -> Resolver:
    async def resolve(name: str, port: int) -> Sequence[str]:
        return answer

    return resolve


def _guard(*answer: str, allow: Sequence[str] = (), deny: Sequence[str] = ()) -> Guard:
    return Guard(allow=allow, deny=deny, resolver=_answering(*answer))


@pytest.mark.parametrize(
    "host", ["www.example.org", "WWW.Example.ORG", "www.example.org.", "xn--bcher-kva.example"]
)
async def test_public_name_is_resolved(host: str) -> None:
    assert await _guard("1.1.1.1", "2606:4700::1111", "1.1.1.1").resolve(host, 443) == [
        "1.1.1.1",
        "2606:4700::1111",
    ]


@pytest.mark.parametrize("host", ["8.8.8.8", "[2606:4700:4700::1111]", "2606:4700:4700:0:0::1111"])
async def test_public_address_is_not_resolved(host: str) -> None:
    (address,) = await _guard().resolve(host, 80)
    assert address in {"8.8.8.8", "2606:4700:4700::1111"}


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1.",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[fe80::1%25eth0]",
        "[::1%eth0]",
        "169.254.169.254",
        "localhost",
        "LOCALHOST.",
        "a.localhost",
        "intranet",
        "127.1",
        "127.0.1",
        "0x7f.1",
        "0x7f000001",
        "2130706433",
        "017700000001",
        "0177.0.0.1",
        "0x7f.0x0.0x0.0x1",
        "1.2.3.4.5",
        "example.1",
        "example.0x",
        "%31%32%37.0.0.1",
        "a..b",
        ".example.org",
        "-a.example.org",
        "exa mple.org",
        "bücher.example",
        "ex\u2024ample.org",
        "a.b\x00.org",
        "",
        ".",
        "a" * 64 + ".org",
        "a." * 130 + "org",
    ],
)
async def test_forbidden_hosts_are_refused_without_resolving(host: str) -> None:
    with pytest.raises(NotAllowed):
        await _guard("8.8.8.8").resolve(host, 80)


@pytest.mark.parametrize(
    "private", ["10.0.0.1", "127.0.0.1", "::1", "169.254.169.254", "::ffff:10.0.0.1", "0.0.0.0"]
)
async def test_one_private_address_refuses_the_name(private: str) -> None:
    for answer in (("1.1.1.1", private), (private, "1.1.1.1")):
        with pytest.raises(NotAllowed, match="not on the public internet"):
            await _guard(*answer).resolve("mixed.example", 80)


async def test_allowed_host_may_be_private() -> None:
    mine = _guard("10.0.0.7", allow=["wiki.corp", "127.0.0.1", "nas"])
    assert await mine.resolve("wiki.corp", 80) == ["10.0.0.7"]
    assert await mine.resolve("NAS.", 80) == ["10.0.0.7"]
    assert await mine.resolve("127.0.0.1", 80) == ["127.0.0.1"]
    for other in ("other.corp", "a.wiki.corp", "10.0.0.7", "127.0.0.2", "localhost"):
        with pytest.raises(NotAllowed):
            await mine.resolve(other, 80)


async def test_allowed_name_with_a_metadata_address_is_refused() -> None:
    with pytest.raises(NotAllowed):
        await _guard("169.254.169.254", allow=["wiki.corp"]).resolve("wiki.corp", 80)


async def test_error_about_a_metadata_address_does_not_suggest_web_allow() -> None:
    with pytest.raises(NotAllowed, match="allow this host with web_allow"):
        await _guard().resolve("10.0.0.7", 80)
    with pytest.raises(NotAllowed, match="credentials at this address") as refused:
        await _guard().resolve("169.254.169.254", 80)
    assert "web_allow" not in str(refused.value)


@pytest.mark.parametrize("host", ["bad.example", "www.bad.example", "BAD.example.", "1.2.3.4"])
async def test_denied_host_is_refused(host: str) -> None:
    guarded = _guard("1.1.1.1", allow=["www.bad.example"], deny=["bad.example", "1.2.3.4"])
    with pytest.raises(NotAllowed, match="web_deny"):
        await guarded.resolve(host, 80)
    assert await guarded.resolve("notbad.example", 80)


async def test_name_with_a_denied_address_is_refused() -> None:
    with pytest.raises(NotAllowed, match="web_deny"):
        await _guard("1.1.1.1", "1.2.3.4", deny=["1.2.3.4"]).resolve("www.example.org", 443)


async def test_unknown_host_is_refused() -> None:
    async def unknown(name: str, port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(Unreachable, match=r"The host nowhere\.example cannot be resolved"):
        await Guard(resolver=unknown).resolve("nowhere.example", 80)
    with pytest.raises(Unreachable):
        await _guard().resolve("empty.example", 80)
    with pytest.raises(Unreachable):
        await _guard("no address").resolve("strange.example", 80)


async def test_endless_lookup_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(name: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(guard, "_LOOKUP", 0.01)
    with pytest.raises(TooSlow):
        await Guard(resolver=hangs).resolve("slow.example", 80)


async def test_system_resolver_is_used() -> None:
    with pytest.raises(NotAllowed, match=r"own machine; .* web_allow"):
        await Guard(allow=["127.0.0.1"]).resolve("localhost", 80)
    assert set(await Guard(allow=["localhost"]).resolve("localhost", 80)) <= {"127.0.0.1", "::1"}


def _here(*addresses: str, networks: Sequence[str] = ()) -> Callable[[], Interfaces]:
    interfaces = Interfaces(
        addresses=frozenset(map(ip_address, addresses)), networks=frozenset(map(ip_network, networks))
    )
    return lambda: interfaces


@pytest.mark.parametrize("own", ["198.41.0.4", "2a00:1450::1", "64:ff9b::c629:4"])
async def test_address_of_this_machine_is_refused(own: str) -> None:
    here = _here("198.41.0.4", "2a00:1450::1")
    for host, resolver in ((own, _answering()), ("own.example", _answering("1.1.1.1", own))):
        with pytest.raises(NotAllowed, match=r"is an address of this machine; .* web_allow"):
            await Guard(resolver=resolver, interfaces=here).resolve(host, 80)
    assert await Guard(resolver=_answering("1.1.1.1"), interfaces=here).resolve("other.example", 80) == [
        "1.1.1.1"
    ]


@pytest.mark.parametrize(
    ("network", "inside", "outside"),
    [
        ("198.41.0.0/24", ("198.41.0.0", "198.41.0.255", "64:ff9b::c629:fe"), ("198.40.255.255", "198.41.1.0")),
        ("2a00:1450::/64", ("2a00:1450::", "2a00:1450::ffff:ffff:ffff:ffff"), ("2a00:1450:0:1::",)),
    ],
)
async def test_address_in_a_connected_network_is_refused(
    network: str, inside: Sequence[str], outside: Sequence[str]
) -> None:
    guarded = Guard(interfaces=_here(networks=[network]))
    for host in inside:
        with pytest.raises(NotAllowed, match=r"directly connected to; .* web_allow"):
            await guarded.resolve(host, 80)
    for host in outside:
        assert await guarded.resolve(host, 80) == [host]


async def test_allowed_host_may_be_this_machine() -> None:
    guarded = Guard(
        allow=["198.41.0.4", "own.example"], resolver=_answering("198.41.0.4"), interfaces=_here("198.41.0.4")
    )
    for host in ("198.41.0.4", "own.example"):
        assert await guarded.resolve(host, 80) == ["198.41.0.4"]
    with pytest.raises(NotAllowed):  # allowed is the host as written, not another name with the same address
        await guarded.resolve("other.example", 80)


async def test_interfaces_are_read_at_each_connection() -> None:
    answers = iter([Interfaces(), Interfaces(addresses=frozenset({ip_address("198.41.0.4")}))])
    guarded = Guard(interfaces=lambda: next(answers))
    assert await guarded.resolve("198.41.0.4", 80) == ["198.41.0.4"]
    with pytest.raises(NotAllowed):
        await guarded.resolve("198.41.0.4", 80)


async def test_unreadable_interfaces_refuse_every_host_not_allowed() -> None:
    def broken() -> Interfaces:
        raise InterfacesUnreadable("no netlink")

    guarded = Guard(allow=["wiki.corp"], resolver=_answering("1.1.1.1"), interfaces=broken)
    with pytest.raises(NotAllowed, match=r"cannot be read \(no netlink\).* web_allow"):
        await guarded.resolve("www.example.org", 80)
    assert await guarded.resolve("wiki.corp", 80) == ["1.1.1.1"]


def _notations(number: int) -> list[str]:
    """Return the notations in which ``inet_aton`` accepts an IPv4 address."""
    a, b, c, d = number.to_bytes(4)
    return [
        f"{a}.{b}.{c}.{d}",
        f"{number}",
        f"{number:#x}",
        f"0{number:o}",
        f"{a}.{number & 0xFFFFFF}",
        f"{a}.{b}.{number & 0xFFFF}",
        f"{a:#x}.{b:#x}.{c:#x}.{d:#x}",
        f"0{a:o}.0{b:o}.0{c:o}.0{d:o}",
        f"{a:#X}.{b}.0{c:o}.{d}",
        f"[::ffff:{a}.{b}.{c}.{d}]",
        f"[::ffff:{a:02x}{b:02x}:{c:02x}{d:02x}]",
        f"[0:0:0:0:0:ffff:{a}.{b}.{c}.{d}]",
        f"[::{a}.{b}.{c}.{d}]",
        f"[64:ff9b::{a}.{b}.{c}.{d}]",
        f"[2002:{a:02x}{b:02x}:{c:02x}{d:02x}::]",
    ]


@given(
    st.sampled_from(["127.0.0.0/8", "10.0.0.0/8", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10"]).flatmap(
        lambda network: st.ip_addresses(v=4, network=network)
    ),
    st.sampled_from(["", "."]),
)
async def test_no_notation_hides_a_private_address(address: object, end: str) -> None:
    guarded = Guard()  # the system's own resolver, which accepts all notations
    for host in _notations(int(address)):  # pyright: ignore[reportArgumentType]
        with pytest.raises(NotAllowed):
            await guarded.resolve(host + end, 80)
