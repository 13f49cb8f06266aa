"""A chosen plan by hand."""

from __future__ import annotations

from convtime import Ratio
from convtime.conv.plans.plan_set import (
    Choice,
    Operand,
    PlanProblem,
    Plans,
    SearchFacts,
    StoredPlan,
)
from convtime.device.provenance import cudnn_version

PROBLEM = PlanProblem(
    "fprop",
    "float16",
    Operand((8, 64, 28, 28), (50176, 1, 1792, 64), 32),
    Operand((32, 64, 3, 3), (576, 1, 192, 64), 32),
    Operand((8, 32, 28, 28), (25088, 1, 896, 32), 32),
    (1, 1),
    (1, 1),
    (1, 1),
    deterministic=False,
    allow_tf32=True,
)
FACTS = SearchFacts(
    pytorch_tag="eng1_k2=0",
    pytorch_seconds=20e-6,
    seconds=16e-6,
    speedup=Ratio(1.25, 1.2, 1.3),
    error=3e-4,
    pytorch_error=3e-4,
    workspace_bytes=4096,
    repeats=True,
    raced=40,
    ties=("eng38_k2=8",),
    inexact=(("<b>eng9</b>", 1e-2),),
    refused=(("eng4", "not supported"),),
)
ENTRY = StoredPlan("conv1", PROBLEM, 90, 132, Choice("cudnn", 38, ((2, 8), (13, 1))), 3, FACTS)
PLANS = Plans((ENTRY,), 0.01, {"cudnn": cudnn_version(), "torch": "2.15.0"})
