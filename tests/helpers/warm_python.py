"""A Python interpreter that has already imported torch, for tests that start many processes.

The import takes seconds. A server imports torch once, and forks a process for each call of an
executable that takes the arguments ``-c`` and ``-m`` as Python does, with the caller's working
directory, environment and inherited descriptors. Other arguments start a real interpreter.
"""

from __future__ import annotations

import fcntl
import json
import os
import runpy
import select
import signal
import socket
import stat
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

_MOST_DESCRIPTORS = 64
_UNUSED = 1000  # and above: numbers of descriptors that no process has


@contextmanager
def warm_python(folder: Path) -> Iterator[str]:
    """Start the server, and yield the path of the executable."""
    # Unix sockets have short paths: relative to the server's working directory.
    # One thread for each process, next to those of other tests.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve"], cwd=folder, stdin=subprocess.PIPE, env=environment
    )
    executable = folder / "python"
    executable.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -S -E "{__file__}" "{folder}/socket" "$@"\n'
    )
    executable.chmod(executable.stat().st_mode | stat.S_IXUSR)
    try:
        yield str(executable)
    finally:
        server.communicate()


def main() -> None:
    """Be the server, or the executable that has it fork."""
    if sys.argv[1:] == ["--serve"]:
        serve()
        return
    path, *arguments = sys.argv[1:]
    if arguments[:1] not in (["-c"], ["-m"]):
        os.execv(sys.executable, [sys.executable, *arguments])
    with socket.socket(socket.AF_UNIX) as connection:
        folder = os.getcwd()
        os.chdir(Path(path).parent)
        while True:
            try:
                connection.connect(Path(path).name)
                break
            except (FileNotFoundError, ConnectionRefusedError):  # the server is still starting
                select.select([], [], [], 0.02)
        inherited = [*inherited_descriptors()]
        request = json.dumps([inherited, arguments, folder, dict(os.environ)]).encode()
        socket.send_fds(connection, [len(request).to_bytes(4, "big")], inherited)
        connection.sendall(request)
        status = int(connection.recv(16))
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def inherited_descriptors() -> Iterator[int]:
    """Yield the numbers of descriptors that this process got from its parent."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one of the folder is closed again
            if os.get_inheritable(int(name)):
                yield int(name)


def serve() -> None:
    """Fork a keeper for each connection, until standard input closes."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.new")
        listener.listen(64)
        import torch
        import torch.fx.experimental.symbolic_shapes  # noqa: F401 (for the first backward pass)

        Path("socket.new").rename("socket")
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers leave no zombies
        while True:
            ready, _, _ = select.select([listener.fileno(), 0], [], [])
            if 0 in ready:
                return
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    keep(connection)


def keep(connection: socket.socket) -> NoReturn:
    """Fork the process that was asked for, and tell how it ended; kill it if its caller dies."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, streams, _, _ = socket.recv_fds(connection, 4, _MOST_DESCRIPTORS)
    request = b""
    while len(request) < int.from_bytes(size, "big"):
        request += connection.recv(2**16)
    inherited, *asked = json.loads(request)
    child = os.fork()
    if child == 0:
        connection.close()
        # A number can be wanted for one descriptor, and have been given to another one.
        moved = [fcntl.fcntl(stream, fcntl.F_DUPFD, _UNUSED) for stream in streams]
        for stream in streams:
            os.close(stream)
        for stream, wanted in zip(moved, inherited, strict=True):
            os.dup2(stream, wanted)
            os.close(stream)
        run(*asked)
    for stream in (*streams, 0, 1, 2):
        os.close(stream)  # their readers wait for the child alone
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([ended, connection.fileno()], [], [])
    if ended not in ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with suppress(BrokenPipeError):  # nobody waits any more
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def run(arguments: list[str], folder: str, environment: dict[str, str]) -> NoReturn:
    """Run what the arguments of ``python`` ask for, and exit as it would."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    paths = [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]
    paths = [os.path.abspath(each) for each in paths]
    sys.path[:] = [*paths, *(each for each in sys.path[1:] if each not in paths)]
    how, what, *rest = arguments
    if "PYTHONSAFEPATH" not in environment:
        sys.path.insert(0, "" if how == "-c" else folder)
    if how == "-c":
        sys.argv = ["-c", *rest]
        sys.modules["__main__"] = main_module = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), vars(main_module))
    else:
        sys.argv = ["-m", *rest]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    main()
