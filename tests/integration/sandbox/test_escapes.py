"""Scripts that try to escape find nothing of the gateway or the machine."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest
from tests.integration.sandbox.conftest import TOKEN, Gateway

#: Prints the outcome of each statement of a list, one per line.
TRY = """
import os, socket, sys
def tried(what):
    try:
        return eval(what)
    except BaseException as error:
        return type(error).__name__
"""


def outcomes(gateway: Gateway, *statements: str) -> dict[str, str]:
    lines = [f"print(tried({statement!r}))" for statement in statements]
    result = gateway.run("\n".join([TRY, *lines]))
    assert result.first == "exit code 0", result.text
    return dict(zip(statements, result.stdout.splitlines(), strict=True))


def test_script_sees_only_the_sandbox_environment(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import os
        print(sorted(os.environ))
        for pid in filter(str.isdigit, os.listdir("/proc")):
            print(pid, open(f"/proc/{pid}/environ").read())
        """
    )

    assert result.stdout.splitlines()[0] == "['HOME', 'LANG', 'PATH', 'PWD', 'TMPDIR']"
    assert TOKEN not in result.text
    assert "key-of" not in result.text
    assert str(gateway.home) not in result.text


def test_processes_of_the_machine_are_invisible(gateway: Gateway) -> None:
    result = gateway.run("import os; print([p for p in os.listdir('/proc') if p.isdigit() and int(p) > 9])")

    assert result.stdout == "[]"


def test_only_programs_of_the_machine_are_visible(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import os
        print(sorted(os.listdir("/")))
        print(sorted(os.listdir("/etc")))
        """
    )
    root, etc = map(eval, result.stdout.splitlines())

    assert set(root) <= {
        "bin",
        "sbin",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "usr",
        "dev",
        "etc",
        "proc",
        "skill",
        "tmp",
    }
    assert {"passwd", "group", "hosts", "nsswitch.conf"} <= set(etc)
    assert not {"shadow", "sudoers", "resolv.conf", "ssh"} & set(etc)


def test_data_settings_other_skills_and_homes_cannot_be_read(gateway: Gateway) -> None:
    gateway.write("print(1)", slug="other")
    paths = [
        gateway.home / "data" / "torana.db",
        gateway.skills / "other" / "SKILL.md",
        gateway.skills / "tries" / "SKILL.md",
        Path("/etc/shadow"),
        Path("/root"),
        Path("/home"),
        Path(__file__),
    ]
    found = outcomes(gateway, *(f"os.stat({str(path)!r})" for path in paths))

    assert set(found.values()) == {"FileNotFoundError"}


def test_data_below_system_folders_is_hidden(gateway: Gateway) -> None:
    # As where the data directory is in /usr/local.
    gateway.hidden = [Path("/usr/share/zoneinfo")]

    assert outcomes(gateway, "os.listdir('/usr/share/zoneinfo')", "os.path.isdir('/usr/share')") == {
        "os.listdir('/usr/share/zoneinfo')": "[]",
        "os.path.isdir('/usr/share')": "True",
    }


def test_link_out_of_the_folder_makes_the_skill_invalid(gateway: Gateway) -> None:
    folder = gateway.write("print(open('/skill/link').read())")
    (folder / "link").symlink_to(gateway.home / "data" / "torana.db")

    result = gateway.call()

    assert result.failed
    assert result.text.startswith("There is no skill 'tries'")


def test_link_made_inside_does_not_lead_out(gateway: Gateway) -> None:
    result = gateway.run(
        f"""
        import os
        os.symlink({str(gateway.home)!r}, "/tmp/link")
        os.symlink("/proc/1/root", "/tmp/root")
        print(os.path.exists("/tmp/link"), os.path.exists("/tmp/root{gateway.home}"))
        """
    )

    assert result.stdout == "False False"


def test_only_temporary_directories_are_writable(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import os
        written = []
        for folder, folders, _ in os.walk("/"):
            if folder == "/":
                folders.remove("usr")
            try:
                open(os.path.join(folder, "w"), "w").close()
                written.append(folder)
            except OSError:
                pass
        print(written)
        for write in (lambda: os.chmod("/skill", 0o777), lambda: os.remove("/skill/SKILL.md"),
                      lambda: open("/skill/scripts/try.py", "a"), lambda: open("/usr/w", "w")):
            try:
                write()
                print("written")
            except OSError as error:
                print(error.strerror)
        """
    )
    written, *refusals = result.stdout.splitlines()

    assert sorted(eval(written)) == ["/dev/shm", "/tmp"]
    assert len(refusals) == 4
    # The error depends on the owner of the files.
    assert set(refusals) <= {"Read-only file system", "Permission denied"}
    assert not (gateway.skills / "tries" / "w").exists()


def test_script_without_hosts_has_no_network(gateway: Gateway) -> None:
    abstract = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    named = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    local = socket.create_server(("127.0.0.1", 0))
    with abstract, named, local:
        abstract.bind("\0torana-sandbox-test")
        abstract.listen()
        path = Path(tempfile.mkdtemp()) / "socket"
        named.bind(str(path))
        named.listen()
        found = outcomes(
            gateway,
            "[name for _, name in socket.if_nameindex()]",
            "socket.create_connection(('93.184.215.14', 80), 2)",
            "socket.create_connection(('2606:2800:21f:cb07:6820:80da:af6b:8b2c', 80), 2)",
            "socket.create_connection(('169.254.169.254', 80), 2)",
            f"socket.create_connection(('127.0.0.1', {local.getsockname()[1]}), 2)",
            "socket.socket(socket.AF_UNIX).connect('\\0torana-sandbox-test')",
            f"socket.socket(socket.AF_UNIX).connect({str(path)!r})",
            "socket.getaddrinfo('example.com', 80)",
            "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)",
            "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
            "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
        )

    assert list(found.values()) == [
        "['lo']",
        *["OSError"] * 3,
        *["ConnectionRefusedError"] * 2,
        "FileNotFoundError",
        "gaierror",
        "OSError",
        "OSError",
        "PermissionError",
    ]


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("libc.unshare(0x10000000)", id="user namespace"),
        pytest.param("libc.unshare(0x00020000)", id="mount namespace"),
        pytest.param("libc.setns(0, 0)", id="setns"),
        pytest.param("libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)", id="mount"),
        pytest.param("libc.umount2(b'/skill', 2)", id="umount"),
        pytest.param("libc.ptrace(16, 1, 0, 0)", id="ptrace the first process"),
        pytest.param("libc.setuid(0)", id="setuid"),
        pytest.param("libc.setgid(0)", id="setgid"),
        pytest.param("libc.chroot(b'/tmp')", id="chroot"),
        pytest.param("libc.mknod(b'/tmp/disk', 0o60666, os.makedev(254, 0))", id="device"),
        pytest.param("libc.memfd_create(b'x', 0)", id="memory that is not counted"),
        pytest.param("libc.shmget(0, 4096, 0o1600)", id="System V memory"),
        pytest.param("libc.syscall(425, 8, None)", id="io_uring"),
        pytest.param("libc.syscall(444, None, 0, 1)", id="Landlock"),
        pytest.param("libc.inotify_init1(0)", id="queue of file events"),
        pytest.param("libc.prctl(22, 2, 0, 0, 0)", id="filter of system calls"),
        pytest.param("libc.splice(pipe[0], None, pipe[1], None, 1, 0)", id="page by reference"),
        pytest.param("libc.vmsplice(pipe[1], None, 0, 0)", id="page of a process by reference"),
        pytest.param("libc.ioctl(0, 0x5412, b'x')", id="type into the terminal"),
        pytest.param("libc.prctl(23, 21, 0, 0, 0) - 1 or -1", id="a capability in the bounding set"),
        pytest.param("libc.kill(-1, 0) and -1 or libc.sethostname(b'x', 1)", id="name of the machine"),
    ],
)
def test_system_calls_of_escapes_fail(gateway: Gateway, call: str) -> None:
    result = gateway.run(
        f"import ctypes, os\nlibc, pipe = ctypes.CDLL(None, use_errno=True), os.pipe()\nprint({call})"
    )

    assert result.text == "exit code 0\nstdout:\n-1"


def test_setuid_program_gains_no_privileges(gateway: Gateway) -> None:
    found = outcomes(
        gateway,
        "[line.split()[1] for line in open('/proc/self/status') if line[:6] in ('CapEff', 'CapBnd', 'NoNewP')]",
        "os.chmod(os.mkdir('/tmp/own') or '/tmp/own', 0o6777) or os.stat('/tmp/own').st_uid",
        "all('nosuid' in line for line in open('/proc/mounts'))",
        "sorted(os.listdir('/proc/self/fd'))",
    )

    assert list(found.values()) == [
        "['0000000000000000', '0000000000000000', '1']",
        "65534",
        "True",
        # Its three streams, and the folder that is being listed.
        "['0', '1', '2', '3']",
    ]
