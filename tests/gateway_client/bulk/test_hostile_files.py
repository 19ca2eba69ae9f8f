"""Hostile files: each has a row, and none blocks the run or affects other rows."""

import fcntl
import gzip
import io
import os
import random
import signal
import socket
import subprocess
import sys
import tarfile
import termios
import zipfile
from pathlib import Path

import pytest

from gateway_client.bulk import BulkError
from gateway_client.bulk.sources import Sources
from tests.doubles.backend import PNG
from tests.gateway_client.bulk.running import LIMIT, TOO_LARGE, command, outcomes, reading, rows_of, run
from tests.processes import environment, wait_for

MIB = 2**20


@pytest.fixture
def hostile(tmp_path):
    """A folder with one good image among files of every other kind."""
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "good.png").write_bytes(PNG)
    os.mkfifo(folder / "fifo.png")
    (folder / "zero.png").symlink_to("/dev/zero")
    (folder / "tty.png").symlink_to("/dev/tty")
    (folder / "loop.png").symlink_to("loop.png")
    (folder / "gone.png").symlink_to("nowhere")
    (folder / "back").symlink_to(".")
    (folder / "self").symlink_to("self")
    with (folder / "sparse.png").open("wb") as sparse:
        sparse.truncate(2**40)
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(folder, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{here}/socket.png")
        os.close(here)
        yield folder


EXPECTED = {
    "fifo.png": "it is a FIFO, not a regular file",
    "gone.png": "No such file or directory",
    "good.png": PNG,
    "loop.png": "Too many levels of symbolic links",
    "socket.png": "it is a socket, not a regular file",
    "sparse.png": TOO_LARGE,
    "tty.png": "it is a device, not a regular file",
    "zero.png": "it is a device, not a regular file",
}


def test_each_kind_of_file_has_the_expected_outcome_and_a_row(url, hostile, tmp_path):
    """A folder, a list and named files give the same outcomes."""
    names = sorted(EXPECTED)
    (tmp_path / "list.txt").write_text("\n".join(f"photos/{name}" for name in names))
    assert outcomes(hostile) == EXPECTED
    assert outcomes(tmp_path / "list.txt") == EXPECTED
    assert outcomes(*(hostile / name for name in names)) == EXPECTED
    out = tmp_path / "out.jsonl"
    run(hostile, "--out", out, "--gateway", url, code=3)
    assert {Path(row["path"]).name: row["error"] for row in rows_of(out)} == {
        name: {"good.png": None, "sparse.png": "file_too_large"}.get(name, "unreadable_file") for name in EXPECTED
    }


@pytest.mark.parametrize("name", ["n" * 300 + ".png", "/dev/stdin/x.png"])
def test_impossible_file_names_have_error_rows(tmp_path, name):
    (tmp_path / "t.txt").write_text(f"good.png\n{name}\n")
    (tmp_path / "good.png").write_bytes(PNG)
    found = list(outcomes(tmp_path / "t.txt").values())
    assert len(found) == 2
    assert found[0] == PNG
    assert isinstance(found[1], str)


def test_linked_folders_are_read_once(tmp_path):
    """Each level has two links to the next: 2^40 paths."""
    for number in range(40):
        folder = tmp_path / "top" / str(number)
        folder.mkdir(parents=True)
        (folder / f"{number}.png").write_bytes(PNG)
        for link in ("x", "y"):
            (folder / link).symlink_to(f"../{(number + 1) % 40}")
    found = outcomes(tmp_path / "top")
    assert len(found) == 40


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_files_have_error_rows(tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "a.png").chmod(0)
    (tmp_path / "closed").mkdir(mode=0)
    assert outcomes(tmp_path) == {
        "a.png": "Permission denied",
        "closed": "the folder cannot be read: Permission denied",
    }


# --- archives ---


def test_encrypted_zip_member_has_a_row(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.png", PNG)
        archive.writestr("good.png", PNG)
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\1\2") + 8] |= 1  # in the list of members
    path.write_bytes(data)
    found = outcomes(path)
    assert found.pop("good.png") == PNG
    assert "encrypted" in found.pop("a.png")


def tar_header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT)


GOOD = tar_header("good.png", len(PNG)) + PNG + bytes(-len(PNG) % 512)


def checked(header: bytearray) -> bytes:
    """A header with the checksum of its bytes."""
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def backward() -> bytes:
    negative = bytearray(tar_header("x.png", 0))
    negative[124:136] = b"\xff" * 10 + b"\xfc\0"
    return checked(negative)


@pytest.mark.parametrize("packed", [bytes, gzip.compress])
def test_tar_header_that_leads_back_ends_the_archive(tmp_path, packed):
    path = tmp_path / "a.tar"
    path.write_bytes(packed(GOOD + backward()))
    found = outcomes(path)
    assert found.pop("good.png") == PNG
    assert ["damaged" in reason for reason in found.values()] == [True]


def test_non_file_tar_members_have_error_rows(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("good.png"))
        for name, kind in (
            ("hard.png", tarfile.LNKTYPE),
            ("soft.png", tarfile.SYMTYPE),
            ("fifo.png", tarfile.FIFOTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "good.png"
            archive.addfile(member)
    found = outcomes(path)
    assert found.pop("good.png") == b""
    assert found.pop("fifo.png") == "it is not a regular file"
    assert {reason.partition(",")[0] for reason in found.values()} == {"it is a link to 'good.png'"}


@pytest.mark.parametrize("seed", range(4))
def test_damaged_archives_end_in_rows(tmp_path, seed):
    chosen = random.Random(seed)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"{number}.png", chosen.randbytes(2_000))
    with tarfile.open(tmp_path / "a.tar", "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for number in range(3):
            member = tarfile.TarInfo(f"é{number}.png")
            member.size = 2_000
            archive.addfile(member, io.BytesIO(chosen.randbytes(2_000)))
    (tmp_path / "plain.tar").write_bytes(gzip.decompress((tmp_path / "a.tar").read_bytes()))
    for name in ("a.zip", "a.tar", "plain.tar"):
        whole = (tmp_path / name).read_bytes()
        for _ in range(12):
            data = bytearray(whole)
            for _ in range(chosen.randint(1, 4)):
                data[chosen.randrange(len(data))] = chosen.choice((0, 255, chosen.randrange(256)))
            (tmp_path / f"hurt-{name}").write_bytes(data[: chosen.choice((len(data), chosen.randrange(len(data))))])
            for image in Sources([str(tmp_path / f"hurt-{name}")]).images(LIMIT):
                assert reading(image) is not None


def test_endless_line_ends_the_run(tmp_path):
    (tmp_path / "t.txt").write_bytes(b"a.png\n" + b"x" * 2 * MIB)
    with pytest.raises(BulkError, match="has more than 1 MiB"):
        outcomes(tmp_path / "t.txt")


# --- Ctrl-C ---


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_ctrl_c_ends_a_run_whose_stdin_has_stalled(url, number):
    process = subprocess.Popen(
        command("-", "--gateway", url), env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        process.stdin.write(b"none.png\n")
        process.stdin.flush()
        # The command has read the paths, and waits for more.
        wait_for(lambda: not any(fcntl.ioctl(process.stdin, termios.FIONREAD, bytes(4))), process=process)
        process.send_signal(number)
        assert process.wait(30) == 130


def test_ctrl_c_ends_a_read_that_does_not_return(url, tmp_path):
    """Like a file on an unreachable network disk; here, a stdin that no signal interrupts."""
    code = (
        "import sys, threading\n"
        "from gateway_client import Gateway, NamedImage\n"
        "def stall():\n"
        "    print('reading', flush=True)\n"
        "    threading.Event().wait()\n"
        "with Gateway(sys.argv[1]) as gateway:\n"
        "    list(gateway.classify([NamedImage('a', stall)]))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, url], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with process:
        try:
            assert process.stdout.readline() == b"reading\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == -signal.SIGINT
        finally:
            process.kill()  # the context would wait for it
