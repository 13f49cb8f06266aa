"""What pytest runs for the gate: a test an operation, on as much data as GATE_SIZES says."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import torch

from gate_parts.operations import call_of

SIZES: dict[str, int] = json.loads(os.environ["GATE_SIZES"])
DEVICE = torch.device(os.environ["GATE_DEVICE"])


@pytest.mark.parametrize("name", SIZES)
def test_operation(time_op: Any, name: str) -> None:
    call = call_of(name, DEVICE, SIZES[name])
    time_op(call.func, *call.args, kwargs=call.keywords)
