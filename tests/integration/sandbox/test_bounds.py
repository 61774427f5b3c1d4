"""Scripts with unlimited demands: each is stopped at its limit with a reason, and the gateway keeps running."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.integration.sandbox.conftest import NOBODY, Gateway

SHORT = {"seconds": 2}


@pytest.fixture
def gateway(gateway: Gateway) -> Iterator[Gateway]:
    """The gateway, which must still run a simple script after each attack."""
    yield gateway
    gateway.must_run()


def running(marker: str) -> list[int]:
    return [
        process.pid for process in psutil.process_iter(["cmdline"]) if marker in (process.info["cmdline"] or [])
    ]


def test_endless_forks_are_refused(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import os, time
        while True:
            try:
                if os.fork() == 0:
                    time.sleep(60)
            except OSError as error:
                print(error.strerror, flush=True)
                time.sleep(60)
        """,
        limits=SHORT,
    )

    assert result.first == "The script was stopped: it was still running after 2 seconds."
    assert "Resource temporarily unavailable" in result.stdout
    assert result.ticks > 10


def test_fork_bomb_is_killed_completely(gateway: Gateway) -> None:
    gateway.write("bomb() { bomb | bomb & }; bomb & exec sleep 60", name="scripts/bomb.sh")

    result = gateway.call(script="scripts/bomb.sh", arguments=["marker-of-the-bomb"], limits=SHORT)

    assert result.first == "The script was stopped: it was still running after 2 seconds."
    assert running("marker-of-the-bomb") == []
    assert result.ticks > 10


def test_endless_sleep_is_stopped(gateway: Gateway) -> None:
    result = gateway.run("import time; print('before', flush=True); time.sleep(10**6)", limits=SHORT)

    assert result.text == "The script was stopped: it was still running after 2 seconds.\nstdout:\nbefore"
    assert result.ticks > 10


def test_script_that_ignores_signals_is_killed(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import signal, time
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        while True:
            time.sleep(1)
        """,
        limits=SHORT,
    )

    assert result.first == "The script was stopped: it was still running after 2 seconds."


def test_daemon_ends_with_its_script(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execv("/usr/bin/sleep", ["marker-of-the-daemon", "60"])
            os._exit(0)
        found = []
        while not found:
            lines = [open(f"/proc/{pid}/cmdline").read() for pid in os.listdir("/proc") if pid.isdigit()]
            found = [line for line in lines if line.startswith("marker")]
        print(found)
        """
    )

    # The daemon existed, held the outputs open, and has ended.
    assert result.text == "exit code 0\nstdout:\n['marker-of-the-daemon\\x0060\\x00']"
    assert running("marker-of-the-daemon") == []


def test_endless_output_is_cut_and_stopped(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import os
        block = b"flood " * 10000
        while True:
            os.write(1, block)
        """
    )

    assert result.first == "The script was stopped: it wrote more than 4 MiB of output."
    assert "stdout (its beginning; " in result.text
    assert len(result.text) < 17_000


def test_too_many_sockets_are_refused(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import socket
        held = []
        try:
            while True:
                held += socket.socketpair()
        except OSError as error:
            print(len(held) < 256, error.strerror)
        """
    )

    assert result.text == "exit code 0\nstdout:\nTrue Too many open files"


#: Ways to make the kernel hold unread data; each fills all that one process may open.
FILLED = {
    "unix": """
        def fill():
            named = socket.socket(socket.AF_UNIX)
            named.bind(f"\\0{os.getpid()}\\n\\nx\\n")
            for ends in iter(socket.socketpair, None):
                for end in ends:
                    send(end, b"x" * 65536)
        """,
    # Sent data remains even when its sender is gone.
    "datagrams": """
        def fill():
            for n in range(100):
                end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                end.bind(f"\\0{os.getpid()} {n}")
                held.append(end)
                sent = True
                while sent:
                    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                        sender.connect(end.getsockname())
                        sent = send(sender, b"x" * 200_000, times=1)
        """,
    "tcp": """
        def fill():
            server = socket.create_server(("127.0.0.1", 0), backlog=99)
            while True:
                send(socket.create_connection(server.getsockname()), b"x" * 65536)
        """,
    "tcp6": """
        def fill():
            server = socket.create_server(("::1", 0), family=socket.AF_INET6, backlog=99)
            while True:
                send(socket.create_connection(server.getsockname()[:2]), b"x" * 65536)
        """,
    "udp": """
        def fill():
            while True:
                end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                end.bind(("127.0.0.1", 0))
                end.connect(end.getsockname())
                send(end, b"x" * 60_000, times=10)
        """,
}


@pytest.mark.parametrize("way", FILLED)
def test_memory_held_by_sockets_is_bounded(gateway: Gateway, way: str) -> None:
    result = gateway.run(
        """
        import os, socket, time
        held = []
        def send(end, data, times=1000):
            held.append(end)
            end.setblocking(False)
            for n in range(times):
                try:
                    end.send(data)
                except OSError:
                    return False
            return True
        """
        + FILLED[way]
        + """
        os.fork()
        try:
            fill()
        except OSError:
            pass
        time.sleep(60)
        """,
        limits={"memory": 64 * 2**20},
    )

    assert result.first == "The script was stopped: it used more than 64 MiB of memory."
    assert result.ticks > 0


def test_few_sockets_stay_within_the_limits(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import socket, time
        pairs = [socket.socketpair() for _ in range(100)]
        server = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(server.getsockname())
        client.setblocking(False)
        sent = client.send(b"x" * 1_000_000)
        time.sleep(0.5)
        print(sent > 100_000)
        """,
        limits={"memory": 128 * 2**20},
    )

    assert result.text == "exit code 0\nstdout:\nTrue"


def test_socket_buffers_cannot_be_enlarged(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import socket
        for kind in (socket.AF_UNIX, socket.AF_INET):
            end = socket.socket(kind)
            for size in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                before = end.getsockopt(socket.SOL_SOCKET, size)
                end.setsockopt(socket.SOL_SOCKET, size, 4 * before)
                print(end.getsockopt(socket.SOL_SOCKET, size) == before)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            print(end.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR))
        """
    )

    assert result.stdout.split() == ["True", "True", "1"] * 2


@pytest.mark.parametrize(
    ("family", "kind", "protocol"),
    [
        ("AF_INET", "SOCK_STREAM", 262),  # multipath TCP
        ("AF_INET6", "SOCK_DGRAM", 136),  # UDP-Lite
        ("AF_NETLINK", "SOCK_RAW", 2),  # between programs
    ],
)
def test_socket_protocols_without_memory_accounting_are_refused(
    gateway: Gateway, family: str, kind: str, protocol: int
) -> None:
    result = gateway.run(
        f"""
        import socket
        try:
            socket.socket(socket.{family}, socket.{kind}, {protocol})
        except OSError as error:
            print(error.strerror)
        """
    )

    assert result.stdout == "Protocol not supported"


def test_socket_pairs_allow_the_same_families(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import socket
        try:
            socket.socketpair(socket.AF_PACKET, socket.SOCK_RAW)
        except OSError as error:
            print(error.strerror)
        """
    )

    assert result.stdout == "Address family not supported by protocol"


def test_long_output_is_cut_with_its_total_size(gateway: Gateway) -> None:
    result = gateway.run("import sys; print('x' * 100_000); print('y' * 100_000, file=sys.stderr)")

    assert result.first == "exit code 0"
    assert "stdout (its beginning; 100,001 bytes in all):\nxxx" in result.text
    assert "stderr (its beginning; 100,001 bytes in all):\nyyy" in result.text


def test_memory_of_one_process_is_bounded(gateway: Gateway) -> None:
    result = gateway.run("data = bytearray(600 * 2**20)")

    assert result.first == "exit code 1"
    assert "MemoryError" in result.text


def test_memory_of_many_processes_is_bounded(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import os, time
        for _ in range(8):
            if os.fork() == 0:
                data = bytearray(os.urandom(1)) * (100 * 2**20)
                time.sleep(60)
        time.sleep(60)
        """
    )

    assert result.first == "The script was stopped: it used more than 512 MiB of memory."
    assert result.ticks > 0


def test_memory_of_processes_started_by_threads_is_bounded(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import subprocess, sys, threading, time
        hog = "b = bytearray(b'x') * (100 * 2**20); import time; time.sleep(60)"
        def start():
            held.append(subprocess.Popen([sys.executable, "-c", hog]))
            time.sleep(60)
        held = []
        for _ in range(8):
            threading.Thread(target=start).start()
        """
    )

    assert result.first == "The script was stopped: it used more than 512 MiB of memory."


def test_memory_is_counted_after_the_end_of_the_first_thread(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import ctypes, os, platform, threading, time
        leave = {"x86_64": 60, "aarch64": 93}[platform.machine()]
        def hog():
            time.sleep(0.5)
            data = bytearray(b"x") * (100 * 2**20)
            time.sleep(60)
        for _ in range(8):
            if os.fork() == 0:
                threading.Thread(target=hog).start()
                ctypes.CDLL(None).syscall(leave, 0)
        time.sleep(60)
        """
    )

    assert result.first == "The script was stopped: it used more than 512 MiB of memory."


def test_memory_of_threads_that_replace_each_other_is_bounded(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import _thread, ctypes, os, platform, time
        leave = {"x86_64": 60, "aarch64": 93}[platform.machine()]
        def relay():
            for _ in range(20):
                try:
                    return _thread.start_new_thread(relay, ())
                except RuntimeError:
                    pass
        def hog():
            time.sleep(0.5)
            held.append(bytearray(b"x") * (100 * 2**20))
            relay()
        held = []
        for _ in range(8):
            if os.fork() == 0:
                _thread.start_new_thread(hog, ())
                ctypes.CDLL(None).syscall(leave, 0)
        time.sleep(60)
        """
    )

    assert result.first == "The script was stopped: it used more than 512 MiB of memory."


def test_memory_that_processes_share_is_bounded(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import mmap
        def share(*arguments):
            try:
                mmap.mmap(*arguments)
            except OSError as error:
                return error.strerror
        print(share(-1, 2**20))
        print(share(-1, 2**20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000))
        with open("/dev/zero", "r+b", buffering=0) as zero:
            print(zero.read(3), share(zero.fileno(), 2**20))
        with open("/tmp/file", "w+b") as file:
            file.truncate(2**20)
            print(share(file.fileno(), 2**20))
        """
    )

    refused = "Operation not permitted"
    assert result.stdout.splitlines() == [refused, refused, r"b'\x00\x00\x00' No such device", "None"]


@pytest.mark.parametrize(
    "name", [r"\fVmRSS:-999999", r"\rVmRSS:-999999", r"\xff"], ids=["feed", "return", "bytes"]
)
def test_name_of_a_process_does_not_hide_its_memory(gateway: Gateway, name: str) -> None:
    """Linux shows the name before the size of the memory, with such characters in it."""
    result = gateway.run(
        f"""
        import ctypes, os, time
        for _ in range(3):
            os.fork()
        ctypes.CDLL(None).prctl(15, b"{name}", 0, 0, 0)
        held = b"x" * (24 * 2**20)
        time.sleep(60)
        """,
        limits={"memory": 64 * 2**20},
    )

    assert result.first == "The script was stopped: it used more than 64 MiB of memory."


def test_page_tables_count_as_memory(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import mmap, time
        # Reading an untouched page takes a page table of 4 KiB for each 2 MiB, and no memory of the process.
        held = []
        while True:
            held.append(mmap.mmap(-1, 2**36, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ))
            for at in range(0, 2**36, 2**21):
                held[-1][at]
        """,
        limits={"memory": 64 * 2**20},
    )

    assert result.first == "The script was stopped: it used more than 64 MiB of memory."


def test_memory_that_the_kernel_takes_for_a_script_is_bounded(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import fcntl, os, time
        # Each byte of a file has a lock of its own. The kernel lists them by file.
        for number in range(40):
            if os.fork() == 0:
                break
        file = open(f"/tmp/{number}", "w")
        for at in range(0, 2**30, 2):
            fcntl.lockf(file, fcntl.LOCK_EX, 1, at)
        """,
        limits={"kernel": 8 * 2**20},
    )

    assert result.first == (
        "The script was stopped: the kernel's memory grew by more than 8 MiB during the run."
    )


def test_watches_of_epoll_count_as_memory_of_the_kernel(gateway: Gateway) -> None:
    """A gateway of the same user ends if it gets no watch."""
    result = gateway.run(
        """
        import os, select, time
        for _ in range(5):
            os.fork()
        watched = [os.eventfd(0) for _ in range(100)]
        held = [select.epoll() for _ in range(100)]
        for one in held:
            for each in watched:
                one.register(each)
        time.sleep(60)
        """,
        limits={"kernel": 8 * 2**20},
    )

    assert result.first == (
        "The script was stopped: the kernel's memory grew by more than 8 MiB during the run."
    )


def test_disk_space_is_bounded(gateway: Gateway) -> None:
    result = gateway.run(
        """
        import os
        for folder in ("/tmp", "/dev/shm"):
            size = 0
            try:
                for n in range(1000):
                    with open(f"{folder}/{n}", "wb") as file:
                        size += file.write(bytes(2**20))
            except OSError as error:
                print(folder, size >> 20, error.strerror)
        """
    )

    assert result.stdout.splitlines() == [
        "/tmp 64 No space left on device",
        "/dev/shm 16 No space left on device",
    ]


def test_file_size_is_bounded(gateway: Gateway) -> None:
    result = gateway.run("open('/tmp/hole', 'wb').truncate(2**40)")

    assert "File too large" in result.text


def test_too_many_files_are_stopped(gateway: Gateway) -> None:
    result = gateway.run(
        """
        n = 0
        while True:
            open(f"/tmp/{n}", "w").close()
            n += 1
        """
    )

    assert result.first == "The script was stopped: it made more than 10,000 files."


WRITE = """
import os, sys, time
def write(name, size=2**20):
    with open(f"{sys.argv[1]}/{name}", "wb") as file:
        file.write(os.urandom(size))
"""


@pytest.fixture
def out(gateway: Gateway) -> Iterator[Path]:
    """A directory that the script may write to."""
    folder = gateway.home / "out" / "bounded"
    folder.mkdir()
    os.chown(folder, gateway.user or NOBODY, -1)
    yield folder
    shutil.rmtree(folder)


def test_writes_to_a_granted_directory_are_bounded(gateway: Gateway, out: Path) -> None:
    gateway.write(f"{WRITE}\nfor n in range(3000):\n    write(n)\n    time.sleep(0.01)\n", writable=[str(out)])

    result = gateway.call(arguments=[str(out)], limits={"disk": 16 * 2**20})

    assert result.first == "The script was stopped: it wrote more than 16 MiB to its writable directories."
    # The gateway checks the limit periodically, so the directory exceeds it for a moment.
    assert 16 <= len(list(out.iterdir())) < 100


def test_writes_of_ended_processes_count(gateway: Gateway, out: Path) -> None:
    gateway.write(
        f"""{WRITE}
for n in range(3000):
    if os.fork() == 0:
        write(n)
        os.remove(f"{{sys.argv[1]}}/{{n}}")
        os._exit(0)
    os.wait()
    time.sleep(0.01)
""",
        writable=[str(out)],
    )

    result = gateway.call(arguments=[str(out)], limits={"disk": 16 * 2**20})

    assert result.first == "The script was stopped: it wrote more than 16 MiB to its writable directories."


def test_uncounted_writes_are_stopped_by_the_loss_of_disk_space(gateway: Gateway, out: Path) -> None:
    # The kernel does not count the writes of children that end while their parent ignores SIGCHLD. The script
    # has one child at a time, because those of living children count. ``wait`` fails when the child has ended.
    gateway.write(
        f"""{WRITE}
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for n in range(3000):
    if os.fork() == 0:
        write(n)
        os._exit(0)
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(0.01)
""",
        writable=[str(out)],
    )

    result = gateway.call(arguments=[str(out)], limits={"disk": 4 * 2**20})

    assert result.first == (
        "The script was stopped: during the run, the free space of the disk that it writes to shrank by more "
        "than 32 MiB or 80,000 files."
    )


def test_too_many_files_in_a_granted_directory_are_stopped(gateway: Gateway, out: Path) -> None:
    gateway.write(f"{WRITE}\nfor n in range(100_000):\n    write(n, 0)", writable=[str(out)])

    result = gateway.call(arguments=[str(out)], limits={"files": 500})

    assert result.first == (
        "The script was stopped: during the run, the free space of the disk that it writes to shrank by more "
        "than 512 MiB or 4,000 files."
    )


def test_disk_space_cannot_be_preallocated(gateway: Gateway, out: Path) -> None:
    gateway.write(
        """
        import ctypes, errno, fcntl, os, struct, sys
        libc = ctypes.CDLL(None, use_errno=True)
        for folder in (sys.argv[1], "/tmp"):
            file = os.open(f"{folder}/space", os.O_RDWR | os.O_CREAT)
            # KEEP_SIZE: the limit of a file's size does not apply to it.
            print(libc.fallocate(file, 1, ctypes.c_int64(0), ctypes.c_int64(2**30)))
            print(os.strerror(ctypes.get_errno()))
            for request in (0x40305828, 0x4030582A, 0x40305839):
                try:
                    fcntl.ioctl(file, request, struct.pack("hhqqiI16x", 0, 0, 0, 2**30, 0, 0))
                    print("taken")
                except OSError as error:
                    print(errno.errorcode[error.errno])
            print(os.stat(file).st_blocks)
            os.posix_fallocate(file, 0, 10_000)
            print(os.stat(file).st_size)
        """,
        writable=[str(out)],
    )

    result = gateway.call(arguments=[str(out)])

    assert result.stdout.splitlines() == ["-1", "Operation not supported", *["EPERM"] * 3, "0", "10000"] * 2


def test_unread_input_does_not_block_the_script(gateway: Gateway) -> None:
    gateway.write("import sys; sys.stdin.close(); print('done')")

    assert gateway.call(stdin="x" * 200_000).text == "exit code 0\nstdout:\ndone"


def test_signal_of_a_killed_script_is_in_its_exit_code(gateway: Gateway) -> None:
    assert gateway.run("import os; os.kill(os.getpid(), 11)").first == "exit code 139"
