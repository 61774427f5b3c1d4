"""Installing, approving, updating and removing skills, and changes to their files by others."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest, TextPart, ToolCallPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition
from sqlalchemy.engine import Connection
from tests.unit.skills.archives import SKILL, tarred, zipped

from torana.app.models import choose_model
from torana.config import load
from torana.errors import GatewayError, NotFound, SkillChanged, SkillConflict, SkillRefused, StoreUnavailable
from torana.skills import CORE_DIR, Needs, Skills
from torana.skills.grants import InstalledSkills
from torana.skills.installation import installer
from torana.skills.installation.fetching import Fetcher
from torana.skills.installation.git import Git
from torana.skills.installation.installer import SkillInstaller
from torana.skills.installation.staging import Staged, stage, sweep
from torana.skills.status import SkillDetails
from torana.store.engine.database import Database
from torana.store.rows import audit
from torana.store.rows.audit import Act, AuditEntry
from torana.store.rows.extensions import skills as rows
from torana.web import Guard, GuardedClient

ACT = Act(principal="operator", source="test", at=datetime(2026, 3, 2, tzinfo=UTC))

NEEDY = """\
---
name: tea
description: Brews tea.
metadata:
  torana:
    bins: [sh]
    hosts: [kettle.example]
    secrets: [KETTLE_KEY]
---
# Tea
"""
NEEDY_TEA = {"tea/SKILL.md": NEEDY, "tea/scripts/brew.sh": "echo tea\n"}
WANTED = Needs(bins=("sh",), hosts=("kettle.example",), secrets=("KETTLE_KEY",), scripts=("scripts/brew.sh",))


def at_once(work: Callable[[], object]) -> None:
    """A background runner that runs the work before it returns."""
    work()


class Place:
    """The skills of a gateway, placed by hand and installed."""

    def __init__(self, path: Path, database: Database) -> None:
        self.by_hand = path / "by-hand"
        self.root = path / "installed"
        self.database = database
        self.installed = InstalledSkills(root=self.root)
        self.now = 0.0
        self.skills = Skills(
            core_dir=CORE_DIR,
            user_dir=self.by_hand,
            environ={},
            installed=self.installed,
            monotonic=lambda: self.now,
            background=at_once,
        )
        guard = Guard()
        fetcher = Fetcher(guard=guard, client=GuardedClient(guard=guard), git=Git(environ={}), local=True)
        self.changes = SkillInstaller(
            database=database, skills=self.skills, installed=self.installed, fetcher=fetcher
        )

    def put(self, slug: str = "tea", text: str = NEEDY) -> Path:
        """Place a skill by hand."""
        folder = self.by_hand / slug
        (folder / "scripts").mkdir(parents=True, exist_ok=True)
        (folder / "SKILL.md").write_text(text)
        (folder / "scripts" / "brew.sh").write_text("echo tea\n")
        self.skills.refresh()
        return folder

    async def install(self, archive: bytes | None = None, **more: Any) -> str:
        """Install an archive and return the digest of its skill."""
        packed = archive or tarred(NEEDY_TEA)
        return (await self.changes.install_archive(packed, origin="test", act=ACT, **more)).digest

    async def install_and_approve(self, archive: bytes | None = None) -> str:
        digest = await self.install(archive)
        await self.changes.approve("tea", digest=digest, act=ACT)
        return digest

    def status_of(self, slug: str = "tea") -> SkillDetails:
        shown = self.changes.statuses.get(slug)
        assert shown is not None
        return shown

    def state(self, slug: str = "tea") -> str:
        return self.status_of(slug).status.state

    def loaded(self, slug: str = "tea") -> bool:
        """Return whether the catalogue has the user's skill of this slug, ten seconds later."""
        self.now += 10
        skill = self.skills.catalogue().get(slug)
        return skill is not None and skill.source == "user"

    def approve_with_grant(self, slug: str = "tea") -> Needs | None:
        self.now += 10
        skill = self.skills.catalogue().get(slug)
        return skill and self.installed.granted_needs(skill)

    def folder(self, slug: str = "tea") -> Path:
        """Return the folder of an installed skill."""
        decision = self.installed.decision(slug)
        assert decision is not None
        return self.installed.path(decision)

    def leftovers(self) -> set[str]:
        """Return the entries of the installation directory that no decision names."""
        named = {name for decision in self.installed.decisions() for name in decision.folders}
        return {entry.name for entry in self.root.iterdir()} - named

    async def audited(self) -> list[AuditEntry]:
        def all_of_it(connection: Connection) -> list[AuditEntry]:
            return audit.list_entries(connection, before=None, limit=100)

        return list(reversed(await self.database.run(all_of_it)))


@pytest.fixture
async def place(tmp_path: Path, open_database: Callable[[], Database]) -> Place:
    place = Place(tmp_path, open_database())
    await place.changes.decisions.start()
    return place


async def refused(work: Awaitable[Any], kind: type[GatewayError]) -> str:
    with pytest.raises(kind) as error:
        await work
    return error.value.detail


# --- installed


@pytest.mark.parametrize("pack", [zipped, tarred])
async def test_installed_skill_waits_in_quarantine(place: Place, pack: Callable[..., bytes]) -> None:
    await place.install(pack(NEEDY_TEA))
    shown = place.status_of()
    assert (shown.status.state, shown.status.origin, shown.status.installed) == (
        "quarantine",
        "test",
        True,
    )
    assert not place.loaded()
    assert shown.current is not None
    assert shown.current.report.needs == WANTED
    assert place.skills.catalogue().counts()["user"] == 0


async def test_approved_skill_is_loaded_with_its_grants(place: Place) -> None:
    await place.install_and_approve()
    assert place.loaded()
    assert place.approve_with_grant() == WANTED
    assert place.skills.catalogue().counts()["user"] == 1
    assert (place.state(), place.status_of().status.granted) == ("active", True)


async def test_skill_approved_without_scripts_gives_instructions_only(place: Place) -> None:
    digest = await place.install()
    await place.changes.approve("tea", digest=digest, grant=False, act=ACT)
    assert place.loaded()
    assert place.approve_with_grant() is None


async def test_approval_of_changed_files_is_refused(place: Place) -> None:
    digest = await place.install()
    (place.folder() / "scripts" / "brew.sh").write_text("echo coffee\n")
    await refused(place.changes.approve("tea", digest=digest, act=ACT), SkillChanged)
    assert place.state() == "changed"
    assert not place.loaded()
    assert place.approve_with_grant() is None


#: Ways to change a skill's folder.
CHANGES: dict[str, Callable[[Path], object]] = {
    "changed": lambda folder: (folder / "scripts" / "brew.sh").write_text("echo coffee\n"),
    "instructions": lambda folder: (folder / "SKILL.md").write_text(NEEDY + "Add milk.\n"),
    "added": lambda folder: (folder / "scripts" / "more.sh").write_text("echo more\n"),
    "removed": lambda folder: (folder / "scripts" / "brew.sh").unlink(),
    "gone": shutil.rmtree,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_changed_file_disables_an_installed_skill(place: Place, change: Callable[[Path], object]) -> None:
    await place.install_and_approve()
    skill = place.skills.catalogue().get("tea")
    assert skill is not None
    change(place.folder())
    # The grant ends before the directory is scanned again.
    assert place.installed.granted_needs(skill) is None
    assert not place.loaded()
    assert place.state() in ("changed", "broken")
    assert place.status_of().status.fault


async def test_changed_skill_is_loaded_after_a_new_approval(place: Place) -> None:
    await place.install_and_approve()
    (place.folder() / "scripts" / "brew.sh").write_text("echo coffee\n")
    place.loaded()
    current = place.status_of().current
    assert current is not None
    await place.changes.approve("tea", digest=current.skill.digest, act=ACT)
    assert place.loaded()
    assert place.approve_with_grant() == WANTED


async def test_hidden_folder_in_an_installed_skill_revokes_its_grant(place: Place) -> None:
    await place.install_and_approve()
    (place.folder() / "scripts" / "__pycache__").mkdir()
    assert place.approve_with_grant() is None


async def test_installed_skill_replaces_a_core_skill_and_the_report_says_so(place: Place) -> None:
    text = SKILL.replace("name: tea", "name: calculator")
    digest = await place.install(tarred({"calculator/SKILL.md": text}))
    current = place.status_of("calculator").current
    assert current is not None
    assert current.report.findings[0].kind == "replaces-core"
    assert not place.loaded("calculator")
    await place.changes.approve("calculator", digest=digest, act=ACT)
    assert place.loaded("calculator")


async def test_second_installation_of_a_skill_is_refused(place: Place) -> None:
    await place.install()
    assert "already" in await refused(place.install(), SkillConflict)
    assert place.leftovers() == set()


async def test_installation_over_a_skill_placed_by_hand_is_refused(place: Place) -> None:
    place.put()
    assert "already" in await refused(place.install(), SkillConflict)
    assert list(place.root.iterdir()) == []


async def test_one_of_concurrent_installations_succeeds(place: Place) -> None:
    tries = [place.install(tarred({**NEEDY_TEA, "tea/n": str(n)})) for n in range(8)]
    done = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(outcome, str) for outcome in done) == 1
    assert all(isinstance(outcome, str | SkillConflict) for outcome in done)
    assert place.leftovers() == set()


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"tea/README.md": "x"}, "The source contains no SKILL.md"),
        ({"tea/SKILL.md": "no front matter"}, "has no front matter"),
        ({"tea/SKILL.md": SKILL.replace("description", "purpose")}, "has no description"),
        ({"tea/SKILL.md": "---\n# comment\n---\n"}, "not a mapping"),
        ({"tea.tar.gz": tarred()}, "The source contains no SKILL.md"),
        (
            {"a/SKILL.md": SKILL, "b/SKILL.md": SKILL},
            "The source contains 2 skills: a, b. Choose one with --path,",
        ),
        ({"../SKILL.md": SKILL}, "is a path outside of it"),
    ],
)
async def test_invalid_skill_archive_is_refused_and_leaves_nothing(
    place: Place, files: dict[str, str | bytes], fault: str
) -> None:
    assert fault in await refused(place.install(tarred(files)), SkillRefused)
    assert list(place.root.iterdir()) == []
    assert place.installed.decisions() == []


@pytest.mark.parametrize(
    ("files", "slug"),
    [
        ({"SKILL.md": SKILL}, "tea"),
        ({"tea-main/SKILL.md": SKILL}, "tea"),
        ({"repo/skills/tea/SKILL.md": SKILL, "repo/README.md": "x"}, "tea"),
        ({"tea/SKILL.md": SKILL, "tea/examples/other/SKILL.md": SKILL}, "tea"),
        ({"green-tea/SKILL.md": SKILL.replace("name: tea", "name: Green Tea!")}, "green-tea"),
        ({"SKILL.md": SKILL.replace("name: tea", "name: Green Tea!")}, "green-tea"),
    ],
)
async def test_only_skill_of_an_archive_is_found(place: Place, files: dict[str, str], slug: str) -> None:
    await place.install(tarred(files))
    assert [decision.slug for decision in place.installed.decisions()] == [slug]


@pytest.mark.parametrize("chosen", ["b", "skills/b", "repo/skills/b"])
async def test_path_selects_one_of_several_skills(place: Place, chosen: str) -> None:
    other = SKILL.replace("name: tea", "name: other")
    archive = tarred({"repo/skills/a/SKILL.md": SKILL, "repo/skills/b/SKILL.md": other})
    await place.install(archive, path=chosen)
    assert [decision.slug for decision in place.installed.decisions()] == ["other"]


@pytest.mark.parametrize("chosen", ["c", "..", "/", "../a", "skills"])
async def test_path_without_a_skill_is_refused(place: Place, chosen: str) -> None:
    archive = tarred({"skills/a/SKILL.md": SKILL, "skills/b/SKILL.md": SKILL})
    assert "no folder" in await refused(place.install(archive, path=chosen), SkillRefused)


# --- placed by hand


async def test_skill_placed_by_hand_gives_instructions_until_approved(place: Place) -> None:
    place.put()
    assert place.loaded()
    assert place.approve_with_grant() is None
    current = place.status_of().current
    assert current is not None
    await place.changes.approve("tea", digest=current.skill.digest, act=ACT)
    assert place.approve_with_grant() == WANTED
    status = place.status_of().status
    assert (status.state, status.granted, status.installed) == ("active", True, False)


async def test_changed_file_revokes_the_grant_and_keeps_the_instructions(place: Place) -> None:
    folder = place.put()
    current = place.status_of().current
    assert current is not None
    await place.changes.approve("tea", digest=current.skill.digest, act=ACT)
    (folder / "scripts" / "brew.sh").write_text("echo coffee\n")
    assert place.approve_with_grant() is None
    assert place.loaded()
    status = place.status_of().status
    assert (status.state, status.granted) == ("active", False)
    assert "changed after its scripts were approved" in (status.fault or "")


async def test_grant_requires_that_the_files_read_are_the_approved_ones(place: Place) -> None:
    """The copy that runs is compared with the files that were read; restoring approved files does not help."""
    folder = place.put()
    current = place.status_of().current
    assert current is not None
    await place.changes.approve("tea", digest=current.skill.digest, act=ACT)
    (folder / "scripts" / "brew.sh").write_text("echo coffee\n")
    coffee = place.skills.refresh().get("tea")
    assert coffee is not None
    (folder / "scripts" / "brew.sh").write_text("echo tea\n")

    assert place.installed.granted_needs(coffee) is None
    assert place.approve_with_grant() == WANTED


async def test_message_does_not_read_the_files_of_a_skill_with_triggers(place: Place, tmp_path: Path) -> None:
    """The catalogue knows which phrases count; the files are read only when a script runs."""
    text = NEEDY.replace("    bins: [sh]", "    bins: [sh]\n    triggers: ['brew some {leaves}']")
    digest = await place.install(tarred(NEEDY_TEA | {"tea/SKILL.md": text}))
    loaded = load(flags={}, environ={"TORANA_DATA_DIR": str(tmp_path)}, cwd=tmp_path, user_dir=tmp_path)
    model = choose_model(loaded, place.skills, place.installed)
    tools = ModelRequestParameters(function_tools=[ToolDefinition(name="run_skill_script")])

    async def answer() -> object:
        prompt = ModelRequest.user_text_prompt("brew some mint")
        return (await model.request([prompt], None, tools)).parts[0]

    assert isinstance(await answer(), TextPart)
    await place.changes.approve("tea", digest=digest, act=ACT)
    shutil.rmtree(place.folder())

    call = await answer()

    assert isinstance(call, ToolCallPart)
    assert call.args == {"slug": "tea", "script": "scripts/brew.sh", "arguments": ["mint"]}


async def test_skill_placed_by_hand_can_be_disabled_and_enabled(place: Place) -> None:
    place.put()
    await place.changes.disable("tea", act=ACT)
    assert (place.loaded(), place.state()) == (False, "disabled")
    await place.changes.enable("tea", act=ACT)
    assert (place.loaded(), place.approve_with_grant()) == (True, None)


async def test_skill_placed_by_hand_cannot_be_removed_or_updated(place: Place) -> None:
    place.put()
    for change in (place.changes.remove, place.changes.update):
        assert "placed by hand" in await refused(change("tea", act=ACT), SkillConflict)
    assert place.loaded()


async def test_skill_placed_by_hand_does_not_inherit_a_grant(place: Place) -> None:
    await place.install_and_approve()
    place.put()
    assert place.approve_with_grant() is None
    assert place.loaded()
    by_hand, installed = (one for one in place.changes.statuses.list_statuses() if one.slug == "tea")
    assert (by_hand.installed, installed.installed) == (False, True)
    assert "placed by hand" in (installed.fault or "")


async def test_core_skill_cannot_be_approved_or_disabled(place: Place) -> None:
    for work in (
        place.changes.approve("calculator", digest="sha256:x", act=ACT),
        place.changes.disable("calculator", act=ACT),
        place.changes.enable("calculator", act=ACT),
    ):
        assert "part of the package" in await refused(work, SkillConflict)


@pytest.mark.parametrize("slug", ["none", "../tea", "", ".", "a/b", "x" * 300])
async def test_unknown_skill_cannot_be_changed(place: Place, slug: str) -> None:
    changes = place.changes
    for work in (
        changes.approve(slug, digest="x", act=ACT),
        changes.disable(slug, act=ACT),
        changes.enable(slug, act=ACT),
        changes.update(slug, act=ACT),
        changes.remove(slug, act=ACT),
    ):
        await refused(work, NotFound)
    assert changes.statuses.get(slug) is None


# --- changes by the operator


async def test_enabled_skill_has_its_former_grants(place: Place) -> None:
    await place.install_and_approve()
    await place.changes.disable("tea", act=ACT)
    assert (place.loaded(), place.state()) == (False, "disabled")
    await place.changes.enable("tea", act=ACT)
    assert (place.loaded(), place.approve_with_grant()) == (True, WANTED)


async def test_disabled_skill_with_changed_files_cannot_be_enabled(place: Place) -> None:
    await place.install_and_approve()
    await place.changes.disable("tea", act=ACT)
    (place.folder() / "SKILL.md").write_text(NEEDY + "Add poison.\n")
    await refused(place.changes.enable("tea", act=ACT), SkillChanged)
    assert not place.loaded()


async def test_unapproved_skill_cannot_be_enabled_or_disabled(place: Place) -> None:
    await place.install()
    await refused(place.changes.enable("tea", act=ACT), SkillConflict)
    await refused(place.changes.disable("tea", act=ACT), SkillConflict)
    assert place.state() == "quarantine"


async def test_removed_skill_is_deleted_from_disk(place: Place) -> None:
    await place.install_and_approve()
    await place.changes.remove("tea", act=ACT)
    assert not place.loaded()
    assert list(place.root.iterdir()) == []
    await place.install()
    assert place.state() == "quarantine"


async def test_every_change_is_in_the_audit_record(place: Place) -> None:
    digest = await place.install_and_approve()
    await place.changes.disable("tea", act=ACT)
    await place.changes.enable("tea", act=ACT)
    await place.changes.update_from_archive("tea", tarred({**NEEDY_TEA, "tea/new": ""}), act=ACT)
    await place.changes.remove("tea", act=ACT)
    entries = await place.audited()
    actions = ["install", "approve", "disable", "enable", "update", "remove"]
    assert [entry.action for entry in entries] == [f"skill.{action}" for action in actions]
    assert {(entry.target, entry.act) for entry in entries} == {("tea", ACT)}
    assert entries[0].detail == {"digest": digest, "origin": "test"}
    assert entries[1].detail == {"digest": digest, "scripts": True}


# --- updated


async def test_new_version_waits_while_the_approved_one_stays_active(place: Place) -> None:
    old = await place.install_and_approve()
    await place.changes.update_from_archive("tea", tarred({**NEEDY_TEA, "tea/new": ""}), act=ACT)
    assert (place.loaded(), place.approve_with_grant()) == (True, WANTED)
    shown = place.status_of()
    assert shown.current is not None
    assert shown.newer is not None
    assert (shown.current.skill.digest, shown.newer.skill.digest) == (old, shown.status.newer)
    await place.changes.approve("tea", digest=shown.newer.skill.digest, act=ACT)
    assert place.loaded()
    assert (place.folder() / "new").exists()
    assert place.status_of().newer is None
    assert len(list(place.root.iterdir())) == 1


async def test_new_version_replaces_an_unapproved_one_in_quarantine(
    place: Place,
) -> None:
    await place.install()
    await place.changes.update_from_archive("tea", tarred({**NEEDY_TEA, "tea/new": ""}), act=ACT)
    assert (place.state(), place.status_of().newer) == ("quarantine", None)
    assert (place.folder() / "new").exists()
    assert place.leftovers() == set()


async def test_waiting_skills_are_bounded_together(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def packed(slug: str, size: int) -> bytes:
        return tarred({f"{slug}/SKILL.md": NEEDY.replace("tea", slug), f"{slug}/x": "x" * size})

    monkeypatch.setattr(installer, "QUARANTINE_LIMIT", 100_000)
    await place.install_and_approve()
    await place.changes.update_from_archive("tea", packed("tea", 60_000), act=ACT)
    with pytest.raises(SkillConflict, match="approve or remove one of them first"):
        await place.install(packed("milk", 50_000))
    assert place.leftovers() == set()

    await place.changes.update_from_archive("tea", packed("tea", 30_000), act=ACT)
    digest = await place.install(packed("milk", 50_000))
    with pytest.raises(SkillConflict, match="wait for approval"):
        await place.changes.update_from_archive("tea", packed("tea", 60_000), act=ACT)

    await place.changes.approve("milk", digest=digest, act=ACT)
    await place.changes.update_from_archive("tea", packed("tea", 60_000), act=ACT)


async def test_identical_files_are_no_new_version(place: Place) -> None:
    await place.install_and_approve()
    await place.changes.update_from_archive("tea", zipped(NEEDY_TEA), act=ACT)
    assert place.status_of().newer is None
    assert place.leftovers() == set()


async def test_withdrawn_version_leaves_quarantine(place: Place) -> None:
    old = await place.install_and_approve()
    newer = await place.changes.update_from_archive("tea", tarred({**NEEDY_TEA, "tea/new": ""}), act=ACT)
    assert newer.next_digest is not None
    await place.changes.update_from_archive("tea", tarred(NEEDY_TEA), act=ACT)
    assert (place.loaded(), place.status_of().newer, place.status_of().status.newer) == (True, None, None)
    assert place.leftovers() == set()
    assert len(list(place.root.iterdir())) == 1
    await refused(place.changes.approve("tea", digest=newer.next_digest, act=ACT), SkillChanged)
    last = (await place.audited())[-1]
    assert (last.action, last.detail) == ("skill.update", {"digest": old, "withdrawn": newer.next_digest})


async def test_different_skill_is_refused_as_an_update(place: Place) -> None:
    await place.install_and_approve()
    archive = tarred({"x/SKILL.md": SKILL.replace("name: tea", "name: coffee")})
    assert "'coffee'" in await refused(place.changes.update_from_archive("tea", archive, act=ACT), SkillRefused)
    assert place.leftovers() == set()


async def test_skill_is_updated_from_its_origin(place: Place, tmp_path: Path) -> None:
    source = tmp_path / "source" / "tea"
    source.mkdir(parents=True)
    (source / "SKILL.md").write_text(SKILL)
    made = await place.changes.install(str(source), act=ACT)
    assert made.origin == str(source)
    await place.changes.approve("tea", digest=made.digest, act=ACT)
    (source / "SKILL.md").write_text(SKILL + "Add milk.\n")
    await place.changes.update("tea", act=ACT)
    newer = place.status_of().newer
    assert newer is not None
    assert "Add milk." in newer.skill.instructions


# --- cancelled


async def test_cancelled_change_finishes_its_sweep_before_returning(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.install_and_approve()
    loop, sweeps, may_sweep, swept = asyncio.get_running_loop(), asyncio.Event(), Event(), Event()

    def slowly(*arguments: Any, **more: Any) -> None:
        loop.call_soon_threadsafe(sweeps.set)
        may_sweep.wait(30)
        sweep(*arguments, **more)
        swept.set()

    monkeypatch.setattr("torana.skills.installation.decisions.sweep", slowly)
    disabling = asyncio.create_task(place.changes.disable("tea", act=ACT))
    await sweeps.wait()
    disabling.cancel()
    loop.call_later(0.1, may_sweep.set)
    with pytest.raises(asyncio.CancelledError):
        await disabling
    assert swept.is_set()


async def test_cancelled_change_applies_what_it_stored(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    await place.install_and_approve()
    run, reads, may_read = place.database.run, asyncio.Event(), asyncio.Event()
    works: list[Callable[[Connection], Any]] = []

    async def slowly(work: Callable[[Connection], Any]) -> Any:
        works.append(work)
        if works.count(rows.list_decisions) == 2:  # after the change
            reads.set()
            await may_read.wait()
        return await run(work)

    monkeypatch.setattr(place.database, "run", slowly)
    disabling = asyncio.create_task(place.changes.disable("tea", act=ACT))
    await reads.wait()
    disabling.cancel()
    asyncio.get_running_loop().call_later(0.1, may_read.set)
    with pytest.raises(asyncio.CancelledError):
        await disabling
    assert (place.loaded(), place.state()) == (False, "disabled")


async def test_cancelled_installation_leaves_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, stages, may_stage, staged = asyncio.get_running_loop(), asyncio.Event(), Event(), Event()

    def slowly(*arguments: Any, **more: Any) -> Staged:
        loop.call_soon_threadsafe(stages.set)
        may_stage.wait(30)
        made = stage(*arguments, **more)
        staged.set()
        return made

    monkeypatch.setattr("torana.skills.installation.installer.stage", slowly)
    installing = asyncio.create_task(place.install())
    await stages.wait()
    installing.cancel()
    loop.call_later(0.1, may_stage.set)
    with pytest.raises(asyncio.CancelledError):
        await installing
    assert staged.is_set()
    assert list(place.root.iterdir()) == []


# --- crashes


async def test_leftovers_of_a_crash_are_removed_at_start(
    place: Place, tmp_path: Path, open_database: Callable[[], Database]
) -> None:
    await place.install_and_approve()
    (place.root / ".incoming-x" / "unpacked").mkdir(parents=True)
    (place.root / "coffee@0123" / "coffee").mkdir(parents=True)
    again = Place(tmp_path, open_database())
    assert not again.loaded()
    await again.changes.decisions.start()
    assert (again.loaded(), again.approve_with_grant()) == (True, WANTED)
    assert again.leftovers() == set()


async def test_failed_write_leaves_no_folder(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    await place.install_and_approve()
    run, calls = place.database.run, iter([True, False])

    async def fails_once(work: Callable[[Connection], Any]) -> Any:
        if next(calls):
            raise StoreUnavailable
        return await run(work)

    monkeypatch.setattr(place.database, "run", fails_once)
    text = SKILL.replace("name: tea", "name: coffee")
    await refused(place.install(tarred({"coffee/SKILL.md": text})), StoreUnavailable)
    assert place.leftovers() == set()
    assert [decision.slug for decision in place.installed.decisions()] == ["tea"]
