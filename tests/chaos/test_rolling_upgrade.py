"""Three replicas are replaced by a newer version, one after the other, while people talk."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from pathlib import Path

import httpx2
import pytest
from tests.chaos.clients import Client
from tests.chaos.cluster import Cluster
from tests.chaos.history import History, check
from tests.chaos.program import ROOT
from tests.waiting import eventually

from torana.store.engine.migrate import HEAD

SESSIONS = 12

_NEWER = "9999"
_MIGRATION = f"""
from alembic import op

revision = "{_NEWER}"
down_revision = "{HEAD}"
additive = True


def upgrade():
    op.execute("ALTER TABLE turns ADD COLUMN mood TEXT")
"""


@pytest.fixture
def newer_version(tmp_path: Path) -> Path:
    """A copy of the program whose database has one more column."""
    source = tmp_path / "newer"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    engine = source / "torana" / "store" / "engine"
    (engine / "postgres" / "migrations" / "versions" / f"{_NEWER}_moods.py").write_text(_MIGRATION)
    migrate = engine / "migrate.py"
    migrate.write_text(migrate.read_text().replace(f'HEAD = "{HEAD}"', f'HEAD = "{_NEWER}"'))
    return source


@pytest.mark.timeout(300)
async def test_upgrade_of_replicas_one_after_the_other_fails_no_request(
    tmp_path: Path, newer_version: Path
) -> None:
    history = History()
    settings = {"TORANA_DRAIN_DELAY": "8", "TORANA_DRAIN": "20"}
    with Cluster(tmp_path, **settings) as cluster:
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(base_url=cluster.url, timeout=60, trust_env=False, limits=limits) as http:
            clients = [
                Client(http=http, number=number, draw=random.Random(number), history=history)
                for number in range(SESSIONS)
            ]
            over = asyncio.Event()
            async with asyncio.TaskGroup() as talking:
                for client in clients:
                    talking.create_task(client.talk(over))
                for replica in cluster.replicas:
                    assert await asyncio.to_thread(replica.terminate) == 0, replica.end_of_output()
                    replica.replace_program(newer_version)
                    replica.start()
                    await asyncio.to_thread(replica.wait_until_up)
                over.set()
            await asyncio.to_thread(eventually, cluster.is_idle)
        stored = cluster.read()
        [revision] = cluster.rows("SELECT version_num FROM alembic_version")

    counts = sum((client.counts for client in clients), Counter[str]())
    assert check(history, stored) == []
    assert history.refusals == []
    assert counts["connections that broke"] == 0
    assert revision["version_num"] == _NEWER
