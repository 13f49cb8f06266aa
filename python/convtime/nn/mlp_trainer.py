"""Training of multi-layer perceptrons in few launches: one or two per step for small nets."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn

import torch

from convtime.core.checks import check_one_of, check_whole, require
from convtime.core.errors import InputError
from convtime.nn.fused_mlp import FusedMLP
from convtime.tuning.race import race

_LOSSES = ("mse", "cross_entropy")
_OPTIMIZERS = ("sgd", "adam", "adamw")
_SHORT_DTYPES = (torch.float16, torch.bfloat16)
_GPU_DTYPES = (*_SHORT_DTYPES, torch.float32)
_SMALLEST = torch.finfo(torch.float32).tiny  # its reciprocal is finite, too
_MOST_STEPS = 1_000_000  # per call
_ADAMW_DECAY = 0.01  # as in torch.optim.AdamW
_FIRST_SCALE = 65536.0  # as in torch.amp.GradScaler
_GROWTH_INTERVAL = 2000
_TUNING_STEPS = 20  # per graph
_PLANS_SECONDS = 1.0
_PRODUCT_SECONDS = 0.3


class MLPTrainer:
    """Trains a :class:`FusedMLP` on data that stays on its device, one batch per step.

    On a GPU, a step of an on-chip net is one launch if a cluster of blocks is enough for the batch,
    and two otherwise. The launches include the selection of the batch, the forward pass, the loss,
    the backward pass and the optimizer. A step of other nets has one or two cuBLASLt products per
    layer, and kernels for the batch, the loss and the optimizer. ``path`` tells which path a net
    uses. Steps allocate nothing and wait for nothing, so they can be captured in a CUDA graph; its
    replays continue with the next batches. Steps are deterministic.

    Args:
        model: the net to train, in place.
        inputs: shape (rows, inputs), with the model's dtype and on its device.
        targets: shape (rows, outputs) and the same dtype for ``"mse"``; shape (rows,) and int64
            for ``"cross_entropy"``.
        batch_size: rows per step. Batches follow in order, starting again after the last one.
            Rows that do not fill a last batch are skipped.
        loss: ``"mse"`` or ``"cross_entropy"``, both as means over the batch.
        optimizer: ``"sgd"``, ``"adam"`` or ``"adamw"``, as torch.optim's SGD, Adam and AdamW.
        lr: learning rate, above 0.
        momentum: momentum of ``"sgd"``.
        betas: betas of ``"adam"`` and ``"adamw"``.
        eps: eps of ``"adam"`` and ``"adamw"``.
        weight_decay: weight decay of any optimizer. None is torch.optim's default: 0.01 for
            ``"adamw"``, 0 for the others.
        master_weights: whether weights and moments are kept in 32 bits; the model's weights are
            then a rounded copy. Otherwise, weights and moments have only the model's dtype. Each
            step takes over the model's weights that differ from the rounded copy, because they
            were changed in place.
        loss_scale: ``"dynamic"``, which doubles after 2000 steps and halves when gradients
            overflow, as in torch.amp.GradScaler, between 2**-126 and 2**126; or a number for a
            constant scale. Steps with overflowing gradients are skipped and counted. None: neither
            scale nor skip; NaN then spreads as in PyTorch. ``"auto"`` is ``"dynamic"`` for float16
            and None for other dtypes.
        tune: on a GPU, whether to time the candidates and take the fastest. For on-chip nets, these
            are the ways to divide a step; this takes a second and leaves the trainer unchanged. For
            others, these are the algorithms that cuBLASLt suggests for each product; this takes a
            third of a second per product, once per process and shape. Without tuning, heuristics
            choose. Another trainer may find a different candidate fastest, and its last digits then
            differ.
        history: number of steps whose losses are kept.

    Attributes:
        path: ``"on-chip"``, ``"wide"`` (products by cuBLASLt) or ``"cpu"``.
        path_reason: The reason and details: whether TF32 is used, whether cuBLASLt applies the
            activation, and how an on-chip step is divided.

    Raises:
        InputError: arguments are invalid or inconsistent.
    """

    def __init__(
        self,
        model: FusedMLP,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        *,
        batch_size: int,
        loss: str = "mse",
        optimizer: str = "sgd",
        lr: float = 1e-3,
        momentum: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float | None = None,
        master_weights: bool = True,
        loss_scale: str | float | None = "auto",
        tune: bool = False,
        history: int = 10_000,
    ) -> None:
        require(
            isinstance(model, FusedMLP), f"model must be a FusedMLP; got {type(model).__name__}"
        )
        weights = model.weights
        dtype, device = weights.dtype, weights.device
        check_one_of("loss", loss, _LOSSES)
        check_one_of("optimizer", optimizer, _OPTIMIZERS)
        _check_data(model, inputs, targets, batch_size, loss)
        if loss_scale == "auto":
            loss_scale = "dynamic" if dtype == torch.float16 else None
        require(
            not isinstance(loss_scale, str) or loss_scale == "dynamic",
            f"loss_scale must be 'auto', 'dynamic', a number above 0 or None; got {loss_scale!r}",
        )
        scale = _FIRST_SCALE if isinstance(loss_scale, str) else loss_scale
        if weight_decay is None:
            weight_decay = _ADAMW_DECAY if optimizer == "adamw" else 0.0
        require(
            isinstance(betas, Sequence) and len(betas) == 2,
            f"betas must be two numbers; got {betas!r}",
        )
        for name, value, least, below in (
            ("loss_scale", 1.0 if scale is None else scale, _SMALLEST, math.inf),
            ("momentum", momentum, 0, 1),
            ("betas[0]", betas[0], 0, 1),
            ("betas[1]", betas[1], 0, 1),
            ("eps", eps, _SMALLEST, math.inf),  # with 0, padding would compute 0/0
            ("weight_decay", weight_decay, 0, math.inf),
        ):
            _check_number(name, value, least, below)
        history = check_whole("history", history, 1)
        adam = optimizer != "sgd"
        require(
            not adam or master_weights or dtype != torch.float16,
            "master_weights must be True for 'adam' and 'adamw' in float16, whose range is too "
            "small for their second moment; use bfloat16, 'sgd' or master_weights=True",
        )

        self.model = model
        self.batch_size = batch_size
        self._inputs = inputs.contiguous()
        self._targets = targets.contiguous()
        self._weights = weights.detach()
        # With 32-bit weights there is nothing more precise to keep.
        self._master = self._weights.float() if master_weights and dtype in _SHORT_DTYPES else None
        moment = self._weights if self._master is None else self._master
        self._first = torch.zeros_like(moment) if adam or momentum > 0 else None
        self._second = torch.zeros_like(moment) if adam else None
        self._counters = torch.zeros(3, dtype=torch.int64, device=device)
        self._rates = torch.ones(2, dtype=torch.float32, device=device)
        self._losses = torch.full((history,), math.nan, dtype=torch.float32, device=device)
        net = {
            "batch": batch_size,
            "outputs": model.widths[-1],
            "activation": model.activation,
            "tf32": bool(torch.backends.cuda.matmul.allow_tf32),
        }
        self.path, self.path_reason, scratch_bytes, plans = torch.ops.convtime.mlp_path(
            self._weights, model.widths[0], **net
        )
        self._scratch = torch.zeros(scratch_bytes, dtype=torch.uint8, device=device)
        require(
            not tune or self.path != "cpu",
            f"tune must be False on a CPU, which has no candidates to time; got {tune}",
        )
        if tune and self.path == "wide":
            self._choose_products(net)
        self._options: dict[str, Any] = {
            **net,
            "tuned": tune,
            "plan": 0,
            "loss": loss,
            "optimizer": optimizer,
            "momentum": betas[0] if adam else momentum,
            "beta2": betas[1],
            "epsilon": eps,
            "weight_decay": weight_decay,
            "scaled": scale is not None,
            "growth_interval": _GROWTH_INTERVAL if loss_scale == "dynamic" else 0,
        }
        self.lr = lr
        if scale is not None:
            self._rates[1] = scale
        if self.path == "on-chip":
            if tune:
                self._options["plan"] = self._fastest_plan(len(plans))
            self.path_reason += f"; {plans[self._options['plan']]}"

    def step(self) -> None:
        """Take one step, on the next batch."""
        self.steps(1)

    def steps(self, count: int) -> None:
        """Take this number of steps; on a GPU, in one launch if a single step is one launch.

        Raises:
            InputError: the count is not a whole number from 1 to 1,000,000, or the model's weights
                are a different tensor than at construction.
        """
        count = check_whole("count", count, 1, _MOST_STEPS)
        self._check_weights()
        padding = self.model._hidden_padding()
        if padding is not None:
            # Once per call, because steps keep the padding zero. The kernels multiply by it, and
            # something else may have written all of the tensor.
            self._weights.masked_fill_(padding, 0)
        torch.ops.convtime.mlp_steps(
            self._inputs,
            self._targets,
            self._weights,
            self._master,
            self._first,
            self._second,
            self._counters,
            self._rates,
            self._losses,
            self._scratch,
            **self._options,
            steps=count,
        )
        torch.autograd.graph.increment_version(self.model.weights)

    @property
    def lr(self) -> float:
        """The learning rate of the next steps; reading it waits for the device."""
        return float(self._rates[0])

    @lr.setter
    def lr(self, value: float) -> None:
        _check_number("lr", value, _SMALLEST)
        self._rates[0].fill_(value)

    @property
    def loss_scale(self) -> float | None:
        """The current loss scale, or None; reading it waits for the device."""
        return float(self._rates[1]) if self._options["scaled"] else None

    @property
    def steps_taken(self) -> int:
        """Number of batches processed, including skipped steps; reading it waits for the device."""
        return int(self._counters[0])

    @property
    def steps_skipped(self) -> int:
        """Number of steps skipped because gradients overflowed; reading it waits for the device."""
        return int(self._counters[1])

    def losses(self) -> torch.Tensor:
        """Return the losses of the last ``history`` steps, the oldest first, on the CPU."""
        taken, losses = self.steps_taken, self._losses.cpu()
        # The last one is at index taken - 1, modulo the number that is kept.
        return losses.roll(-taken)[max(len(losses) - taken, 0) :]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of weights, moments and counters."""
        self._take_over_changes()
        return {name: tensor.clone() for name, tensor in self._state().items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Continue from the result of :meth:`state_dict` of a trainer with the same options.

        Raises:
            InputError: the state has other tensors, or values that training cannot produce.
        """
        own = self._state()
        expected, given = _describe(own), _describe(state)
        require(
            expected == given,
            f"state must have the tensors {expected}, as from a trainer with these options; got "
            f"{given}",
        )
        taken, skipped, clean = counters = state["counters"].tolist()
        require(
            skipped >= 0 <= clean and skipped + clean <= taken,
            "state's counters must be steps taken, steps skipped, and steps since the scale "
            "changed, each at least 0 and the first at least the sum of the others; got "
            f"{counters}; load the result of state_dict()",
        )
        for name, rate in zip(("lr", "loss scale"), state["rates"].tolist(), strict=True):
            _check_number(f"state's {name}", rate, _SMALLEST)
        for name, tensor in own.items():
            tensor.copy_(state[name])

    def __getstate__(self) -> NoReturn:
        """Raise InputError: a copy would train neither the old model nor the new one."""
        raise InputError(
            "a trainer must not be copied or pickled, because it trains the original model's "
            "weights in place; got an MLPTrainer; save its state_dict() and load it into a new "
            "trainer for the copied model"
        )

    def _check_weights(self) -> None:
        weights, own = self.model.weights, self._weights
        if weights.data_ptr() != own.data_ptr() or weights.dtype != own.dtype:
            raise InputError(
                "the model's weights must stay the tensor that the trainer was made for, "
                f"{own.dtype} on {own.device}; got another, {weights.dtype} on {weights.device}; "
                "create a new trainer for the model, or change its weights in place"
            )

    def _take_over_changes(self) -> None:
        """Copy changes that others made to the model's weights into the 32-bit weights.

        Steps do the same in their kernels. The tensor's version counter does not report all
        changes: writes through ``.data`` and fused optimizers do not increment it.
        """
        if self._master is None:
            return
        unchanged = self._master.to(self._weights.dtype) == self._weights
        self._master.copy_(torch.where(unchanged, self._master, self._weights.float()))

    def _choose_products(self, net: Mapping[str, Any]) -> None:
        """Choose cuBLASLt's algorithm for each product that no trainer has chosen one for."""
        products = torch.classes.convtime.MlpProducts(
            self._inputs,
            self._weights,
            self._scratch,
            net["batch"],
            net["outputs"],
            net["activation"],
            self._master is not None,
            net["tf32"],
        )
        for product, count in enumerate(products.algorithms()):
            calls = [functools.partial(products.run, product, index) for index in range(count)]
            if count > 1:
                products.choose(product, self._fastest(calls, _PRODUCT_SECONDS, method="kernel"))

    def _fastest_plan(self, count: int) -> int:
        """Return the fastest of this number of plans, and restore all state."""
        if count == 1:
            return 0
        state = self.state_dict()
        replays = []
        try:
            for plan in range(count):
                self._options["plan"] = plan
                self.step()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    for _ in range(_TUNING_STEPS):
                        self.step()
                replays.append(graph.replay)
            return self._fastest(replays, _PLANS_SECONDS, method="sync")
        finally:
            self.load_state_dict(state)

    def _fastest(
        self,
        calls: Sequence[Callable[[], object]],
        seconds: float,
        method: Literal["kernel", "sync"],
    ) -> int:
        """Return the index of the fastest call; of ties, the heuristics' first choice."""
        raced = race(
            {str(index): call for index, call in enumerate(calls)},
            method=method,
            cache="warm",
            placement="as-is",  # the calls change the tensors that they read
            check=None,
            budget=seconds,
            device=self._weights.device,
            progress=False,
        )
        return int(raced.winner)

    def _state(self) -> dict[str, torch.Tensor]:
        tensors = {
            "weights": self._weights,
            "master": self._master,
            "first": self._first,
            "second": self._second,
            "counters": self._counters,
            "rates": self._rates,
            "losses": self._losses,
        }
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def _check_number(name: str, value: float, least: float, below: float = math.inf) -> None:
    """Check the number as a float32, in which it may round to 0, to the bound, or to infinity."""
    fits = isinstance(value, int | float) and abs(value) <= torch.finfo(torch.float32).max
    end = f" and below {below}" if below < math.inf else ""
    require(
        fits and least <= ctypes.c_float(value).value < below,
        f"{name} must be a finite float32 at least {least:.3g}{end}; got {value!r}",
    )


def _check_data(
    model: FusedMLP, inputs: torch.Tensor, targets: torch.Tensor, batch_size: int, loss: str
) -> None:
    dtype, device = model.weights.dtype, model.weights.device
    require(
        device.type != "cuda" or dtype in _GPU_DTYPES,
        f"dtype must be one of {_GPU_DTYPES} on a GPU; got {dtype}",
    )
    for name, tensor in (("inputs", inputs), ("targets", targets)):
        require(
            isinstance(tensor, torch.Tensor),
            f"{name} must be a tensor; got {type(tensor).__name__}",
        )
    columns, outputs = model.widths[0], model.widths[-1]
    require(
        inputs.dim() == 2 and inputs.shape[1] == columns,
        f"inputs must have shape (rows, {columns}), the first width; got {tuple(inputs.shape)}",
    )
    rows = inputs.shape[0]
    has_classes = loss == "cross_entropy"
    expected = (rows,) if has_classes else (rows, outputs)
    require(
        tuple(targets.shape) == expected,
        f"targets must have shape {expected}, for {loss!r} and {rows} rows of inputs; got "
        f"{tuple(targets.shape)}",
    )
    types = {"inputs": dtype, "targets": torch.int64 if has_classes else dtype}
    for name, tensor in (("inputs", inputs), ("targets", targets)):
        require(tensor.dtype == types[name], f"{name} must be of {types[name]}; got {tensor.dtype}")
        require(
            tensor.device == device,
            f"{name} must be on the model's device {device}; got {tensor.device}",
        )
    check_whole("batch_size", batch_size, 1, rows)
    if has_classes:
        least, greatest = map(int, targets.aminmax())
        require(
            least >= 0 and greatest < outputs,
            f"targets must be classes from 0 to {outputs - 1}, the last width minus 1; "
            f"got {least} to {greatest}",
        )


def _describe(tensors: Mapping[str, object]) -> str:
    return ", ".join(
        f"{name} {tuple(tensor.shape)} {tensor.dtype}"
        if isinstance(tensor, torch.Tensor)
        else f"{name} {type(tensor).__name__}"
        for name, tensor in sorted(tensors.items())
    )
