"""Fuse each convolution of a model with its epilogue into one call, for inference or training."""

from __future__ import annotations

import copy
import inspect
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.autograd import forward_ad
from torch.nn.parameter import is_lazy

from convtime.core.checks import check_type, require
from convtime.core.errors import InputError, first_line
from convtime.nn.chains import Convolution, FusedConvolution, fuse_chains
from convtime.nn.folding import FoldedTensors
from convtime.nn.replacement import LayerReport, is_convolution
from convtime.ops.flops import register_formulas

# How often Dynamo captures a function anew, where torch lets a single model set that.
_LIMIT: dict[str, Any] = (
    {"recompile_limit": 64}
    if "recompile_limit" in inspect.signature(torch.compile).parameters
    else {}
)
Backend = Callable[..., Any]  # so is what it returns


@dataclass(frozen=True, repr=False)
class Fusion(LayerReport):
    """Which convolutions the captured calls of a model have fused.

    Attributes:
        fused: The fused convolutions. One that several captures fuse alike is listed once.
        left: The convolutions that were not fused, as (name, reason).
    """

    fused: tuple[FusedConvolution, ...]
    left: tuple[tuple[str, str], ...]

    one = "convolution"
    counted = "convolutions fused"

    @property
    def done(self) -> tuple[tuple[str, str], ...]:
        """The convolutions that were fused, as (name, fused steps)."""
        return tuple((each.name, f"with {' + '.join(each.steps)}") for each in self.fused)


class Fusing:
    """A backend of :func:`torch.compile` that fuses convolutions; see :func:`fusing`.

    Attributes:
        backend: the backend that compiles the graphs afterwards.
    """

    def __init__(
        self,
        backend: str | Backend,
        constants: Sequence[object] = (),
        names: Mapping[int, str] | None = None,
    ) -> None:
        # Imported here: Dynamo, which takes a second, and which few users of nn need.
        from torch._dynamo.backends.registry import lookup_backend

        register_formulas()
        self.backend: Backend = lookup_backend(backend) if isinstance(backend, str) else backend
        self._constants = {id(tensor): tensor for tensor in constants}
        self._names = names or {}
        self._folded = FoldedTensors(self._is_constant)
        self._convolutions: list[Convolution] = []
        self._lock = threading.Lock()

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Backend:
        """Fuse the convolutions of a graph, and let the other backend compile it."""
        fused = fx.GraphModule(module, copy.deepcopy(module.graph))  # Dynamo reads its own later
        fused.meta = dict(module.meta)
        convolutions, foldings = fuse_chains(fused, inputs, self._is_constant, self._names)
        with self._lock:
            self._convolutions += convolutions
        if not foldings:
            compiled: Backend = self.backend(fused, inputs, **options)
            return compiled
        folded = self._folded.of(foldings)
        given = folded(inputs)
        # Dynamo does not know these tensors, so AOTAutograd would give them symbolic sizes, with
        # guards that nothing can evaluate. It looks them up here, as long as they exist.
        mode = torch._guards.detect_fake_mode(inputs)
        _known = [mode.from_tensor(each, static_shapes=True) for each in given] if mode else []
        run = self.backend(fused, [*inputs, *given], **options)

        def call(*inputs: Any) -> Any:
            return run(*inputs, *folded(inputs))

        return call

    @property
    def report(self) -> Fusion:
        """The convolutions of all graphs that were captured so far."""
        convolutions = [*dict.fromkeys(self._convolutions)]
        fused = [each for each in convolutions if isinstance(each, FusedConvolution)]
        names = {each.name for each in fused}
        left = [each for each in convolutions if isinstance(each, tuple) and each[0] not in names]
        return Fusion(tuple(fused), tuple(left))

    def _is_constant(self, tensor: object) -> bool:
        return id(tensor) in self._constants


def fusing(backend: str | Backend = "inductor") -> Fusing:
    """Return a backend that fuses each convolution with its epilogue, also for training.

    The epilogue is a batch norm with running statistics, then the addition of a tensor, then an
    activation (ReLU, ReLU6, LeakyReLU, GELU, SiLU, sigmoid or tanh). Each step is optional, and
    nothing else may use the intermediate results. The fused call is
    :func:`convtime.ops.conv2d_epilogue`, or its 1-D or 3-D counterpart.

    It is used as ``torch.compile(model, backend=convtime.nn.fusing())``. Dynamo captures the calls,
    and captures again when something that they depend on has changed. Everything else is as with
    the other backend. A batch norm is folded in each call, since its tensors may change; for
    inference, :func:`fuse` folds them once.

    Args:
        backend: the backend that compiles the graphs afterwards: a name that ``torch.compile``
            takes, or a function. ``"eager"`` runs them as they are.

    Returns:
        The backend. Its ``report`` lists the convolutions that were fused so far, and the others
        with the reason.
    """
    return Fusing(backend)


class FusedModel(torch.nn.Module):
    """A model for inference with fused convolutions; see :func:`fuse`.

    It has no parameters of its own that could change. ``state_dict`` has those of the copied model,
    and ``load_state_dict``, ``to`` and similar methods apply to it.
    """

    _model: torch.nn.Module
    _backend: str | Backend
    _fusing: Fusing
    _call: Backend

    def __init__(self, model: torch.nn.Module, backend: str | Backend) -> None:
        super().__init__()
        # In the dict, so that it is not a submodule: nothing may change its parameters.
        vars(self).update(training=False, _model=model, _backend=backend)
        self._start()

    def _start(self) -> None:
        """Forget all captured calls and folded tensors."""
        model: torch.nn.Module = vars(self)["_model"]
        names = {id(module): name for name, module in model.named_modules()}
        fusing = Fusing(self._backend, [*model.parameters(), *model.buffers()], names)

        def call(*args: Any, **kwargs: Any) -> Any:
            return model(*args, **kwargs)

        # Dynamo keeps what it compiles with the code, a few versions of each: this has its own.
        own = types.FunctionType(
            call.__code__.replace(), call.__globals__, "call", None, call.__closure__
        )
        captured = torch.compile(own, backend=fusing, **_LIMIT)

        def run(*args: Any, **kwargs: Any) -> Any:
            return (model if _is_transformed() else captured)(*args, **kwargs)

        run = torch.compiler.disable(run, reason="a fused model captures its calls itself")  # type: ignore[no-untyped-call]
        vars(self).update(_fusing=fusing, _call=run)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        return self._call(*args, **kwargs)

    @property
    def report(self) -> Fusion:
        """The convolutions that the calls so far have fused, and the others with the reason."""
        report = self._fusing.report
        known = {each.name for each in report.fused} | {name for name, _ in report.left}
        missing = [
            (name, "no call of it was captured")
            for name, module in self._model.named_modules()
            if is_convolution(module) and name not in known
        ]
        return Fusion(report.fused, (*report.left, *missing))

    def train(self, mode: bool = True) -> FusedModel:
        """Raise an InputError, unless the mode is False."""
        require(
            not mode,
            "a fused model must stay in eval mode, since its batch norms are folded, got "
            "train(); train the model that it was made from, and fuse that again",
        )
        return self

    def requires_grad_(self, requires_grad: bool = True) -> FusedModel:
        """Raise an InputError, unless no gradients are to be required."""
        require(
            not requires_grad,
            "the parameters of a fused model must not require gradients, since they are folded, "
            "got requires_grad_(); train the model that it was made from",
        )
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state of the copied model, which has all names and values of the original."""
        return self._model.state_dict(*args, **kwargs)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load the state of the copied model, for load_state_dict of this module or its owner."""
        own = {
            name.removeprefix(prefix): value
            for name, value in state_dict.items()
            if name.startswith(prefix)
        }
        try:
            assign = local_metadata.get("assign_to_params_buffers", False)
            loaded = self._model.load_state_dict(own, strict=False, assign=assign)
        except RuntimeError as error:
            error_msgs.append(str(error))
        else:
            missing_keys += [prefix + name for name in loaded.missing_keys]
            if strict:
                unexpected_keys += [prefix + name for name in loaded.unexpected_keys]
        self._start()

    def _apply(self, fn: Any, recurse: bool = True) -> FusedModel:
        """Convert the copied model, for `to`, `half`, `cuda` and so on."""
        self._model._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._start()
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without what was captured."""
        return {
            name: value for name, value in vars(self).items() if name not in ("_fusing", "_call")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._start()

    def extra_repr(self) -> str:
        """Return the class of the copied model."""
        return type(self._model).__name__


def fuse(model: torch.nn.Module, *, backend: str | Backend = "eager") -> FusedModel:
    """Copy a model for inference, with each convolution fused with its epilogue into one call.

    Like :func:`torch.nn.utils.fusion.fuse_conv_bn_eval`, this makes a copy in eval mode that owns
    its parameters: later changes of the original have no effect on it, and it cannot be trained.
    Batch norms are folded into weights and biases once. :func:`fusing` describes what is fused, and
    is for training.

    Dynamo captures the calls, and captures again when something that they depend on has changed:
    the shape or dtype of an input, a mode such as autocast, a value that the model's code reads.
    The first call therefore takes seconds. Where Dynamo cannot capture, the model's own code runs,
    unfused. Transforms of ``torch.func``, dispatch modes and ``torch.jit.trace`` also see the
    model's own code.

    The copy takes the memory of the parameters, and folded weights that of convolutions again.

    Args:
        model: the model. Its state and its training mode are unchanged.
        backend: the backend of ``torch.compile`` for the graphs: ``"eager"`` runs them as they are,
            ``"inductor"`` compiles them. A fused model is not compiled again by ``torch.compile``.

    Returns:
        The copy. Its ``report`` lists the convolutions that its calls have fused, and the others
        with the reason.

    Raises:
        TypeError: if ``model`` is not a module, is fused already, or wraps another model for
            several devices.
        InputError: if the model cannot be copied, or its parameters are divided among devices.
    """
    check_type("fuse: model", model, torch.nn.Module, "a torch.nn.Module")
    if isinstance(model, FusedModel):
        raise TypeError("fuse: model must not be fused, got a FusedModel; use it as it is")
    wrappers = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    if isinstance(model, wrappers):
        raise TypeError(
            f"fuse: model must not be a {type(model).__name__}, which copies parameters between "
            "devices; fuse its attribute module"
        )
    for name, parameter in model.named_parameters():
        require(
            is_lazy(parameter) or type(parameter.data).__name__ != "DTensor",
            f"fuse: parameters must not be divided among devices, got a DTensor for {name}; fuse "
            "a model with the whole parameters",
        )
    try:
        own = copy.deepcopy(model)
    except Exception as error:  # the copied objects may raise anything
        raise InputError(f"fuse: the model must be copyable, got {first_line(error)}") from error
    own.eval()
    for tensor in own.parameters():
        tensor.requires_grad_(False)
    return FusedModel(own, backend)


def _is_transformed() -> bool:
    """Whether a transform, a mode or a trace must see the model's own operations."""
    return (
        torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )
