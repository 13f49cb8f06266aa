"""Files that are written whole or not at all, and the folder of what outlives a process."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import filelock
import platformdirs

from convtime.core.errors import InputError, why

_STATE_ADVICE = "set XDG_STATE_HOME to a folder of your own"
# Between two looks at a lock that another one holds: who times again and again lets go for
# about a millisecond.
_POLL_SECONDS = 2e-3


def check_writable(path: str | os.PathLike[str]) -> None:
    """Makes sure, before hours of timing, that write_file(path) can work afterwards.

    Raises:
        InputError: Says why it cannot.
    """
    try:
        if _standard_stream(path) is not None:
            return
        if _is_stream(path):
            # Not by opening it: to a pipe's reader, closing it would be the end.
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        target = _replaceable(path)
        temporary = _temporary(target)
        temporary.touch(exist_ok=False)
        temporary.unlink()
    except InputError:
        raise
    except (OSError, ValueError) as error:  # the latter for a path with a NUL
        folder = Path(path).absolute().parent
        raise InputError(f"{path}: cannot be written in {folder} ({why(error)})") from error


def check_distinct(named: Mapping[str, str | os.PathLike[str] | None]) -> None:
    """Makes sure that files, each with what names it, are different ones; None names no file.

    Raises:
        InputError: Two of them are one file.
    """
    found: dict[str, str] = {}
    for what, path in named.items():
        if path is None:
            continue
        with contextlib.suppress(OSError):  # whoever opens it says what is wrong
            if _is_stream(path):
                continue
        other = found.setdefault(os.path.realpath(path), what)
        if other != what:
            raise InputError(f"{other} and {what} must name different files, got {path} for both")


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes a file whole or not at all: at every moment it holds the old content or the new.

    A pipe or a character device is written to as it is. So is what standard output or error goes
    to, e.g. /dev/stdout, after what was printed before.

    Raises:
        InputError: Says why it cannot, e.g. a full disk; a file's old content is still there.
    """
    try:
        stream = _standard_stream(path)
        if stream is not None:
            _write(os.dup(stream), content)
        elif _is_stream(path):
            _write(os.open(path, os.O_WRONLY), content)
        else:
            replace_file(_replaceable(path), content)
    except InputError:
        raise
    except (OSError, ValueError) as error:  # the latter for a path with a NUL
        raise InputError(f"{path}: cannot be written ({why(error)})") from error


def replace_file(target: Path, content: str | bytes, mode: int = 0o666) -> None:
    """As :func:`write_file`, for a file of convtime's own.

    Args:
        target: no link.
        content: text is written in UTF-8.
        mode: of a new file; an existing one keeps its own.

    Raises:
        OSError: the old content is still there.
    """
    temporary = _temporary(target)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        _write(descriptor, content, durable=True)  # or a crash could leave the new name empty
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _write(descriptor: int, content: str | bytes, *, durable: bool = False) -> None:
    """Writes all of the content, and closes the descriptor."""
    with os.fdopen(descriptor, "wb") as file:
        # Half a letter has no form in UTF-8, and what was measured must not be lost for a name.
        file.write(
            content.encode(errors="backslashreplace") if isinstance(content, str) else content
        )
        file.flush()
        if durable:
            os.fsync(descriptor)


def _standard_stream(path: str | os.PathLike[str]) -> int | None:
    """The descriptor of standard output or error, where that is what the path names.

    Such a file must neither be replaced, which would part it from what is printed, nor be opened
    anew, which would write from its start.
    """
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # it is closed, or there is no such path
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return descriptor
    return None


def _is_stream(path: str | os.PathLike[str]) -> bool:
    return Path(path).is_fifo() or Path(path).is_char_device()


def _replaceable(path: str | os.PathLike[str]) -> Path:
    """The regular file, existing or not, behind a path that may be a link.

    Raises:
        InputError: It is something else, or read-only, which root may write all the same.
        OSError: It must not be written, which would not keep it from being replaced.
    """
    target = Path(os.path.realpath(path))
    # What is still a link after it was followed leads in a circle.
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise InputError(f"{path}: cannot be written, since it is not a regular file")
    if target.exists():
        if not target.stat().st_mode & 0o222:
            raise InputError(
                f"{path}: cannot be written, since it is read-only; name another file, or make it "
                "writable"
            )
        os.close(os.open(target, os.O_WRONLY))
    return target


def _temporary(target: Path) -> Path:
    # In the same directory, since a rename is atomic only within a file system.
    return target.with_name(f".{target.name}.{os.getpid()}.tmp")


def state_folder() -> Path:
    """Where state is written down that outlives a process: neither a cache nor a session's own."""
    return platformdirs.user_state_path("convtime", appauthor=False)


def own_state_folder() -> Path:
    """The state folder, made if need be.

    Raises:
        RuntimeError: where it cannot be used, or belongs to another user.
    """
    folder = state_folder()
    with _state_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.stat().st_uid
        if owner != os.geteuid():
            raise RuntimeError(
                f"{folder} must belong to user {os.geteuid()}, but belongs to user {owner}; "
                f"{_STATE_ADVICE}"
            )
        folder.chmod(0o700)
    return folder


@contextlib.contextmanager
def exclusive_state(name: str = "", patience: float = -1) -> Iterator[Path]:
    """The state folder, with other processes and threads kept out of what the name is for.

    Args:
        name: what there is a lock of its own for; the whole folder unless given.
        patience: seconds to wait for others; for ever if it is negative.

    Raises:
        RuntimeError: where the folder cannot be used, or belongs to another user.
        TimeoutError: where the others are not done in time.
    """
    folder = own_state_folder()
    lock = filelock.FileLock(folder / f"{name}.lock", mode=0o600)
    with _state_errors(folder):
        lock.acquire(timeout=patience, poll_interval=_POLL_SECONDS)
    try:
        yield folder
    finally:
        lock.release()


@contextlib.contextmanager
def _state_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise
    except (OSError, NotImplementedError) as error:  # the latter for file systems without locks
        raise RuntimeError(f"{folder} cannot be used ({why(error)}); {_STATE_ADVICE}") from error
