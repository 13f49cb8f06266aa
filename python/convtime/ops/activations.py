"""The activations that can follow a convolution, implemented by PyTorch's own functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch.nn import functional as F

Activation = Literal[
    "identity",
    "relu",
    "relu6",
    "leaky_relu",
    "gelu",
    "gelu_tanh",
    "silu",
    "sigmoid",
    "tanh",
]

# Functions of a tensor and the negative slope of leaky_relu.
FUNCTIONS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "identity": lambda x, _slope: x,
    "relu": lambda x, _slope: torch.relu(x),
    "relu6": lambda x, _slope: F.relu6(x),
    "leaky_relu": F.leaky_relu,
    "gelu": lambda x, _slope: F.gelu(x),
    "gelu_tanh": lambda x, _slope: F.gelu(x, approximate="tanh"),
    "silu": lambda x, _slope: F.silu(x),
    "sigmoid": lambda x, _slope: torch.sigmoid(x),
    "tanh": lambda x, _slope: torch.tanh(x),
}
