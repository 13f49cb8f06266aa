"""Files that are written whole or not at all."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from convtime.core.errors import InputError
from convtime.core.files import check_writable, write_file


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "out.json"
    write_file(path, "old µ")
    write_file(path, b"new")
    assert path.read_bytes() == b"new"
    write_file(path, "half a letter: \udcff")
    assert path.read_bytes() == rb"half a letter: \udcff"
    write_file(path, b"new")
    assert os.listdir(tmp_path) == ["out.json"]
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_replaced_file_keeps_its_mode(tmp_path):
    path = tmp_path / "out.json"
    path.write_text("old")
    path.chmod(0o640)
    write_file(path, "new")
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    write_file(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_content_and_nothing_else(tmp_path, monkeypatch, step, failure):
    path = tmp_path / "out.json"
    path.write_text("old")

    def fail(*arguments):
        raise failure

    monkeypatch.setattr(*{"fsync": (os, "fsync"), "replace": (Path, "replace")}[step], fail)
    expected = InputError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        write_file(path, "new")
    if expected is InputError:
        assert str(caught.value) == f"{path}: cannot be written (No space left on device)"
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.json"]


def test_threads_write_one_file(tmp_path):
    path = tmp_path / "out.json"

    def write(content):
        check_writable(path)
        write_file(path, content)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, ["abc"] * 100))
    assert path.read_text() == "abc"
    assert os.listdir(tmp_path) == ["out.json"]


def test_a_killed_process_does_not_block_the_next_one(tmp_path):
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
    done = subprocess.run(
        [sys.executable, "-c", re.sub("os.fsync = .*", "", script).replace("lost", "new"), path]
    )
    assert done.returncode == 0
    assert path.read_text() == "new"


def test_check_writable_leaves_nothing(tmp_path):
    check_writable(tmp_path / "new.json")
    assert os.listdir(tmp_path) == []
    (tmp_path / "old.json").write_text("old")
    check_writable(tmp_path / "old.json")
    assert (tmp_path / "old.json").read_text() == "old"


def test_check_writable_says_why_not(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    for path, why in (
        (tmp_path / "none" / "out.json", "No such file or directory"),
        (tmp_path / "file" / "out.json", "Not a directory"),
        (tmp_path / ("a" * 300), "File name too long"),
        (tmp_path / "loop", "not a regular file"),
        (tmp_path, "not a regular file"),
        (tmp_path / "a\0b", "embedded null byte"),
    ):
        for write in (check_writable, lambda path: write_file(path, "new")):
            with pytest.raises(InputError, match=f"^{path}: cannot be written.*{why}"):
                write(path)


def test_a_path_that_is_standard_output_is_written_through_it(tmp_path):
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
        paths = ["/dev/stdout", "/proc/self/fd/1", out]
        subprocess.run([sys.executable, "-c", script, *paths], stdout=file, check=True)
    assert out.read_text() == "before\nwritten\nwritten\nwritten\nafter\n"
    assert os.listdir(tmp_path) == ["out"]


def test_a_pipe_is_written_into(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    check_writable(path)  # does not wait for a reader
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    check_writable(path)
    write_file(path, "µ")
    assert os.read(reader, 10) == "µ".encode()
    os.close(reader)
    assert path.is_fifo()


def test_a_device_is_written_to():
    for path in (Path("/dev/null"), Path("/dev/full")):
        check_writable(path)
        assert path.is_char_device()
    write_file("/dev/null", "gone")
    with pytest.raises(InputError, match=r"^/dev/full: cannot be written \(No space left"):
        write_file("/dev/full", "too much")
    assert Path("/dev/full").is_char_device()


def test_a_read_only_file_is_not_replaced_by_root_either(tmp_path):
    path = tmp_path / "out.json"
    path.write_text("old")
    path.chmod(0o444)
    with pytest.raises(InputError, match="since it is read-only"):
        write_file(path, "new")
    assert path.read_text() == "old"


@pytest.fixture
def as_nobody():
    """A folder of a user who may not write everywhere, which root becomes."""
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is root's alone
        if os.geteuid() != 0:
            yield Path(folder)
            return
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
        yield Path(folder)
        os.seteuid(0)


def test_a_read_only_file_is_not_replaced(as_nobody):
    path = as_nobody / "out.json"
    path.write_text("old")
    for mode, why in ((0o444, "since it is read-only"), (0o466, "Permission denied")):
        path.chmod(mode)
        for write in (check_writable, lambda path: write_file(path, "new")):
            with pytest.raises(InputError, match=f"^{path}: cannot be written.*{why}"):
                write(path)
    assert path.read_text() == "old"
    assert os.listdir(as_nobody) == ["out.json"]


def test_check_writable_in_a_locked_directory(as_nobody):
    as_nobody.chmod(0o500)
    with pytest.raises(InputError, match="Permission denied"):
        check_writable(as_nobody / "out.json")
    as_nobody.chmod(0o700)
