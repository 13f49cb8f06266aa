"""Files that are written whole or not at all."""

import os
from pathlib import Path

import pytest

from convtime.core.errors import InputError
from convtime.core.files import check_writable, write_file


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "out.json"
    write_file(path, "old µ")
    write_file(path, b"new")
    assert path.read_bytes() == b"new"
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
        (Path("/dev/null"), "not a regular file"),
    ):
        with pytest.raises(InputError, match=f"^{path}: cannot be written.*{why}"):
            check_writable(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_check_writable_in_a_locked_directory(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="Permission denied"):
        check_writable(tmp_path / "out.json")
    tmp_path.chmod(0o700)
