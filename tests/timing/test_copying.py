"""Copies of a candidate are the same call on other storages, and which tensors are found."""

from __future__ import annotations

import collections
import functools
import math
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from convtime.timing.candidate import Candidate
from convtime.timing.sampling.copying import Original, UncopiableError
from convtime.timing.sampling.object_graph import (
    Walk,
    contents_of,
    holds_still,
    objects_below,
    tensors_of,
)
from convtime.timing.sampling.placement import make_copies
from tests.helpers.placed import CPU, original

GLOBAL_WEIGHT = torch.ones(4)


def made(whole: Original) -> list[Any]:
    return [*make_copies(whole, 3, "random").candidates]


def copied(fn: Callable[..., object], *args: Any) -> list[Any]:
    return made(original(fn, *args))


def left_out(fn: Callable[..., object], *args: Any) -> set[str]:
    return {*original(fn, *args).left_out}


def on(device: torch.device, fn: Callable[..., object], *args: Any) -> Original:
    return Original(Candidate(fn, *args, name="one"), device)


def apart(tensors: list[torch.Tensor]) -> bool:
    return len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == len(tensors)


def accept(*args: object, **kwargs: object) -> None: ...


def test_writing_to_one_copy_changes_no_other(device: torch.device) -> None:
    x = torch.zeros(100, device=device, dtype=torch.int32)  # 400 bytes, not a multiple of 512
    copies = made(on(device, torch.neg, x))
    for index, copy in enumerate(copies):
        copy.args[0].fill_(index)
    for index, copy in enumerate(copies):
        assert copy.args[0].tolist() == [index] * 100
        assert copy.args[0].untyped_storage().nbytes() == 400
        with pytest.raises(RuntimeError, match="not resizable"):
            copy.args[0].resize_(4000)
    assert x.tolist() == [0] * 100


def test_layout_is_kept(device: torch.device) -> None:
    base = torch.randn(2, 3, 4, 5, device=device)
    conjugate = base.to(torch.complex64).conj()
    for x in (
        base[:, :1].expand(2, 7, 4, 5),
        base.to(memory_format=torch.channels_last),
        base.half()[1, 1:, ::2],
        base[1, 1, 1, 1] > 0,
        conjugate,
        conjugate.imag,
    ):
        whole = on(device, torch.neg, x)
        assert whole.nbytes == x.untyped_storage().nbytes()
        for copy in made(whole):
            (y,) = copy.args
            assert (y.shape, y.stride(), y.dtype) == (x.shape, x.stride(), x.dtype)
            assert y.storage_offset() == x.storage_offset()
            assert (y.is_conj(), y.is_neg()) == (x.is_conj(), x.is_neg())
            assert torch.equal(y, x)


def test_aliases_stay_aliases_within_a_copy() -> None:
    x = torch.zeros(8)
    whole = original(accept, x, [x, x[2:]], view=x.view(2, 4))
    assert whole.nbytes == 32
    for copy in made(whole):
        same, (again, tail) = copy.args
        assert again is same
        tail[0] = 5
        assert same[2] == copy.kwargs["view"][0, 2] == 5
    assert not x.any()
    big, empty = torch.zeros(100), torch.empty(0)
    whole = original(torch.add, big[:3], big[3:6], out=empty)
    assert whole.nbytes == 400
    for copy in made(whole):
        copy.fn(*copy.args, **copy.kwargs)
        assert copy.kwargs["out"].tolist() == [0.0] * 3, "an empty result can still be resized"
    assert not empty.numel()


def test_tensors_are_found_in_what_arguments_hold() -> None:
    x = torch.nn.Parameter(torch.ones(16))
    x.scale = torch.ones(2)  # type: ignore[attr-defined]
    cyclic: list[object] = [x]
    cyclic.append(cyclic)
    nests: list[tuple[object, Callable[[Any], torch.Tensor]]] = [
        (cyclic, lambda held: held[1][1][0]),
        (({"k": [x]},), lambda held: held[0]["k"][0]),
        (types.SimpleNamespace(image=x, label="cat"), lambda held: held.image),
        (collections.deque([x]), lambda held: held[0]),
        ({x: 1}, lambda held: next(iter(held))),
        (torch.distributions.Normal(x, 1.0), lambda held: held.loc),
        (slice(x), lambda held: held.stop),
    ]
    for nest, get in nests:
        found: list[Any] = [x, *(get(copy.args[0]) for copy in copied(accept, nest))]
        assert apart(found), nest
        assert apart([each.scale for each in found]), "attributes of tensors are copied, too"
        assert all(torch.equal(each, x) for each in found)
    for odd, said in (
        (threading.Lock(), r"lock \(cannot pickle '_thread.lock' object\)"),
        ({"k": (letter for letter in "")}, r"generator \(cannot pickle 'generator' object\)"),
    ):
        with pytest.raises(UncopiableError, match=said):
            copied(accept, torch.ones(4), odd)


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.first.bias.requires_grad_(False)
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.plain = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)) * self.scale + self.plain


@pytest.mark.parametrize("method", [False, True])
def test_modules_are_copied_with_tied_weights_and_gradients_of_their_own(
    method: bool, device: torch.device
) -> None:
    model = Tied().to(device)
    model.plain = model.plain.to(device)
    hooked: list[object] = []
    model.register_forward_hook(lambda module, *_: hooked.append(module))
    x = torch.randn(2, 4, device=device)
    whole = on(device, model.forward if method else model, x)
    assert whole.nbytes == 64 + 16 + 16 + 16 + 16 + 32
    assert whole.left_out == ()
    expected, copies = model(x), made(whole)
    models = [copy.fn.__self__ if method else copy.fn for copy in copies]
    assert apart([model.first.weight, *(own.first.weight for own in models)])
    assert apart([model.plain, *(own.plain for own in models)])
    for copy, own in zip(copies, models, strict=True):
        assert own.second.weight is own.first.weight
        assert type(own.first.weight) is torch.nn.Parameter
        assert {name for name, _ in own.named_parameters()} == dict(model.named_parameters()).keys()
        result = copy.fn(*copy.args)
        assert torch.equal(result, expected)
        assert hooked[-1] is (model if method else own)
        assert own.first.weight.grad is None
        result.sum().backward()
        assert own.first.weight.grad is not None
        assert own.first.bias.grad is None
    assert model.first.weight.grad is None


class Scaler:
    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def test_copies_are_leaves_without_gradients_and_with_versions_of_their_own() -> None:
    """Views of one buffer would make the backward passes fail."""
    x = torch.ones(4, requires_grad=True)
    x.sum().backward()
    for given in (x, x * 2):
        first, second, third = (copy.args[0] for copy in copied(torch.exp, given))
        assert (second.is_leaf, second.grad, second.requires_grad) == (True, None, True)
        result = (first * second).sum()
        with torch.no_grad():
            third.add_(1)
        result.backward()
        assert torch.equal(second.grad, given)


def test_callables_are_copied_with_what_they_hold() -> None:
    wraps: tuple[Callable[[torch.Tensor], Any], ...] = (
        Scaler,
        lambda tensor: Scaler(tensor).__call__,
        lambda tensor: functools.partial(torch.mul, other=tensor),
        lambda tensor: functools.partial(functools.partial(Scaler(tensor))),
        lambda tensor: tensor.mul_,
    )
    for wrap in wraps:
        x = torch.full((16,), 3.0)
        whole = original(wrap(x), torch.tensor(2.0))
        assert (whole.nbytes, whole.left_out) == (64 + 4, ())
        for copy in made(whole):
            assert copy.fn(*copy.args).tolist() == [6.0] * 16
        assert x.tolist() == [3.0] * 16
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("copy.deepcopy", lambda *_: pytest.fail("it takes long"))
        for copy in copied(functools.partial(torch.add, x, alpha=2), torch.tensor(2.0)):
            assert copy.fn.args[0] is not x
            assert copy.fn(*copy.args).tolist() == [7.0] * 16


class Unpicklable:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, *args: object) -> None: ...


def test_what_holds_no_tensor_of_the_device_is_shared() -> None:
    kernel, elsewhere, handles = Unpicklable(), torch.ones(4, device="meta"), [math]
    whole = original(kernel, torch.ones(4), elsewhere, handles, [1])
    first, second, _ = made(whole)
    assert (first.fn, first.args[2], whole.left_out) == (kernel, handles, ())
    assert first.args[1] is elsewhere
    second.args[3].append(2)
    assert first.args[3] == [1], "what is mutable is each copy's own"


class Subclass(torch.Tensor):
    pass


@pytest.mark.filterwarnings("ignore")
def test_special_tensors_are_shared_and_named() -> None:
    x = torch.ones(3)
    special: tuple[tuple[Any, str], ...] = (
        (torch.eye(3).to_sparse(), "Tensor (sparse_coo)"),
        (x.as_subclass(Subclass), "Subclass (strided)"),
        (torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "Tensor (strided)"),
        (torch.nested.nested_tensor([x], layout=torch.jagged), "NestedTensor (jagged)"),
        (torch.nn.UninitializedParameter(), "UninitializedParameter (strided)"),
    )
    for one, kind in special:
        whole = original(accept, one, torch.ones(4))
        assert (whole.nbytes, whole.left_out) == (16, (f"tensor of type {kind} in args[0]",))
        assert all(copy.args[0] is one for copy in made(whole))


class ReadsGlobal(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + GLOBAL_WEIGHT


def test_tensors_that_functions_refer_to_are_named() -> None:
    x, model, unset = torch.ones(4), torch.nn.Linear(2, 2), None
    del unset
    holder = {"deep": [Scaler(x)]}

    def helper() -> object:
        return x

    def fn(a: torch.Tensor, b: torch.Tensor = x, *, c: Any = (x,)) -> object:
        inner = lambda: GLOBAL_WEIGHT  # noqa: E731
        return helper(), model, holder, inner, (lambda: unset), a  # noqa: F821

    assert left_out(fn, torch.ones(4)) == {"closure variable 'x'"}, "of the helper"
    kept_whole = Original(Candidate(fn, torch.ones(4), before=lambda: None), CPU)
    assert {*kept_whole.left_out} == {
        "closure variable 'x'",
        "closure variable 'model'",
        "closure variable 'holder'",
        "global 'GLOBAL_WEIGHT'",
        "default of the parameter 'b'",
        "default of the parameter 'c'",
    }
    for module in (ReadsGlobal(), ReadsGlobal().forward, torch.nn.Sequential(ReadsGlobal())):
        assert left_out(module, x) == {"global 'GLOBAL_WEIGHT'"}
    scale = torch.ones(4)
    assert left_out(functools.partial(lambda a: a * scale), x) == {"closure variable 'scale'"}
    assert left_out(map, x.add_, [x]) == {"tensor of the method 'add_'"}
    assert left_out(lambda x: x.GLOBAL_WEIGHT, torch.ones(4)) == set(), "it is an attribute"
    fn.__module__ = "torch.fft"
    assert left_out(lambda a: fn(a, x), torch.ones(4)) == set(), "what torch's own refer to"


def test_a_functions_own_variables_are_copied() -> None:
    x, y, size = torch.arange(4.0), torch.ones(4), 3

    def fn(a: torch.Tensor, b: torch.Tensor = y, *, c: Any = (x,)) -> object:
        return a + x, b, c[0], (lambda: GLOBAL_WEIGHT)(), size

    fn.note = "kept"  # type: ignore[attr-defined]
    whole = original(fn, x)
    assert (whole.nbytes, whole.left_out) == (48, ())
    places = [(y, x, GLOBAL_WEIGHT)]
    for copy in made(whole):
        total, *others, number = copy.fn(*copy.args)
        assert torch.equal(total, 2 * x)
        assert [one.tolist() for one in others] == [[1.0] * 4, x.tolist(), [1.0] * 4]
        assert (number, copy.fn.note) == (3, "kept")
        assert others[1] is copy.args[0], "aliases stay aliases"
        places.append(tuple(others))
    assert all(apart([*of_one]) for of_one in zip(*places, strict=True))
    count = 0

    def counting(*args: object) -> torch.Tensor:
        nonlocal count
        count += 1
        return x

    whole = original(counting, torch.ones(4))
    assert whole.left_out == ("closure variable 'x'",), "a function that rebinds a variable"
    for copy in made(whole):
        copy.fn()
    assert count == 3


@pytest.mark.cuda
def test_streams_and_events_are_shared() -> None:
    handles = [torch.cuda.Stream(), torch.cuda.Event(), torch.Generator("cuda")]
    x, on_cpu = torch.ones(4, device="cuda"), torch.ones(4)
    whole = on(torch.device("cuda", x.device.index or 0), accept, x, on_cpu, handles)
    assert whole.nbytes == 16
    for copy in made(whole):
        assert copy.args[1] is on_cpu
        assert all(held is handle for held, handle in zip(copy.args[2], handles, strict=True))
    assert on(torch.device("cuda", 99), accept, x).nbytes == 0


TREE: dict[str, Any] = {"x": torch.zeros(1)}
TREE["self"] = TREE
NUMBERS = [*range(10_000)]


def found_in(candidate: Candidate, walk: Walk | None = None) -> list[torch.Tensor]:
    return list(tensors_of(candidate, walk or Walk()))


def among(tensor: torch.Tensor, tensors: list[torch.Tensor]) -> bool:
    return any(found is tensor for found in tensors)


class Answering:
    """Would run the caller's code wherever it is asked for something."""

    __slots__ = ("x", "y")
    __module__ = property(lambda self: "here")  # what no other class says of its module

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"asked for {name}")


class AnsweringDict(dict[str, torch.Tensor]):
    keys = values = items = __iter__ = pytest.fail


@pytest.mark.filterwarnings("ignore:.torch.jit.script.:FutureWarning")
def test_tensors_are_found_wherever_the_callable_reaches_them() -> None:
    x, y, z = (torch.zeros(1) for _ in range(3))
    module, scripted = torch.nn.Linear(2, 2), torch.jit.script(torch.nn.BatchNorm1d(2))
    held = {"deep": [lambda: z]}
    for candidate, expected in (
        (Candidate(lambda a, b: a + z, x, kwargs={"b": [y]}, name="arguments"), [x, y, z]),
        (Candidate(module.forward, x, name="method"), [x, module.weight, module.bias]),
        (Candidate(lambda: held["deep"][0](), name="functions of variables"), [z]),
        (Candidate(len, Answering(x), AnsweringDict(y=y), name="no code of theirs runs"), [x, y]),
    ):
        found = found_in(candidate)
        assert all(among(tensor, found) for tensor in expected), candidate.name
    places = {tensor.data_ptr() for tensor in found_in(Candidate(scripted, name="script"))}
    assert {tensor.data_ptr() for tensor in scripted.state_dict().values()} <= places
    module.held = [module]  # type: ignore[assignment]
    found = found_in(Candidate(lambda *args: TREE["x"], TREE, module, name="cyclic"))
    assert len(found) == 3
    assert among(TREE["x"], found)


class JITFunction:
    """Like triton's, which leads to all that its compiler has compiled."""

    __module__ = "triton.runtime.jit"

    def __init__(self) -> None:
        self.cache = [[number] for number in range(2000)]


def test_the_nearest_are_found_first_and_a_limit_ends_the_search() -> None:
    x, many = torch.zeros(1), [[index] for index in range(2000)]
    walk, everything, numbers = Walk(1000), Walk(10_000), Walk(1000)
    assert among(x, found_in(Candidate(len, many, x, name="one"), walk))
    assert walk.ended_early
    assert among(x, found_in(Candidate(len, many, [[x]], name="one"), everything))
    assert not everything.ended_early
    assert found_in(Candidate(lambda: len(NUMBERS), name="one"), numbers) == []
    assert numbers.ended_early, "numbers count, so that a long list of them ends the search"
    kernel, walk = JITFunction(), Walk(1000)
    assert among(x, found_in(Candidate(lambda: (kernel, x), name="one"), walk))
    assert not walk.ended_early, "what a compiler keeps is not searched"


def test_what_an_object_holds_is_compared_by_identity_and_numbers_by_value() -> None:
    x, held = torch.zeros(1), {"tensor": torch.zeros(1), "number": 1000, "list": [1.5]}
    before = [(each, contents_of(each)) for each in objects_below(held)]
    assert all(holds_still(*each) for each in before)
    for key, value, unchanged in (
        ("number", int("1000"), True),
        ("number", 1000.0, False),
        ("list", [1.5], False),
        ("tensor", x, False),
        ("more", 1, False),
    ):
        kept = dict(held)
        held[key] = value
        assert all(holds_still(*each) for each in before) == unchanged, (key, value)
        held.clear()
        held.update(kept)
