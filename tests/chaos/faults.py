"""Seeded faults of a cluster: deaths, pauses, stops, cut connections, and crashes of its servers."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

from tests.chaos.cluster import Cluster, Replica
from tests.redis_server import RedisProcess
from tests.waiting import eventually

#: Seconds that a takeover needs: the lease, and three checks.
_TAKEOVER = 11.0

#: Seconds of a pause that no replica notices.
_SHORT = (0.3, 3.0)

#: What a replica says when it ends because it was paused for too long.
_TAKEN_OVER = "another replica has taken over the work of this replica"

#: What a replica says when it cannot start because of the database.
_UNUSABLE = "cannot be used"


class Faults:
    """Disturbs a cluster in two ways at a time: one long pause, and a series of short faults elsewhere."""

    def __init__(self, *, cluster: Cluster, draw: random.Random, redis: RedisProcess | None) -> None:
        """``redis`` is the server that the replicas share."""
        self._cluster = cluster
        self._redis = redis
        self._draw = draw
        self._deadline = 0.0
        #: Replicas that a fault has hit and that do not serve yet.
        self._hit: set[Replica] = set()
        #: Held while a replica starts: without the database server it would end.
        self._starting = asyncio.Lock()
        self.counts: Counter[str] = Counter()
        #: Ends of replicas that no fault explains.
        self.unexpected: list[str] = []

    async def disturb(self, *, until: float) -> None:
        """Disturb the cluster until this monotonic time. At least one replica serves then."""
        self._deadline = until
        async with asyncio.TaskGroup() as self._tasks:
            self._tasks.create_task(self._freeze())
            self._tasks.create_task(self._harm())

    async def _freeze(self) -> None:
        """Pause one replica after the other, in the middle of a tool, until others have taken over."""
        while time.monotonic() + _TAKEOVER < self._deadline:
            if (replica := self._choose(keep=1)) is None:
                await asyncio.sleep(0.1)
                continue
            self._hit.add(replica)
            runner = await asyncio.to_thread(self._pause_in_a_tool, replica)
            self.counts["long pauses"] += 1
            await asyncio.to_thread(eventually, partial(self._cluster.has_lost, runner))
            await asyncio.sleep(self._draw.uniform(0, 2))
            replica.resume()
            await self._await_end(replica)
            await self._start(replica)

    def _pause_in_a_tool(self, replica: Replica) -> str:
        """Pause a replica while it runs a turn with the tool ``linger``, and return the id of the replica."""

        def pause() -> str | None:
            if not replica.alive:  # others have taken over from a slow replica
                return "none"
            if not (texts := replica.lingers):
                return None
            replica.pause()
            runner = self._cluster.runner_of(texts[0])
            if runner is None:  # the turn has ended just before
                replica.resume()
            return runner

        return eventually(pause)

    async def _await_end(self, replica: Replica) -> None:
        """Wait until a replica notices that others have taken over, and ends."""
        try:
            code = await asyncio.to_thread(replica.wait)
        except subprocess.TimeoutExpired:
            self.unexpected.append(f"a replica still runs after a takeover:\n{replica.end_of_output()}")
            await asyncio.to_thread(replica.kill)
            return
        if code != 1 or _TAKEN_OVER not in replica.end_of_output():
            self.unexpected.append(f"a replica ended with {code} after a takeover:\n{replica.end_of_output()}")

    async def _harm(self) -> None:
        """Cause each kind of short fault in random order, again and again."""
        kinds: list[Callable[[], Awaitable[bool]]] = [
            self._kill,
            self._terminate,
            self._pause,
            self._cut_commit,
            self._cut_commit,
            self._cut_all,
            self._crash_server,
        ]
        if self._redis is not None:
            kinds.append(partial(self._disturb_redis, self._redis))
        due: list[Callable[[], Awaitable[bool]]] = []
        while True:
            await asyncio.sleep(self._draw.uniform(0.2, 1.2))
            if time.monotonic() > self._deadline:
                return
            self._revive()
            due = due or self._draw.sample(kinds, len(kinds))
            for cause in due:
                if await cause():
                    due.remove(cause)
                    break

    async def _kill(self) -> bool:
        if (replica := self._choose(keep=1)) is None:
            return False
        self.counts["kills"] += 1
        self._hit.add(replica)
        await asyncio.to_thread(replica.kill)
        self._tasks.create_task(self._start(replica))
        return True

    async def _terminate(self) -> bool:
        if (replica := self._choose(keep=1)) is None:
            return False
        self.counts["stops"] += 1
        self._hit.add(replica)
        self._tasks.create_task(self._stop(replica))
        return True

    async def _stop(self, replica: Replica) -> None:
        code = await asyncio.to_thread(replica.terminate)
        # A replica that loses its lease while it stops says so.
        if code != 0 and _TAKEN_OVER not in replica.end_of_output():
            self.unexpected.append(f"a stopped replica ended with {code}:\n{replica.end_of_output()}")
        await self._start(replica)

    async def _pause(self) -> bool:
        if (replica := self._choose()) is None:
            return False
        self.counts["short pauses"] += 1
        self._hit.add(replica)
        replica.pause()
        await asyncio.sleep(self._draw.uniform(*_SHORT))
        replica.resume()
        self._hit.discard(replica)
        return True

    async def _cut_commit(self) -> bool:
        if (replica := self._choose()) is None:
            return False
        self.counts["cuts at a COMMIT"] += 1
        replica.proxy.cut = self._draw.choice(["before", "after"])
        return True

    async def _cut_all(self) -> bool:
        self.counts["cuts of all connections"] += 1
        await asyncio.to_thread(self._cluster.end_connections)
        return True

    async def _crash_server(self) -> bool:
        if self._starting.locked():
            return False
        server = self._cluster.server
        async with self._starting:
            self.counts["crashes of the server"] += 1
            await asyncio.to_thread(server.stop, "immediate")
            await asyncio.sleep(self._draw.uniform(0, 1))
            await asyncio.to_thread(server.start)
        return True

    async def _disturb_redis(self, server: RedisProcess) -> bool:
        """Crash, freeze or empty the Redis server."""
        fault = self._draw.choice(["crashes of Redis", "pauses of Redis", "losses of the data in Redis"])
        self.counts[fault] += 1
        seconds = self._draw.uniform(*_SHORT)
        if fault == "crashes of Redis":
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(server.start)
        elif fault == "pauses of Redis":
            server.signal(signal.SIGSTOP)
            await asyncio.sleep(seconds)
            server.signal(signal.SIGCONT)
        else:
            await asyncio.to_thread(server.execute, "FLUSHALL")
        return True

    def _choose(self, *, keep: int = 0) -> Replica | None:
        """Return a replica that serves, if ``keep`` others do so as well."""
        serving = self._serving()
        return self._draw.choice(serving) if len(serving) > keep else None

    def _serving(self) -> list[Replica]:
        return [one for one in self._cluster.replicas if one not in self._hit and one.alive]

    def _revive(self) -> None:
        """Start the replicas again that ended by themselves, which is right only if others have taken over."""
        for replica in self._cluster.replicas:
            if replica not in self._hit and not replica.alive:
                self._hit.add(replica)
                self.counts["takeovers of slow replicas"] += 1
                if _TAKEN_OVER not in replica.end_of_output():
                    self.unexpected.append(f"a replica ended by itself:\n{replica.end_of_output()}")
                self._tasks.create_task(self._start(replica))

    async def _start(self, replica: Replica) -> None:
        """Start an ended replica as a supervisor does, unless the time is over and others serve."""
        await asyncio.sleep(self._draw.uniform(0, 1))
        async with self._starting:
            while time.monotonic() < self._deadline or not self._serving():
                replica.start()
                if await asyncio.to_thread(replica.comes_up):
                    self._hit.discard(replica)
                    return
                self.counts["starts that failed"] += 1
                output = replica.end_of_output()
                if _UNUSABLE not in output and _TAKEN_OVER not in output:
                    self.unexpected.append(f"a start failed:\n{output}")
