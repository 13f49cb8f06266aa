"""Copies of a candidate are the same call on other storages."""

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
from convtime.timing.sampling.placement import make_copies
from tests.helpers.placed import CPU, original

GLOBAL_WEIGHT = torch.ones(4)


def copied(fn: Callable[..., object], *args: Any, **kwargs: Any) -> list[Any]:
    return made(original(fn, *args, **kwargs))


def made(whole: Original) -> list[Any]:
    return [*make_copies(whole, 3, "random").candidates]


def on(device: torch.device, fn: Callable[..., object], *args: Any) -> Original:
    return Original(Candidate(fn, *args, name="one"), device)


def left_out(fn: Callable[..., object], *args: Any) -> set[str]:
    return {*original(fn, *args).left_out}


def nbytes(whole: Original) -> int:
    return sum(storage.nbytes() for storage in whole.storages.values())


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def apart(tensors: list[torch.Tensor]) -> bool:
    return len({storage(tensor) for tensor in tensors}) == len(tensors)


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


STRIDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.transpose(0, 2),
    "expanded": lambda x: x[:, :1].expand(2, 7, 4, 5),
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "offset": lambda x: x[1, 1:, ::2],
    "half": lambda x: x.half()[1:],
    "scalar": lambda x: x[1, 1, 1, 1],
    "bool": lambda x: x > 0,
    "conj": lambda x: x.to(torch.complex64).conj(),
    "neg": lambda x: x.to(torch.complex64).conj().imag,
}


def test_layout_is_kept(device: torch.device) -> None:
    for kind, of in STRIDED.items():
        x = of(torch.randn(2, 3, 4, 5, device=device))
        whole = on(device, torch.neg, x)
        assert nbytes(whole) == x.untyped_storage().nbytes(), kind
        for copy in made(whole):
            (y,) = copy.args
            assert (y.shape, y.stride(), y.dtype) == (x.shape, x.stride(), x.dtype), kind
            assert y.storage_offset() == x.storage_offset(), kind
            assert (y.is_conj(), y.is_neg()) == (x.is_conj(), x.is_neg()), kind
            assert torch.equal(y, x), kind


def test_aliases_stay_aliases_within_a_copy() -> None:
    x = torch.zeros(8)
    whole = original(accept, x, [x, x[2:]], view=x.view(2, 4))
    assert nbytes(whole) == 32
    for copy in made(whole):
        same, (again, tail) = copy.args
        assert again is same
        tail[0] = 5
        assert same[2] == copy.kwargs["view"][0, 2] == 5
    assert not x.any()
    big, empty = torch.zeros(100), torch.empty(0)
    whole = original(torch.add, big[:3], big[3:6], out=empty)
    assert nbytes(whole) == 400
    for copy in made(whole):
        copy.fn(*copy.args, **copy.kwargs)
        assert copy.kwargs["out"].tolist() == [0.0] * 3, "an empty result can still be resized"
    assert not empty.numel()


class Slotted:
    __slots__ = ("unset", "x")

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


def test_tensors_are_found_in_what_arguments_hold() -> None:
    x = torch.nn.Parameter(torch.ones(16))
    x.scale = torch.ones(2)  # type: ignore[attr-defined]
    cyclic: list[object] = [x]
    cyclic.append(cyclic)
    nests: list[tuple[object, Callable[[Any], torch.Tensor]]] = [
        (cyclic, lambda held: held[1][1][0]),
        (({"k": [x]},), lambda held: held[0]["k"][0]),
        (types.SimpleNamespace(image=x, label="cat"), lambda held: held.image),
        (Slotted(x), lambda held: held.x),
        (collections.OrderedDict(k=x), lambda held: held["k"]),
        (collections.deque([x]), lambda held: held[0]),
        ({x}, lambda held: next(iter(held))),
        ({x: 1}, lambda held: next(iter(held))),
        (torch.distributions.Normal(x, 1.0), lambda held: held.loc),
        (slice(x), lambda held: held.stop),
    ]
    for nest, get in nests:
        found: list[Any] = [x, *(get(copy.args[0]) for copy in copied(accept, nest))]
        assert apart(found), nest
        assert apart([each.scale for each in found]), "attributes of tensors are copied, too"
        assert all(torch.equal(each, x) for each in found)


class Tied(torch.nn.Module):
    """Holds tensors in every way that a module can."""

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
    assert nbytes(whole) == 64 + 16 + 16 + 16 + 16 + 32
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
        results = [(tensor * tensor).sum() for tensor in (first, second)]
        with torch.no_grad():
            third.add_(1)
        for result in results:
            result.backward()
        assert torch.equal(second.grad, 2 * given)


def test_callables_are_copied_with_what_they_hold() -> None:
    wraps: tuple[Callable[[torch.Tensor], Any], ...] = (
        Scaler,
        lambda tensor: Scaler(tensor).__call__,
        lambda tensor: functools.partial(torch.mul, tensor),
        lambda tensor: functools.partial(torch.mul, other=tensor),
        lambda tensor: functools.partial(functools.partial(Scaler(tensor))),
        lambda tensor: tensor.mul,
        lambda tensor: tensor.mul_,
    )
    for wrap in wraps:
        x = torch.full((16,), 3.0)
        whole = original(wrap(x), torch.tensor(2.0))
        assert (nbytes(whole), whole.left_out) == (64 + 4, ())
        for copy in made(whole):
            assert copy.fn(*copy.args).tolist() == [6.0] * 16
        assert x.tolist() == [3.0] * 16
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("copy.deepcopy", lambda *_: pytest.fail("it takes long"))
        for copy in copied(functools.partial(torch.add, x, alpha=2), torch.tensor(2.0)):
            assert copy.fn.args[0] is not x
            assert copy.fn(*copy.args).tolist() == [7.0] * 16


class Kernel:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, *args: object) -> None: ...


def test_what_holds_no_tensor_of_the_device_is_shared() -> None:
    kernel, elsewhere = Kernel(), torch.ones(4, device="meta")
    handles = [torch.Generator(), math]
    whole = original(kernel, torch.ones(4), elsewhere, handles, [1])
    first, second, _ = made(whole)
    assert first.fn is kernel
    assert first.args[1] is elsewhere
    assert first.args[2] == handles
    second.args[3].append(2)
    assert first.args[3] == [1], "what is mutable is each copy's own"
    assert whole.left_out == ()


class Subclass(torch.Tensor):
    pass


@pytest.mark.filterwarnings("ignore")
def test_special_tensors_are_shared_and_named() -> None:
    special: tuple[tuple[Any, str], ...] = (
        (torch.eye(3).to_sparse(), "tensor of type Tensor (sparse_coo) in args[0]"),
        (torch.ones(3).as_subclass(Subclass), "tensor of type Subclass (strided) in args[0]"),
        (
            torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
            "tensor of type Tensor (strided) in args[0]",
        ),
        (
            torch.nested.nested_tensor([torch.ones(3)], layout=torch.jagged),
            "tensor of type NestedTensor (jagged) in args[0]",
        ),
        (
            torch.nn.UninitializedParameter(),
            "tensor of type UninitializedParameter (strided) in args[0]",
        ),
    )
    for one, name in special:
        whole = original(accept, one, torch.ones(4))
        assert (nbytes(whole), whole.left_out) == (16, (name,))
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


@pytest.mark.thorough
def test_a_compiled_functions_closure_is_named() -> None:
    scale = torch.ones(4)
    compiled = torch.compile(lambda a: a * scale)
    assert left_out(compiled, torch.ones(4)) == {"closure variable 'scale'"}


def test_what_torch_itself_refers_to_is_not_named() -> None:
    x = torch.ones(4)

    def library() -> torch.Tensor:
        return x

    class State:
        def __init__(self) -> None:
            self.scratch = torch.ones(4)

    library.__module__, State.__module__ = "torch.fft", "torch._dynamo"
    state = State()
    assert left_out(lambda a: (library(), state), torch.ones(4)) == set()


def test_a_functions_own_variables_are_copied() -> None:
    x, y, size = torch.arange(4.0), torch.ones(4), 3

    def fn(a: torch.Tensor, b: torch.Tensor = y, *, c: Any = (x,)) -> object:
        return a + x, b, c[0], (lambda: GLOBAL_WEIGHT)(), size

    fn.note = "kept"  # type: ignore[attr-defined]
    whole = original(fn, x)
    assert (nbytes(whole), whole.left_out) == (48, ())
    places = [(y, x, GLOBAL_WEIGHT)]
    for copy in made(whole):
        total, *others, number = copy.fn(*copy.args)
        assert torch.equal(total, 2 * x)
        assert [one.tolist() for one in others] == [[1.0] * 4, x.tolist(), [1.0] * 4]
        assert (number, copy.fn.note) == (3, "kept")
        assert others[1] is copy.args[0], "aliases stay aliases"
        places.append(tuple(others))
    assert all(apart([*of_one]) for of_one in zip(*places, strict=True))


def test_a_function_that_rebinds_variables_shares_them() -> None:
    x, count = torch.ones(4), 0

    def counting(*args: object) -> torch.Tensor:
        nonlocal count
        count += 1
        return x

    whole = original(counting, torch.ones(4))
    assert whole.left_out == ("closure variable 'x'",)
    for copy in made(whole):
        copy.fn()
    assert count == 3


def test_what_cannot_be_copied_is_named() -> None:
    for odd, said in (
        (threading.Lock(), r"lock \(cannot pickle '_thread.lock' object\)"),
        ({"k": (letter for letter in "")}, r"generator \(cannot pickle 'generator' object\)"),
    ):
        with pytest.raises(UncopiableError, match=said):
            copied(accept, torch.ones(4), odd)


@pytest.mark.cuda
def test_streams_and_events_are_shared() -> None:
    handles = [torch.cuda.Stream(), torch.cuda.Event(), torch.Generator("cuda")]
    x, on_cpu = torch.ones(4, device="cuda"), torch.ones(4)
    whole = on(torch.device("cuda", x.device.index or 0), accept, x, on_cpu, handles)
    assert nbytes(whole) == 16
    for copy in made(whole):
        assert copy.args[1] is on_cpu
        assert all(held is handle for held, handle in zip(copy.args[2], handles, strict=True))
    assert nbytes(on(torch.device("cuda", 99), accept, x)) == 0
