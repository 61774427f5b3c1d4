"""Which IP addresses are on the public internet.

Python's own ``is_global`` is not asked: what it says of a network differs between patch versions (3.11.7 takes
6to4, multicast and fec0::/10 for global), and it looks into none of the IPv6 addresses that carry an IPv4 one.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address

#: All of IPv4 that is not for everyone to reach (the IANA special-purpose registry, RFC 6890).
_NOT_PUBLIC_4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # shared by the customers of a provider (CGNAT)
            "127.0.0.0/8",  # loopback
            "169.254.0.0/16",  # link-local, where clouds hand out credentials
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

#: The one part of IPv6 from which public addresses are given out (RFC 4291); everything else is refused.
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

#: Where a network without IPv4 reaches it (NAT64, RFC 6052): as public as the address within.
_NAT64 = IPv6Network("64:ff9b::/96")

#: How the last half of an address begins that carries an IPv4 address (ISATAP, RFC 5214).
_ISATAP = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")

#: Where a cloud hands its machines their credentials; nobody is ever led there.
_METADATA = (
    IPv4Network("169.254.0.0/16"),
    IPv4Network("100.100.100.200/32"),
    IPv4Network("168.63.129.16/32"),  # public by its number
    IPv4Network("192.0.0.192/32"),
    IPv6Network("fe80::/10"),
    IPv6Network("fd00:ec2::/32"),
    IPv6Network("fd20:ce::254/128"),
    IPv6Network("fd00:42::42/128"),
)


def is_public(address: Address) -> bool:
    """True when the address is one that anybody on the internet may reach."""
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
    """True for the addresses at which clouds give credentials to whoever asks from within."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or reached_by(address)
        if inner != address:
            return is_metadata(inner)
    return any(address in network for network in _METADATA)


def reached_by(address: Address) -> Address:
    """The address that a connection to this one ends at: behind NAT64, the IPv4 address within."""
    if isinstance(address, IPv6Address) and address in _NAT64:
        return IPv4Address(address.packed[12:])
    return address


def parse(text: str) -> Address | None:
    """The address that the text writes in its usual form, if it does."""
    try:
        return ip_address(text)
    except ValueError:
        return None
