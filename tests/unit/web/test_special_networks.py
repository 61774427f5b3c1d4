"""The bounds of the networks that the gateway does not reach."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from torana.web.addresses import is_public

#: The IANA special-purpose registries, with the networks of multicast and of reserved addresses.
REFUSED = (
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.31.196.0/24",
    "192.52.193.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "192.175.48.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/3",
    "::/3",
    "2001::/23",
    "2001:db8::/32",
    "2002::/16",
    "2620:4f:8000::/48",
    "3fff::/20",
    "4000::/2",
    "8000::/1",
)

#: The neighbours of refused networks: the last address before, and the first after each.
NEIGHBOURS = (
    *("1.0.0.0", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0"),
    *("169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "191.255.255.255", "192.0.1.0"),
    *("192.0.3.0", "192.31.195.255", "192.31.197.0", "192.52.192.255", "192.52.194.0", "192.88.98.255"),
    *("192.88.100.0", "192.167.255.255", "192.169.0.0", "192.175.47.255", "192.175.49.0", "198.17.255.255"),
    *("198.20.0.0", "198.51.99.255", "198.51.101.0", "203.0.112.255", "203.0.114.0", "223.255.255.255"),
    *(
        "2001:200::",
        "2001:db7:ffff::",
        "2001:db9::",
        "2001:ffff::",
        "2003::",
        "2620:4f:7fff::",
        "2620:4f:8001::",
    ),
    *("3ffe:ffff::", "3fff:1000::"),
)


@pytest.mark.parametrize("network", REFUSED)
def test_the_first_and_the_last_address_of_a_special_network_are_refused(network: str) -> None:
    first, last = ip_network(network)[0], ip_network(network)[-1]

    assert not is_public(first)
    assert not is_public(last)


@pytest.mark.parametrize("address", NEIGHBOURS)
def test_the_addresses_beside_special_networks_are_public(address: str) -> None:
    assert is_public(ip_address(address))
