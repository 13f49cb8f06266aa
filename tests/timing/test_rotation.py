from __future__ import annotations

import collections
import dataclasses
import functools
import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from convtime.timing.candidate import Candidate
from convtime.timing.sampling import rotation
from convtime.timing.sampling.copying import Original

KIB = 1024
GLOBAL_WEIGHT = torch.ones(4)


@pytest.fixture(autouse=True)
def _storages_count_by_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that copies of small tensors are few."""
    monkeypatch.setattr(rotation, "_CACHE_LINE", 1)


class Rotated(NamedTuple):
    copies: list[Candidate]
    bytes_per_call: int
    left_warm: tuple[str, ...]


def rotate(candidate: Candidate, device: torch.device, size: int, **options: Any) -> Rotated:
    found = rotation.rotate(Original(candidate, device), size, **options)
    return Rotated(found.copies.candidates, found.bytes_per_call, found.left_warm)


def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + b


def rotated(fn: Callable[..., object], *args: Any, size: int = KIB, **kwargs: Any) -> Rotated:
    return rotate(Candidate(fn, *args, kwargs=kwargs, name="one"), torch.device("cpu"), size)


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_copies_hold_the_working_set_between_two_uses_of_one(device: torch.device) -> None:
    x = torch.randn(16, 3, device=device)  # 192 bytes
    candidate = Candidate(add, x, kwargs={"b": x[0]}, name="add")
    found = rotate(candidate, device, 1000)
    assert found.bytes_per_call == 192
    assert len(found.copies) == math.ceil(1000 / 192) + 1
    assert found.left_warm == ()
    assert found.copies[0] is candidate
    assert len({storage(copy.args[0]) for copy in found.copies}) == len(found.copies)
    for copy in found.copies:
        assert (copy.name, copy.fn, copy.before) == ("add", add, None)
        assert copy.args[0].device == x.device
        assert torch.equal(copy.args[0], x)
        assert storage(copy.kwargs["b"]) == storage(copy.args[0])


@pytest.mark.parametrize(("size", "copies"), [(191, 1), (192, 1), (193, 3), (384, 3), (385, 4)])
def test_a_call_that_moves_the_working_set_itself_is_not_copied(size: int, copies: int) -> None:
    assert len(rotated(add, torch.zeros(48), torch.tensor([]), size=size).copies) == copies


def test_a_small_storage_takes_a_cache_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "_CACHE_LINE", 128)
    found = rotated(add, torch.zeros(1), torch.zeros(1), size=25_600)
    assert (found.bytes_per_call, len(found.copies)) == (256, 101)


def test_too_many_copies_are_capped_and_said_to_be() -> None:
    candidate = Candidate(torch.neg, torch.zeros(16), name="one")
    found = rotate(candidate, torch.device("cpu"), 6400, max_copies=100)
    assert len(found.copies) == 100
    assert found.left_warm == (
        "100 copies of 64 bytes are less than the 6400 bytes that evict a copy from the cache",
    )
    found = rotate(candidate, torch.device("cpu"), 6400, max_copies=101)
    assert (len(found.copies), found.left_warm) == (101, ())


def test_writing_to_one_copy_changes_no_other(device: torch.device) -> None:
    x = torch.zeros(100, device=device, dtype=torch.int32)  # 400 bytes, not a multiple of 512
    copies = rotate(Candidate(torch.neg, x, name="one"), device, 4000).copies
    for index, copy in enumerate(copies):
        copy.args[0].fill_(index)
    for index, copy in enumerate(copies):
        assert copy.args[0].tolist() == [index] * 100
        assert copy.args[0].untyped_storage().nbytes() == 400
        assert copy.args[0].data_ptr() % 64 == 0


def strided(kind: str, device: torch.device) -> torch.Tensor:
    x = torch.randn(2, 3, 4, 5, device=device)
    return {
        "transposed": x.transpose(0, 2),
        "expanded": x[:, :1].expand(2, 7, 4, 5),
        "channels_last": x.to(memory_format=torch.channels_last),
        "offset": x[1, 1:, ::2],
        "half": x.half()[1:],
        "scalar": x[1, 1, 1, 1],
        "bool": x > 0,
        "conj": torch.randn(3, dtype=torch.complex64, device=device).conj(),
        "neg": torch.randn(3, dtype=torch.complex64, device=device).conj().imag,
    }[kind]


@pytest.mark.parametrize(
    "kind",
    ["transposed", "expanded", "channels_last", "offset", "half", "scalar", "bool", "conj", "neg"],
)
def test_layout_is_kept(kind: str, device: torch.device) -> None:
    x = strided(kind, device)
    found = rotate(Candidate(torch.neg, x, name="one"), device, 2000)
    assert found.bytes_per_call == x.untyped_storage().nbytes()
    assert len(found.copies) > 2
    for copy in found.copies:
        (y,) = copy.args
        assert (y.shape, y.stride(), y.dtype) == (x.shape, x.stride(), x.dtype)
        assert y.storage_offset() == x.storage_offset()
        assert (y.is_conj(), y.is_neg()) == (x.is_conj(), x.is_neg())
        assert torch.equal(y, x)


def test_aliases_stay_aliases_within_a_copy() -> None:
    x = torch.zeros(8)
    found = rotated(lambda *args, **kwargs: None, x, [x, x[2:]], view=x.view(2, 4))
    assert found.bytes_per_call == 32
    for copy in found.copies:
        same, (again, tail) = copy.args
        assert again is same
        tail[0] = 5
        assert same[2] == copy.kwargs["view"][0, 2] == 5
        same.zero_()


def test_each_storage_counts_once_and_whole() -> None:
    big, other = torch.zeros(100), torch.zeros(10)
    assert rotated(torch.add, big[:3], other[:3], out=big[3:6]).bytes_per_call == 440


@dataclasses.dataclass
class Batch:
    image: torch.Tensor
    label: str


class Slotted:
    __slots__ = ("unset", "x")

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


Pair = collections.namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    ("nest", "get"),
    [
        (lambda tensor: [tensor], lambda argument: argument[0]),
        (lambda tensor: ({"k": [tensor]},), lambda argument: argument[0]["k"][0]),
        (lambda tensor: Batch(tensor, "cat"), lambda argument: argument.image),
        (Slotted, lambda argument: argument.x),
        (lambda tensor: Pair(1, tensor), lambda argument: argument.second),
        (lambda tensor: collections.OrderedDict(k=tensor), lambda argument: argument["k"]),
        (lambda tensor: collections.deque([tensor]), lambda argument: argument[0]),
        (lambda tensor: {tensor}, lambda argument: next(iter(argument))),
        (lambda tensor: {tensor: 1}, lambda argument: next(iter(argument))),
        (lambda tensor: torch.distributions.Normal(tensor, 1.0), lambda argument: argument.loc),
        (lambda tensor: slice(tensor), lambda argument: argument.stop),
    ],
)
def test_tensors_are_found_in_what_arguments_hold(
    nest: Callable[[torch.Tensor], object], get: Callable[[Any], torch.Tensor]
) -> None:
    x = torch.ones(16)
    found = rotated(lambda argument: argument, nest(x))
    assert found.bytes_per_call >= 64
    assert len({storage(get(copy.args[0])) for copy in found.copies}) == len(found.copies)
    assert all(torch.equal(get(copy.args[0]), x) for copy in found.copies)


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
def test_modules_rotate_with_tied_weights_and_gradients_of_their_own(
    method: bool, device: torch.device
) -> None:
    model = Tied().to(device)
    model.plain = model.plain.to(device)
    x = torch.randn(2, 4, device=device)
    fn = model.forward if method else model
    found = rotate(Candidate(fn, x, name="tied"), device, KIB)
    assert found.bytes_per_call == 64 + 16 + 16 + 16 + 16 + 32
    assert found.left_warm == ()
    models: list[Any] = [copy.fn.__self__ if method else copy.fn for copy in found.copies]  # type: ignore[attr-defined]
    assert len({storage(module.first.weight) for module in models}) == len(models) > 2
    assert len({storage(module.plain) for module in models}) == len(models)
    expected = model(x)
    for copy, own in zip(found.copies, models, strict=True):
        assert own.second.weight is own.first.weight
        assert type(own.first.weight) is torch.nn.Parameter
        assert {name for name, _ in own.named_parameters()} == dict(model.named_parameters()).keys()
        assert not own.first.bias.requires_grad
        result = copy.fn(*copy.args)
        assert torch.equal(result, expected)  # type: ignore[arg-type]
        assert own.first.weight.grad is None
        result.sum().backward()  # type: ignore[attr-defined]
        assert own.first.weight.grad is not None
        assert own.first.bias.grad is None
    assert len({storage(module.first.weight.grad) for module in models}) == len(models)


def test_gradients_are_not_copied() -> None:
    x = torch.ones(4, requires_grad=True)
    x.sum().backward()
    _, second, *_ = rotated(torch.neg, x).copies
    assert second.args[0].requires_grad
    assert second.args[0].grad is None


def test_what_autograd_computed_becomes_a_leaf() -> None:
    x = torch.ones(4, requires_grad=True) * 2
    _, second, *_ = rotated(torch.neg, x).copies
    assert second.args[0].is_leaf
    assert second.args[0].requires_grad


def test_copies_have_versions_of_their_own() -> None:
    """Views of one buffer would make this backward pass fail."""
    x = torch.ones(4, requires_grad=True)
    first, second, third, *_ = (copy.args[0] for copy in rotated(torch.exp, x).copies)
    results = [(tensor * tensor).sum() for tensor in (first, second)]
    with torch.no_grad():
        third.add_(1)
    for result in results:
        result.backward()
    assert second.grad.tolist() == [2.0] * 4
    assert third.grad is None


def test_a_copy_outlives_the_others() -> None:
    x = torch.arange(64)
    last = rotated(torch.neg, x).copies[-1].args[0]
    torch.full((10_000,), 7)
    assert torch.equal(last, x)


def test_a_copy_cannot_grow_into_the_next() -> None:
    _, second, *_ = rotated(torch.neg, torch.zeros(4)).copies
    with pytest.raises(RuntimeError, match="not resizable"):
        second.args[0].resize_(400)


def test_empty_results_can_still_be_resized() -> None:
    x, out = torch.ones(4), torch.empty(0)
    for copy in rotated(torch.neg, x, out=out).copies:
        copy.fn(*copy.args, **copy.kwargs)
        assert copy.kwargs["out"].tolist() == [-1.0] * 4


class Scaler:
    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


@pytest.mark.parametrize(
    "wrap",
    [
        Scaler,
        lambda tensor: Scaler(tensor).__call__,
        lambda tensor: functools.partial(torch.mul, tensor),
        lambda tensor: functools.partial(torch.mul, other=tensor),
        lambda tensor: functools.partial(functools.partial(Scaler(tensor))),
        lambda tensor: tensor.mul,
        lambda tensor: tensor.mul_,
    ],
)
def test_callables_rotate_with_what_they_hold(wrap: Callable[[torch.Tensor], Any]) -> None:
    x = torch.full((16,), 3.0)
    found = rotated(wrap(x), torch.tensor(2.0))
    assert found.bytes_per_call == 64 + 4
    assert found.left_warm == ()
    for copy in found.copies[1:]:
        assert torch.equal(copy.fn(*copy.args), torch.full((16,), 6.0))  # type: ignore[arg-type]
    assert x.tolist() == [3.0] * 16


def test_a_partial_of_a_function_and_tensors_is_copied_without_a_deepcopy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("copy.deepcopy", lambda *_: pytest.fail("it takes long"))
    x, scale = torch.full((16,), 3.0), torch.tensor(2.0)
    found = rotated(functools.partial(torch.add, x, alpha=2), scale)
    for each in found.copies[1:]:
        assert isinstance(each.fn, functools.partial)
        assert each.fn.args[0] is not x
        assert each.fn(*each.args).tolist() == [7.0] * 16


def test_callables_without_tensors_are_shared() -> None:
    class Kernel:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x

    kernel = Kernel()
    found = rotated(kernel, torch.ones(4))
    assert len(found.copies) > 2
    assert all(copy.fn is kernel for copy in found.copies)


def test_attributes_of_tensors_rotate_too() -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    weight.scale = torch.ones(2)  # type: ignore[attr-defined]
    found = rotated(torch.neg, weight)
    assert found.bytes_per_call == 24
    assert len({storage(copy.args[0].scale) for copy in found.copies}) == len(found.copies)


def test_other_devices_tensors_and_handles_are_shared() -> None:
    elsewhere, generator = torch.ones(4, device="meta"), torch.Generator()
    found = rotated(lambda *args: None, torch.ones(4), elsewhere, [generator, math])
    for copy in found.copies:
        assert copy.args[1] is elsewhere
        assert copy.args[2] == [generator, math]
    assert found.left_warm == ()


def test_what_a_mutable_argument_holds_is_each_copys_own() -> None:
    first, second, *_ = rotated(lambda *args: None, torch.ones(4), [1]).copies
    second.args[1].append(2)
    assert first.args[1] == [1]


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("special", "name"),
    [
        (lambda: torch.eye(3).to_sparse(), "tensor of type Tensor (sparse_coo) in args[0]"),
        (lambda: torch.ones(3).as_subclass(Subclass), "tensor of type Subclass (strided)"),
        (
            lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
            "tensor of type Tensor (strided) in args[0]",
        ),
        (
            lambda: torch.nested.nested_tensor([torch.ones(3)], layout=torch.jagged),
            "tensor of type NestedTensor (jagged) in args[0]",
        ),
        (lambda: torch.nn.UninitializedParameter(), "UninitializedParameter (strided) in args[0]"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_special_tensors_are_shared_and_named(special: Callable[[], Any], name: str) -> None:
    one = special()
    found = rotated(lambda *args: None, one, torch.ones(4))
    assert found.bytes_per_call == 16
    assert len(found.left_warm) == 1
    assert name in found.left_warm[0]
    assert all(each.args[0] is one for each in found.copies)
    alone = rotated(lambda *args: None, one)
    assert (len(alone.copies), alone.bytes_per_call) == (1, 0)
    assert alone.left_warm == found.left_warm


def test_tensors_of_closures_are_named() -> None:
    x, model, unset = torch.ones(4), torch.nn.Linear(2, 2), None
    del unset
    holder = {"deep": [Scaler(x)]}

    def helper() -> object:
        return x

    def fn(a: torch.Tensor, b: torch.Tensor = x, *, c: Any = (x,)) -> object:
        inner = lambda: GLOBAL_WEIGHT  # noqa: E731
        return helper(), model, holder, inner, (lambda: unset), a  # noqa: F821

    assert rotated(fn, torch.ones(4)).left_warm == ("closure variable 'x'",), "of the helper"
    candidate = Candidate(fn, torch.ones(4), name="one", before=lambda: None)
    found = rotate(candidate, torch.device("cpu"), KIB)
    assert set(found.left_warm) == {
        "closure variable 'x'",
        "closure variable 'model'",
        "closure variable 'holder'",
        "global 'GLOBAL_WEIGHT'",
        "default of the parameter 'b'",
        "default of the parameter 'c'",
    }
    assert len(found.copies) == KIB // 16 + 1


class ReadsGlobal(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + GLOBAL_WEIGHT


def test_tensors_of_methods_and_held_functions_are_named() -> None:
    x = torch.ones(4)
    for fn in (ReadsGlobal(), ReadsGlobal().forward, torch.nn.Sequential(ReadsGlobal())):
        assert rotated(fn, x).left_warm == ("global 'GLOBAL_WEIGHT'",)
    scale = torch.ones(4)
    assert rotated(functools.partial(lambda a: a * scale), x).left_warm == (
        "closure variable 'scale'",
    )
    assert rotated(map, x.add_, [x]).left_warm == ("tensor of the method 'add_'",)


def test_attributes_named_like_globals_are_none() -> None:
    assert rotated(lambda x: x.GLOBAL_WEIGHT, torch.ones(4)).left_warm == ()


def test_a_compiled_functions_closure_is_named() -> None:
    scale = torch.ones(4)
    found = rotated(torch.compile(lambda a: a * scale), torch.ones(4))  # type: ignore[misc]
    assert found.left_warm == ("closure variable 'scale'",)


def test_what_torch_itself_refers_to_is_not_named() -> None:
    x = torch.ones(4)

    def library() -> torch.Tensor:
        return x

    class State:
        def __init__(self) -> None:
            self.scratch = torch.ones(4)

    library.__module__, State.__module__ = "torch.fft", "torch._dynamo"
    state = State()
    assert rotated(lambda a: (library(), state), torch.ones(4)).left_warm == ()


def test_cycles_end() -> None:
    def fn(one: object) -> object:
        return fn(one)

    holder: list[object] = [torch.ones(4)]
    holder.append(holder)
    _, second, *_ = rotated(fn, holder).copies
    assert second.args[0][1] is second.args[0]


def test_nothing_to_rotate_is_one_copy_and_says_why() -> None:
    found = rotated(math.sqrt, 2.0)
    assert (found.bytes_per_call, len(found.copies)) == (0, 1)
    assert found.left_warm == ("no tensor in the arguments",)
    found = rotated(functools.partial(lambda: GLOBAL_WEIGHT))
    assert (found.bytes_per_call, len(found.copies)) == (0, 1)
    assert found.left_warm == ("global 'GLOBAL_WEIGHT'",)


def test_a_functions_own_variables_rotate() -> None:
    x, y, size = torch.arange(4.0), torch.ones(4), 3

    def fn(a: torch.Tensor, b: torch.Tensor = y, *, c: Any = (x,)) -> object:
        return a + x, b, c[0], (lambda: GLOBAL_WEIGHT)(), size

    fn.note = "kept"  # type: ignore[attr-defined]
    found = rotated(fn, x)
    assert (found.bytes_per_call, found.left_warm) == (48, ())
    places = []
    for copy in found.copies:
        result: Any = copy.fn(*copy.args)
        total, others, number = result[0], result[1:-1], result[-1]
        assert torch.equal(total, 2 * x)
        assert [one.tolist() for one in others] == [[1.0] * 4, x.tolist(), [1.0] * 4]
        assert number == 3
        assert copy.fn.note == "kept"  # type: ignore[attr-defined]
        assert others[1] is copy.args[0], "aliases stay aliases"
        places.append(tuple(storage(one) for one in others))
    assert all(len(set(of_one)) == len(found.copies) for of_one in zip(*places, strict=True))


def test_a_function_that_rebinds_variables_shares_them() -> None:
    x, count = torch.ones(4), 0

    def counting() -> torch.Tensor:
        nonlocal count
        count += 1
        return x

    found = rotated(counting, torch.ones(4))
    assert found.left_warm == ("closure variable 'x'",)
    found.copies[1].fn(), found.copies[2].fn()
    assert count == 2


def setups(x: torch.Tensor) -> dict[str, Callable[[], object]]:
    return {
        "closure variable 'x' of setup": lambda: x.zero_(),
        "tensor of the method 'zero_' of setup": x.zero_,
        "setup": functools.partial(torch.zero_, x.view(2, 2)),
        "closure variable 'holder' of setup": (lambda holder: lambda: holder)({"k": [x]}),
    }


@pytest.mark.parametrize("where", setups(torch.ones(4)))
def test_a_setup_that_resets_the_original_only_is_refused(where: str) -> None:
    x = torch.ones(4)
    candidate = Candidate(torch.neg, x, name="one", before=setups(x)[where])
    with pytest.raises(ValueError, match="setup must not refer to") as raised:
        rotate(candidate, torch.device("cpu"), KIB)
    assert str(raised.value) == (
        "setup must not refer to the arguments of 'one' with cache='rotate', which copies "
        f"them, got one in {where}; use cache='cold'"
    )
    assert len(rotate(candidate, torch.device("cpu"), 16).copies) == 1


def test_other_setups_are_kept() -> None:
    other = torch.ones(4)
    candidate = Candidate(torch.neg, torch.ones(4), name="one", before=lambda: other.zero_())
    copies = rotate(candidate, torch.device("cpu"), KIB).copies
    assert all(copy.before is candidate.before for copy in copies)


class Uncopiable:
    def __deepcopy__(self, memo: object) -> object:
        raise RuntimeError("mine")


@pytest.mark.parametrize(
    ("odd", "got"),
    [
        (threading.Lock(), "lock (cannot pickle '_thread.lock' object)"),
        ({"k": (letter for letter in "")}, "generator (cannot pickle 'generator' object)"),
        (Uncopiable(), "Uncopiable (mine)"),
    ],
)
def test_what_cannot_be_copied_is_named(odd: object, got: str) -> None:
    with pytest.raises(ValueError, match="must support copy.deepcopy") as raised:
        rotated(lambda *args: None, torch.ones(4), odd)
    assert str(raised.value) == (
        "the inputs of 'one' must support copy.deepcopy with cache='rotate', which copies them, "
        f"got {got}; use cache='cold'"
    )


def test_many_small_copies_share_one_allocation() -> None:
    copies = rotated(torch.neg, torch.ones(4), size=16 * 2000).copies
    addresses = [storage(copy.args[0]) for copy in copies[1:]]
    assert addresses == [addresses[0] + 512 * index for index in range(2000)]


def test_hooks_run_on_the_copys_module() -> None:
    model = torch.nn.Linear(2, 2)
    seen = []
    model.register_forward_hook(lambda module, *_: seen.append(module))
    for copy in rotated(model, torch.ones(1, 2)).copies:
        copy.fn(*copy.args)
        assert seen[-1] is copy.fn


@pytest.mark.cuda
def test_streams_and_events_are_shared() -> None:
    handles = [torch.cuda.Stream(), torch.cuda.Event(), torch.Generator("cuda")]
    x, on_cpu = torch.ones(4, device="cuda"), torch.ones(4)
    candidate = Candidate(lambda *args: None, x, on_cpu, handles, name="one")
    found = rotate(candidate, torch.device("cuda", x.device.index or 0), KIB)
    assert found.bytes_per_call == 16
    for copy in found.copies:
        assert copy.args[1] is on_cpu
        assert all(held is handle for held, handle in zip(copy.args[2], handles, strict=True))
    assert rotate(candidate, torch.device("cuda", 99), KIB).bytes_per_call == 0
