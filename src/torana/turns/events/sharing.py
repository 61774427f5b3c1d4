"""Share the events of running turns between replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torana.messages import EventType
from torana.store.redis.server import RedisServer
from torana.turns.events.following import EventFollower
from torana.turns.events.log import EventLog
from torana.turns.events.publishing import EventPublisher


class EventSharing:
    """Sends the events of a turn from the replica that runs it to others. This base class sends none.

    Without sharing, an event stream of another replica lacks the events until the turn ends; the turn's row
    then has the whole reply. All methods except ``stop`` return at once, without waiting for a server.
    """

    #: The copies of events that ``delete`` does not reach, for the receipt of an erasure.
    out_of_reach: Sequence[str] = ()

    def start(self) -> None:
        """Begin to work in the background."""

    async def stop(self) -> None:
        """Stop the work in the background."""

    def begin(self, turn_id: str) -> None:
        """Begin to share an attempt that this replica runs. The attempt must be open in the event log."""

    def publish(self, turn_id: str, type_: EventType, data: Mapping[str, Any]) -> None:
        """Send an event that the log already contains to other replicas."""

    def follow(self, turn_id: str) -> None:
        """Add the events of a turn that another replica runs to the log, until the turn ends."""

    def end(self, turn_id: str, *, elsewhere: bool) -> None:
        """Note the end of a turn, which another replica has ended if ``elsewhere`` is true."""

    def delete(self, turn_id: str) -> None:
        """Delete the shared events of a turn that was deleted."""


class RedisEventSharing(EventSharing):
    """Sends events over a Redis server. While the server fails, turns run and end as without it."""

    out_of_reach = (
        "snapshots and replicas of Redis; events in a server that cannot be reached expire in an hour",
    )

    def __init__(self, *, server: RedisServer, log: EventLog) -> None:
        self._server = server
        self._publisher = EventPublisher(server=server, log=log)
        self._follower = EventFollower(server=server, log=log)

    def start(self) -> None:
        self._publisher.start()
        self._follower.start()

    async def stop(self) -> None:
        await self._publisher.stop()
        await self._follower.stop()
        await self._server.close()

    def begin(self, turn_id: str) -> None:
        self._follower.end(turn_id)
        self._publisher.begin(turn_id)

    def publish(self, turn_id: str, type_: EventType, data: Mapping[str, Any]) -> None:
        self._publisher.publish(turn_id, type_, data)

    def follow(self, turn_id: str) -> None:
        self._follower.follow(turn_id)

    def end(self, turn_id: str, *, elsewhere: bool) -> None:
        self._follower.end(turn_id)
        if not elsewhere:
            self._publisher.end(turn_id)

    def delete(self, turn_id: str) -> None:
        self._publisher.end(turn_id)
