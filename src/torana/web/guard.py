"""Decide which addresses the gateway may reach: resolve each name once, and check every address."""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

import anyio
import anyio.to_thread

from torana.web.addresses import Address, is_metadata, is_public, parse, reached_by
from torana.web.errors import NotAllowed, TooSlow, Unreachable

#: Resolves a name to addresses as text. Raises ``OSError`` if there are none.
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]

#: The shortest prefix of a directly connected network, by IP version. A shorter prefix, such as that of a
#: tunnel for all traffic, would refuse the whole internet. The interface's own address is always refused.
_SHORTEST_PREFIX = {4: 8, 6: 32}

#: Seconds for a name lookup, and the number of lookups of a guard at the same time.
_LOOKUP = 10.0
_LOOKUPS = 20

#: At least two labels: a single label may name any machine of the local network.
_NAME = re.compile(
    r"(?=.{3,253}$)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?\.)+([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)"
)
#: The last label of a host that resolvers read as a number (WHATWG URL, "ends in a number").
_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)")


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


class Guard:
    """Checks hosts.

    ``allow`` lists the hosts that may be private; their subdomains may not. ``deny`` lists hosts that are never
    reached, including their subdomains; it overrides ``allow``. ``resolver`` resolves names. ``interfaces``
    reads this machine's addresses and networks, and may block.
    """

    def __init__(
        self,
        *,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        resolver: Resolver | None = None,
        interfaces: Callable[[], Interfaces] = read_interfaces,
    ) -> None:
        self._allow = frozenset(map(_plain, allow))
        self._deny = frozenset(map(_plain, deny))
        self._resolver = resolver or SystemResolver()
        self._interfaces = interfaces

    async def resolve(self, host: str, port: int) -> list[str]:
        """Return the allowed addresses of ``host``, in the order of the DNS answer; at least one.

        Connect only to these: a second lookup may have another result. The host is refused if any of its
        addresses is not public, belongs to this machine, or is on a network that this machine is connected to.
        Raises ``NotAllowed``, ``Unreachable`` or ``TooSlow``.
        """
        name = _plain(host)
        if any(name == denied or name.endswith(f".{denied}") for denied in self._deny):
            raise NotAllowed(f"{host} is denied by web_deny.")
        allowed = name in self._allow
        literal = parse(name)
        if literal is not None:
            addresses = [literal]
        else:
            if not allowed:
                _check_name(host, name)
            addresses = await self._look_up(name, port)
        for address in addresses:
            if str(address) in self._deny:
                raise NotAllowed(f"{host} ({address}) is denied by web_deny.")
            _check_address(host, address, allowed=allowed, named=str(address) in self._allow)
        if not allowed:
            await self._check_interfaces(host, addresses)
        return [str(address) for address in addresses]

    async def _check_interfaces(self, host: str, addresses: Sequence[Address]) -> None:
        """Refuse this machine and directly connected networks. Interfaces change, so each call reads them."""
        try:
            interfaces = await anyio.to_thread.run_sync(self._interfaces, abandon_on_cancel=True)
        except InterfacesUnreadable as error:
            raise NotAllowed(
                f"{host} is refused because this machine's own addresses cannot be read ({error}); "
                "the operator can allow this host with web_allow."
            ) from error
        for address in map(reached_by, addresses):
            if address in interfaces.addresses:
                where = "an address of this machine"
            elif interfaces.has_network_of(address):
                where = "on a network that this machine is directly connected to"
            else:
                continue
            raise NotAllowed(
                f"{_with_address(host, address)} is {where}; the operator can allow this host with web_allow."
            )

    async def _look_up(self, name: str, port: int) -> list[Address]:
        try:
            with anyio.fail_after(_LOOKUP):
                answer = await self._resolver(name, port)
        except TimeoutError as error:
            raise TooSlow(f"{name} was not resolved within {_LOOKUP:.0f} s.") from error
        except (OSError, UnicodeError) as error:
            raise Unreachable(f"The host {name} cannot be resolved.") from error
        addresses = [parse(text) for text in dict.fromkeys(answer)]
        if not addresses or None in addresses:
            raise Unreachable(f"The host {name} has no address.")
        return [address for address in addresses if address is not None]


class SystemResolver:
    """Resolves names by the system, in threads of its own: a lookup may take long and cannot be stopped."""

    def __init__(self) -> None:
        self._threads = anyio.CapacityLimiter(_LOOKUPS)

    async def __call__(self, name: str, port: int) -> list[str]:
        """Return the addresses of a name. A cancellation abandons the thread."""
        found = await anyio.to_thread.run_sync(
            lambda: socket.getaddrinfo(name, port, type=socket.SOCK_STREAM),
            abandon_on_cancel=True,
            limiter=self._threads,
        )
        return [str(entry[4][0]) for entry in found]


def _plain(host: str) -> str:
    """Return the canonical form of a host: an address in its usual form, a name without a trailing dot."""
    text = host.lower().removesuffix(".").removeprefix("[").removesuffix("]")
    address = parse(text)
    return text if address is None else str(address)


def _check_name(host: str, name: str) -> None:
    if name == "localhost" or name.endswith(".localhost"):
        raise NotAllowed(
            f"{host} is the gateway's own machine; the operator can allow this name with web_allow."
        )
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        raise NotAllowed(
            f"{host} is not the usual form of an address; write a name, or four numbers with dots."
        )
    if not _NAME.fullmatch(name):
        raise NotAllowed(f"{host} is not the full name of a host, such as www.example.org.")


def _check_address(host: str, address: Address, *, allowed: bool, named: bool) -> None:
    # An allowed name must not lead to a metadata service; only the address itself can be allowed.
    fine = named if is_metadata(address) else allowed or is_public(address)
    if not fine:
        is_cure = not is_metadata(address)
        then = (
            "the operator can allow this host with web_allow"
            if is_cure
            else "clouds provide credentials at this address"
        )
        raise NotAllowed(f"{_with_address(host, address)} is not on the public internet; {then}.")


def _with_address(host: str, address: Address) -> str:
    return host if str(address) == _plain(host) else f"{host} ({address})"
