"""The addresses of this machine's network interfaces, and the networks that they are directly connected to."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from torana.web.addresses import Address

#: The shortest prefix of a directly connected network, by IP version. A shorter prefix, such as that of a
#: tunnel for all traffic, would refuse the whole internet. The interface's own address is always refused.
_SHORTEST_PREFIX = {4: 8, 6: 32}


class InterfacesUnreadable(Exception):
    """The system does not list its interfaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interfaces:
    #: The machine's own addresses, and the other ends of its point-to-point links.
    addresses: frozenset[Address] = frozenset()
    #: The networks that are reached without a router.
    networks: frozenset[IPv4Network | IPv6Network] = frozenset()

    def has_network_of(self, address: Address) -> bool:
        """Return whether the address is in a directly connected network."""
        return any(address in network for network in self.networks)


def read_interfaces() -> Interfaces:
    """Read the interfaces of this machine. Raises ``InterfacesUnreadable``."""
    # Imported here to save memory: a gateway whose agent uses no network does not need it.
    import psutil

    addresses: set[Address] = set()
    networks: set[IPv4Network | IPv6Network] = set()
    try:
        for entries in psutil.net_if_addrs().values():
            for entry in entries:
                if entry.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                for text in filter(None, (entry.address, entry.ptp)):
                    address = ip_address(text.partition("%")[0])
                    addresses.add(address)
                    if entry.netmask:
                        prefix = int(ip_address(entry.netmask)).bit_count()
                        networks.add(ip_network(f"{address}/{prefix}", strict=False))
    except (OSError, ValueError, psutil.Error) as error:
        raise InterfacesUnreadable(str(error)) from error
    counted = (network for network in networks if network.prefixlen >= _SHORTEST_PREFIX[network.version])
    return Interfaces(addresses=frozenset(addresses), networks=frozenset(counted))
