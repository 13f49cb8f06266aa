"""Atomic file writes, and the folder for state that outlives a process."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import filelock
import platformdirs

from convtime.core.checks import require
from convtime.core.errors import InputError, shown, why

_STATE_ADVICE = "set XDG_STATE_HOME to a folder of your own"
# Poll interval for a lock that is held elsewhere. A process that times repeatedly releases the
# lock for about a millisecond.
_POLL_SECONDS = 2e-3


def check_writable(path: str | os.PathLike[str]) -> None:
    """Check, before hours of timing, that write_file(path) will succeed afterwards.

    Raises:
        InputError: the path cannot be written; the message says why.
    """
    with write_errors(path, f" in {Path(path).absolute().parent}"):
        if _standard_stream(path) is not None:
            return
        if not _is_stream(path):
            temporary = _temporary(_replaceable(path))
            temporary.touch(exist_ok=False)
            temporary.unlink()
        # Do not open a stream: closing a pipe signals end-of-file to its reader.
        elif not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def extension_of(path: str | os.PathLike[str], written: Sequence[str]) -> str:
    """Return the extension of a file to write, in lower case; it is empty if the path has none.

    Args:
        path: the file.
        written: extensions of the formats that can be written.

    Raises:
        InputError: the path has another extension.
    """
    extension = Path(path).suffix
    require(
        extension.lower() in ("", *written),
        f"{path}: must end in {' or '.join(written)}, or have no extension, got the extension "
        f"{shown(extension)}",
    )
    return extension.lower()


def check_distinct(named: Mapping[str, str | os.PathLike[str] | None]) -> None:
    """Check that named files are distinct; None means that an option names no file.

    Raises:
        InputError: two names refer to the same file.
    """
    names: dict[str, str] = {}
    for what, path in named.items():
        if path is None:
            continue
        with contextlib.suppress(OSError):  # the code that opens the file reports the error
            if _is_stream(path):
                continue
        other = names.setdefault(os.path.realpath(path), what)
        require(other == what, f"{other} and {what} must name different files, got {path} for both")


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file atomically: at every moment it holds either the old content or the new.

    A pipe or character device is written directly. If the path is this process's standard output
    or error, e.g. /dev/stdout, the content is appended to the earlier output.

    Raises:
        InputError: the file cannot be written, e.g. the disk is full; the message says why. A
            file's old content is intact.
    """
    with write_errors(path):
        stream = _standard_stream(path)
        if stream is not None:
            _write(os.dup(stream), content)
        elif _is_stream(path):
            _write(os.open(path, os.O_WRONLY), content)
        else:
            replace_file(_replaceable(path), content)


@contextlib.contextmanager
def write_errors(path: str | os.PathLike[str], where: str = "") -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError) as error:  # the latter for a path with a NUL
        raise InputError(f"{path}: cannot be written{where} ({why(error)})") from error


def replace_file(target: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write one of convtime's files atomically, as :func:`write_file` does.

    Args:
        target: path of the file; must not be a symbolic link.
        content: strings are written in UTF-8.
        mode: permissions of a new file; an existing file keeps its permissions.

    Raises:
        OSError: writing failed; the old content is intact.
    """
    temporary = _temporary(target)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        _write(descriptor, content, durable=True)  # otherwise a crash could leave an empty file
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _write(descriptor: int, content: str | bytes, *, durable: bool = False) -> None:
    """Write all of the content, and close the descriptor."""
    with os.fdopen(descriptor, "wb") as file:
        # UTF-8 cannot encode a lone surrogate; measurements must not be lost because of a name.
        file.write(
            content.encode(errors="backslashreplace") if isinstance(content, str) else content
        )
        file.flush()
        if durable:
            os.fsync(descriptor)


def _standard_stream(path: str | os.PathLike[str]) -> int | None:
    """Return the descriptor if the path names standard output or error.

    Such a file must not be replaced: later output would go to the old file. It must not be
    reopened either: the content would overwrite the start of the file.
    """
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # the stream is closed, or the path does not exist
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return descriptor
    return None


def _is_stream(path: str | os.PathLike[str]) -> bool:
    return Path(path).is_fifo() or Path(path).is_char_device()


def _replaceable(path: str | os.PathLike[str]) -> Path:
    """Resolve links and return the path of the regular file, which may not exist yet.

    Raises:
        InputError: the path is not a regular file, or the file is read-only. The read-only check
            also applies to root, who could write it.
        OSError: this user may not write the file; replacing it would still succeed.
    """
    target = Path(os.path.realpath(path))
    # A path that is still a link after resolving is part of a cycle.
    # In this order: another process may make the file meanwhile.
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise InputError(f"{path}: cannot be written, since it is not a regular file")
    if target.exists():
        require(
            target.stat().st_mode & 0o222,
            f"{path}: cannot be written, since it is read-only; name another file, or make it "
            "writable",
        )
        os.close(os.open(target, os.O_WRONLY))
    return target


def _temporary(target: Path) -> Path:
    # Same directory: a rename is atomic only within one file system. The name is random, because
    # threads share a process ID, and a killed process leaves its file to the next one with that ID.
    return target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")


def state_folder() -> Path:
    """Return the folder for state that outlives a process; it is not a cache or session folder."""
    return platformdirs.user_state_path("convtime", appauthor=False)


@contextlib.contextmanager
def exclusive_state(name: str = "", patience: float = -1) -> Iterator[Path]:
    """Yield the state folder, which is created if it is missing, while holding a lock.

    The lock keeps out other processes and threads.

    Args:
        name: name of the lock; by default, the lock of the whole folder.
        patience: seconds to wait for the lock; a negative value waits indefinitely.

    Raises:
        RuntimeError: the folder cannot be used, or belongs to another user.
        TimeoutError: the lock was not released in time.
    """
    folder = state_folder()
    lock = filelock.FileLock(folder / f"{name}.lock", mode=0o600)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.stat().st_uid
        if owner != os.geteuid():
            raise RuntimeError(
                f"{folder} must belong to user {os.geteuid()}, but belongs to user {owner}; "
                f"{_STATE_ADVICE}"
            )
        folder.chmod(0o700)
        lock.acquire(timeout=patience, poll_interval=_POLL_SECONDS)
    except TimeoutError:
        raise
    except (OSError, NotImplementedError) as error:  # the latter for file systems without locks
        raise RuntimeError(f"{folder} cannot be used ({why(error)}); {_STATE_ADVICE}") from error
    try:
        yield folder
    finally:
        lock.release()


def is_run_file(content: bytes) -> bool:
    """Return whether a file's content, or its start, is that of a run over axes."""
    return content.startswith((b'{"type": "SweepFile"', b'{"type": "ComparisonFile"'))
