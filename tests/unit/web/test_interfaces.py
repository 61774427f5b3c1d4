"""The addresses and networks of this machine's interfaces."""

from __future__ import annotations

import socket
from ipaddress import ip_address, ip_network
from unittest import mock

import psutil
import pytest

from torana.web.guard import InterfacesUnreadable, read_interfaces


def _listed(address: str, netmask: str | None, ptp: str | None = None) -> dict[str, list[object]]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    entry = mock.Mock(family=family, address=address, netmask=netmask, ptp=ptp)
    return {"eth0": [mock.Mock(family=socket.AF_PACKET, address="aa:bb:cc:dd:ee:ff", netmask=None), entry]}


def test_interfaces_of_this_machine_are_read() -> None:
    interfaces = read_interfaces()
    assert ip_address("127.0.0.1") in interfaces.addresses
    assert interfaces.has_network_of(ip_address("127.255.255.254"))
    assert not interfaces.has_network_of(ip_address("1.1.1.1"))


@pytest.mark.parametrize(
    ("address", "netmask", "network"),
    [
        ("198.41.0.4", "255.255.255.0", "198.41.0.0/24"),
        ("198.41.0.4", "255.255.255.255", "198.41.0.4/32"),
        ("11.0.0.1", "255.0.0.0", "11.0.0.0/8"),
        ("11.0.0.1", "254.0.0.0", None),
        ("198.41.0.4", "0.0.0.0", None),
        ("198.41.0.4", None, None),
        ("2a00:1450::1", "ffff:ffff:ffff:ffff::", "2a00:1450::/64"),
        ("2a00:1450::1", "ffff:ffff::", "2a00:1450::/32"),
        ("2a00:1450::1", "ffff:fffe::", None),
        ("2a00:1450::1", "::", None),
        ("2a00:1450::1%eth0", "ffff:ffff:ffff:ffff::", "2a00:1450::/64"),
    ],
)
def test_network_of_an_interface_counts_unless_it_is_very_wide(
    monkeypatch: pytest.MonkeyPatch, address: str, netmask: str | None, network: str | None
) -> None:
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: _listed(address, netmask))
    interfaces = read_interfaces()
    assert interfaces.addresses == {ip_address(address.removesuffix("%eth0"))}
    assert interfaces.networks == ({ip_network(network)} if network else set())


def test_peer_of_a_point_to_point_link_counts_as_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = _listed("198.41.0.4", "255.255.255.255", ptp="198.41.7.1")
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: listed)
    assert read_interfaces().addresses == {ip_address("198.41.0.4"), ip_address("198.41.7.1")}


def test_unlistable_interfaces_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(97, "Address family not supported by protocol")

    monkeypatch.setattr(psutil, "net_if_addrs", refuse)
    with pytest.raises(InterfacesUnreadable, match="not supported"):
        read_interfaces()
