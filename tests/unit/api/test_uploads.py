"""Users who send slowly together do not keep others from sending files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from torana.api.uploads import UploadSlots
from torana.errors import RequestTimeout


def start_slow_uploads(slots: UploadSlots, users: Iterable[str]) -> list[asyncio.Task[None]]:
    """Start uploads whose bodies never end."""

    async def upload(user: str) -> None:
        async with slots.slot(user):
            await asyncio.Event().wait()

    return [asyncio.create_task(upload(user)) for user in users]


async def cancel(uploads: list[asyncio.Task[None]]) -> None:
    for upload in uploads:
        upload.cancel()
    await asyncio.gather(*uploads, return_exceptions=True)


async def test_four_slow_users_do_not_keep_out_a_fifth() -> None:
    slots = UploadSlots(patience=0)
    uploads = start_slow_uploads(slots, "aabbccdd")
    await asyncio.sleep(0)

    async with slots.slot("e"):
        ended = [upload for upload in uploads if upload.done()]
    assert ended == uploads[:1]
    with pytest.raises(RequestTimeout, match="another user waited"):
        await ended[0]
    await cancel(uploads)


async def test_upload_of_a_user_with_several_is_ended_first() -> None:
    slots = UploadSlots(total=3, patience=0)
    uploads = start_slow_uploads(slots, "abb")
    await asyncio.sleep(0)

    async with slots.slot("c"):
        assert [upload.done() for upload in uploads] == [False, True, False]
    await cancel(uploads)


async def test_user_with_an_upload_ends_none() -> None:
    paused = asyncio.Semaphore(0)

    async def pause(seconds: float) -> None:
        paused.release()
        await asyncio.sleep(0)

    slots = UploadSlots(total=2, patience=0, pause=pause)
    uploads = start_slow_uploads(slots, "ab")
    await asyncio.sleep(0)
    uploads += start_slow_uploads(slots, "b")
    for _ in range(3):
        await paused.acquire()

    assert not any(upload.done() for upload in uploads)
    await cancel(uploads)


async def test_young_upload_is_not_ended() -> None:
    paused = asyncio.Semaphore(0)

    async def pause(seconds: float) -> None:
        paused.release()
        await asyncio.sleep(0)

    slots = UploadSlots(total=1, patience=3600, pause=pause)
    uploads = start_slow_uploads(slots, "ab")
    for _ in range(3):
        await paused.acquire()

    assert not any(upload.done() for upload in uploads)
    await cancel(uploads)
