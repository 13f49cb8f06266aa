"""Python processes that answer lines, each by a row that they give by running.print_result."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Mapping

import results

from common.running import printed_results, python_path


class Server:
    """Such a process, called `name` in errors; after `patience` seconds of silence it is ended."""

    def __init__(
        self,
        name: str,
        arguments: list[str],
        environment: Mapping[str, str],
        patience: float = 3600.0,
    ) -> None:
        self._name, self._patience = name, patience
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": python_path(), **environment},
        )

    def ask(self, line: str) -> results.Row:
        assert self._process.stdin is not None
        # One that is gone refuses what is written; how it ended is told below.
        with contextlib.suppress(BrokenPipeError):
            print(line, file=self._process.stdin, flush=True)
        return self.read()

    def read(self) -> results.Row:
        """The next row; RuntimeError where the process ends, or has to be ended, without one."""
        assert self._process.stdout is not None
        timer = threading.Timer(self._patience, self._process.kill)
        timer.start()
        try:
            for line in self._process.stdout:
                for found in printed_results(line):
                    row: results.Row = found
                    return row
        finally:
            timer.cancel()
        raise RuntimeError(f"{self._name} ended with {self._process.wait()}")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
