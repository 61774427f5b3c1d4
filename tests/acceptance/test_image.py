"""The container image: built by buildah on a Debian of mmdebstrap, and run with a read-only root as PID 1.

The tests need no registry and no container runtime: `unshare` and `chroot` apply the image's own user,
directory, environment and command.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil
import pytest
from tests.parts import require
from tests.standins.servers import free_port

if TYPE_CHECKING:
    from tests.acceptance.conftest import Person

ROOT = Path(__file__).parents[2]

#: Seconds for the download and installation of the packages.
PATIENCE = 900.0
TOKEN = "kR7v2mXq9LwB4tZs8JcN1yHdE5gFuA3p"
BASE = "localhost/torana-base"

#: The system's certificates: the downloads may pass a proxy with a certificate authority of its own.
CERTIFICATES = "/etc/ssl/certs"

#: Mounts the root read-only, the volume, and what a container runtime mounts; then runs a command in it.
START = """
mount --bind "$1" "$1"
mount --bind "$2" "$1/data"
mount --types proc proc "$1/proc"
mount --rbind /dev "$1/dev"
mount --types tmpfs tmpfs "$1/tmp"
mount --options remount,bind,ro "$1"
root=$1 user=$3 directory=$4
shift 4
exec chroot --userspec="$user" "$root" /usr/bin/env --chdir="$directory" "$@"
"""

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount the root directory of an image"),
    pytest.mark.timeout(PATIENCE),
]


def run(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@dataclass(frozen=True, slots=True)
class Image:
    """The built image: its root directory and its settings."""

    root: Path
    config: dict[str, Any]

    def command(self, volume: Path, *arguments: str, **environ: str) -> list[str]:
        """Return a command that runs in the image; without ``arguments``, the image's own."""
        config = self.config
        inside = [
            "--ignore-environment",
            *config["Env"],
            *(f"{name}={value}" for name, value in environ.items()),
        ]
        program = arguments or (*config["Entrypoint"], *config["Cmd"])
        place = [str(self.root), str(volume), config["User"], config["WorkingDir"]]
        apart = ["unshare", "--mount", "--pid", "--fork"]
        return [*apart, "sh", "-ec", START, "start", *place, *inside, *program]

    def run(self, volume: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the image, and return its result."""
        command = self.command(volume, *arguments, **environ)
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


class Container:
    """A running gateway in the image."""

    def __init__(self, image: Image, volume: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        self.environ = {"TORANA_PORT": str(self.port), "TORANA_GATEWAY_TOKEN": TOKEN}
        self._process = subprocess.Popen(image.command(volume, **self.environ), stdout=subprocess.PIPE)

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        assert b"listens on" in self._process.stdout.readline()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.first().kill()  # with it, all others end; without `unshare`, they would stay
        self._process.communicate(timeout=60)

    def first(self) -> psutil.Process:
        """Return the container's first process."""
        (first,) = psutil.Process(self._process.pid).children()
        return first

    def gateway(self) -> psutil.Process:
        """Return the process of the gateway, the child of the first process."""
        (gateway,) = self.first().children()
        return gateway

    def wait(self) -> int:
        """Wait until the container ends, and return its exit code."""
        return self._process.wait(60)


def base_archive() -> Path:
    """Return a Debian with Python; it stays in the temporary directory for the next run."""
    archive = Path(tempfile.gettempdir(), f"torana-tests-{os.geteuid()}", "bookworm-python.tar")
    if not archive.exists():
        mmdebstrap = require("mmdebstrap", "mmdebstrap")
        archive.parent.mkdir(mode=0o700, exist_ok=True)
        draft = archive.with_suffix(".new.tar")
        packages = "--include=python3,python3-venv,ca-certificates"
        run(mmdebstrap, "--quiet", "--variant=minbase", packages, "bookworm", draft)
        draft.replace(archive)
    return archive


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image of the working tree."""
    program = require("buildah", "buildah")
    archive = base_archive()
    storage = tmp_path_factory.mktemp("storage")
    try:
        yield from built_image(program, archive, storage)
    finally:
        shutil.rmtree(storage)  # a gigabyte


def storage_options(program: str, storage: Path) -> list[str | Path]:
    """Return the options of buildah that keep everything in a directory.

    With ``overlay`` a container shares the files of its image. ``vfs`` copies them, but works on every system.
    """
    for driver in ("overlay", "vfs"):
        options = ["--root", storage / driver, "--runroot", storage / "run", "--storage-driver", driver]
        if subprocess.run([program, *options, "info"], capture_output=True, check=False).returncode == 0:
            break
    return options


def built_image(program: str, archive: Path, storage: Path) -> Iterator[Image]:
    buildah = [program, *storage_options(program, storage)]
    base = run(*buildah, "from", "scratch")
    run(*buildah, "add", "--quiet", base, archive, "/")
    run(*buildah, "commit", "--quiet", "--rm", base, BASE)
    source = ("--isolation", "chroot", "--format", "docker", "--pull-never", "--build-arg", f"BASE={BASE}")
    run(*buildah, "bud", *source, "--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro", "--tag", "torana", ROOT)
    container = run(*buildah, "from", "--pull-never", "torana")
    config = json.loads(run(*buildah, "inspect", "--type", "image", "torana"))["Docker"]["config"]
    yield Image(root=Path(run(*buildah, "mount", container)), config=config)
    run(*buildah, "umount", container)


@pytest.fixture
def volume(image: Image, tmp_path: Path) -> Path:
    """A new volume, which a container runtime creates as the image's own directory."""
    volume = tmp_path / "volume"
    status = (image.root / "data").stat()
    volume.mkdir(mode=status.st_mode & 0o777)
    os.chown(volume, status.st_uid, status.st_gid)
    return volume


def healthcheck(image: Image, volume: Path, environ: dict[str, str]) -> int:
    kind, *command = image.config["Healthcheck"]["Test"]
    assert kind == "CMD"
    return image.run(volume, *command, **environ).returncode


def test_image_runs_as_an_ordinary_user_and_declares_its_volume(image: Image) -> None:
    assert image.config["User"] == "10001:10001"
    assert image.config["Volumes"] == {"/data": {}}
    assert "18789/tcp" in image.config["ExposedPorts"]
    found = run("find", image.root, "-xdev", "-user", "10001")
    assert found == str(image.root / "data")


def test_killed_container_continues_the_conversation_on_its_volume(
    image: Image, volume: Path, person: type[Person]
) -> None:
    with Container(image, volume) as container:
        ana = person(url=container.url, token=TOKEN)
        ana.say("remember that my boat is called Zephyrine")
        assert healthcheck(image, volume, container.environ) == 0
        container.gateway().send_signal(signal.SIGKILL)
        assert container.wait() == 128 + signal.SIGKILL
        assert healthcheck(image, volume, container.environ) == 1

    with Container(image, volume) as container:
        ana = person(url=container.url, token=TOKEN)
        assert "Zephyrine" in ana.say("what is my boat called?")
        assert "remember that my boat" in ana.say("what did I say first?")


def test_containers_of_the_tests_have_a_read_only_root(image: Image, volume: Path) -> None:
    assert "Read-only file system" in image.run(volume, "touch", "/etc/torana").stderr


def test_container_stops_in_order(image: Image, volume: Path) -> None:
    with Container(image, volume) as container:
        container.first().send_signal(signal.SIGTERM)  # as a container runtime does
        assert container.wait() == 0


def test_commands_work_in_the_container(image: Image, volume: Path) -> None:
    with Container(image, volume) as container:
        doctor = image.run(volume, "torana", "doctor", **container.environ)
        assert doctor.returncode == 0, doctor.stdout
        backup = image.run(volume, "torana", "backup", "--to", "/data/backups", **container.environ)
        assert backup.stdout.startswith("/data/backups/torana-")


@pytest.mark.parametrize(
    ("environ", "owner", "reason"),
    [
        (
            {"TORANA_GATEWAY_TOKEN": TOKEN},
            0,
            "Permission denied (it belongs to user 0, not 10001: chown -R 10001 /data); choose another with",
        ),
        ({}, 10001, "no token is set"),
    ],
)
def test_container_that_cannot_start_names_the_cure(
    image: Image, volume: Path, environ: dict[str, str], owner: int, reason: str
) -> None:
    os.chown(volume, owner, owner)
    done = image.run(volume, **environ)
    assert done.returncode in (1, 2)
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "reason"), [("ro", "Read-only file system"), ("size=4k,mode=777", "No space left on device")]
)
def test_container_without_a_writable_volume_names_the_cure(
    image: Image, volume: Path, options: str, reason: str
) -> None:
    run("mount", "--types", "tmpfs", "--options", options, "none", volume)
    try:
        if options != "ro":
            (volume / "filling").write_bytes(bytes(4096))
        done = image.run(volume, TORANA_GATEWAY_TOKEN=TOKEN)
    finally:
        run("umount", volume)
    assert done.returncode == 1
    assert f"cannot use the data directory /data: {reason}" in done.stderr
    assert "choose another with --data-dir, correct its permissions, or free some space" in done.stderr
    assert done.stderr.count("\n") == 1
