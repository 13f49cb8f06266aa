"""The torch ops as functions: the six convolutions, their gradients, and fused kernels.

Importing this module registers them with torch as torch.ops.convtime, together with the ops for
tests of timers.
"""

from convtime.ops import batching as _batching
from convtime.ops import fakes as _fakes
from convtime.ops.convolutions import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from convtime.ops.epilogue import conv1d_epilogue, conv2d_epilogue, conv3d_epilogue
from convtime.ops.gradients import (
    conv1d_bias,
    conv1d_input,
    conv1d_weight,
    conv2d_bias,
    conv2d_input,
    conv2d_weight,
    conv3d_bias,
    conv3d_input,
    conv3d_weight,
    conv_transpose1d_input,
    conv_transpose1d_weight,
    conv_transpose2d_input,
    conv_transpose2d_weight,
    conv_transpose3d_input,
    conv_transpose3d_weight,
)
from convtime.ops.mlp import mlp
from convtime.ops.pooling import relu_max_pool2d

__all__ = [
    "conv1d",
    "conv1d_bias",
    "conv1d_epilogue",
    "conv1d_input",
    "conv1d_weight",
    "conv2d",
    "conv2d_bias",
    "conv2d_epilogue",
    "conv2d_input",
    "conv2d_weight",
    "conv3d",
    "conv3d_bias",
    "conv3d_epilogue",
    "conv3d_input",
    "conv3d_weight",
    "conv_transpose1d",
    "conv_transpose1d_input",
    "conv_transpose1d_weight",
    "conv_transpose2d",
    "conv_transpose2d_input",
    "conv_transpose2d_weight",
    "conv_transpose3d",
    "conv_transpose3d_input",
    "conv_transpose3d_weight",
    "mlp",
    "relu_max_pool2d",
]

del _batching, _fakes
