"""Drop-in modules: PyTorch's layers computed by convtime's ops, fused layers, and MLPs."""

from convtime.nn.chains import FusedConvolution
from convtime.nn.fused_mlp import FusedMLP
from convtime.nn.fusion import FusedModel, Fusing, Fusion, fuse, fusing
from convtime.nn.layers import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvEpilogue1d,
    ConvEpilogue2d,
    ConvEpilogue3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    ReLUMaxPool2d,
)
from convtime.nn.mlp_trainer import MLPTrainer
from convtime.nn.replacement import Replacement, replace, restore

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvEpilogue1d",
    "ConvEpilogue2d",
    "ConvEpilogue3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "FusedConvolution",
    "FusedMLP",
    "FusedModel",
    "Fusing",
    "Fusion",
    "MLPTrainer",
    "ReLUMaxPool2d",
    "Replacement",
    "fuse",
    "fusing",
    "replace",
    "restore",
]
