"""Measures calls in another process, for what PyTorch and cuDNN read from the environment once.

Run as a module it is that process: it answers a line of JSON, a call, by its row.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import results
import torch
from common.running import print_result
from common.served import Server

from conv_match import MODE_B, PASSES, tells_of_a_lost_gpu
from conv_match.passes import measure_call
from conv_match.searches import measure_searches
from convtime.conv.call import ConvCall
from convtime.conv.plan_oracle import PlanOracle
from convtime.core import codec

_LOG = "CUDNN_FRONTEND_LOG_FILE"
_ANSWER_SECONDS = 300.0  # a search of a large problem takes a minute


class Child:
    """The process, started with the first call, and again with the next one after it ended."""

    def __init__(self, what: str, device: torch.device) -> None:
        """`what` is MODE_B, where heuristics are those of mode B, or SEARCHES."""
        self._what = what
        self._device = device
        self._server: Server | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="convtime-child-")

    def close(self) -> None:
        self._end()
        self._folder.cleanup()

    def measure(self, call: ConvCall) -> results.Row:
        """The call's row, less its key; with an error where the process does not survive it."""
        if self._server is None:
            self._server = self._start()
        try:
            row = self._server.ask(json.dumps(codec.encode(call)))
        except RuntimeError as error:
            self._end()
            place = "passes" if self._what == MODE_B else "searches"
            entry = {"backend": "Cudnn", "error": str(error)}
            return {"problem": codec.encode(call), place: {PASSES[0]: entry}}
        if tells_of_a_lost_gpu(json.dumps(row)):
            self._end()  # every later call of that process would fail
        return row

    def _start(self) -> Server:
        environment = {}
        if self._what == MODE_B:
            environment["TORCH_CUDNN_USE_HEURISTIC_MODE_B"] = "1"
        else:
            log = Path(self._folder.name, "frontend.log")
            log.unlink(missing_ok=True)  # the process before wrote it, and PyTorch begins it anew
            environment |= {"CUDNN_FRONTEND_LOG_INFO": "1", _LOG: str(log)}
        server = Server(
            f"the process that measures {self._what}",
            ["-m", "conv_match.child", self._what, str(self._device)],
            environment,
            _ANSWER_SECONDS,
        )
        server.read()  # it has started
        return server

    def _end(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None


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
