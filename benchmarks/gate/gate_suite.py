"""What pytest runs for the gate: a test per operation, on as much data as GATE_SIZES says."""

import json
import os
from typing import Any

import pytest
import torch

from gate.operations import ON_CPU, call_of
from gate.operations import SIZES as USUAL_SIZES

SIZES: dict[str, int] = json.loads(os.environ["GATE_SIZES"])
DEVICE = torch.device(os.environ["GATE_DEVICE"])


@pytest.mark.parametrize("name", [name for name in SIZES if name not in ON_CPU])
def test_operation(time_op: Any, name: str) -> None:
    call = call_of(name, DEVICE, SIZES[name])
    time_op(call.func, *call.args, kwargs=call.keywords)


@pytest.mark.parametrize("name", [name for name in SIZES if name in ON_CPU])
def test_operation_on_the_cpu(compare: Any, name: str) -> None:
    """Beside a baseline: others use the machine, and set the core's clock."""
    baseline, call = (call_of(name, DEVICE, sizes[name]) for sizes in (USUAL_SIZES, SIZES))
    compare({"baseline": baseline, "call": call}, check=None, interference=False)
