"""Public addresses: a table of networks, and properties of addresses embedded in other addresses."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.web.addresses import is_metadata, is_public

_PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "93.184.215.14",
    "172.15.255.255",  # just below the private network
    "172.32.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "223.255.255.255",
    "2606:4700:4700::1111",
    "2001:4860:4860::8888",
    "2a00:1450:4001:831::200e",
    "64:ff9b::808:808",  # 8.8.8.8 through NAT64
]

_NOT_PUBLIC = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::8.8.8.8",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "::ffff:0:127.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::169.254.169.254",
    "64:ff9b:1::8.8.8.8",
    "100::1",
    "2001::1",
    "2001:2::1",
    "2001:10::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:808:808::1",
    "2606:4700::5efe:7f00:1",
    "2620:4f:8000::1",
    "3fff::1",
    "4000::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "2606:4700:4700::1111%eth0",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
]


@pytest.mark.parametrize("text", _PUBLIC)
def test_public_addresses_are_public(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.parametrize("text", _NOT_PUBLIC)
def test_special_addresses_are_not_public(text: str) -> None:
    assert not is_public(ip_address(text))


@given(st.ip_addresses(v=4))
def test_embedded_address_is_never_more_public(inner: IPv4Address) -> None:
    number = int(inner)
    carriers = [
        IPv6Address(number),  # IPv4-compatible
        IPv6Address(0xFFFF << 32 | number),  # IPv4-mapped
        IPv6Address(0x2002 << 112 | number << 80),  # 6to4
        IPv6Address(0x20010000 << 96 | number ^ 0xFFFFFFFF),  # Teredo
        IPv6Address(0x26064700 << 96 | 0x5EFE << 32 | number),  # ISATAP
    ]
    assert not any(map(is_public, carriers))
    assert is_public(IPv6Address(0x64FF9B << 96 | number)) == is_public(inner)


@given(st.ip_addresses(v=6))
def test_public_ipv6_addresses_are_in_the_allocated_range(address: IPv6Address) -> None:
    if is_public(address) and address.packed[:12] != bytes.fromhex("0064ff9b0000000000000000"):
        assert address.packed[0] >> 5 == 1


@pytest.mark.parametrize("text", ["169.254.169.254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "fe80::1"])
def test_metadata_addresses_are_recognized(text: str) -> None:
    assert is_metadata(ip_address(text))


@pytest.mark.parametrize(
    ("before", "network", "after"),
    [
        (None, "0.0.0.0/8", "1.0.0.0"),
        ("9.255.255.255", "10.0.0.0/8", "11.0.0.0"),
        ("100.63.255.255", "100.64.0.0/10", "100.128.0.0"),
        ("126.255.255.255", "127.0.0.0/8", "128.0.0.0"),
        ("168.63.129.15", "168.63.129.16/32", "168.63.129.17"),
        ("169.253.255.255", "169.254.0.0/16", "169.255.0.0"),
        ("172.15.255.255", "172.16.0.0/12", "172.32.0.0"),
        ("191.255.255.255", "192.0.0.0/24", "192.0.1.0"),
        ("192.0.1.255", "192.0.2.0/24", "192.0.3.0"),
        ("192.31.195.255", "192.31.196.0/24", "192.31.197.0"),
        ("192.52.192.255", "192.52.193.0/24", "192.52.194.0"),
        ("192.88.98.255", "192.88.99.0/24", "192.88.100.0"),
        ("192.167.255.255", "192.168.0.0/16", "192.169.0.0"),
        ("192.175.47.255", "192.175.48.0/24", "192.175.49.0"),
        ("198.17.255.255", "198.18.0.0/15", "198.20.0.0"),
        ("198.51.99.255", "198.51.100.0/24", "198.51.101.0"),
        ("203.0.112.255", "203.0.113.0/24", "203.0.114.0"),
        ("223.255.255.255", "224.0.0.0/3", None),
        (None, "2001::/23", "2001:200::"),
        ("2001:db7:ffff:ffff:ffff:ffff:ffff:ffff", "2001:db8::/32", "2001:db9::"),
        ("2001:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "2002::/16", "2003::"),
        ("2620:4f:7fff:ffff:ffff:ffff:ffff:ffff", "2620:4f:8000::/48", "2620:4f:8001::"),
        ("3ffe:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "3fff::/20", "3fff:1000::"),
    ],
)
def test_addresses_next_to_a_refused_network_are_public(
    before: str | None, network: str, after: str | None
) -> None:
    refused = ip_network(network)
    assert not is_public(refused[0])
    assert not is_public(refused[-1])
    for text, step in ((before, -1), (after, refused.num_addresses)):
        if text is not None:
            assert ip_address(text) == refused[0] + step
            assert is_public(ip_address(text))


def test_unallocated_ipv6_addresses_are_refused() -> None:
    assert not is_public(IPv6Address("1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"))
    assert is_public(IPv6Address("2000::"))
    assert is_public(IPv6Address("3ffe::"))
    assert not is_public(IPv6Address("4000::"))
