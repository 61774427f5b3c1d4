"""Sources of skills: folders, archives, repositories and URLs, and the sources that the API accepts."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.standins.git import commit, git, repository, serving_git
from tests.standins.servers import certify, free_port
from tests.standins.web import SITE, Internet, internet
from tests.unit.skills.archives import SKILL, TEA, zipped

from torana.skills import SkillInvalid
from torana.skills.installation.archive import UNPACKED_LIMIT, unpack
from torana.skills.installation.fetching import Fetcher, open_fetcher
from torana.skills.installation.git import MEMORY_LIMIT, Git
from torana.skills.installation.sources import SkillSource, read_source
from torana.web import Guard

MIB = 1024 * 1024


def fetcher(*, local: bool = True, guard: Guard | None = None) -> Fetcher:
    return open_fetcher(guard=guard or Guard(), environ=os.environ, local=local)


async def fetch_files(source: str | SkillSource, target: Path, *, path: str | None = None) -> set[str]:
    """Return the files fetched from a source."""
    meant = read_source(source, local=True) if isinstance(source, str) else source
    return unpacked_files(await fetcher().fetch(meant, path=path), target)


def unpacked_files(archive: bytes, target: Path) -> set[str]:
    target.mkdir()
    unpack(archive, target)
    return {str(file.relative_to(target)) for file in target.rglob("*") if file.is_file()}


async def refusal_of(source: str, *, by: Fetcher | None = None) -> str:
    by = by or fetcher()
    with pytest.raises(SkillInvalid) as error:
        await by.fetch(read_source(source, local=by.local))
    return str(error.value)


# --- parsing of sources


@pytest.mark.parametrize(
    ("text", "kind", "address", "revision"),
    [
        ("https://example.com/tea.zip", "url", "https://example.com/tea.zip", None),
        ("https://example.com/tea.git", "git", "https://example.com/tea.git", None),
        ("https://example.com/tea.git#v1.2", "git", "https://example.com/tea.git", "v1.2"),
        ("git+https://example.com/tea#main", "git", "https://example.com/tea", "main"),
        ("https://github.com/somebody/tea", "git", "https://github.com/somebody/tea", None),
        ("https://github.com/somebody/tea/archive/main.zip", "url", None, None),
        ("git@example.com:tea.git#feature/x", "git", "git@example.com:tea.git", "feature/x"),
        ("ssh://git@example.com/tea.git", "git", "ssh://git@example.com/tea.git", None),
        ("git://example.com/tea", "git", "git://example.com/tea", None),
    ],
)
def test_source_kind_is_recognized(text: str, kind: str, address: str | None, revision: str | None) -> None:
    source = read_source(text, local=True)
    assert (source.kind, source.address, source.revision) == (kind, address or text, revision)
    assert read_source(str(source), local=True) == source


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "x" * 2_000,
        "tea\n",
        "http://example.com/tea.zip",
        "ftp://example.com/tea.zip",
        "file:///tmp",
        "git+file:///tmp",
        "git+http://example.com/tea",
        "ext::sh -c id",
        "git+ext::sh",
        "https://",
        "https:///tea.git",
        "https://user@example.com/tea.git",
        "https://user:word@example.com/tea.zip",
        "ssh://git:word@example.com/tea.git",
        "https://example.com/tea.git#--upload-pack=id",
        "https://example.com/tea.git#a..b",
        "https://example.com/tea.git#a b",
        "git+-oProxyCommand=id",
        "-oProxyCommand=id:x",
        "https://[::1/x",
        "https://[::1/x.git",
        "git+https://[zz]/a.git",
        "ssh://git@[::1/x.git",
        "https://github.com:99999/a/b.git",
        "https://example.com:port/tea.zip",
        "https://user:word/tea.zip",
    ],
)
def test_invalid_source_is_refused(text: str) -> None:
    for local in (True, False):
        with pytest.raises(SkillInvalid):
            read_source(text, local=local)


def test_error_about_an_invalid_url_does_not_repeat_it() -> None:
    with pytest.raises(SkillInvalid) as error:
        read_source("https://user:word/tea.zip", local=False)
    assert "https://host/path" in str(error.value)
    assert "word" not in str(error.value)


@pytest.mark.parametrize(
    "text", ["/etc/passwd", "/nowhere", ".", "~", "git@example.com:x", "ssh://h/x", "git://h/x"]
)
async def test_local_sources_are_refused_over_the_api(text: str) -> None:
    by = fetcher(local=False)
    with pytest.raises(SkillInvalid, match=r"neither a git address nor an https URL|upload an archive"):
        await by.fetch(read_source(text, local=False))


# --- folders and files


async def test_folder_is_fetched_without_hidden_files(tmp_path: Path) -> None:
    folder = repository(tmp_path / "tea", {"SKILL.md": SKILL, "scripts/brew.sh": "x", ".env": "KEY=1"})
    assert await fetch_files(str(folder), tmp_path / "out") == {"tea/SKILL.md", "tea/scripts/brew.sh"}


async def test_links_and_pipes_in_a_folder_are_refused(tmp_path: Path) -> None:
    def link(path: Path) -> None:
        path.symlink_to("/etc/passwd")

    def pipe(path: Path) -> None:
        os.mkfifo(path)

    for number, make in enumerate((link, pipe)):
        folder = tmp_path / f"tea{number}"
        folder.mkdir()
        (folder / "SKILL.md").write_text(SKILL)
        make(folder / "x")
        with pytest.raises(SkillInvalid, match=r"is a (link|device)"):
            await fetch_files(str(folder), tmp_path / f"out{number}")


async def test_folder_over_the_limits_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(UNPACKED_LIMIT + 1)
    assert "more than" in await refusal_of(str(tmp_path))
    (tmp_path / "large").unlink()
    for number in range(2_001):
        (tmp_path / str(number)).touch()
    assert "more than" in await refusal_of(str(tmp_path))


async def test_archive_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "tea.zip").open("wb") as file:
        file.truncate(11 * MIB)
    assert "more than 10 MiB" in await refusal_of(str(tmp_path / "tea.zip"))


# --- git


async def test_local_repository_is_fetched_at_a_revision(tmp_path: Path) -> None:
    folder = repository(tmp_path / "tea", TEA)
    git(folder, "tag", "v1")
    first = git(folder, "rev-parse", "HEAD")
    commit(folder, {"tea/new": "x"})
    old = set(TEA)
    assert await fetch_files(f"{folder}#v1", tmp_path / "a") == old
    assert await fetch_files(f"{folder}#{first}", tmp_path / "b") == old
    assert await fetch_files(f"{folder}#main", tmp_path / "c") == {*old, "tea/new"}


async def test_bare_repository_is_fetched(tmp_path: Path) -> None:
    folder = repository(tmp_path / "tea", TEA)
    git(tmp_path, "clone", "--quiet", "--bare", str(folder), "bare.git")
    assert await fetch_files(str(tmp_path / "bare.git"), tmp_path / "out") == set(TEA)


async def test_path_selects_a_folder_of_a_large_repository(tmp_path: Path) -> None:
    many = {f"other/{number}": "x" for number in range(2_100)}
    folder = repository(tmp_path / "repo", {"skills/tea/SKILL.md": SKILL, **many})
    with pytest.raises(SkillInvalid, match="more than 2,000 entries"):
        await fetch_files(f"{folder}#main", tmp_path / "a")
    assert await fetch_files(f"{folder}#main", tmp_path / "b", path="skills/tea") == {"skills/tea/SKILL.md"}


async def test_fetching_runs_no_code_of_a_repository(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    folder = repository(tmp_path / "tea", TEA)
    for hook in ("post-checkout", "post-upload-pack", "reference-transaction", "post-index-change"):
        path = folder / ".git" / "hooks" / hook
        path.write_text(f"#!/bin/sh\ntouch {ran}\n")
        path.chmod(0o755)
    commit(
        folder,
        {
            ".gitattributes": "* filter=evil export-subst\n",
            ".gitmodules": f'[submodule "x"]\n\tpath = x\n\turl = ext::touch {ran}\n',
            "tea/$Format:%an$": "$Format:%an$",
        },
    )
    git(folder, "config", "filter.evil.smudge", f"touch {ran}")
    ran.unlink(missing_ok=True)
    await fetch_files(f"{folder}#main", tmp_path / "out")
    assert not ran.exists()


async def test_link_in_a_repository_is_refused(tmp_path: Path) -> None:
    folder = repository(tmp_path / "tea", TEA)
    (folder / "tea" / "passwd").symlink_to("/etc/passwd")
    commit(folder, {})
    with pytest.raises(SkillInvalid, match="is a link"):
        await fetch_files(f"{folder}#main", tmp_path / "out")


async def test_repository_over_the_packed_limit_is_refused(tmp_path: Path) -> None:
    folder = repository(tmp_path / "tea", {**TEA, "tea/noise": os.urandom(11 * MIB)})
    assert "10 MiB packed" in await refusal_of(f"{folder}#main")


async def test_repository_over_the_unpacked_limit_is_refused(tmp_path: Path) -> None:
    folder = repository(tmp_path / "tea", {**TEA, "tea/bomb": bytes(UNPACKED_LIMIT + 6 * MIB)})
    assert "50 MiB unpacked" in await refusal_of(f"{folder}#main")


async def test_error_of_git_is_reported(tmp_path: Path) -> None:
    folder = repository(tmp_path / "tea", TEA)
    assert "couldn't find remote ref nothing" in await refusal_of(f"{folder}#nothing")


async def test_silent_git_server_times_out_and_git_is_killed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = read_source(f"git://127.0.0.1:{silent.getsockname()[1]}/tea", local=True)
        patient = Git(environ={"PATH": os.environ["PATH"]}, seconds=0.5)
        with pytest.raises(SkillInvalid, match=r"not fetched within 0\.5 s"):
            await patient.fetch(source)
        silent.settimeout(10)
        with silent.accept()[0] as connection:
            connection.settimeout(10)
            while connection.recv(4096):  # the request of git, then the end: no process holds the other side
                pass


async def test_repository_is_fetched_from_a_git_server(tmp_path: Path) -> None:
    repository(tmp_path / "tea", TEA)
    port = free_port()
    daemon = await asyncio.create_subprocess_exec(
        *("git", "daemon", "--verbose", "--export-all", f"--base-path={tmp_path}"),
        *("--listen=127.0.0.1", f"--port={port}"),
        env={**os.environ, "HOME": str(tmp_path), "GIT_CONFIG_COUNT": "1"}
        | {"GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"},
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert daemon.stderr is not None
        while b"Ready to rumble" not in (said := await daemon.stderr.readline()):
            assert said, "the daemon ended"
        assert await fetch_files(f"git://127.0.0.1:{port}/tea/.git", tmp_path / "out") == set(TEA)
    finally:
        os.killpg(daemon.pid, 15)
        await daemon.wait()


@pytest.fixture
async def certificate(tmp_path: Path) -> Path:
    """A directory with a certificate for the site."""
    folder = tmp_path / "certificate"
    folder.mkdir()
    await certify(folder, SITE)
    return folder


@pytest.fixture
def trusting_git(certificate: Path) -> Git:
    """A git runner that trusts the certificate."""
    return Git(environ={"PATH": os.environ["PATH"], "GIT_SSL_CAINFO": str(certificate / "certificate.pem")})


async def test_git_over_https_connects_to_the_checked_address(
    tmp_path: Path, certificate: Path, trusting_git: Git
) -> None:
    repository(tmp_path / "repos" / "tea", TEA)
    with serving_git(tmp_path / "repos", certificate) as port:
        source = SkillSource(kind="git", address=f"https://{SITE}:{port}/tea/.git")
        archive = await trusting_git.fetch(source, addresses=["127.0.0.1"])
        with pytest.raises(SkillInvalid, match="resolve host"):  # the name itself does not resolve
            await trusting_git.fetch(source)
    assert unpacked_files(archive, tmp_path / "out") == set(TEA)


async def test_git_does_not_follow_a_redirect_to_another_host(
    tmp_path: Path, certificate: Path, trusting_git: Git
) -> None:
    repository(tmp_path / "repos" / "tea", TEA)
    with (
        serving_git(tmp_path / "repos", certificate) as inner,
        serving_git(tmp_path / "repos", certificate, moved=f"https://{SITE}:{inner}") as port,
    ):
        source = SkillSource(kind="git", address=f"https://{SITE}:{port}/tea/.git")
        with pytest.raises(SkillInvalid, match="git could not fetch the source"):
            await trusting_git.fetch(source, addresses=["127.0.0.1"])


@pytest.mark.parametrize(
    "address",
    [
        "https://127.0.0.1/tea.git",
        "https://169.254.169.254/tea.git",
        "https://[::ffff:127.0.0.1]/tea.git",
        "https://0x7f.1/tea.git",
        "https://localhost/tea.git",
        "https://127.0.0.1/tea.zip",
        "https://169.254.169.254/latest/meta-data",
    ],
)
async def test_private_addresses_are_refused(address: str) -> None:
    assert "could not be fetched" in await refusal_of(address, by=fetcher(local=False))


async def test_git_refuses_a_name_with_a_private_address() -> None:
    async def resolver(name: str, port: int) -> list[str]:
        return ["10.0.0.1"]

    by = fetcher(local=False, guard=Guard(resolver=resolver))
    assert "could not be fetched" in await refusal_of("https://example.com/tea.git", by=by)


# --- URLs of archives


@pytest.fixture
async def web(certificate: Path) -> AsyncGenerator[Internet]:
    """A site over HTTPS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate / "certificate.pem", certificate / "key.pem")
    async with internet(context) as play:
        yield play


@pytest.fixture
def https_fetcher(web: Internet, certificate: Path) -> Fetcher:
    """A fetcher of a gateway that trusts the site."""
    tls = ssl.create_default_context(cafile=certificate / "certificate.pem")
    guard = Guard(resolver=web.resolve)
    return Fetcher(guard=guard, client=web.client(tls=tls), git=Git(environ={}))


async def test_archive_is_fetched_from_its_url(web: Internet, https_fetcher: Fetcher) -> None:
    web.page("/tea", zipped(), type="text/plain")
    assert await https_fetcher.fetch(read_source(f"https://{SITE}/tea", local=False)) == zipped()


async def test_redirect_to_a_private_address_is_refused(web: Internet, https_fetcher: Fetcher) -> None:
    web.moved("/tea.zip", "https://169.254.169.254/tea.zip")
    assert "could not be fetched" in await refusal_of(f"https://{SITE}/tea.zip", by=https_fetcher)


async def test_archive_over_the_limit_is_refused(web: Internet, https_fetcher: Fetcher) -> None:
    web.page("/tea.zip", bytes(11 * MIB), type="application/zip")
    assert "could not be fetched" in await refusal_of(f"https://{SITE}/tea.zip", by=https_fetcher)


# --- memory

_FETCH_AND_PRINT_PEAK = """
import asyncio, os, resource, sys
from torana.skills import SkillInvalid
from torana.skills.installation.git import MEMORY_LIMIT, Git
from torana.skills.installation.sources import SkillSource

source = SkillSource(kind="git", address=sys.argv[1])
try:
    asyncio.run(Git(environ=os.environ).fetch(source))
except SkillInvalid as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel limits the memory only on Linux")
def test_repository_that_describes_a_billion_files_takes_little_memory(tmp_path: Path) -> None:
    repo = tmp_path / "bomb.git"
    subprocess.run(["git", "init", "--quiet", "--bare", repo], check=True)

    def store(*arguments: str, text: str) -> str:
        return subprocess.check_output(["git", "-C", repo, *arguments], input=text, text=True).strip()

    blob = store("hash-object", "-w", "--stdin", text="x")
    tree = store("mktree", text="".join(f"100644 blob {blob}\tf{number}\n" for number in range(10)))
    for _ in range(8):
        tree = store("mktree", text="".join(f"040000 tree {tree}\td{number}\n" for number in range(10)))
    who = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
    head = store(*who, "commit-tree", tree, "-m", "x", text="")
    store("update-ref", "HEAD", head, text="")

    shown = subprocess.check_output([sys.executable, "-c", _FETCH_AND_PRINT_PEAK, str(repo)], text=True)

    reason, kibibytes = shown.splitlines()
    assert "has more than 10 MiB packed, or 50 MiB unpacked" in reason
    assert int(kibibytes) * 1024 <= MEMORY_LIMIT
