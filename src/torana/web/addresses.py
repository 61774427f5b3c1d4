"""The IP addresses of the public internet.

Python's ``is_global`` is not used: its results differ between patch versions (3.11.7 treats 6to4, multicast and
fec0::/10 as global), and it ignores IPv4 addresses inside IPv6 addresses.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address

#: The IPv4 networks that are not public (IANA special-purpose registry, RFC 6890).
_NOT_PUBLIC_4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # shared by the customers of a provider (CGNAT)
            "127.0.0.0/8",  # loopback
            "169.254.0.0/16",  # link-local, with the metadata services of clouds
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments
            "192.0.2.0/24",  # documentation
            "192.31.196.0/24",  # AS112
            "192.52.193.0/24",  # AMT
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private
            "192.175.48.0/24",  # AS112
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/3",  # multicast, reserved, broadcast
        ),
    )
)

#: The part of IPv6 from which public addresses are assigned (RFC 4291); everything else is refused.
_GIVEN_OUT = IPv6Network("2000::/3")

_NOT_PUBLIC_6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments, Teredo among them
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4: carries an IPv4 address
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
        ),
    )
)

#: The prefix for IPv4 addresses in networks without IPv4 (NAT64, RFC 6052). The IPv4 address inside decides.
_NAT64 = IPv6Network("64:ff9b::/96")

#: The start of the interface identifier of an address that contains an IPv4 address (ISATAP, RFC 5214).
_ISATAP = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")

#: Addresses at which clouds provide credentials to their machines; always refused.
_METADATA = (
    IPv4Network("169.254.0.0/16"),
    IPv4Network("100.100.100.200/32"),
    IPv4Network("168.63.129.16/32"),  # in a public range
    IPv4Network("192.0.0.192/32"),
    IPv6Network("fe80::/10"),
    IPv6Network("fd00:ec2::/32"),
    IPv6Network("fd20:ce::254/128"),
    IPv6Network("fd00:42::42/128"),
)


def is_public(address: Address) -> bool:
    """Return whether the address is reachable from the public internet."""
    if is_metadata(address):
        return False
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    if address.scope_id is not None:
        return False
    if address in _NAT64:
        return is_public(reached_by(address))
    if address.packed[8:12] in _ISATAP:
        return False
    return address in _GIVEN_OUT and not any(address in network for network in _NOT_PUBLIC_6)


def is_metadata(address: Address) -> bool:
    """Return whether it is an address at which a cloud provides credentials to its machines."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or reached_by(address)
        if inner != address:
            return is_metadata(inner)
    return any(address in network for network in _METADATA)


def reached_by(address: Address) -> Address:
    """Return the address that a connection reaches: for NAT64, the IPv4 address inside."""
    if isinstance(address, IPv6Address) and address in _NAT64:
        return IPv4Address(address.packed[12:])
    return address


def parse(text: str) -> Address | None:
    """Parse an address in its usual form, or return None."""
    try:
        return ip_address(text)
    except ValueError:
        return None
