"""Multi-layer perceptrons that one op computes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from convtime import ops
from convtime.core.checks import check_one_of, require
from convtime.core.errors import InputError
from convtime.ops.arguments import DTYPES

_ACTIVATIONS: dict[str, type[torch.nn.Module]] = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh}
# Padded widths on a GPU: one of these, or a multiple of the last.
_PADDED_WIDTHS = (16, 32, 64)


class FusedMLP(torch.nn.Module):
    """Linear layers with an activation between them, by :func:`convtime.ops.mlp`.

    It works in ordinary training loops, under autocast, and with torch.func's transforms;
    :class:`MLPTrainer` trains it entirely in its kernels.

    Args:
        widths: widths of the input, the hidden layers and the output: at least two. On a GPU, nets
            with widths of at most 128, in 16 bits and without biases, run on chip; all others use
            cuBLASLt.
        activation: ``"relu"`` or ``"tanh"``.
        dtype: dtype of weights, inputs and outputs: float16, bfloat16 or float32; on a CPU also
            float64. On a GPU, float32 products use TF32 if PyTorch's do:
            ``torch.backends.cuda.matmul.allow_tf32``.
        bias: whether the layers have biases.
        device: device of the weights.

    Attributes:
        weights: Shape (layers, width, width): each layer's matrix, with one row per output, padded
            with zeros to 16, 32 or a multiple of 64. With biases, shape (layers, width + 1, width):
            the last row is the layer's bias. Outputs do not depend on finite values in the padding,
            so all of the tensor may be written. Initialized as in torch.nn.Linear.

    Raises:
        InputError: widths, activation or dtype are invalid.
    """

    weights: torch.nn.Parameter

    def __init__(
        self,
        widths: Sequence[int],
        activation: str = "relu",
        dtype: torch.dtype = torch.float16,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        widths = tuple(widths)
        require(
            len(widths) >= 2 and all(isinstance(width, int) and width >= 1 for width in widths),
            f"widths must be two or more whole numbers from 1, of input, layers and output; got "
            f"{widths}",
        )
        check_one_of("activation", activation, _ACTIVATIONS)
        check_one_of("dtype", dtype, DTYPES)
        self.widths = widths
        self.activation = activation
        self.bias = bias
        padded = _pad(max(widths))
        sizes = (len(widths) - 1, padded + int(bias), padded)
        self.weights = torch.nn.Parameter(torch.zeros(sizes, dtype=dtype, device=device))
        # The op ignores the padding of inputs and outputs, but not that of hidden layers.
        self._has_hidden_padding = any(width != padded for width in widths[1:-1])
        self._padding: torch.Tensor | None = None
        self._hidden_padding()  # before a CUDA graph captures the first call
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights again, as torch.nn.Linear does, and set the padding to zero.

        The weights are drawn on the CPU, so a seed gives the same net on each device.
        """
        weights = torch.zeros(self.weights.shape, dtype=torch.float32, device="cpu")
        for layer in self._layers(weights):
            bound = 1 / math.sqrt(layer[0].shape[1])
            for tensor in layer:
                tensor.uniform_(-bound, bound)
        with torch.no_grad():
            self.weights.copy_(weights)

    @classmethod
    def from_sequential(
        cls,
        model: torch.nn.Sequential,
        dtype: torch.dtype | None = None,
        *,
        device: torch.device | str | None = None,
    ) -> FusedMLP:
        """Create a net with the weights of a model of Linear layers with activations between them.

        Args:
            model: Linear layers, with or without biases, and a ReLU or a Tanh between each pair.
            dtype: dtype of the copy; the model's by default.
            device: device of the copy; the model's by default.

        Raises:
            InputError: the model has other layers.
        """
        linears, widths, activation = _parts(model)
        weight = linears[0].weight
        net = cls(
            widths,
            activation,
            dtype or weight.dtype,
            bias=linears[0].bias is not None,
            device=weight.device if device is None else device,
        )
        net.load_sequential(model)
        return net

    def load_sequential(self, model: torch.nn.Sequential) -> None:
        """Copy the weights of such a model, and set the padding to zero.

        Raises:
            InputError: the model has other layers.
        """
        linears, widths, activation = _parts(model)
        require(
            widths == self.widths and (len(linears) == 1 or activation == self.activation),
            f"the model must have widths {self.widths} and {self.activation}, like this net; got "
            f"{widths} and {activation}",
        )
        has_biases = linears[0].bias is not None
        require(
            has_biases == self.bias,
            f"the model must have {'' if self.bias else 'no '}biases, like this net; got one "
            f"with{'' if has_biases else 'out'}",
        )
        with torch.no_grad():
            self.weights.zero_()
            for layer, linear in zip(self._layers(self.weights), linears, strict=True):
                for tensor, source in zip(layer, (linear.weight, linear.bias), strict=False):
                    tensor.copy_(source)

    def to_sequential(self) -> torch.nn.Sequential:
        """Return a model of PyTorch's own layers, with a copy of the weights."""
        modules: list[torch.nn.Module] = []
        for layer in self._layers(self.weights.detach()):
            outputs, inputs = layer[0].shape
            linear = torch.nn.Linear(
                inputs, outputs, self.bias, self.weights.device, self.weights.dtype
            )
            for parameter, tensor in zip(linear.parameters(), layer, strict=True):
                parameter.data.copy_(tensor)
            modules += [linear, _ACTIVATIONS[self.activation]()]
        return torch.nn.Sequential(*modules[:-1])

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Compute the net: shape (..., inputs) to shape (..., outputs)."""
        if input.dim() == 0 or input.shape[-1] != self.widths[0]:
            raise InputError(
                f"input must have {self.widths[0]} columns, the first width; got shape "
                f"{tuple(input.shape)}"
            )
        rows = input.reshape(-1, self.widths[0])
        if rows.shape[0] == 0:  # unsupported by the kernels; this product has gradients
            output = rows @ self.weights[0, : self.widths[0], : self.widths[-1]]
        else:
            weights: torch.Tensor = self.weights
            padding = self._hidden_padding()
            if padding is not None:
                weights = torch.where(padding, 0, weights)
            output = ops.mlp(rows, weights, self.widths[-1], self.activation)
        return output.reshape(*input.shape[:-1], self.widths[-1])

    def _hidden_padding(self) -> torch.Tensor | None:
        """Return the mask of the padding, or None if no hidden layer is padded."""
        if not self._has_hidden_padding:
            return None
        # Not a buffer: to_empty() would leave it uninitialized, and load_state_dict(assign=True)
        # would leave it on the meta device.
        if self._padding is not None and self._padding.device == self.weights.device:
            return self._padding
        padding = torch.ones(self.weights.shape, dtype=torch.bool, device="cpu")
        for layer in self._layers(padding):
            for tensor in layer:
                tensor.fill_(False)
        padding = padding.to(self.weights.device)
        if type(padding) is torch.Tensor:  # a fake tensor must not outlive its mode
            self._padding = padding
        return padding

    def extra_repr(self) -> str:
        return f"{list(self.widths)}, {self.activation!r}, {self.weights.dtype}, bias={self.bias}"

    def _layers(self, weights: torch.Tensor) -> list[list[torch.Tensor]]:
        """Return each layer's matrix, and its bias if it has one, without the padding."""
        sizes = zip(self.widths[1:], self.widths[:-1], strict=True)
        return [
            [weights[i, :outputs, :inputs], *([weights[i, -1, :outputs]] if self.bias else [])]
            for i, (outputs, inputs) in enumerate(sizes)
        ]


def _pad(width: int) -> int:
    """Return the least padded width that holds this width."""
    last = _PADDED_WIDTHS[-1]
    return next((padded for padded in _PADDED_WIDTHS if width <= padded), -(-width // last) * last)


def _parts(model: torch.nn.Sequential) -> tuple[list[torch.nn.Linear], tuple[int, ...], str]:
    """Return a model's Linear layers, its widths, and the activation between the layers."""
    modules = list(model)
    layers, between = modules[::2], {type(module) for module in modules[1::2]}
    names = [name for name, activation in _ACTIVATIONS.items() if between <= {activation}]
    linears = [layer for layer in layers if type(layer) is torch.nn.Linear]
    require(
        len(modules) % 2 == 1 and len(linears) == len(layers) and bool(names),
        "the model must be Linear layers with a ReLU or a Tanh between each pair; got "
        f"{', '.join(type(module).__name__ for module in modules) or 'nothing'}",
    )
    first = linears[0]
    for i, (before, after) in enumerate(itertools.pairwise(linears), start=1):
        require(
            (after.bias is None) == (first.bias is None),
            "the model's layers must all have biases, or none; got layer 0 "
            f"with{'out' if first.bias is None else ''} and layer {2 * i} "
            f"with{'out' if after.bias is None else ''}",
        )
        require(
            before.out_features == after.in_features,
            f"each layer must have as many inputs as the previous layer has outputs, got "
            f"{after.in_features} after {before.out_features} in layer {2 * i}",
        )
    widths = (first.in_features, *(linear.out_features for linear in linears))
    return linears, widths, names[0]
