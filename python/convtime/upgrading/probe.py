"""Program of a process that runs a model's layers under any torch, without convtime.

The interpreter that runs it may have another torch than convtime was built for, or no convtime at
all. Therefore this file imports only torch and the standard library. It answers the questions
of its parent, in JSON, until the parent ends. Its global variable ``parent`` is the connection.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import importlib
import json
import math
import operator
import re
import sys
import threading
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

FORWARD, BACKWARD = "forward", "backward"
STEP = "whole step"
# Operations that only allocate or describe memory: which of them run differs between versions of
# torch without an effect on the kernels.
_WITHOUT_WORK = {
    *("alias", "as_strided", "as_strided_", "detach", "empty", "empty_like", "empty_strided"),
    *("expand", "expand_as", "flatten", "narrow", "permute", "reshape", "resize_", "resolve_conj"),
    *("resolve_neg", "select", "set_", "slice", "squeeze", "t", "transpose", "unsqueeze", "view"),
    *("_unsafe_view", "_reshape_alias", "_nnpack_available", "is_nonzero", "item", "unbind"),
}
# Operations that others, such as addmm and sum, call before their own work.
_PREPARATIONS = {"copy_", "fill_", "zero_"}
# How long a GPU waits until all calls are issued: longer than that took before, to be safe.
_HOLD_MARGIN, _LONGEST_HOLD_SECONDS = 1.3, 0.02
_FASTEST_CLOCK_HZ = 2e9
_MULTIPLIER = 6364136223846793005  # Knuth's, for a linear congruential generator modulo 2**64
_SPREAD_BITS = 24
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class UnusableError(Exception):
    """The user's model cannot be used; the message is one sentence."""


@dataclasses.dataclass(frozen=True)
class Modes:
    """Settings of the thread that calls a layer, which a model can change around its layers.

    Attributes:
        gradient: whether gradients are recorded.
        autocast: dtype to which each kind of device casts automatically, if it does.
    """

    gradient: bool = True
    autocast: tuple[tuple[str, str], ...] = ()

    @classmethod
    def now(cls) -> Modes:
        casts = [(kind, _autocast_dtype(kind)) for kind in ("cpu", "cuda")]
        return cls(torch.is_grad_enabled(), tuple((kind, dtype) for kind, dtype in casts if dtype))

    @contextlib.contextmanager
    def casting(self) -> Iterator[None]:
        """Cast as the model does around the call."""
        with contextlib.ExitStack() as stack:
            for kind, dtype in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype=getattr(torch, dtype)))
            yield


def _autocast_dtype(kind: str) -> str:
    """Return the dtype to which operations on a kind of device are cast; empty if they are not."""
    older: Any = torch  # before torch 2.4, each kind has separate functions
    try:
        enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    except (TypeError, AttributeError):
        if kind == "cpu":
            enabled, dtype = older.is_autocast_cpu_enabled(), older.get_autocast_cpu_dtype()
        else:
            enabled, dtype = older.is_autocast_enabled(), older.get_autocast_gpu_dtype()
    return str(dtype).partition(".")[2] if enabled else ""


@dataclasses.dataclass
class Layer:
    """One call of a module: the whole model, or one of its layers.

    Attributes:
        name: name in the model.
        module: the module.
        arguments: its positional and keyword arguments, with a :class:`TensorSpec` for each
            tensor of real or complex numbers.
        first_forward_seconds: time of the call that found the layer; None if there was none.
        modes: those in which the model calls it.
    """

    name: str
    module: torch.nn.Module
    arguments: Any
    first_forward_seconds: float | None = None
    modes: Modes = dataclasses.field(default_factory=Modes)

    @property
    def plain(self) -> bool:
        """Whether the module is one of torch's, and calls nothing else."""
        module: Any = self.module
        if "forward" in vars(module):  # patched
            return False
        hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        return type(module).__module__.startswith("torch.nn.") and not any(
            getattr(module, attribute, None) for attribute in hooks
        )

    def described(self) -> dict[str, Any]:
        """Describe the call by the facts that decide its kernels."""
        specs = [*_leaves(self._specs(), TensorSpec)]
        tensors = [*specs, *map(TensorSpec.of, self.module.parameters())]
        dtypes = [tensor.dtype for tensor in tensors]
        dtypes += [f"autocast to {dtype}" for _, dtype in self.modes.autocast]
        layouts = [tensor.layout for tensor in tensors if len(tensor.sizes) > 1]
        text = ""
        if self.name != STEP:
            text = re.sub(r" at 0x[0-9a-f]+", "", " ".join(repr(self.module).split()))
            text += "" if self.module.training else " in evaluation mode"  # the model trains
        extends_torch = any(
            base.__module__.startswith("torch.nn.") and base is not torch.nn.Module
            for base in type(self.module).__mro__
        )
        return {
            "key": self._key(),
            "module": text,
            "attributes": _attributes(self.module) if extends_torch else {},
            "dtype": ", ".join(dict.fromkeys(dtypes)),
            "sizes": ", ".join("×".join(map(str, spec.sizes)) for spec in specs),
            "layout": ", ".join(dict.fromkeys(layouts)),
        }

    def _key(self) -> str:
        """Return a string that identical calls share.

        A module of the user can have properties that its description does not show.
        """
        if not self.plain:
            return self.name
        tensors = (*self.module.named_parameters(), *self.module.named_buffers())
        named = [(name, TensorSpec.of(each)) for name, each in tensors]
        called = (self._specs(), self.module.training, self.modes)
        return repr((self.module, _attributes(self.module), called, named))

    def _specs(self) -> Any:
        """Return the arguments with a spec for each tensor, also for those that are kept."""
        return _mapped(self.arguments, torch.Tensor, TensorSpec.of)


def _attributes(module: torch.nn.Module) -> dict[str, str]:
    """Return the settings of a layer of torch's; its description differs between versions."""
    simple = (bool, int, float, str, tuple, type(None))
    settings = {
        name: repr(value)
        for name, value in vars(module).items()
        if not name.startswith("_") and isinstance(value, simple)
    }
    names = ", ".join(sorted(name for name, _ in module.named_parameters()))
    return {"type": type(module).__name__, "parameters": names, **settings}


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """A tensor of real or complex numbers without its values."""

    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    needs_gradient: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        return cls(
            str(tensor.dtype).partition(".")[2],
            tuple(tensor.shape),
            tuple(tensor.stride()) if tensor.layout == torch.strided else (),
            tensor.requires_grad,
        )

    @property
    def layout(self) -> str:
        """``contiguous``, ``channels_last``, the strides, or ``without strides``."""
        if len(self.strides) != len(self.sizes):
            return "without strides"
        empty = torch.empty_strided(self.sizes, self.strides, device="meta")
        if empty.is_contiguous():
            return "contiguous"
        if empty.dim() > 2 and empty.movedim(1, -1).is_contiguous():
            return "channels_last"
        return f"strides {self.strides}"

    def filled(self, device: torch.device, seed: int) -> torch.Tensor:
        """Return a tensor with these sizes and strides, whose values depend on the seed only."""
        dtype = getattr(torch, self.dtype)
        values = _values(self.sizes, seed, device, is_complex=dtype.is_complex).to(dtype)
        if 0 not in self.strides:  # an expanded tensor repeats values, so it cannot be written
            tensor = torch.empty_strided(self.sizes, self.strides, dtype=dtype, device=device)
            values = tensor.copy_(values)
        return values.requires_grad_(self.needs_gradient)


def _values(
    sizes: tuple[int, ...], seed: int, device: torch.device, *, is_complex: bool
) -> torch.Tensor:
    """Return numbers from -√3 to √3, of mean 0 and variance 1, that every torch computes alike.

    Integer arithmetic has one result everywhere; torch's generators may differ between versions.
    The imaginary parts of complex numbers are such numbers, too.
    """
    shape = (*sizes, 2) if is_complex else sizes
    bits = torch.arange(math.prod(shape), dtype=torch.int64, device=device) + 1 + (seed << 32)
    for _ in range(3):
        bits = bits * _MULTIPLIER + 1442695040888963407
        bits = bits ^ (bits >> 29)
    bits = (bits >> 16) & (2**_SPREAD_BITS - 1)
    uniform = bits.to(torch.float32) / 2 ** (_SPREAD_BITS - 1) - 1
    values = (uniform * math.sqrt(3)).view(shape)
    return torch.view_as_complex(values) if is_complex else values


def fingerprint(tensors: list[torch.Tensor]) -> str:
    """Return a number that depends on every bit of the tensors, but not on their strides.

    It is empty if there are none, or some are not dense.
    """
    if not tensors or any(tensor.layout != torch.strided for tensor in tensors):
        return ""
    total = 0
    for tensor in tensors:
        flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
        if flat.is_complex():
            flat = torch.view_as_real(flat).reshape(-1)
        integer = _INTEGERS[flat.element_size()]
        bits = (flat if flat.dtype == torch.bool else flat.view(integer)).to(torch.int64)
        weights = torch.arange(bits.numel(), dtype=torch.int64, device=bits.device) * 2 + 1
        total = total * 31 + int((bits * weights * _MULTIPLIER).sum())
    return f"{total % 2**64:016x}"


def _leaves(value: Any, kind: type) -> Iterator[Any]:
    """Yield the objects of a type in nested containers and dataclasses."""
    if isinstance(value, kind):
        yield value
        return
    for part in _parts(value).values():
        yield from _leaves(part, kind)


def _mapped(value: Any, kind: type | tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """Replace the objects of a type in nested containers and dataclasses."""
    if isinstance(value, kind):
        return change(value)
    parts = {key: _mapped(part, kind, change) for key, part in _parts(value).items()}
    if isinstance(value, tuple):
        return getattr(value, "_make", type(value))([*parts.values()])
    if isinstance(value, Mapping) and not isinstance(value, MutableMapping):
        return parts
    has_items = isinstance(value, (list, MutableMapping))
    if not (parts or has_items):
        return value
    copied = copy.copy(value)  # the constructor of a dataclass may expect tensors
    for key, part in parts.items():
        if has_items:
            copied[key] = part
        else:
            object.__setattr__(copied, key, part)
    return copied


def _parts(value: Any) -> dict[Any, Any]:
    """Return the parts of a container or dataclass; empty for other objects."""
    if isinstance(value, Mapping):
        return dict(value.items())
    if isinstance(value, (tuple, list)):
        return dict(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    return {}


def _has_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor is dense and of real or complex numbers, so that others can replace it."""
    return tensor.layout == torch.strided and (tensor.is_floating_point() or tensor.is_complex())


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in double precision; integers stay as they are."""
    is_number = tensor.is_floating_point() or tensor.is_complex()
    return tensor.to(torch.promote_types(tensor.dtype, torch.float64)) if is_number else tensor


def _spec(tensor: torch.Tensor) -> Any:
    """Return a tensor's spec; keep one of integers: an index must stay within its range."""
    return TensorSpec.of(tensor) if _has_values(tensor) else tensor.detach().clone()


class Call:
    """One pass of a layer with its tensors, ready to be repeated.

    Attributes:
        run: runs it.
        issue_seconds: time that the host took for a call in the last burst.
    """

    run: Callable[[], Any]

    def __init__(
        self, layer: Layer, which: str, device: torch.device, *, exact: bool = False
    ) -> None:
        """Make the tensors.

        Args:
            layer: the layer.
            which: the pass.
            device: where it runs.
            exact: whether the module and all values are in double precision.
        """
        self.issue_seconds = 0.0
        module: Any = layer.module
        if exact:
            module = copy.deepcopy(module)._apply(_exact)  # to() would make complex numbers real
        seeds = iter(range(1, 10**6))

        def made(given: TensorSpec | torch.Tensor) -> torch.Tensor:
            if isinstance(given, torch.Tensor):  # which the module may change in place
                return given.clone()
            tensor = given.filled(device, next(seeds))
            if exact:
                tensor = _exact(tensor.detach()).requires_grad_(given.needs_gradient)
            return tensor

        args, kwargs = _mapped(layer.arguments, (TensorSpec, torch.Tensor), made)
        casts = layer.modes.autocast and not exact
        casting = layer.modes.casting if casts else contextlib.nullcontext

        def forward() -> Any:
            with casting():
                return module(*args, **kwargs)

        if which == FORWARD:
            self.run = forward if layer.name == STEP else torch.no_grad()(forward)
            return
        if not layer.modes.gradient:
            raise UnusableError("it has no gradient")
        tensors = (*_leaves((args, kwargs), torch.Tensor), *module.parameters())
        wanted = [tensor for tensor in tensors if tensor.requires_grad]
        # A module may change its input in place, which a leaf that needs a gradient does not allow.
        used = _mapped((args, kwargs), torch.Tensor, torch.clone)
        with casting():
            results = module(*used[0], **used[1])
        results = [*_leaves(results, torch.Tensor)]
        if wanted and not results:
            raise UnusableError("its results contain no tensors that convtime knows")
        outputs = [tensor for tensor in results if tensor.requires_grad]
        if not outputs or not wanted:
            raise UnusableError("it has no gradient")
        gradients = [
            TensorSpec.of(output.detach()).filled(device, -index)
            for index, output in enumerate(outputs, 1)
        ]

        def step_backward() -> list[Any]:
            torch.autograd.backward(outputs, gradients, retain_graph=True)
            gradients_of_inputs = [tensor.grad for tensor in wanted]
            for tensor in wanted:
                tensor.grad = None
            return gradients_of_inputs

        # As in a training step; reentrant checkpoints in a model also require it.
        self.run = step_backward
        if layer.name != STEP:
            self.run = lambda: torch.autograd.grad(
                outputs, wanted, gradients, retain_graph=True, allow_unused=True
            )

    def results(self) -> list[torch.Tensor]:
        """Run it, and return its tensors."""
        return [*_leaves(self.run(), torch.Tensor)]


class Probe:
    """The layers of one model on one device."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.on_gpu = self.device.type == "cuda"
        self.layers: dict[str, Layer] = {}
        self._scripted: list[str] = []
        self._ready: dict[tuple[str, str], Call] = {}  # the last timed call, by layer and pass

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        answers: dict[str, Callable[..., dict[str, Any]]] = {
            "environment": self.environment,
            "load_model": self._load_model,
            "load_lines": self._load_lines,
            "facts": self._facts,
            "build_plans": self._build_plans,
            "time": self._time,
        }
        answer = answers[question.pop("do")](**question)
        if not self.on_gpu:
            wait_until_quiet()
        return answer

    def environment(self) -> dict[str, Any]:
        """Return the versions, and the GPU if the device is one."""
        x = torch.ones(1, device=self.device, requires_grad=True)  # report an unusable GPU here
        # A process's first call with a gradient imports sympy, for seconds that no layer costs.
        torch.autograd.grad(x * 2, x, torch.ones_like(x))
        gpu: Any = torch.cuda.get_device_properties(self.device) if self.on_gpu else None
        cudnn: Any = torch.backends.cudnn
        version = cudnn.version() if cudnn.is_available() else None
        return {
            "python": sys.version.split()[0],
            "torch": str(torch.__version__),
            "cuda": torch.version.cuda if self.on_gpu else None,
            "cudnn": None if version is None else _dotted(version),
            "gpu": gpu.name if self.on_gpu else None,
            "gpu_uuid": str(getattr(gpu, "uuid", "unknown")) if self.on_gpu else None,
        }

    def _load_model(self, model: str, shape: list[int]) -> dict[str, Any]:
        torch.manual_seed(0)
        module = _model_of(model).to(self.device).train()

        def call(given: torch.Tensor) -> None:
            try:
                module(given)
                self._synchronize()
            except Exception as error:
                raise UnusableError(
                    f"the model of {model}, called on shape {tuple(shape)}, raised "
                    f"{_first_line(error)}"
                ) from error

        floating = (weight.dtype for weight in module.parameters() if weight.is_floating_point())
        dtype = next(floating, torch.get_default_dtype())
        example = TensorSpec.of(torch.empty(shape, dtype=dtype, device="meta"))
        if any(map(torch.nn.parameter.is_lazy, module.parameters())):
            with torch.no_grad():
                call(example.filled(self.device, 1))  # which initializes them
        fill_parameters(module)
        calls: list[Layer] = []
        given = example.filled(self.device, 1)
        with contextlib.ExitStack() as hooks:
            for name, part in module.named_modules():
                if not name or [*part.children()]:
                    continue
                if isinstance(part, torch.jit.ScriptModule):  # hooks cannot be added to them
                    self._scripted.append(name)
                else:
                    _record_calls(name, part, calls, self._synchronize, hooks)
            self._synchronize()
            start = time.perf_counter()
            call(given)
            first = time.perf_counter() - start
        layers = (Layer(STEP, module, ((example,), {}), first), *calls)
        self.layers = {layer.name: layer for layer in layers}
        return self._loaded()

    def _load_lines(self, lines: list[dict[str, Any]]) -> dict[str, Any]:
        for line in lines:
            name, sizes, dtype = line["name"], line["sizes"], getattr(torch, line["dtype"])
            formats = {4: torch.channels_last, 5: torch.channels_last_3d}
            last = formats if line["channels_last"] else {}
            memory_format = last.get(len(sizes), torch.contiguous_format)
            module = getattr(torch.nn, line["layer"])(**line["parameters"])
            module = module.to(self.device, dtype, memory_format=memory_format)
            fill_parameters(module)
            x = torch.empty(sizes, dtype=dtype, device="meta", memory_format=memory_format)
            self.layers[name] = Layer(name, module, ((TensorSpec.of(x.requires_grad_()),), {}))
        return self._loaded()

    def _loaded(self) -> dict[str, Any]:
        """Return the layers, and the settings as the model's factory left them."""
        return {
            "layers": {name: layer.described() for name, layer in self.layers.items()},
            "no_clock": self._clock()[1],
            "scripted": self._scripted,
            **settings(),
        }

    def _facts(self, name: str, which: str) -> dict[str, Any]:
        """Return the facts of a pass.

        A layer's backward pass must come before the step's, which would make its first call.
        """
        layer = self.layers[name]
        self._ready.clear()
        call = Call(layer, which, self.device)
        self._synchronize()
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
            used = torch.cuda.memory_allocated(self.device)
        start = time.perf_counter()
        results = call.results()
        self._synchronize()
        first: float | None = time.perf_counter() - start
        if which == FORWARD:  # the call that found the layers came first
            first = layer.first_forward_seconds or first
        elif name == STEP:
            first = None  # its layers' backward passes came first
        peak = torch.cuda.max_memory_allocated(self.device) - used if self.on_gpu else None
        bits = fingerprint(results)
        again = Call(layer, which, self.device)
        return {
            "first_call_seconds": first,
            "memory_bytes": peak,
            "bits": bits if bits and fingerprint(again.results()) == bits else "",
            "backend": backend(layer, self.device),
            "kernels": self._kernels(again),
            "error": None if name == STEP else self._error(layer, which),
        }

    def _build_plans(self, name: str, which: str) -> dict[str, Any]:
        """Call a pass where cuDNN's plans are not cached, so that its frontend logs them.

        torch caches plans per thread, and runs backward passes in separate threads.
        """
        layer = self.layers[name]
        if layer.plain and not backend(layer, self.device).startswith("Cudnn"):
            return {}
        call = Call(layer, which, self.device)  # this thread has the plans of the forward pass

        def run() -> None:
            self._synchronize()  # some engines need the thread to have a CUDA context
            with torch.autograd.set_multithreading_enabled(False):
                call.run()

        with ThreadPoolExecutor(1) as fresh:
            fresh.submit(run).result()
        return {}

    def _error(self, layer: Layer, which: str) -> float | None:
        """Return the largest error, compared with float64, over the largest magnitude.

        None for a module that does not compute in float64.
        """
        torch.manual_seed(0)
        results = Call(layer, which, self.device).results()
        torch.manual_seed(0)
        try:
            exact = Call(layer, which, self.device, exact=True).results()
        except Exception:  # a module of the user can refuse float64 in any way
            return None
        errors = [
            float((_exact(given) - right).abs().max() / right.abs().max())
            for given, right in zip(results, exact)  # noqa: B905  # strict= needs Python 3.10
            if _has_values(right) and right.any()  # an error has no share of zero
        ]
        return max(filter(math.isfinite, errors), default=None)

    def _kernels(self, call: Call) -> list[str]:
        """Return the names of the GPU's kernels, or of the operations that work on a CPU."""
        # torch.profiler.profile wraps this one, and imports torch._inductor first, for seconds.
        with torch.autograd.profiler.profile(
            use_kineto=True, use_cpu=not self.on_gpu, use_device="cuda" if self.on_gpu else None
        ) as profiled:
            call.run()
            self._synchronize()
        events = profiled.function_events or []
        if self.on_gpu:
            # Annotations of the host's functions are on the same device as the kernels.
            events = [
                event
                for event in events
                if str(event.device_type).endswith("CUDA")
                and not event.name.startswith("ProfilerStep")
            ]
        else:
            events = [event for event in events if _works(event) and not _working_children(event)]
        counts = Counter(event.name for event in events)
        return [f"{count}× {name}" if count > 1 else name for name, count in sorted(counts.items())]

    def _time(self, name: str, which: str, calls: int) -> dict[str, Any]:
        """Return the time per call of one burst of calls."""
        key = name, which
        if key not in self._ready:
            self._ready.clear()  # release the memory first
            self._ready[key] = Call(self.layers[name], which, self.device)
        call = self._ready[key]
        gc.collect(0)
        gc.disable()
        try:
            return self._burst(call, calls, held=name != STEP)  # whose time includes the host's
        finally:
            gc.enable()

    def _burst(self, call: Call, calls: int, *, held: bool) -> dict[str, Any]:
        """Return the time per call of some calls, and the clock of the GPU before their end.

        Args:
            call: the timed call.
            calls: how many times.
            held: whether a GPU begins when all calls are issued, so that it waits for no host. The
                calls must have been issued before, which tells how long that takes.
        """
        self._synchronize()
        if not self.on_gpu:
            call.run()  # the other process had the caches, and threads wake up
            start = time.perf_counter()
            for _ in range(calls):
                call.run()
            return {"seconds": (time.perf_counter() - start) / calls, "clock_hz": None}
        with torch.cuda.device(self.device):
            event: Any = torch.cuda.Event
            begin, end = event(enable_timing=True), event(enable_timing=True)
            if held and call.issue_seconds:
                hold = min(_HOLD_MARGIN * calls * call.issue_seconds, _LONGEST_HOLD_SECONDS)
                sleep: Any = torch.cuda._sleep
                sleep(int(_FASTEST_CLOCK_HZ * hold))
            start = time.perf_counter()
            begin.record()
            for _ in range(calls):
                call.run()
            end.record()
            call.issue_seconds = (time.perf_counter() - start) / calls
            clock_hz, _ = self._clock()
            end.synchronize()
            return {"seconds": begin.elapsed_time(end) / 1e3 / calls, "clock_hz": clock_hz}

    def _clock(self) -> tuple[float | None, str]:
        """Return the clock of the SMs from NVML, or None and why it is unknown."""
        if not self.on_gpu:
            return None, "it is read from GPUs only"
        try:
            return torch.cuda.clock_rate(self.device) * 1e6, ""
        except ModuleNotFoundError:
            return None, "nvidia-ml-py is not installed there"
        except Exception as error:  # of NVML, whose errors torch passes on
            return None, _first_line(error)

    def is_broken(self) -> bool:
        """Whether the GPU refuses all further work of this process, as after a failed assertion."""
        try:
            self._synchronize()
        except RuntimeError:
            return True
        return False

    def _synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)


def wait_until_quiet() -> None:
    """Wait until this process's other threads sleep, for half a second at most.

    After work, threads of OpenMP wait for more without giving up their CPU: some milliseconds with
    GCC's, 200 with LLVM's. The other interpreter's process needs it meanwhile.
    """
    deadline = time.perf_counter() + 0.5
    while _another_thread_runs() and time.perf_counter() < deadline:
        time.sleep(0.001)


def _another_thread_runs() -> bool:
    """Whether one does, by Linux; the clock of a process lags behind its threads by some ticks."""
    own = str(threading.get_native_id())
    for thread in Path("/proc/self/task").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended
            state = thread.joinpath("stat").read_text().rpartition(")")[2].split()[0]
            if state == "R" and thread.name != own:
                return True
    return False


def fill_parameters(module: torch.nn.Module) -> None:
    """Give weights and biases values that every torch computes alike, of their usual size.

    They depend on the name only, so that another parameter more does not change them.
    """
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if not _has_values(weight):
                continue
            is_bias = "bias" in name.rpartition(".")[2]
            if weight.dim() < 2 and not is_bias and (weight == weight.reshape(-1)[:1]).all():
                continue  # a scale, such as the weight of a normalization
            fan_in = math.prod(weight.shape[1:]) if weight.dim() > 1 else 100
            seed = zlib.crc32(name.encode()) >> 1
            values = _values(weight.shape, seed, weight.device, is_complex=weight.is_complex())
            weight.copy_(values / math.sqrt(max(fan_in, 1)))


def settings() -> dict[str, Any]:
    """Return the number of threads, and by name the flags that decide which kernels run."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    read: dict[str, Callable[[], Any]] = {
        "cudnn.enabled": lambda: cudnn.enabled,
        "cudnn.benchmark": lambda: cudnn.benchmark,
        "cudnn.deterministic": lambda: cudnn.deterministic,
        "cudnn.allow_tf32": lambda: cudnn.allow_tf32,
        "cudnn.depthwise_kernel": lambda: cudnn.depthwise_kernel,
        "cuda.matmul.allow_tf32": lambda: matmul.allow_tf32,
        "cuda.matmul.allow_fp16_reduced_precision_reduction": (
            lambda: matmul.allow_fp16_reduced_precision_reduction
        ),
        "cuda.matmul.allow_bf16_reduced_precision_reduction": (
            lambda: matmul.allow_bf16_reduced_precision_reduction
        ),
        "mkldnn.enabled": lambda: torch._C._get_mkldnn_enabled(),
        "nnpack.enabled": lambda: torch._C._get_nnpack_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    }
    flags = dict.fromkeys(read, "unknown")
    for name, value in read.items():
        with contextlib.suppress(AttributeError, RuntimeError):  # lacking, or no single value
            flags[name] = str(value())
    return {"flags": flags, "threads": torch.get_num_threads()}


def backend(layer: Layer, device: torch.device) -> str:
    """Return the name of PyTorch's backend for a convolution; empty for other layers."""
    module: Any = layer.module
    numeric = not isinstance(getattr(module, "padding", ""), str)
    if not isinstance(module, torch.nn.modules.conv._ConvNd) or not numeric:
        return ""
    inputs = [*_leaves(layer.arguments, TensorSpec)]
    if module.padding_mode != "zeros" or len(inputs) != 1:
        return ""
    x = inputs[0].filled(device, 1)
    if x.dim() < module.weight.dim():  # without a batch, which the module adds
        x = x.unsqueeze(0)
    selected = torch._C._select_conv_backend(
        *(x, module.weight, module.bias, module.stride, module.padding),
        *(module.dilation, module.transposed, module.output_padding, module.groups),
    )
    # torch's binding names every CPU and GPU backend except this one.
    return "MkldnnTranspose" if selected.name == "???" else str(selected.name)


def _works(event: Any) -> bool:
    return event.name.startswith("aten::") and event.name[6:] not in _WITHOUT_WORK


def _working_children(event: Any) -> bool:
    """Return whether an operation leaves its work to others, except for copying and filling."""
    return any(
        (_works(child) and child.name[6:] not in _PREPARATIONS) or _working_children(child)
        for child in event.cpu_children
    )


def _record_calls(
    name: str,
    module: torch.nn.Module,
    calls: list[Layer],
    synchronize: Callable[[], None],
    hooks: contextlib.ExitStack,
) -> None:
    """Register hooks that append each call of a module without children."""
    start = 0.0

    def before(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        nonlocal start
        earlier = sum(call.module is module for call in calls)
        title = f"{name} (call {earlier + 1})" if earlier else name
        specs = _mapped((args, kwargs), torch.Tensor, _spec)
        modes = Modes.now()
        if not modes.gradient and _is_checkpointed():  # the backward pass calls it once more
            modes = dataclasses.replace(modes, gradient=True)
            specs = _mapped(
                specs, TensorSpec, lambda spec: dataclasses.replace(spec, needs_gradient=True)
            )
        calls.append(Layer(title, module, specs, modes=modes))
        synchronize()
        start = time.perf_counter()

    def after(*_: Any) -> None:
        synchronize()
        calls[-1].first_forward_seconds = time.perf_counter() - start

    # Before the user's hooks, which are part of each call and may replace its input.
    hooks.enter_context(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
    hooks.enter_context(module.register_forward_hook(after))


def _is_checkpointed() -> bool:
    """Whether the caller runs in a reentrant checkpoint of torch's, which turns gradients off."""
    return any(
        (frame.f_globals.get("__name__"), frame.f_code.co_name)
        == ("torch.utils.checkpoint", "forward")
        for frame, _ in traceback.walk_stack(None)
    )


def _dotted(cudnn: int) -> str:
    """Return a version of cuDNN as its documentation writes it, e.g. 9.19.0 for 91900."""
    major, rest = divmod(cudnn, 10_000 if cudnn >= 90_000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _model_of(name: str) -> torch.nn.Module:
    """Return the model of ``package.module:factory``."""
    module_name, _, attribute = name.partition(":")
    try:
        factory = operator.attrgetter(attribute)(importlib.import_module(module_name))
        module = factory if isinstance(factory, torch.nn.Module) else factory()
    except (Exception, SystemExit) as error:
        raise UnusableError(f"{name}() raised {_first_line(error)}") from error
    if module is factory:
        raise UnusableError(f"{name} is a model, but must be a function that returns one")
    if not isinstance(module, torch.nn.Module):
        raise UnusableError(
            f"{name}() returned a {type(module).__name__}, but must return a torch.nn.Module"
        )
    return module


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def questions(parent: Connection[Any, Any]) -> Iterator[dict[str, Any]]:
    """Yield the questions of the parent, until it ends."""
    with contextlib.suppress(EOFError):
        while True:
            yield json.loads(parent.recv_bytes())


def answer(parent: Connection[Any, Any], reply: dict[str, Any]) -> None:
    parent.send_bytes(json.dumps(reply).encode())


def main(parent: Connection[Any, Any], device: str) -> None:
    probe = Probe(device)
    for question in questions(parent):
        answer(parent, _answer(probe, question))


def _answer(probe: Probe, question: dict[str, Any]) -> dict[str, Any]:
    """Return the answer, or a sentence about why there is none; the process then continues."""
    try:
        return probe.answer(question)
    except UnusableError as error:
        return {"unusable": str(error)}
    except Exception as error:  # of the user's model
        return {"unusable": _first_line(error), "broken": probe.is_broken()}


if __name__ == "__main__":
    main(globals()["parent"], sys.argv[1])
