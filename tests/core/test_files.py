"""Files that are written whole or not at all."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from convtime.core.errors import InputError
from convtime.core.files import check_distinct, check_writable, extension_of, write_file


def refuse(path: Path, why: str) -> None:
    """Check that neither check_writable nor write_file accepts a path."""
    writers: list[Callable[[Path], None]] = [check_writable, lambda path: write_file(path, "new")]
    for write in writers:
        with pytest.raises(InputError, match=f"^{path}: cannot be written.*{why}"):
            write(path)


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    check_writable(path)
    assert os.listdir(tmp_path) == []
    for content, written in (
        ("old µ", "old µ".encode()),
        (b"new", b"new"),
        ("half a letter: \udcff", rb"half a letter: \udcff"),
    ):
        write_file(path, content)
        check_writable(path)
        assert path.read_bytes() == written
        assert os.listdir(tmp_path) == ["out.json"]
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask
    path.chmod(0o640)
    (tmp_path / "link").symlink_to("out.json")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write_file, [tmp_path / "link"] * 50, ["through it"] * 50))
    assert (tmp_path / "link").is_symlink()
    assert path.read_text() == "through it"
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["link", "out.json"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, failure: BaseException
) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")

    def fail(*arguments: object) -> None:
        raise failure

    monkeypatch.setattr(os if step == "fsync" else Path, step, fail)
    expected = InputError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        write_file(path, "new")
    if expected is InputError:
        assert str(caught.value) == f"{path}: cannot be written (No space left on device)"
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.json"]


@pytest.mark.thorough
def test_a_killed_process_does_not_block_the_next_one(tmp_path: Path) -> None:
    """In a container, every process has the same ID."""
    script = """
import os, signal, sys
from convtime.core.files import write_file
os.getpid = lambda: 1
os.fsync = lambda _: signal.raise_signal(signal.SIGKILL)
write_file(sys.argv[1], "lost")
"""
    path = tmp_path / "out.json"
    killed = subprocess.run([sys.executable, "-c", script, path])
    assert killed.returncode == -signal.SIGKILL
    script = re.sub("os.fsync = .*", "", script).replace("lost", "new")
    subprocess.run([sys.executable, "-c", script, path], check=True)
    assert path.read_text() == "new"


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "read-only").touch(mode=0o444)
    for path, why in (
        (tmp_path / "none" / "out.json", "No such file or directory"),
        (tmp_path / "file" / "out.json", "Not a directory"),
        (tmp_path / ("a" * 300), "File name too long"),
        (tmp_path / "loop", "not a regular file"),
        (tmp_path, "not a regular file"),
        (tmp_path / "a\0b", "embedded null byte"),
        (tmp_path / "read-only", "since it is read-only"),  # not by root, either
    ):
        refuse(path, why)


def test_two_names_for_one_file_are_refused_but_not_two_for_a_stream(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    for other in ("link", f"../{tmp_path.name}/file"):
        with pytest.raises(InputError, match="--a and --b must name different files"):
            check_distinct({"--a": tmp_path / "file", "--none": None, "--b": tmp_path / other})
    check_distinct({"--a": tmp_path / "file", "--b": tmp_path / "other"})
    check_distinct({"--a": "/dev/null", "--b": "/dev/null"})


def test_an_extension_is_one_of_those_that_are_written() -> None:
    for name, extension in (("a.JSON", ".json"), ("a", ""), (".json", "")):
        assert extension_of(name, (".json",)) == extension
    with pytest.raises(InputError, match=r"a.gz: must end in .json or .csv, .*extension '.gz'"):
        extension_of("a.gz", (".json", ".csv"))


@pytest.mark.thorough
def test_a_path_that_is_standard_output_is_written_through_it(tmp_path: Path) -> None:
    """A rename would part the file from what is printed, a second opening write over it."""
    script = """
import sys
from convtime.core.files import check_writable, write_file
print("before", flush=True)
for path in sys.argv[1:]:
    check_writable(path)
    write_file(path, "written\\n")
print("after")
"""
    out = tmp_path / "out"
    with out.open("w") as file:
        paths: list[str | Path] = ["/dev/stdout", "/proc/self/fd/1", out]
        subprocess.run([sys.executable, "-c", script, *paths], stdout=file, check=True)
    assert out.read_text() == "before\nwritten\nwritten\nwritten\nafter\n"
    assert os.listdir(tmp_path) == ["out"]


def test_pipes_and_devices_are_written_into(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    check_writable(path)  # does not wait for a reader
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    check_writable(path)
    write_file(path, "µ")
    assert os.read(reader, 10) == "µ".encode()
    os.close(reader)
    assert path.is_fifo()
    check_writable("/dev/full")
    write_file("/dev/null", "gone")
    with pytest.raises(InputError, match=r"^/dev/full: cannot be written \(No space left"):
        write_file("/dev/full", "too much")
    assert Path("/dev/null").is_char_device()
    assert Path("/dev/full").is_char_device()


@pytest.fixture
def as_nobody() -> Iterator[Path]:
    """A folder of a user who may not write everywhere, which root becomes."""
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is root's alone
        if os.geteuid() != 0:
            yield Path(folder)
            return
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
        yield Path(folder)
        os.seteuid(0)


def test_a_read_only_file_or_folder_is_left_alone(as_nobody: Path) -> None:
    path = as_nobody / "out.json"
    path.write_text("old")
    for mode, why in ((0o444, "since it is read-only"), (0o466, "Permission denied")):
        path.chmod(mode)
        refuse(path, why)
    assert path.read_text() == "old"
    as_nobody.chmod(0o500)
    with pytest.raises(InputError, match="Permission denied"):
        check_writable(as_nobody / "other.json")
    as_nobody.chmod(0o700)
    assert os.listdir(as_nobody) == ["out.json"]
