"""Measures calls in another process, for what PyTorch and cuDNN read from the environment once.

Run as a module it is that process: it answers a line of JSON, a call, by its row.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import results
import torch
from common.running import RESULT, print_result

from conv_match_parts.passes import measure_call
from conv_match_parts.rows import MODE_B, PASSES, tells_of_a_lost_gpu
from conv_match_parts.searches import measure_searches
from convtime.conv.call import ConvCall
from convtime.conv.plan_oracle import PlanOracle
from convtime.core import codec

_COMMAND = (sys.executable, "-m", "conv_match_parts.child")
_LOG = "CUDNN_FRONTEND_LOG_FILE"
_ANSWER_SECONDS = 300.0  # a search of a large problem takes a minute


class Child:
    """The process, started with the first call, and again with the next one after it ended."""

    def __init__(self, what: str, device: torch.device) -> None:
        """`what` is MODE_B, where heuristics are those of mode B, or SEARCHES."""
        self._what = what
        self._device = device
        self._process: subprocess.Popen[str] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="convtime-child-")

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()
        self._folder.cleanup()

    def measure(self, call: ConvCall) -> results.Row:
        """The call's row, less its key; with an error where the process does not survive it.

        RuntimeError where the process cannot be started, as it could not for other calls.
        """
        if self._process is None:
            self._process = self._start()
            if self._answer(self._process) is None:
                status = self._process.wait()
                self._end()
                raise RuntimeError(f"the process that measures {self._what} ended with {status}")
        assert self._process.stdin is not None
        # One that is gone refuses what is written; how it ended is told below.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(codec.encode(call)) + "\n")
            self._process.stdin.flush()
        row = self._answer(self._process)
        if row is not None:
            if tells_of_a_lost_gpu(json.dumps(row)):
                self._end()  # every later call of that process would fail
            return row
        status = self._process.wait()
        self._end()
        entry = {"backend": "Cudnn", "error": f"the process that measures ended with {status}"}
        place = "passes" if self._what == MODE_B else "searches"
        return {"problem": codec.encode(call), place: {PASSES[0]: entry}}

    @staticmethod
    def _answer(process: subprocess.Popen[str]) -> results.Row | None:
        """What the process says next; None where it ends, or has to be ended, without a word."""
        assert process.stdout is not None
        patience = threading.Timer(_ANSWER_SECONDS, process.kill)
        patience.start()
        try:
            for line in process.stdout:
                if line.startswith(RESULT):
                    row: results.Row = json.loads(line.removeprefix(RESULT))
                    return row
        finally:
            patience.cancel()
        return None

    def _start(self) -> subprocess.Popen[str]:
        paths = [str(results.HERE), os.environ.get("PYTHONPATH", "")]
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        if self._what == MODE_B:
            environment["TORCH_CUDNN_USE_HEURISTIC_MODE_B"] = "1"
        else:
            log = Path(self._folder.name, "frontend.log")
            log.unlink(missing_ok=True)  # the process before wrote it, and PyTorch begins it anew
            environment["CUDNN_FRONTEND_LOG_INFO"] = "1"
            environment[_LOG] = str(log)
        return subprocess.Popen(
            [*_COMMAND, self._what, str(self._device)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def main() -> None:
    what, name = sys.argv[1:]
    device = torch.device(name)
    torch.cuda.set_device(device)
    print_result({})  # it has started
    with PlanOracle(device) as oracle:  # which starts nothing until it is asked
        for line in sys.stdin:
            call = codec.decode(ConvCall, json.loads(line))
            if what == MODE_B:
                print_result(measure_call(call, oracle, device))
            else:
                print_result(measure_searches(call, device, Path(os.environ[_LOG])))
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
