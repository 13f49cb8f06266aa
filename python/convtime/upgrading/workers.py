"""Processes of two interpreters that answer questions; see probe.py and pytest_probe.py."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from convtime.conv.plan_log import kept_tags
from convtime.core.errors import InputError
from convtime.upgrading.probe import ANSWER

_START_SECONDS = 180.0  # the import of torch from a cold disk, and the start of CUDA
_ANSWER_SECONDS = 300.0  # a layer's first call may compile
# The C library keeps freed memory for later calls. Otherwise a process may return it after each
# call and map its pages again in the next one, which depends on what else it has allocated.
KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
# With -c, the working directory is on the import path, which the model may need. The first line
# shows that the program is a Python interpreter.
_BOOT = (
    f"import runpy, sys; print({ANSWER + 'null'!r}, flush=True); "
    "runpy.run_path(sys.argv.pop(1), run_name='__main__')"
)
# Lines of the profiler's log, and the end of what Python writes about a crash.
_NO_REASON = re.compile(r"(USDT|INFO|WARNING|ERROR):\d{4}-|Extension modules:")


class FailedError(Exception):
    """An interpreter cannot run a layer; the message is a sentence."""


class Side:
    """One interpreter, with a process that starts with the first question and after it died.

    Use it as a context manager.
    """

    def __init__(
        self,
        which: str,
        python: str,
        program: Sequence[str],
        load: Mapping[str, Any],
        *,
        logs: bool = False,
    ) -> None:
        """Prepare the process.

        Args:
            which: ``old`` or ``new``, for messages.
            python: the interpreter.
            program: the file that it runs, and the file's arguments.
            load: the question that loads the layers or tests.
            logs: whether cuDNN's frontend logs its plans, which makes calls slower.
        """
        self.which = which
        self.environment: dict[str, Any] = {}
        self.loaded: dict[str, Any] = {}
        self._command = [executable(which, python), "-c", _BOOT, *program]
        self._load = load
        self._logs = logs
        self._process: subprocess.Popen[str] | None = None
        self._has_started = False
        self._runs_python = False
        self._told_bytes = 0  # of standard error, before the last answer
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._folder = tempfile.TemporaryDirectory(prefix="convtime-upgrade-")

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()
        self._folder.cleanup()

    @property
    def _plan_log(self) -> Path:
        """The file to which cuDNN's frontend logs its plans."""
        return Path(self._folder.name, "frontend.log")

    def ask_with_plans(self, do: str, **question: Any) -> tuple[dict[str, Any], str]:
        """Return the answer, and the tags of the plans that cuDNN built for it; empty for none."""
        start = self._plan_log.stat().st_size if self._plan_log.exists() else 0
        answer = self.ask(do, **question)
        if not self._plan_log.exists():
            return answer, ""
        with self._plan_log.open("rb") as file:
            file.seek(start)
            return answer, ", ".join(kept_tags(file.read().decode(errors="replace")))

    def settings(self) -> dict[str, str]:
        """Return the versions and settings, by name."""
        facts = {**self.environment, "threads": self.loaded["threads"]}
        flags = self.loaded["flags"]
        if self.environment["gpu"] is None:  # these have no effect
            flags = {name: flags[name] for name in flags if not name.startswith(("cudnn", "cuda"))}
        facts |= {f"flag {name}": value for name, value in flags.items()}
        return {name: str(value) for name, value in facts.items() if value is not None}

    def begin(self) -> None:
        """Start the process without waiting for it."""
        variables = {**KEPT_MEMORY, **os.environ}
        if self._logs:
            variables |= {
                "CUDNN_FRONTEND_LOG_INFO": "1",
                "CUDNN_FRONTEND_LOG_FILE": str(self._plan_log),
            }
        with self._errors().open("wb") as errors:
            try:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    errors="replace",  # a script can print in any encoding
                    env=variables,
                    start_new_session=True,  # a script can start the interpreter as its child
                )
            except OSError as error:
                raise InputError(
                    f"--{self.which}: {self._command[0]} cannot be run ({error.strerror})"
                ) from error
        self._lines = queue.Queue()
        self._has_started = self._runs_python = False
        self._told_bytes = 0
        threading.Thread(
            target=self._read_lines, args=(self._process.stdout, self._lines), daemon=True
        ).start()
        self._send({"do": "environment"})

    def await_start(self) -> None:
        """Wait until the process, which is begun if it has not been, has imported torch.

        Raises:
            InputError: the interpreter cannot be used.
        """
        if self._process is None:
            self.begin()
        if self._has_started:
            return
        with self._named_errors():
            environment = self._receive(_START_SECONDS)
            if self.environment and environment != self.environment:
                self.end()
                raise FailedError(f"its process started again with {_changed(self, environment)}")
        self.environment = environment
        self._has_started = True

    def load(self) -> None:
        """Wait for the process and load the layers or tests.

        Raises:
            InputError: the interpreter cannot be used, or not with these.
        """
        self.await_start()
        with self._named_errors():
            self._send(self._load)
            try:
                self.loaded = self._receive(_ANSWER_SECONDS)
            except FailedError:
                self.end()  # the next question needs a process that has loaded them
                raise

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except FailedError as error:
            raise InputError(f"--{self.which} {self._command[0]}: {error}") from error

    def ask(self, do: str, **question: Any) -> dict[str, Any]:
        """Return the answer to a question; a process that died before is started again.

        Raises:
            FailedError: the process died, or it cannot answer.
        """
        if self._process is None:
            try:
                self.load()
            except InputError as error:
                raise FailedError(str(error)) from error
        self._send({"do": do, **question})
        return self._receive(_ANSWER_SECONDS)

    def _send(self, question: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        # A process that has ended rejects writes; its output says why.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()

    def _receive(self, patience: float) -> dict[str, Any]:
        assert self._process is not None
        try:
            line = self._lines.get(timeout=patience)
        except queue.Empty:
            self.end()
            raise FailedError(f"it gave no answer in {patience:.0f} s") from None
        if line is None:
            status = self._process.wait()
            how = f"by signal {-status}" if status < 0 else f"with exit code {status}"
            self.end()
            no_python = "" if self._runs_python else "; it is perhaps not a Python interpreter"
            raise FailedError(f"it ended {how}{self._last_error()}{no_python}")
        self._told_bytes = self._errors().stat().st_size
        answer: dict[str, Any] = json.loads(line)
        if "unusable" in answer:
            if answer.get("broken"):
                self.end()
            raise FailedError(answer["unusable"])
        return answer

    def _errors(self) -> Path:
        return Path(self._folder.name, "errors.txt")

    def _last_error(self) -> str:
        written = self._errors().read_bytes()[self._told_bytes :].decode(errors="replace")
        lines = [line for line in written.splitlines() if line and not _NO_REASON.match(line)]
        # Python ends with one line about an error, but begins with one about a signal.
        told = lines[-1:]
        for number, line in enumerate(lines):
            if line.startswith("Fatal Python error"):
                told = [line]
            elif line.startswith("ERROR: ") and self._load.get("do") == "load_tests":
                told = lines[number:]  # pytest ends with several lines about an error
        sentence = " ".join(" ".join(told).split())
        return f" ({sentence})" if sentence else ""

    def end(self) -> None:
        """End the process, if there is one."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def _read_lines(self, stream: IO[str] | None, lines: queue.Queue[str | None]) -> None:
        assert stream is not None
        try:
            with stream:
                for line in stream:
                    _, marker, answer = line.partition(ANSWER)
                    if answer.strip() == "null":
                        self._runs_python = True
                    elif marker:
                        lines.put(answer)
        finally:
            lines.put(None)


def executable(which: str, python: str) -> str:
    """Return the path of an interpreter.

    Raises:
        InputError: there is none.
    """
    found = shutil.which(python)
    if found is None:
        raise InputError(
            f"--{which} must be a Python interpreter, such as /path/to/venv/bin/python; "
            f"{python!r} does not exist or is not executable"
        )
    return found


def _changed(side: Side, environment: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{what} {value} instead of {side.environment.get(what)}"
        for what, value in environment.items()
        if value != side.environment.get(what)
    )
