"""Measures calls in another process, for what PyTorch and cuDNN read from the environment once."""

import json
import tempfile
from pathlib import Path

import results
import torch

from conv_match import MODE_B, PASSES, tells_of_a_lost_gpu
from conv_match.passes import measure_call
from conv_match.searches import measure_searches
from convtime.conv.call import ConvCall
from convtime.core import codec
from convtime.core.child import Child, ChildError, job

_ANSWER_SECONDS = 300.0  # a search of a large problem takes a minute


class Process(Child):
    def __init__(self, what: str, device: torch.device) -> None:
        """`what` is MODE_B, where heuristics are those of mode B, or SEARCHES."""
        self._what, self._device = what, device
        self._folder = tempfile.TemporaryDirectory(prefix="convtime-child-")
        self._log = Path(self._folder.name, "frontend.log")
        variables = {"TORCH_CUDNN_USE_HEURISTIC_MODE_B": "1"}
        if what != MODE_B:
            logging = {"CUDNN_FRONTEND_LOG_INFO": "1", "CUDNN_FRONTEND_LOG_FILE": str(self._log)}
            variables = logging
        super().__init__(variables=variables, shows_output=True)

    def measure(self, call: ConvCall) -> results.Row:
        """The call's row, less its key; with an error where the process does not survive it."""
        if self.pid is None:
            self._log.unlink(missing_ok=True)  # the process before wrote it
        question = job(_measure, self._what, call, self._device, self._log)
        try:
            row: results.Row = self.call(question, _ANSWER_SECONDS)
        except ChildError as error:
            self.end()
            place = "passes" if self._what == MODE_B else "searches"
            entry = {"backend": "Cudnn", "error": f"the process that measures {self._what} {error}"}
            return {"problem": codec.encode(call), place: {PASSES[0]: entry}}
        if tells_of_a_lost_gpu(json.dumps(row)):
            self.end()  # every later call of that process would fail
        return row


def _measure(what: str, call: ConvCall, device: torch.device, log: Path) -> results.Row:
    torch.cuda.set_device(device)
    try:
        if what == MODE_B:
            return measure_call(call, device)
        return measure_searches(call, device, log)
    finally:
        torch.cuda.empty_cache()
