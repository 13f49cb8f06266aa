"""Processes of two interpreters that run the same layers or tests on one GPU.

They answer questions; see probe.py and pytest_probe.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from convtime.conv.plan_log import chosen_tags
from convtime.core.checks import require
from convtime.core.child import START_SECONDS, Child, ChildError
from convtime.core.errors import InputError

_AT_ONCE = 4  # pairs of processes, each with torch and a CUDA context
_ANSWER_SECONDS = 300.0  # a layer's first call may compile
# The C library keeps freed memory for later calls. Otherwise a process may return it after each
# call and map its pages again in the next one, which depends on what else it has allocated.
KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
# With -c, the working directory is on the import path, which the model may need. The empty message
# shows that the program is a Python interpreter.
_BOOT = (
    "import runpy, sys; from multiprocessing.connection import Connection; "
    "parent = Connection(int(sys.argv.pop())); parent.send_bytes(b''); "
    "runpy.run_path(sys.argv.pop(1), {'parent': parent}, '__main__')"
)


class FailedError(Exception):
    """An interpreter cannot run a layer; the message is a sentence."""


class Side(Child):
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

        Raises:
            InputError: there is no such interpreter.
        """
        self.which = which
        self.environment: dict[str, Any] = {}
        self.loaded: dict[str, Any] = {}
        path = shutil.which(python)
        if path is None:
            raise InputError(
                f"--{which} must be a Python interpreter, such as /path/to/venv/bin/python; "
                f"{python!r} does not exist or is not executable"
            )
        self._python = path
        self._load = load
        self._folder = tempfile.TemporaryDirectory(prefix="convtime-upgrade-")
        self._plan_log = Path(self._folder.name, "frontend.log")  # of cuDNN's frontend
        self._plan_log.touch()
        variables = {name: os.environ.get(name, value) for name, value in KEPT_MEMORY.items()}
        if logs:
            variables["CUDNN_FRONTEND_LOG_INFO"] = "1"
            variables["CUDNN_FRONTEND_LOG_FILE"] = str(self._plan_log)
        super().__init__(command=[self._python, "-c", _BOOT, *program], variables=variables)

    def __exit__(self, *exception: Any) -> None:
        self.end()
        super().__exit__(*exception)
        self._folder.cleanup()

    def ask_with_plans(self, do: str, **question: Any) -> tuple[dict[str, Any], str]:
        """Return the answer, and the tags of the plans that cuDNN built for it; empty for none."""
        start = self._plan_log.stat().st_size
        answer = self.ask(do, **question)
        with self._plan_log.open("rb") as file:
            file.seek(start)
            return answer, ", ".join(chosen_tags(file.read().decode(errors="replace")))

    @property
    def on_gpu(self) -> bool:
        """Whether it runs layers on a GPU; known once the process is ready."""
        return self.environment["gpu"] is not None

    @property
    def kind(self) -> str:
        return "cuda" if self.on_gpu else "cpu"

    def settings(self) -> dict[str, str]:
        """Return the versions and settings, by name."""
        facts = {**self.environment, "threads": self.loaded["threads"]}
        flags = self.loaded["flags"]
        if not self.on_gpu:  # these have no effect
            flags = {name: flags[name] for name in flags if not name.startswith(("cudnn", "cuda"))}
        facts |= {f"flag {name}": value for name, value in flags.items()}
        return {name: str(value) for name, value in facts.items() if value is not None}

    def start(self) -> None:
        """Start the process if none runs, without waiting for it.

        Raises:
            InputError: the interpreter cannot be run.
        """
        if self.pid is not None:
            return
        try:
            super().start()
        except OSError as error:
            raise InputError(
                f"--{self.which}: {self._python} cannot be run ({error.strerror})"
            ) from error
        self._ask({"do": "environment"})

    def await_start(self) -> None:
        """Wait until the process, which is started if none runs, has imported torch.

        Raises:
            InputError: the interpreter cannot be used.
        """
        self.start()
        if self._is_ready:
            return
        with self._named_errors():
            try:
                super().await_start()
            except ChildError as error:
                raise FailedError(f"it {error}; it is perhaps not a Python interpreter") from None
            environment = self._answer(START_SECONDS)
            if self.environment and environment != self.environment:
                self.end()
                changed = ", ".join(
                    f"{what} {value} instead of {self.environment.get(what)}"
                    for what, value in environment.items()
                    if value != self.environment.get(what)
                )
                raise FailedError(f"its process started again with {changed}")
        self.environment = environment

    def load(self) -> None:
        """Wait for the process and load the layers or tests.

        Raises:
            InputError: the interpreter cannot be used, or not with these.
        """
        self.await_start()
        with self._named_errors():
            self._ask(self._load)
            try:
                self.loaded = self._answer(_ANSWER_SECONDS)
            except FailedError:
                self.end()  # the next question needs a process that has loaded them
                raise

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except FailedError as error:
            raise InputError(f"--{self.which} {self._python}: {error}") from error

    def ask(self, do: str, **question: Any) -> dict[str, Any]:
        """Return the answer to a question; a process that died before is started again.

        Raises:
            FailedError: the process died, or it cannot answer.
        """
        if self.pid is None:
            try:
                self.load()
            except InputError as error:
                raise FailedError(str(error)) from error
        self._ask({"do": do, **question})
        return self._answer(_ANSWER_SECONDS)

    def _ask(self, question: Mapping[str, Any]) -> None:
        self.send(json.dumps(question).encode())

    def _answer(self, seconds: float) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = json.loads(self.receive(seconds))
        except ChildError as error:
            raise FailedError(f"it {error}") from None
        if "unusable" in answer:
            if answer.get("broken"):
                self.end()
            raise FailedError(answer["unusable"])
        return answer


@dataclasses.dataclass(frozen=True)
class Interpreters:
    """Two interpreters and what both run.

    Attributes:
        old: path of the old interpreter.
        new: path of the new one.
        program: the file that both run, and the file's arguments.
        load: the question that loads the layers or tests; see probe.py and pytest_probe.py.
        command: command that runs a layer or test again, before its name.
    """

    old: str
    new: str
    program: tuple[str, ...]
    load: Mapping[str, Any]
    command: str

    def pairs(self, count: int, *, first_logs: bool = False) -> Generator[tuple[Side, Side]]:
        """Yield pairs of fresh processes; a pair ends before the next one is yielded.

        They start together, since the import of torch takes longer than many timings, and before
        the first pair is yielded, since it would disturb these.

        Args:
            count: number of pairs.
            first_logs: whether cuDNN's frontend logs its plans in the first pair.

        Raises:
            InputError: an interpreter cannot be used, or they use different GPUs.
        """
        for first in range(0, count, _AT_ONCE):
            with contextlib.ExitStack() as processes:
                waiting: list[tuple[Side, Side]] = []
                for number in range(first, min(count, first + _AT_ONCE)):
                    logs = first_logs and number == 0
                    old, new = (
                        processes.enter_context(
                            Side(which, python, self.program, self.load, logs=logs)
                        )
                        for which, python in (("old", self.old), ("new", self.new))
                    )
                    old.start()
                    new.start()
                    waiting.append((old, new))
                started, error = _await_start(waiting)
                for sides in started:
                    yield _load(sides)
                    for side in sides:
                        side.end()
                if error is not None:
                    raise error


def _await_start(
    waiting: list[tuple[Side, Side]],
) -> tuple[list[tuple[Side, Side]], InputError | None]:
    """Wait for pairs; return those before the first that does not start, and why it does not."""
    started: list[tuple[Side, Side]] = []
    try:
        for sides in waiting:
            for side in sides:
                side.await_start()
            started.append(sides)
    except InputError as error:
        return started, error
    return started, None


def _load(sides: tuple[Side, Side]) -> tuple[Side, Side]:
    for side in sides:
        side.load()
    old, new = (side.environment["gpu_uuid"] for side in sides)
    require(
        old == new,
        f"--old and --new must run on the same GPU, but used {old} and {new}; "
        "set CUDA_VISIBLE_DEVICES",
    )
    return sides
