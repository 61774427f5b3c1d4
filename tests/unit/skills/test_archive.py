"""Untrusted archives unpack below one directory, or are refused."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.skills.archives import (
    SKILL,
    TEA,
    claiming,
    encrypted,
    header,
    member,
    tar_blocks,
    tar_of,
    tarred,
    zipped,
)

from torana.skills import SkillInvalid
from torana.skills.installation.archive import ENTRY_LIMIT, HEADER_LIMIT, UNPACKED_LIMIT, unpack

Pack = Callable[[Mapping[str, str | bytes]], bytes]

MIB = 1024 * 1024


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """An empty directory inside a directory that must stay unchanged."""
    target = tmp_path / "around" / "target"
    target.mkdir(parents=True)
    return target


def read_files(directory: Path) -> dict[str, bytes]:
    """Return all files below a directory, by path."""
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def refusal(archive: bytes, target: Path) -> str:
    """Return the reason of the refusal; nothing was written beside the target."""
    with pytest.raises(SkillInvalid) as refused:
        unpack(archive, target)
    assert list(target.parent.iterdir()) == [target]
    return str(refused.value)


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_files_come_out_as_they_were_packed(pack: Pack, target: Path) -> None:
    unpack(pack({**TEA, "tea/empty": ""}), target)
    assert read_files(target) == {
        "tea/SKILL.md": SKILL.encode(),
        "tea/scripts/brew.sh": b"echo tea\n",
        "tea/empty": b"",
    }


def test_names_in_other_packers_style_are_accepted(target: Path) -> None:
    unpack(tar_of([(member("./", tarfile.DIRTYPE), b""), (member("./tea//SKILL.md"), b"x")]), target)
    assert read_files(target) == {"tea/SKILL.md": b"x"}


@pytest.mark.parametrize("archive", [zipped(mode=0o106755), tarred(mode=0o6755)], ids=["zip", "tar"])
def test_executable_bit_is_kept_and_other_bits_are_dropped(archive: bytes, target: Path) -> None:
    unpack(archive, target)
    assert (target / "tea/scripts/brew.sh").stat().st_mode & 0o7777 == 0o755


def test_non_executable_file_stays_non_executable(target: Path) -> None:
    unpack(tarred(), target)
    assert (target / "tea/SKILL.md").stat().st_mode & 0o7777 == 0o644


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_hidden_files_are_left_out(pack: Pack, target: Path) -> None:
    unpack(pack({**TEA, "tea/.env": "KEY=1", ".git/hooks/x": "x", "tea/__pycache__/a.pyc": b"x"}), target)
    assert set(read_files(target)) == set(TEA)


@pytest.mark.parametrize("pack", [zipped, tarred])
@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "tea/../../outside",
        "/etc/outside",
        "//outside",
        "C:outside",
        "c:/outside",
        "..\\outside",
        "tea\\..\\outside",
        "tea/..",
    ],
)
def test_path_outside_the_archive_is_refused(pack: Pack, name: str, target: Path) -> None:
    assert "is a path outside of it" in refusal(pack({**TEA, name: "x"}), target)


@pytest.mark.parametrize("pack", [zipped, tarred])
@pytest.mark.parametrize("name", ["tea/a\nb", "tea/\u202egnp.sh", "tea/\x1b[2J", "tea/a\u200bb"])
def test_invisible_characters_in_a_name_are_refused(pack: Pack, name: str, target: Path) -> None:
    assert "invisible characters" in refusal(pack({**TEA, name: "x"}), target)


def test_name_that_is_not_utf8_is_refused(target: Path) -> None:
    archive = tar_blocks(header("tea/caf?").replace(b"caf?", b"caf\xe9"))
    assert "damaged" in refusal(archive, target)  # its checksum is wrong
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", format=tarfile.USTAR_FORMAT, encoding="latin-1") as out:
        out.addfile(member("tea/café"))
    assert "not UTF-8" in refusal(packed.getvalue(), target)


def test_nul_in_a_name_is_refused(target: Path) -> None:
    archive = zipped({**TEA, "tea/a?.sh": "x"}).replace(b"tea/a?.sh", b"tea/a\0.sh")
    assert "invisible characters" in refusal(archive, target)


@pytest.mark.parametrize("pack", [zipped, tarred])
@pytest.mark.parametrize(
    "names",
    [
        ("a/x", "A/x"),
        ("a/x", "A/y"),
        ("straße", "STRASSE"),
        ("é", "e\u0301"),
        ("ﬁle", "file"),
        ("a", "a/b"),
        ("a/b", "a"),
    ],
    ids=ascii,
)
def test_names_equal_on_some_file_systems_are_refused(pack: Pack, names: tuple[str, str], target: Path) -> None:
    assert "twice" in refusal(pack(dict.fromkeys(names, "x")), target)


def test_duplicate_file_is_refused(target: Path) -> None:
    members = [(member("tea/SKILL.md"), b"good"), (member("tea/SKILL.md"), b"bad")]
    assert "twice" in refusal(tar_of(members), target)


@pytest.mark.parametrize(
    ("kind", "linkname", "what"),
    [
        (tarfile.SYMTYPE, "/etc/passwd", "link"),
        (tarfile.SYMTYPE, "../../..", "link"),
        (tarfile.SYMTYPE, "SKILL.md", "link"),
        (tarfile.LNKTYPE, "/etc/passwd", "link"),
        (tarfile.LNKTYPE, "tea/SKILL.md", "link"),
        (tarfile.CHRTYPE, "", "device"),
        (tarfile.BLKTYPE, "", "device"),
        (tarfile.FIFOTYPE, "", "device"),
        (tarfile.CONTTYPE, "", ""),
    ],
)
def test_links_and_devices_in_a_tar_file_are_refused(
    kind: bytes, linkname: str, what: str, target: Path
) -> None:
    archive = tar_of([(member("tea/SKILL.md"), b"x"), (member("tea/x", kind, linkname=linkname), b"")])
    if kind == tarfile.CONTTYPE:  # an old kind of plain file
        unpack(archive, target)
        assert read_files(target) == {"tea/SKILL.md": b"x", "tea/x": b""}
    else:
        assert f"is a {what}" in refusal(archive, target)


@pytest.mark.parametrize(("mode", "what"), [(0o120777, "link"), (0o020644, "device"), (0o010644, "device")])
def test_links_and_devices_in_a_zip_file_are_refused(mode: int, what: str, target: Path) -> None:
    assert f"is a {what}" in refusal(zipped({"tea/x": "/etc/passwd"}, mode=mode), target)


def test_files_are_not_written_through_links(target: Path) -> None:
    members = [(member("tea/out", tarfile.SYMTYPE, linkname="/tmp"), b""), (member("tea/out/x"), b"x")]
    assert "is a link" in refusal(tar_of(members), target)
    assert read_files(target) == {}


def test_sparse_file_is_refused(target: Path) -> None:
    pax = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "tea/big"}
    pax["GNU.sparse.realsize"] = str(10 * 1024**4)
    body = b"0\n".ljust(512, b"\0")
    assert "sparse" in refusal(tar_of([(member("tea/x", pax_headers=pax), body)]), target)


@pytest.mark.parametrize(
    "archive",
    [
        zipped({f"tea/{number}": "" for number in range(ENTRY_LIMIT + 1)}),
        tarred({f"tea/{number}": "" for number in range(ENTRY_LIMIT + 1)}),
        tar_of((member(f"tea/{number}", tarfile.DIRTYPE), b"") for number in range(ENTRY_LIMIT + 1)),
    ],
    ids=["zip", "tar", "folders"],
)
def test_too_many_entries_are_refused(archive: bytes, target: Path) -> None:
    assert "more than 2,000 entries" in refusal(archive, target)
    assert len(list(target.rglob("*"))) <= ENTRY_LIMIT + 1


def test_archive_of_100_000_entries_is_refused_within_1_mib_of_memory(target: Path) -> None:
    archive = zipped({f"{number}": "" for number in range(100_000)})
    tracemalloc.start()
    try:
        assert "more than 2,000 entries" in refusal(archive, target)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_maximum_number_of_entries_is_accepted(pack: Pack, target: Path) -> None:
    unpack(pack({f"{number}": "" for number in range(ENTRY_LIMIT)}), target)
    assert len(read_files(target)) == ENTRY_LIMIT


@pytest.mark.parametrize("pack", [zipped, tarred])
@pytest.mark.parametrize("name", ["tea/bomb", "tea/.hidden-bomb"])
def test_archive_bomb_is_refused_while_unpacking(pack: Pack, name: str, target: Path) -> None:
    archive = pack({name: bytes(UNPACKED_LIMIT + MIB)})
    assert len(archive) < MIB
    assert "unpacks to more than" in refusal(archive, target)


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_total_unpacked_size_is_limited(pack: Pack, target: Path) -> None:
    assert "unpacks to more than" in refusal(pack({f"{n}": bytes(MIB) for n in range(51)}), target)


def test_data_after_the_end_of_a_tar_file_counts(target: Path) -> None:
    archive = gzip.compress(bytes(UNPACKED_LIMIT * 2))
    assert "unpacks to more than" in refusal(archive, target)


def test_huge_header_is_not_read_into_memory(target: Path) -> None:
    size = b"%011o\0" % (1024**3)
    archive = tar_blocks(header("x", size=size, kind=b"x"), bytes(UNPACKED_LIMIT * 2))
    tracemalloc.start()
    try:
        assert "header of more than 2,000 bytes" in refusal(archive, target)
        assert tracemalloc.get_traced_memory()[1] < 2 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [b"x", b"g", b"X", b"L", b"K"])
@pytest.mark.parametrize(
    "size", [b"%011o\0" % (HEADER_LIMIT + 1), b"\xff" * 12], ids=["large", "below nothing"]
)
def test_extended_header_over_the_limit_is_not_read(kind: bytes, size: bytes, target: Path) -> None:
    archive = tar_blocks(header("x", size=size, kind=kind), b"1" * 60_000)
    assert "header of more than 2,000 bytes" in refusal(archive, target)


def test_extended_headers_count_as_entries(target: Path) -> None:
    empty = header("x", kind=b"g")
    archive = tar_blocks(*(empty * 100 + header(f"tea/{number}") for number in range(ENTRY_LIMIT // 40)))
    assert "more than 2,000 entries" in refusal(archive, target)


def test_too_many_global_header_fields_are_refused(target: Path) -> None:
    said = b"".join(b"7 %03d=\n" % number for number in range(101)).ljust(1024, b"\0")
    archive = tar_blocks(header("x", size=b"%011o\0" % 707, kind=b"g"), said, header("tea/x"))
    assert "global headers of the archive have too many fields" in refusal(archive, target)


@pytest.fixture
def own_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``tarfile`` parse headers without the methods of any subclass, as some releases of Python do."""
    init = tarfile.TarFile.__init__

    def plain(self: tarfile.TarFile, *args: object, **options: object) -> None:
        init(self, *args, **{**options, "tarinfo": tarfile.TarInfo})  # type: ignore[arg-type]

    monkeypatch.setattr(tarfile.TarFile, "__init__", plain)


@pytest.mark.usefixtures("own_methods")
@pytest.mark.parametrize(
    ("blocks", "reason"),
    [
        ([header("x", size=b"%011o\0" % 2001, kind=b"x"), b"1" * 60_000], "header of more than 2,000 bytes"),
        (
            [header("x", kind=b"g"), header("x", size=b"%011o\0" % 2001, kind=b"L"), bytes(60_000)],
            "header of more than 2,000 bytes",
        ),
        ([header("x", kind=b"g") * 100 + header(f"tea/{n}") for n in range(50)], "2,000 entries"),
        ([header("tea/x"), header("tea/y").replace(b"tea/y", b"tea/z")], "damaged"),
    ],
    ids=["large", "large after another", "many", "damaged"],
)
def test_limits_of_headers_hold_whatever_parses_them(blocks: list[bytes], reason: str, target: Path) -> None:
    assert reason in refusal(tar_blocks(*blocks), target)


def test_tarfile_that_reads_ahead_is_refused(monkeypatch: pytest.MonkeyPatch, target: Path) -> None:
    def read_ahead(cls: type[tarfile.TarInfo], opened: tarfile.TarFile) -> tarfile.TarInfo:
        assert opened.fileobj is not None
        return cls.frombuf(opened.fileobj.read(10_240)[:512], "utf-8", "strict")

    monkeypatch.setattr(tarfile.TarInfo, "fromtarfile", classmethod(read_ahead))
    assert "header of more than" in refusal(tar_blocks(header("tea/x"), bytes(20_000)), target)


def test_headers_of_one_entry_use_at_most_32_mib_of_memory(target: Path) -> None:
    fields = [b"".join(b"9 %05x=\n" % (part << 8 | n) for n in range(220)) for part in range(150)]
    common = b"".join(
        header("x", size=b"%011o\0" % 1980, kind=b"g") + text.ljust(2048, b"\0") for text in fields
    )
    archive = tar_blocks(common, header("x", kind=b"x") * 150, header("tea/x"))
    tracemalloc.start()
    try:
        said = refusal(archive, target)
        assert tracemalloc.get_traced_memory()[1] < 32 * MIB
        assert "damaged" in said
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
def test_longest_names_are_accepted_for_the_maximum_of_entries(kind: int, target: Path) -> None:
    folder = "/".join(["tea", "a" * 245, "b" * 245, "c" * 245, "d" * 245])
    packed = io.BytesIO()
    common = {"comment": "of all"} if kind == tarfile.PAX_FORMAT else {}
    with tarfile.open(fileobj=packed, mode="w:gz", format=kind, pax_headers=common) as out:
        for number in range(ENTRY_LIMIT):
            out.addfile(member(f"{folder}/{number:012}", mtime=1.5))
    unpack(packed.getvalue(), target)
    assert len(read_files(target)) == ENTRY_LIMIT


@pytest.mark.parametrize("size", [0, 1, 5])
def test_zip_header_with_too_small_a_size_is_refused(size: int, target: Path) -> None:
    assert "damaged" in refusal(claiming(zipped(), size=size), target)


def test_zip_header_with_too_large_a_size_is_accepted(target: Path) -> None:
    unpack(claiming(zipped(), size=2**31), target)
    assert set(read_files(target)) == set(TEA)


def test_zip_bomb_with_a_small_claimed_size_is_refused(target: Path) -> None:
    archive = claiming(zipped({"tea/bomb": bytes(UNPACKED_LIMIT + MIB)}), size=10)
    assert "damaged" in refusal(archive, target)
    assert (target / "tea/bomb").stat().st_size <= 10


def test_negative_size_in_a_tar_file_is_refused(target: Path) -> None:
    archive = tar_blocks(header("tea/x", size=b"\xff" * 12), header("tea/y"))
    assert "damaged" in refusal(archive, target)


def test_endless_chained_headers_are_refused(target: Path) -> None:
    longer = header("././@LongLink", size=b"00000000002\0", kind=b"L") + b"x\0".ljust(512, b"\0")
    assert "damaged" in refusal(tar_blocks(longer * 20_000), target)


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_truncated_archive_is_refused_at_every_length(pack: Pack, tmp_path: Path) -> None:
    whole = pack({**TEA, "tea/noise": os.urandom(3_000)})
    for number, end in enumerate(range(2, len(whole) - 1, 97)):
        target = tmp_path / str(number)
        target.mkdir()
        with pytest.raises(SkillInvalid):
            unpack(whole[:end], target)


def test_tar_file_damaged_in_the_middle_is_refused(target: Path) -> None:
    packed = gzip.decompress(tarred({**TEA, "tea/a.txt": "a", "tea/b.txt": "b"}))
    whole = bytearray(packed)
    headers = [at for at in range(0, len(packed), 512) if packed[at + 257 : at + 262] == b"ustar"]
    whole[headers[1] + 148] ^= 0xFF  # the checksum of the second entry

    assert "damaged" in refusal(gzip.compress(bytes(whole)), target)


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_archive_with_changed_bytes_stays_inside_the_target(pack: Pack, tmp_path: Path) -> None:
    whole = pack({"tea/noise": os.urandom(500)})
    for at in range(0, len(whole), 7):
        target = tmp_path / str(at)
        target.mkdir()
        changed = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
        with suppress(SkillInvalid):
            unpack(changed, target)
        assert all(path.resolve().is_relative_to(target) for path in target.rglob("*"))


def test_zip_file_with_a_password_is_refused(target: Path) -> None:
    assert "encrypted" in refusal(encrypted(zipped()), target)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unsupported_compression_is_refused(method: int, target: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        archive.writestr("tea/SKILL.md", bytes(100))
    assert "unsupported compression" in refusal(packed.getvalue(), target)


@pytest.mark.parametrize(
    ("archive", "reason"),
    [
        (b"", "not an archive"),
        (b"<!doctype html>", "not an archive"),
        (b"BZh91AY", "packed with bzip2"),
        (b"\xfd7zXZ\0", "packed with xz"),
        (b"Rar!\x1a", "packed with RAR"),
        (b"MZ" + bytes(10 * MIB), "more than 10 MiB"),
        (gzip.compress(b"just a text"), "damaged"),
    ],
    ids=["empty", "a page", "bzip2", "xz", "RAR", "too large", "a text"],
)
def test_data_that_is_no_archive_is_refused(archive: bytes, reason: str, target: Path) -> None:
    assert reason in refusal(archive, target)


def test_archive_in_an_archive_stays_packed(target: Path) -> None:
    unpack(zipped({"tea.tar.gz": tarred()}), target)
    assert list(read_files(target)) == ["tea.tar.gz"]


#: Name parts that packers, attackers and file systems produce.
_PIECES = [*"aAbé./\\:~ \0\n", "..", "e\u0301", "\u202e", "ſ", "ﬁ", "con", ".git", "/", "C:"]
NAMES = st.lists(st.sampled_from(_PIECES), max_size=12).map("".join)


@given(names=st.lists(NAMES, max_size=6), pack=st.sampled_from([zipped, tarred]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_name_writes_outside_the_target(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], pack: Pack
) -> None:
    around = tmp_path_factory.mktemp("around")
    target = around / "in" / "target"
    target.mkdir(parents=True)
    try:
        archive = pack(dict.fromkeys(names, "x"))
    except ValueError:  # no packer accepts some names
        return
    with suppress(SkillInvalid):
        unpack(archive, target)
    written = [path for path in around.rglob("*") if path.is_file() or path.is_symlink()]
    assert all(path.is_relative_to(target) and not path.is_symlink() for path in written)
    assert all(part not in ("..", ".git") for path in written for part in path.relative_to(target).parts)
    folded = [str(path.relative_to(target)).casefold() for path in written]
    assert len(set(folded)) == len(folded)
