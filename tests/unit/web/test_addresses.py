"""Which addresses are public: a table of the networks, and properties of the addresses within addresses."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.web.addresses import is_metadata, is_public

_PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "93.184.215.14",
    "172.15.255.255",  # a step before the private network
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
def test_public(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.parametrize("text", _NOT_PUBLIC)
def test_not_public(text: str) -> None:
    assert not is_public(ip_address(text))


@given(st.ip_addresses(v=4))
def test_an_address_within_another_is_never_more_public(inner: IPv4Address) -> None:
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
def test_public_addresses_are_of_the_part_that_is_given_out(address: IPv6Address) -> None:
    if is_public(address) and address.packed[:12] != bytes.fromhex("0064ff9b0000000000000000"):
        assert address.packed[0] >> 5 == 1


@pytest.mark.parametrize("text", ["169.254.169.254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "fe80::1"])
def test_where_credentials_are_handed_out(text: str) -> None:
    assert is_metadata(ip_address(text))
