"""Child processes: what runs in one can crash, hang, or need other settings than this process.

A child does one job at a time. It starts with the first one, and again with the next one after it
ended. It ends with this process, however that ends; Ctrl-C interrupts this process alone.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from convtime.core.errors import first_line

if TYPE_CHECKING:
    from typing_extensions import Self

START_SECONDS = 180.0  # importing torch from a cold disk, and CUDA initialization
_END_SECONDS = 10.0  # of an idle process, which runs its exit handlers
_SERVE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from convtime.core import child; child.serve(int(sys.argv[2]))"
)
# Hints of PyTorch, the profiler's log, and what Python adds to a crash can follow a reason.
_REASON = re.compile(r"[\w.]+(Error|Exception)\b|Fatal Python error|ERROR: ")
_NO_REASON = re.compile(r"\s*$|(USDT|INFO|WARNING|ERROR):\d{4}-|Extension modules:")
_parent: Connection[Any, Any]  # of a process that does jobs


class ChildError(Exception):
    """A child gave no answer; the message continues a sentence, as in "ended by SIGKILL".

    Its cause is the job's error, if the job raised one.

    Attributes:
        code: the exit code of a process that ended, which is negative for a signal.
    """

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


def job(function: Callable[..., Any], *args: Any, **kwargs: Any) -> bytes:
    """Pickle a call of a function that a child can import."""
    return pickle.dumps((function, args, kwargs))


class Child:
    """A child process; use it as a context manager."""

    def __init__(
        self,
        first: bytes = b"",
        *,
        command: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        shows_output: bool = False,
    ) -> None:
        """Prepare the process.

        Args:
            first: a job that each new process does before it is ready; empty for none.
            command: a program, whose last argument becomes the file descriptor of a
                :class:`multiprocessing.connection.Connection` to this process, over which it first
                sends an empty message; empty for a process that does jobs.
            variables: environment variables that differ from those of this process.
            shows_output: whether it has the standard output and error of this process; otherwise
                failures quote what it writes there.
        """
        self._first = first
        self._command = command
        self._variables = variables or {}
        self._output = None if shows_output else tempfile.TemporaryFile()  # noqa: SIM115
        self._read_bytes = 0  # of the output, up to the last message
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection[Any, Any]
        self._is_ready = False
        self._killed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.end(0.0 if error else _END_SECONDS)
        if self._output is not None:
            self._output.close()

    @property
    def pid(self) -> int | None:
        """The ID of the process; None if none runs."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def start(self) -> None:
        """Start the process if none runs, without waiting until it is ready.

        Raises:
            OSError: the command cannot be run.
            ChildError: it was killed for good.
        """
        if self.pid is not None:
            return
        if self._killed.is_set():
            raise ChildError("was ended")
        self.end()
        self._pipe, theirs = multiprocessing.Pipe()
        with theirs:  # so that the pipe ends with the process
            self._process = subprocess.Popen(
                [
                    *(self._command or (sys.executable, "-c", _SERVE, json.dumps(sys.path))),
                    str(theirs.fileno()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env={**os.environ, **self._variables},
                start_new_session=True,  # without Ctrl-C; processes that it starts end with it
            )
        self._is_ready = False
        if not self._command:
            self.send(self._first)
        if self._killed.is_set():  # meanwhile
            self._kill()

    def await_start(self) -> None:
        """Wait until the process, which is started if none runs, is ready.

        Raises:
            ChildError: it cannot start.
        """
        self.start()
        if not self._is_ready:
            self.receive(START_SECONDS)
            self._is_ready = True

    def call(
        self, job: bytes, seconds: float | None, on_report: Callable[[Any], float] | None = None
    ) -> Any:
        """Return the result of a job.

        Args:
            job: what :func:`job` returned.
            seconds: time limit after the start; None for none.
            on_report: is called with each value that the job passes to :func:`report`, and returns
                the time limit from then on.

        Raises:
            ChildError: the job failed, the process ended, or it was ended at the time limit.
        """
        self.await_start()
        self.send(job)
        while True:
            kind, value = pickle.loads(self.receive(seconds))  # noqa: S301 (from our own process)
            if kind == "result":
                return value
            if kind == "error":
                raise ChildError(f"failed ({first_line(value)})") from value
            if on_report is not None:
                seconds = on_report(value)

    def send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended; receive() says why
            self._pipe.send_bytes(message)

    def receive(self, seconds: float | None) -> bytes:
        """Return the program's next message.

        Raises:
            ChildError: the process ended, or it was ended at the time limit.
        """
        try:
            if not self._pipe.poll(seconds):
                raise ChildError(f"gave no answer in {seconds:.0f} s")
            message = self._pipe.recv_bytes()
        except (EOFError, OSError):
            raise self._end_of_process() from None
        except BaseException:  # also Ctrl-C: no later job may get this one's answer
            self.end()
            raise
        if self._output is not None:
            self._read_bytes = os.fstat(self._output.fileno()).st_size
        return message

    def _end_of_process(self) -> ChildError:
        """Return how the process ended, which has closed its pipe."""
        process = self._process
        assert process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        self.end()
        output = b""
        if self._output is not None:
            file = self._output.fileno()
            # Not by read(): what it started may still write, at the position that all share.
            output = os.pread(file, os.fstat(file).st_size - self._read_bytes, self._read_bytes)
        return ended(process.returncode, output.decode(errors="replace"))

    def kill(self) -> None:
        """End the process and those that it started, for good; another thread may call this."""
        self._killed.set()
        self._kill()

    def _kill(self) -> None:
        if (process := self._process) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def end(self, patience: float = 0.0) -> None:
        """End the process, if there is one, and those that it started.

        Args:
            patience: seconds that an idle process has to end by itself.
        """
        if self._process is None:
            return
        if patience:
            self.send(b"")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
        self._kill()
        self._process.wait()
        self._process = None
        self._pipe.close()


def ended(code: int, output: str) -> ChildError:
    """Return how a process ended, with the line of its output that says why."""
    lines = [line for line in output.splitlines() if not _NO_REASON.match(line)]
    reasons = [line for line in lines if _REASON.match(line)] or lines
    reason = f" ({' '.join(reasons[-1].split())})" if reasons else ""
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return ChildError(f"ended {how}{reason}", code)


def report(value: object) -> None:
    """Pass a value from a job to the process that waits for its result."""
    _parent.send_bytes(pickle.dumps(("report", value)))


def serve(descriptor: int) -> None:
    """Do the jobs of the parent, until it sends none or ends."""
    global _parent
    _parent = Connection(descriptor)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if first := _parent.recv_bytes():
        _do(first)
    _parent.send_bytes(b"")
    while job := _parent.recv_bytes():
        try:
            answer = pickle.dumps(("result", _do(job)))
        except Exception as error:
            answer = pickle.dumps(("error", _sendable(error)))
        _parent.send_bytes(answer)


def _do(job: bytes) -> Any:
    function, args, kwargs = pickle.loads(job)  # noqa: S301 (from the parent)
    return function(*args, **kwargs)


def _end_with_parent() -> None:
    pipe = select.poll()
    pipe.register(_parent.fileno(), 0)  # for its end only
    pipe.poll()
    os._exit(1)


def _sendable(error: Exception) -> Exception:
    """Return an error, or a RuntimeError with its text if another process cannot have it."""
    with contextlib.suppress(Exception):  # whatever the error's own methods raise
        pickle.loads(pickle.dumps(error))  # noqa: S301
        return error
    return RuntimeError(first_line(error))
