"""Sequences of what users do with a model, on a model with fusion and on its twin without."""

import copy
import functools
import itertools
import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from common.cuda import capture
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils import _pytree

from convtime.core.errors import first_line
from convtime.nn import FusedModel, fuse, fusing

from .architectures import ARCHITECTURES, draw_images, norms_of, randomise, sides_of

_STEPS = 2  # of training, each time
_ROUNDING = {  # of other dtypes, none
    torch.float64: 1e-7,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}
# A large eps, so that gradients which are only rounding errors change nothing.
_ADAM: dict[str, Any] = {"lr": 1e-2, "eps": 1e-4}
_OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "for-loop": lambda given: torch.optim.Adam(given, **_ADAM, foreach=False),
    "foreach": lambda given: torch.optim.AdamW(given, **_ADAM, foreach=True),
    "fused": lambda given: torch.optim.AdamW(given, **_ADAM, fused=True),
    "fused sgd": lambda given: torch.optim.SGD(given, lr=1e-2, fused=True),
}
_CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}  # by dimensions of an image


class Refused(Exception):  # noqa: N818
    """PyTorch itself does not support what was drawn."""


class Twins:
    """A model that is fused, and one that is not, with the same parameters.

    Training and evaluation call the one as torch.compile compiles it with `fusing`, and as copies
    that `fuse` makes. In float64, results may differ by rounding errors; in other dtypes, by a few
    times as much as those of the model without fusion differ from float64. `differences` has a
    sentence for each result that is not the same, of as many `calls`.
    """

    def __init__(self, architecture: str, seed: int, backend: str, device: torch.device) -> None:
        self.random = random.Random(seed)  # noqa: S311
        self.generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        self.device = device
        self.compiled_twin: str = getattr(ARCHITECTURES[architecture], "compiled_twin", "")
        self.backend = self.compiled_twin or backend
        if self.backend == "inductor":
            self.compiled_twin = "inductor"  # some of its gradients are wrong without fusion, too
        self.dtype = self.random.choices(
            (torch.float64, torch.float32, torch.float16), (5, 2, 1 if device.type == "cuda" else 0)
        )[0]
        made = ARCHITECTURES[architecture](self.random.choice((4, 6)))
        made = randomise(made, self.generator).to(device, self.dtype)
        self.layout = _CHANNELS_LAST.get(len(sides_of(made)), torch.contiguous_format)
        if self.random.random() < 0.3:
            made = made.to(memory_format=self.layout)
        self.plain = made
        self.model = copy.deepcopy(made)
        self.snapshot: FusedModel | None = None
        self.when_taken = made
        self.averages: list[AveragedModel] | None = None
        self.frozen_norms = False
        self.hooks: list[Any] = []
        self.differences: list[str] = []
        self.calls = 0
        self.fused: set[str] = set()
        self._seeds = itertools.count(seed)
        self.optimizer = self.random.choice([*_OPTIMIZERS])
        self.start_again()

    @property
    def models(self) -> tuple[nn.Module, nn.Module]:
        return self.model, self.plain

    def start_again(self) -> None:
        """Compile the model anew, and make new optimizers."""
        torch._dynamo.reset()
        self.fusing = fusing(self.backend)
        self.compiled = torch.compile(self.model, backend=self.fusing)
        self.trained: Callable[..., Any] = self.plain
        if self.compiled_twin:
            self.trained = torch.compile(self.plain, backend=self.compiled_twin)
        make = _OPTIMIZERS[self.optimizer]
        self.optimizers = [
            make([each for each in model.parameters() if each.requires_grad])
            for model in self.models
        ]

    def images(self) -> torch.Tensor:
        count, scale = self.random.choice((1, 2, 3)), self.random.choice((1, 1, 2))
        x = draw_images(self.plain, count, scale, self.generator).to(self.device, self.dtype)
        return x.to(memory_format=self.layout) if self.random.random() < 0.3 else x

    def both(
        self,
        what: str,
        ours: Callable[[torch.Tensor], Any],
        theirs: Callable[..., Any],
        x: torch.Tensor,
        mode: Callable[[], AbstractContextManager[Any]] = nullcontext,
        exact: Callable[..., Any] | None = None,
    ) -> tuple[Any, Any]:
        """Calls both with the same images and random numbers, in a mode, and compares.

        `exact` is the call in float64 without fusion (default: that of a copy of the module).
        Raises Refused where PyTorch refuses the call without fusion.
        """
        seed = next(self._seeds)
        if self.dtype != torch.float64 and exact is None:
            module: Any = self.plain if theirs is self.trained else theirs
            exact = copy.deepcopy(module).double()
        torch.manual_seed(seed)
        try:
            with mode():
                expected = theirs(x.clone())
        except Exception as error:
            raise Refused from error
        torch.manual_seed(seed)
        with mode():
            found = ours(x.clone())
        limit = None
        if exact is not None:
            torch.manual_seed(seed)
            limit = exact(x.double())
        self.compare(what, found, expected, limit)
        return found, expected

    def compare(self, what: str, ours: Any, theirs: Any, exact: Any = None) -> None:
        """Note where results differ by more than rounding errors."""
        self.calls += 1
        flat, structure = _pytree.tree_flatten(ours)
        others, structure_of_others = _pytree.tree_flatten(theirs)
        if structure != structure_of_others:
            self.differences.append(f"{what}: the structure of the result")
            return
        exacts = [None] * len(flat) if exact is None else _pytree.tree_leaves(exact)
        for index, (one, other, truth) in enumerate(zip(flat, others, exacts, strict=True)):
            if difference := _difference(one, other, truth):
                self.differences.append(f"{what}, result {index}: {difference}")

    def compare_state(self, what: str) -> None:
        """Compare parameters, buffers and attributes such as counters of calls."""
        if self.dtype == torch.float64:
            self.compare(what, dict(self.model.state_dict()), dict(self.plain.state_dict()))
        else:
            # Rounding errors of a training step may grow in the next ones.
            self.model.load_state_dict(self.plain.state_dict())
        ours, theirs = (getattr(each, "calls", 0) for each in self.models)
        if ours != theirs:
            self.differences.append(f"{what}: {ours} calls were counted, not {theirs}")

    def take(self) -> FusedModel:
        """Fuse a copy of the model, and remember what the twin is now."""
        self.keep_report()
        self.when_taken = copy.deepcopy(self.plain).eval().requires_grad_(False)
        self.snapshot = fuse(self.model, backend=self.backend)
        return self.snapshot

    def keep_report(self) -> None:
        """Add to `fused` what has been fused since the last copy was taken."""
        for each in (self.fusing, self.snapshot):
            if each is not None:
                self.fused |= {one.name for one in each.report.fused}


def _difference(ours: Any, theirs: Any, truth: Any) -> str:
    """What is not the same about two results; empty if nothing is."""
    if not isinstance(theirs, torch.Tensor):
        return "" if ours == theirs else f"{ours} instead of {theirs}"
    for attribute in ("shape", "dtype", "requires_grad"):
        found, expected = (getattr(each, attribute) for each in (ours, theirs))
        if found != expected:
            return f"{attribute} is {found} instead of {expected}"
    if not theirs.numel():
        return ""
    one, other = (each.detach().double() for each in (ours, theirs))
    allowed = _ROUNDING.get(theirs.dtype, 0) * (1 + float(other.abs().max()))
    error = float((one - other).abs().max())
    if truth is not None:
        error = float((one - truth.detach()).abs().max())
        allowed = max(allowed, 4 * float((other - truth.detach()).abs().max()))
    # Of NaN, neither is true.
    return "" if error <= allowed else f"off by {error:.3g}, allowed {allowed:.3g}"


Action = Callable[[Twins], None]


def train(twins: Twins) -> None:
    for model in twins.models:
        model.train()
        for norm in norms_of(model) if twins.frozen_norms else ():
            norm.eval()
    for _ in range(_STEPS):
        x = twins.images()
        x = torch.cat([x, x.flip(0).square()])  # at least two: statistics of one can be undefined
        outputs = twins.both("training", twins.compiled, twins.trained, x)
        for output, optimizer in zip(outputs, twins.optimizers, strict=True):
            optimizer.zero_grad()
            _backward_from(output)
        if twins.dtype == torch.float64:
            twins.compare("gradients", _gradients(twins.model), _gradients(twins.plain))
        if twins.dtype != torch.float16:  # in which Adam's squares vanish
            for optimizer in twins.optimizers:
                optimizer.step()
    twins.compare_state("training")


def _backward_from(output: Any) -> None:
    leaves = [each for each in _pytree.tree_leaves(output) if each.requires_grad]
    if leaves:
        sum(each.float().square().mean() for each in leaves).backward()


def _gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: each.grad for name, each in model.named_parameters()}


def _modes(twins: Twins) -> Callable[[], AbstractContextManager[Any]]:
    return twins.random.choice((torch.no_grad, torch.inference_mode, torch.enable_grad))


def evaluate_copy(twins: Twins) -> None:
    fused = twins.take()
    for _ in range(2):
        twins.both("a new copy", fused, twins.when_taken, twins.images(), _modes(twins))


def evaluate_old_copy(twins: Twins) -> None:
    snapshot = twins.snapshot or twins.take()
    twins.both("an older copy", snapshot, twins.when_taken, twins.images(), _modes(twins))


def evaluate_compiled(twins: Twins) -> None:
    twins.model.eval()
    twins.plain.eval()
    twins.both("evaluation", twins.compiled, twins.trained, twins.images(), _modes(twins))
    twins.compare_state("evaluation")


def evaluate_gradient(twins: Twins) -> None:
    fused, x = twins.take(), twins.images()

    def gradient(model: nn.Module, x: torch.Tensor) -> Any:
        _backward_from(model(x.requires_grad_()))
        return x.grad

    ours, theirs = (functools.partial(gradient, model) for model in (fused, twins.when_taken))
    exact = functools.partial(gradient, copy.deepcopy(twins.when_taken).double())
    twins.both("gradients of the images", ours, theirs, x, exact=exact)


def recalibrate(twins: Twins) -> None:
    """New statistics of the batch norms, from calls in training mode without gradients."""
    x = torch.cat([twins.images()] * 2)
    x[1:] *= 1.5
    seed = twins.random.random()
    for model, call in ((twins.plain, twins.trained), (twins.model, twins.compiled)):
        model.train()
        for norm in norms_of(model):
            norm.reset_running_stats()
        with torch.no_grad():
            for _ in range(2):
                torch.manual_seed(int(seed * 1e6))
                call(x.clone())
    twins.compare_state("statistics")
    evaluate_copy(twins)


def average(twins: Twins) -> None:
    if twins.averages is None:
        ema = get_ema_multi_avg_fn(0.5)  # type: ignore[no-untyped-call]
        twins.averages = [
            AveragedModel(model, multi_avg_fn=ema, use_buffers=False) for model in twins.models
        ]
    ours, theirs = twins.averages
    ours.update_parameters(twins.model)
    theirs.update_parameters(twins.plain)
    if twins.dtype != torch.float64:
        ours.load_state_dict(theirs.state_dict())
    fused = fuse(ours.module, backend=twins.backend)
    twins.both("an average", fused, theirs.module.eval(), twins.images(), torch.no_grad)


def copy_deeply(twins: Twins) -> None:
    twins.model, twins.plain = map(copy.deepcopy, twins.models)
    twins.averages = None
    twins.hooks.clear()  # the copies have theirs, which cannot be removed by these
    twins.start_again()
    if twins.snapshot is not None:
        twins.snapshot = copy.deepcopy(twins.snapshot)
    evaluate_old_copy(twins)


def pickle_copy(twins: Twins) -> None:
    fused = twins.take()
    if any(map(nn.utils.parametrize.is_parametrized, twins.plain.modules())):
        return  # torch refuses to pickle it
    twins.snapshot = pickle.loads(pickle.dumps(fused))  # noqa: S301
    evaluate_old_copy(twins)


def load_state(twins: Twins) -> None:
    """Other values, loaded into a copy after its calls."""
    fused = twins.take()
    twins.both("before loading", fused, twins.when_taken, twins.images(), torch.no_grad)
    for parameter in twins.when_taken.parameters():  # which have no gradients
        parameter.mul_(1.25)
    fused.load_state_dict(twins.when_taken.state_dict())
    twins.both("after loading", fused, twins.when_taken, twins.images(), torch.no_grad)


def write_data(twins: Twins) -> None:
    index = twins.random.randrange(len([*twins.plain.parameters()]))
    for model in twins.models:
        [*model.parameters()][index].data.mul_(1.1)


def write_statistics(twins: Twins) -> None:
    for norm in (*norms_of(twins.model), *norms_of(twins.plain)):
        norm.running_mean.data.add_(0.25)


def change_optimizer(twins: Twins) -> None:
    twins.optimizer = twins.random.choice([*_OPTIMIZERS])
    twins.start_again()


def freeze_norms(twins: Twins) -> None:
    twins.frozen_norms = not twins.frozen_norms
    train(twins)


def freeze_parameters(twins: Twins) -> None:
    count = len([*twins.plain.parameters()])
    chosen = set(twins.random.sample(range(count), count // 2))
    for model in twins.models:
        for index, parameter in enumerate(model.parameters()):
            parameter.requires_grad_(index not in chosen)
            parameter.grad = None
    twins.start_again()


def scale_gradient(_module: nn.Module, given: Any, _output: Any) -> Any:
    return tuple(None if each is None else each * 0.5 for each in given)


_HOOKS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("register_forward_hook", lambda _module, _args, output: output * 1.5),
    ("register_forward_pre_hook", lambda _module, args: (args[0] * 0.75, *args[1:])),
    ("register_full_backward_hook", scale_gradient),
)
_HOOKED = (nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.Conv1d, nn.Conv3d, nn.Sequential)


def change_hooks(twins: Twins) -> None:
    """Register a hook of one module, or remove the earlier ones, and compile anew.

    torch.compile does not see hooks that are registered later.
    """
    if twins.hooks:
        while twins.hooks:
            twins.hooks.pop().remove()
    else:
        names = [name for name, each in twins.plain.named_modules() if type(each) in _HOOKED]
        name = twins.random.choice(names)
        kind, hook = twins.random.choice(_HOOKS)
        for model in twins.models:
            twins.hooks.append(getattr(model.get_submodule(name), kind)(hook))
    twins.start_again()


def evaluate_in_autocast(twins: Twins) -> None:
    fused = twins.take()
    kind = twins.device.type
    for mode in (lambda: torch.autocast(kind, torch.bfloat16), nullcontext):
        for context in (torch.no_grad, torch.enable_grad):
            with context():
                twins.both("autocast", fused, twins.when_taken, twins.images(), mode)


def evaluate_in_threads(twins: Twins) -> None:
    fused = twins.take()
    images = [twins.images() for _ in range(3)]

    def call(x: torch.Tensor) -> Any:
        with torch.no_grad():
            return fused(x.clone())

    with ThreadPoolExecutor(3) as pool:
        results = [*pool.map(call, images)]
    if hasattr(twins.plain, "calls"):
        return  # its results depend on the order of the calls
    for x, result in zip(images, results, strict=True):
        ours = functools.partial(lambda result, _: result, result)
        twins.both("threads", ours, twins.when_taken, x, torch.no_grad)


def evaluate_in_compiled(twins: Twins) -> None:
    fused = twins.take()
    theirs = nn.Sequential(Doubled(), twins.when_taken)
    ours = torch.compile(lambda x: fused(2 * x), backend="aot_eager")
    twins.both("compiled around", ours, theirs, twins.images(), torch.no_grad)


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def cast_copy(twins: Twins) -> None:
    if twins.dtype == torch.float16:
        return
    dtype = torch.float32 if twins.dtype == torch.float64 else torch.bfloat16
    fused = twins.take().to(dtype)
    exact = copy.deepcopy(twins.when_taken).double()
    theirs = twins.when_taken.to(dtype)
    x = twins.images().to(dtype)
    twins.both("another dtype", fused, theirs, x, torch.no_grad, exact)
    twins.snapshot = None


def capture_graph(twins: Twins) -> None:
    """A CUDA graph of a copy, replayed with other images."""
    if twins.device.type != "cuda" or hasattr(twins.plain, "calls"):
        evaluate_copy(twins)  # its values choose what it computes
        return
    fused, x = twins.take(), twins.images()
    outputs: list[Any] = []
    with torch.no_grad():
        graph = capture(lambda: outputs.append(fused(x)))

        def replay(given: torch.Tensor) -> Any:
            x.copy_(given)
            graph()
            return outputs[-1]

        twins.both("a graph", replay, twins.when_taken, torch.randn_like(x))


_WEIGHTED = (
    (5, train), (3, evaluate_copy), (3, evaluate_old_copy), (2, evaluate_compiled),
    (1, evaluate_gradient), (1, recalibrate), (2, average), (1, copy_deeply), (1, pickle_copy),
    (1, load_state), (2, write_data), (1, write_statistics), (1, change_optimizer),
    (1, freeze_norms), (1, freeze_parameters), (2, change_hooks), (2, evaluate_in_autocast),
    (1, evaluate_in_threads), (1, evaluate_in_compiled), (1, cast_copy), (1, capture_graph),
)  # fmt: skip
_ACTIONS: dict[str, Action] = {action.__name__: action for _, action in _WEIGHTED}


def draw_actions(seed: int, length: int) -> list[str]:
    """The names of a sequence's actions; the last one evaluates."""
    drawn = random.Random(f"actions {seed}")  # noqa: S311
    weights = [weight for weight, _ in _WEIGHTED]
    return [*drawn.choices([*_ACTIONS], weights, k=length - 1), "evaluate_copy"]


def run_sequence(
    seed: int, backends: tuple[str, ...], device: torch.device, length: int = 5
) -> dict[str, Any]:
    """Draw an architecture and a sequence, and run it: what was drawn, and the differences."""
    torch._dynamo.reset()
    drawn = random.Random(f"sequence {seed}")  # noqa: S311
    architecture = [*ARCHITECTURES][seed % len(ARCHITECTURES)]
    backend = drawn.choice(backends)
    twins = Twins(architecture, seed, backend, device)
    actions = draw_actions(seed, length)
    action = ""
    try:
        for action in actions:
            _ACTIONS[action](twins)
    except Refused:
        pass
    except Exception as error:  # a refusal by convtime alone is a difference
        twins.differences.append(f"{action}: {first_line(error)}")
    twins.keep_report()
    return {
        "architecture": architecture,
        "dtype": str(twins.dtype).removeprefix("torch."),
        "backend": twins.backend,
        "actions": actions,
        "compared": twins.calls,
        "fused": len(twins.fused),
        "differences": twins.differences,
    }
