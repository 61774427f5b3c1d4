import time

import pytest

from torana import __version__
from torana.api.health import Health

FIELDS = ["status", "version", "uptime", "memory", "skills", "connectors"]


def health(*, draining: bool = False, writable: bool = True) -> Health:
    async def is_writable() -> bool:
        return writable

    return Health(
        started=time.monotonic() - 65.9,
        skills=lambda: {"core": 10, "user": 2},
        draining=lambda: draining,
        writable=is_writable,
    )


@pytest.mark.parametrize(
    ("draining", "writable", "status", "takes_messages"),
    [
        (False, True, "ok", True),
        (False, False, "degraded", False),
        (True, True, "draining", False),
        (True, False, "draining", False),
    ],
)
async def test_status_matches_acceptance_of_messages(
    draining: bool, writable: bool, status: str, takes_messages: bool
):
    takes, body = await health(draining=draining, writable=writable).report()
    assert (body.status, takes) == (status, takes_messages)


async def test_report_has_six_fields_with_their_types():
    _, reported = await health().report()
    body = reported.model_dump(mode="json")
    assert list(body) == FIELDS
    assert body["version"] == __version__
    assert body["uptime"] >= 65
    assert isinstance(body["uptime"], int)
    assert body["memory"].removesuffix("MB").isdecimal()
    assert 10 < int(body["memory"].removesuffix("MB")) < 10_000
    assert body["skills"] == {"core": 10, "user": 2}
    assert body["connectors"] == []


async def test_gateway_that_will_stop_soon_reports_draining():
    leaving = health()
    leaving.leaving = True

    takes, body = await leaving.report()

    assert (takes, body.status) == (False, "draining")
