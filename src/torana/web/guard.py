"""Where the gateway may go: names are looked up here, once, and every address of the answer is judged."""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence

import anyio
import anyio.to_thread

from torana.web.addresses import Address, is_metadata, is_public, parse, reached_by
from torana.web.faults import NotAllowed, TooSlow, Unreachable
from torana.web.interfaces import Interfaces, InterfacesUnreadable, read_interfaces

#: Looks a name up: its addresses as text. Raises ``OSError`` where there are none.
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]

#: Seconds that looking a name up may take.
_LOOKUP = 10.0

#: Two labels at least: a lone one may mean any machine of the network that the gateway stands in.
_NAME = re.compile(
    r"(?=.{3,253}$)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?\.)+([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)"
)
#: What makes a resolver read the whole name as a number (WHATWG URL, "ends in a number").
_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)")


class Guard:
    """Judges hosts.

    ``allow`` has the hosts that may be private, exactly as they are written in an address; ``deny`` those that
    are never reached, with everything below them, and it stands above ``allow``. ``resolver`` looks names up,
    ``interfaces`` reads this machine's own addresses and networks, which may block.
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
        self._resolver = resolver or system_resolver
        self._interfaces = interfaces

    async def resolve(self, host: str, port: int) -> list[str]:
        """The addresses at which ``host`` may be reached, in the order of the answer; at least one.

        Connect to one of these and to nothing else: asked again, a name may have another answer. If a single
        address of the answer is not public, is this machine's own or is on a network that this machine is
        connected to, the host is refused. Raises ``NotAllowed``, ``Unreachable``
        or ``TooSlow``.
        """
        name = _plain(host)
        if any(name == denied or name.endswith(f".{denied}") for denied in self._deny):
            raise NotAllowed(f"{host} is not to be reached: web_deny names it.")
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
                raise NotAllowed(f"{host} ({address}) is not to be reached: web_deny names it.")
            _check_address(host, address, allowed=allowed, named=str(address) in self._allow)
        if not allowed:
            await self._check_interfaces(host, addresses)
        return [str(address) for address in addresses]

    async def _check_interfaces(self, host: str, addresses: Sequence[Address]) -> None:
        """Refuse this machine and its neighbours. The interfaces are read each time, because they change."""
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
            raise TooSlow(f"{name} could not be looked up within {_LOOKUP:.0f} s.") from error
        except (OSError, UnicodeError) as error:
            raise Unreachable(f"There is no host {name}, or it cannot be looked up.") from error
        addresses = [parse(text) for text in dict.fromkeys(answer)]
        if not addresses or None in addresses:
            raise Unreachable(f"There is no address for {name}.")
        return [address for address in addresses if address is not None]


async def system_resolver(name: str, port: int) -> list[str]:
    """What the system says (files, DNS), looked up in a thread that is left alone when it is given up."""
    found = await anyio.to_thread.run_sync(
        lambda: socket.getaddrinfo(name, port, type=socket.SOCK_STREAM), abandon_on_cancel=True
    )
    return [str(entry[4][0]) for entry in found]


def _plain(host: str) -> str:
    """The one way to write a host: an address in its usual form, a name without the dot that may end it."""
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
            f"{host} is no usual way to write an address; write a name, or four numbers with dots."
        )
    if not _NAME.fullmatch(name):
        raise NotAllowed(f"{host} is not the full name of a host, such as www.example.org.")


def _check_address(host: str, address: Address, *, allowed: bool, named: bool) -> None:
    # A name that is allowed does not lead to credentials; only that very address, allowed, does.
    fine = named if is_metadata(address) else allowed or is_public(address)
    if not fine:
        is_cure = not is_metadata(address)
        then = (
            "the operator can allow this host with web_allow"
            if is_cure
            else "clouds hand out credentials there"
        )
        raise NotAllowed(f"{_with_address(host, address)} is not on the public internet; {then}.")


def _with_address(host: str, address: Address) -> str:
    """The host, with its address where the host is a name."""
    return host if str(address) == _plain(host) else f"{host} ({address})"
