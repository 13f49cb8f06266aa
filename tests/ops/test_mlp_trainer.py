"""MLPTrainer against PyTorch's own layers, losses and optimizers in 64 bits."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from convtime.core.errors import InputError
from convtime.nn import FusedMLP, MLPTrainer
from tests.helpers.mlp_nets import (
    DEFAULTS,
    LOSSES,
    ON_CHIP,
    OPTIMIZERS,
    SCALE,
    WIDE,
    error,
    exact_copy,
    flat_weights,
    make_all,
    make_data,
    make_net,
    make_trainer,
    to_exact,
    train_by_torch,
    trained_weights,
)
from tests.helpers.op_examples import AMOUNTS, for_all

BIASES = pytest.mark.parametrize("bias", [False, True], ids=["", "biases"])
SHORT = [torch.float16, torch.bfloat16]
# Of one cluster with a tile a block, with two, and of the whole GPU with a tile a block and more.
BATCHES = [16, 77, 1024, 2000, 5000, 65_536]


def assert_equal_states(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor.nan_to_num(), theirs[name].nan_to_num()), name


@pytest.mark.parametrize("optimizer", OPTIMIZERS | DEFAULTS)
@BIASES
def test_steps_are_pytorchs(optimizer: str, bias: bool, device: torch.device) -> None:
    """Whatever is written into the padding."""
    dtype, more, allowed = torch.float32, 1, 1e-4
    if device.type == "cpu":
        dtype, more, allowed = torch.float64, 5, 1e-7
    for loss in LOSSES:
        net = make_net((24, 40, 50, 3), dtype, device, bias=bias)
        inputs, targets = make_data(net, 75, loss)
        trainer = make_trainer(net, inputs, targets, 20, loss, optimizer)
        torch.nn.init.normal_(net.weights, std=0.1)
        model = exact_copy(net)
        for _ in range(3):
            trainer.step()
        trainer.steps(more)
        losses = train_by_torch(
            model, inputs.double(), to_exact(targets), 20, 3 + more, loss, optimizer
        )
        assert error(flat_weights(net.to_sequential()), flat_weights(model)) < allowed
        assert error(trainer.losses(), torch.tensor(losses)) < max(allowed, 1e-6)
        assert (trainer.steps_taken, trainer.steps_skipped) == (3 + more, 0)


@pytest.mark.cuda
@AMOUNTS
@pytest.mark.parametrize("path", ["on-chip", "wide"])
def test_steps_on_a_gpu_follow_64_bits(path: str, amount: int) -> None:
    is_wide = path == "wide"
    cases = st.tuples(
        st.sampled_from([1000] if is_wide else BATCHES),
        st.sampled_from(list((WIDE if is_wide else ON_CHIP).values())),
        st.sampled_from(list(LOSSES)),
        st.sampled_from([*SHORT, torch.float32] if is_wide else SHORT),
        st.booleans() if is_wide else st.just(False),
        st.sampled_from(["relu", "relu", "tanh"]),
    )

    def check(case: tuple[int, tuple[int, ...], str, torch.dtype, bool, str]) -> None:
        batch, widths, loss, dtype, bias, activation = case
        net = make_net(widths, dtype, "cuda", activation, bias=bias)
        theirs, exact = net.to_sequential().float(), exact_copy(net)
        before = flat_weights(exact)
        inputs, targets = make_data(net, 2 * batch, loss)
        scale = None if dtype == torch.float32 else SCALE
        trainer = make_trainer(net, inputs, targets, batch, loss, "momentum", loss_scale=scale)
        if is_wide:
            on_chip = max(widths) <= 128 and not bias and dtype != torch.float32
            assert trainer.path == ("on-chip" if on_chip else "wide")
        steps = 2 if is_wide else 5
        trainer.step()
        trainer.steps(steps - 1)
        truth = exact, inputs.double(), to_exact(targets)
        losses = train_by_torch(*truth, batch, steps, loss, "momentum")
        allowed = {torch.float16: 0.02, torch.bfloat16: 0.15, torch.float32: 2e-3}[dtype]
        allowed *= 3 if activation == "tanh" else 1  # which a GPU approximates
        moved, expected = (
            weights - before for weights in (trained_weights(trainer), flat_weights(exact))
        )
        torch.testing.assert_close(
            trainer.losses().double(), torch.tensor(losses).double(), rtol=allowed, atol=allowed
        )
        if not is_wide:
            # Rounding moves inputs of a ReLU across 0: in a deep net and a small batch, a few
            # decide.
            train_by_torch(theirs, inputs, targets, batch, steps, loss, "momentum", mixed=dtype)
            allowed = max(allowed, 1.5 * error(flat_weights(theirs) - before, expected))
        assert error(moved, expected) < allowed
        # and the padding stays zero
        counted = int(flat_weights(net.to_sequential()).count_nonzero())
        assert int(net.weights.count_nonzero()) == counted

    for_all(cases, check, 5 if amount == 1 else 80)


@pytest.mark.cuda
@pytest.mark.parametrize(
    "master", [True, pytest.param(False, marks=pytest.mark.thorough)], ids=["master", "short"]
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_on_a_gpu_follow_64_bits(optimizer: str, master: bool) -> None:
    for widths, bias, batch in (
        (ON_CHIP["square"], False, 256),
        (ON_CHIP["square"], False, 4096),
        (WIDE["square"], True, 512),
    ):
        net = make_net(widths, torch.bfloat16, "cuda", bias=bias)
        theirs, exact = net.to_sequential(), exact_copy(net)
        before = flat_weights(exact)
        inputs, targets = make_data(net, 2 * batch)
        trainer = make_trainer(
            net, inputs, targets, batch, optimizer=optimizer, master_weights=master
        )
        trainer.steps(4)
        train_by_torch(exact, inputs.double(), targets.double(), batch, 4, "mse", optimizer)
        truth = flat_weights(exact) - before
        allowed = 0.15
        if not master:
            # Most of SGD's updates are too small to change a weight of 8 bits, with PyTorch, too.
            train_by_torch(theirs, inputs, targets, batch, 4, "mse", optimizer)
            allowed = max(allowed, 1.1 * error(flat_weights(theirs) - before, truth))
        assert error(trained_weights(trainer) - before, truth) < allowed


@pytest.mark.cuda
@pytest.mark.thorough
@pytest.mark.parametrize("width", [16, 32, 64, 128, 256])
def test_a_tuned_net_trains_alike(width: int) -> None:
    losses = []
    for tune in (False, True):
        net = make_net((width,) * 5, torch.float16, "cuda")
        before = net.weights.detach().clone()
        trainer = make_trainer(net, *make_data(net, 1024), 512, optimizer="momentum", tune=tune)
        assert torch.equal(net.weights, before)
        assert trainer.steps_taken == trainer.losses().numel() == 0
        trainer.steps(20)
        losses.append(trainer.losses())
    torch.testing.assert_close(*losses, rtol=1e-2, atol=1e-3)


@pytest.mark.cuda
@pytest.mark.thorough
@pytest.mark.parametrize("batch", [77, 1024, 5000, 70_000])
@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_all_plans_of_a_step_train_alike(batch: int, width: int) -> None:
    net = make_net((width,) * 4, torch.bfloat16, "cuda")
    exact = exact_copy(net)
    before = flat_weights(exact)
    inputs, targets = make_data(net, 2 * batch)
    trainer = make_trainer(net, inputs, targets, batch, optimizer="momentum")
    begin = trainer.state_dict()
    train_by_torch(exact, inputs.double(), targets.double(), batch, 3, "mse", "momentum")
    *_, plans = torch.ops.convtime.mlp_path(net.weights, width, width, batch, "relu", False)
    assert len(set(plans)) == len(plans) >= 2
    assert trainer.path_reason.endswith(plans[0])
    for plan in range(len(plans)):
        trainer.load_state_dict(begin)
        trainer._options["plan"] = plan
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            trainer.steps(1)
        trainer.steps(3)
        moved = trained_weights(trainer) - before
        assert error(moved, flat_weights(exact) - before) < 0.15, plans[plan]
        state = trainer.state_dict()
        trainer.load_state_dict(begin)
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        assert_equal_states(trainer.state_dict(), state)
    trainer._options["plan"] = len(plans)
    with pytest.raises(RuntimeError, match=f"plan must be .* {len(plans)} plans of mlp_path"):
        trainer.step()


@pytest.mark.cuda
def test_why_a_net_is_wide_is_said() -> None:
    for widths, dtype, bias, why in (
        ((64, 64), torch.float16, False, "at most 128, in 16 bits and without biases"),
        ((64, 64), torch.float16, True, "there are biases"),
        ((64, 64), torch.float32, False, "the dtype is float32: products by cuBLASLt in"),
        ((64, 200, 3), torch.float16, False, "a width of 256 is above 128"),
        ((64,) * 41, torch.float16, False, "40 layers of width 64 do not fit"),
        ((20,) * 71, torch.float16, False, "70 layers of width 32 do not fit"),
        ((16, 16), torch.bfloat16, False, "at most 128, in 16 bits and without biases"),
    ):
        trainer = make_all(widths, dtype, bias=bias)
        assert why in trainer.path_reason
        assert trainer.path == ("on-chip" if "at most 128" in why else "wide")


MORE_SIZES = [(20_000, 16), (65_536, 32), (8192, 64), (20_000, 128), (77, 128), (1024, 256)]
SIZES_BY_AMOUNT = pytest.mark.parametrize(
    ("batch", "width", "repeats"),
    [
        (256, 64, 20),
        (8192, 32, 20),
        *(pytest.param(*size, 1000, marks=pytest.mark.thorough) for size in MORE_SIZES),
    ],
)


@pytest.mark.cuda
@SIZES_BY_AMOUNT
def test_steps_are_deterministic(batch: int, width: int, repeats: int) -> None:
    trainer = make_all((width,) * 5, rows=2 * batch, batch=batch, optimizer="momentum")
    weights, begin = trainer.model.weights, trainer.state_dict()
    trainer.steps(3)
    expected = weights.detach().clone()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(repeats):
        trainer.load_state_dict(begin)
        trainer.steps(3)
        wrong += weights.detach().ne(expected).any()
    assert int(wrong) == 0


@pytest.mark.cuda
@SIZES_BY_AMOUNT
def test_a_graph_of_steps_goes_on_with_the_next_batches(
    batch: int, width: int, repeats: int
) -> None:
    states = []
    for captured in (False, True):
        trainer = make_all((width,) * 5, rows=3 * batch, batch=batch, optimizer="adam")
        step = trainer.step
        if captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                trainer.step()
            step = graph.replay
        for _ in range(7):
            step()
        trainer.lr = 0.1  # which a captured step takes notice of
        for _ in range(2):
            step()
        torch.cuda.synchronize()
        states.append(trainer.state_dict())
    assert int(states[1]["counters"][0]) == 9
    assert_equal_states(*states)


@pytest.mark.cuda
def test_steps_run_on_the_stream_in_use() -> None:
    trainer = make_all(ON_CHIP["square"], rows=1024, batch=1024)
    trainer.step()  # The first compiles kernels, for longer than the stream is kept busy.
    torch.cuda.synchronize()
    stream: Any = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        trainer.step()
        assert not stream.query()
    stream.synchronize()
    assert trainer.steps_taken == 2


@BIASES
def test_a_step_that_overflows_is_skipped_and_counted(device: torch.device, bias: bool) -> None:
    trainer = make_all(device=device, of_targets=1000, optimizer="adam", bias=bias)
    weights = trainer.model.weights
    before = weights.detach().clone()
    assert trainer.loss_scale == 65536
    trainer.step()
    assert torch.equal(weights, before)
    assert (trainer.steps_taken, trainer.steps_skipped, trainer.loss_scale) == (1, 1, 32768)
    while trainer.steps_skipped == trainer.steps_taken < 20:
        trainer.step()
    assert trainer.steps_taken < 20
    assert not torch.equal(weights, before)
    assert bool(weights.isfinite().all())


@pytest.mark.parametrize("overflows", [True, False])
def test_a_dynamic_scale_keeps_within_what_can_be_gone_on_from(
    overflows: bool, device: torch.device
) -> None:
    bound = 2.0**-126 if overflows else 2.0**126
    for widths in ((24, 40, 3), (24, 192, 3)):
        # Gradients of 0 never overflow.
        of_targets, of_inputs = (1, math.nan) if overflows else (0, 0)
        trainer = make_all(widths, device=device, of_inputs=of_inputs, of_targets=of_targets)
        state = trainer.state_dict()
        state["rates"][1] = bound
        state["counters"][:] = torch.tensor([2000, 0, 1999])
        trainer.load_state_dict(state)
        trainer.step()
        assert trainer.loss_scale == bound
        assert trainer.steps_skipped == overflows
        trainer.load_state_dict(trainer.state_dict())


def test_scales_double_after_2000_steps_or_stay_or_nan_spreads(device: torch.device) -> None:
    trainer = make_all(device=device, of_inputs=0, of_targets=0)
    counters = {"counters": torch.tensor([2100, 101, 1997])}
    trainer.load_state_dict(trainer.state_dict() | counters)
    for scale in (65536, 65536, 2 * 65536, 2 * 65536):  # after 1998, 1999 and 2000 steps, and 1
        trainer.step()
        assert trainer.loss_scale == scale
    trainer = make_all(device=device, of_targets=1000, loss_scale=65536.0)
    trainer.steps(3)
    assert (trainer.steps_skipped, trainer.loss_scale) == (3, 65536)
    trainer = make_all(dtype=torch.bfloat16, device=device, of_inputs=math.nan)
    trainer.step()
    assert bool(trainer.model.weights.isnan().any())
    assert math.isnan(float(trainer.losses()[0]))
    assert trainer.loss_scale is None


def test_a_state_is_gone_on_from(device: torch.device) -> None:
    trainer, other = (make_all(device=device, rows=60, optimizer="adam") for _ in range(2))
    trainer.steps(3)
    state = trainer.state_dict()
    trainer.steps(4)
    other.load_state_dict(state)
    other.steps(4)
    assert torch.equal(other.model.weights, trainer.model.weights)
    with pytest.raises(InputError, match="state must have the tensors"):
        other.load_state_dict({"weights": state["weights"]})


def test_states_that_no_trainer_gives_are_refused() -> None:
    trainer = make_all((24, 3), torch.float32, "cpu")
    trainer.step()
    state = trainer.state_dict()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"counters": torch.tensor([-1, 0, 0])}, r"counters must be .* got \[-1, 0, 0\]"),
        ({"counters": torch.tensor([3, 2, 2])}, r"counters must be .* got \[3, 2, 2\]"),
        ({"counters": torch.zeros(3)}, r"got counters \(3,\) torch.float32"),
        ({"rates": torch.tensor([-1.0, 1.0])}, "state's lr must be .* got -1.0"),
        ({"rates": torch.tensor([1.0, math.inf])}, "state's loss scale must be .* got inf"),
        ({"weights": torch.zeros(1, 32, 32, dtype=torch.complex64)}, "torch.complex64$"),
        ({"losses": None}, "losses NoneType"),
    ]
    for changes, sentence in cases:
        with pytest.raises(InputError, match=sentence):
            trainer.load_state_dict(state | changes)
        assert torch.equal(trainer.model.weights, state["weights"])
    trainer.load_state_dict(state | {"counters": torch.tensor([4, 2, 2])})
    assert (trainer.steps_taken, trainer.steps_skipped) == (4, 2)


def test_the_last_losses_are_kept_and_the_weights_version_changes() -> None:
    trainer, every = (
        make_all((24, 64, 3), torch.float32, "cpu", 60, history=count) for count in (4, 100)
    )
    assert trainer.losses().numel() == 0
    loss = trainer.model(torch.ones(2, 24)).square().sum()
    for taken in range(1, 11):
        trainer.step()
        every.step()
        assert torch.equal(trainer.losses(), every.losses()[-4:]), taken
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def change(net: FusedMLP, way: str) -> None:
    """The first row of each layer."""
    if way == "in place":
        with torch.no_grad():
            net.weights[:, 0].fill_(0.5)
    elif way == "by data":
        net.weights.data[:, 0].fill_(0.5)
    else:
        # Not SGD: for 16-bit weights on a CPU, torch 2.11's fused SGD changes nothing.
        net.weights.grad = torch.zeros_like(net.weights)
        net.weights.grad[:, 0] = 1
        torch.optim.Adam(net.parameters(), lr=0.5, fused=True).step()


@pytest.mark.parametrize("way", ["in place", "by data", "by a fused optimizer"])
def test_changes_between_steps_are_trained(way: str, device: torch.device) -> None:
    """Also those that PyTorch does not count; weights that stay keep their 32 bits."""
    for widths, optimizer in (((64, 64, 64), "sgd"), ((256, 256), "sgd"), ((64, 64), "adamw")):
        trainer = make_all(widths, torch.bfloat16, device, optimizer=optimizer)
        trainer.steps(2)
        before = trainer.state_dict()
        assert not torch.equal(before["master"], before["weights"].float())
        change(trainer.model, way)
        changed = trainer.model.weights.detach().clone()
        assert float((changed - before["weights"])[:, 0].abs().min()) > 0.1
        state = trainer.state_dict()
        assert torch.equal(state["master"][:, 0], changed[:, 0].float())
        assert torch.equal(state["master"][:, 1:], before["master"][:, 1:])
        trainer.lr = 1e-30
        trainer.steps(2)
        state = trainer.state_dict()
        torch.testing.assert_close(state["weights"], changed, rtol=0, atol=0.01)
        if optimizer == "sgd":
            assert torch.equal(state["master"][:, 1:], before["master"][:, 1:])


@pytest.mark.cuda
@SIZES_BY_AMOUNT
def test_replays_take_over_changes(batch: int, width: int, repeats: int) -> None:
    trainer = make_all((width,) * 3, torch.bfloat16, rows=2 * batch, batch=batch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        trainer.step()
    graph.replay()
    weights = trainer.model.weights
    weights.data.fill_(0.5)
    trainer.lr = 1e-30
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(weights, torch.full_like(weights, 0.5))


def test_weights_that_were_replaced_are_refused_and_trainers_are_not_copied() -> None:
    replacements: list[Callable[[FusedMLP], object]] = [
        lambda net: net.double(),
        lambda net: net.to("meta"),
        lambda net: net.load_state_dict(copy.deepcopy(net.state_dict()), assign=True),
    ]
    for replace in replacements:
        trainer = make_all(dtype=torch.float32, device="cpu")
        for copied in (copy.deepcopy, pickle.dumps):
            with pytest.raises(InputError, match="a trainer must not be copied or pickled"):
                copied((trainer.model, trainer))
        replace(trainer.model)
        with pytest.raises(InputError, match="must stay the tensor that the trainer was made"):
            trainer.step()


BAD_RATES = [0, math.nan, math.inf, 1e39, 10**400, 1e-50]
BAD: list[tuple[dict[str, Any], str]] = [
    ({"inputs": torch.ones(40, 25)}, r"inputs must have shape \(rows, 24\).*got \(40, 25\)"),
    ({"inputs": torch.ones(40, 24).double()}, "inputs must be of torch.float32; got"),
    ({"inputs": [[0.0] * 24] * 40}, "inputs must be a tensor; got list"),
    ({"targets": None}, "targets must be a tensor; got NoneType"),
    ({"targets": torch.ones(39, 3)}, r"targets must have shape \(40, 3\)"),
    ({"targets": torch.ones(40, 3, device="meta")}, "targets must be on the model's device"),
    ({"loss": "cross_entropy"}, r"targets must have shape \(40,\)"),
    ({"loss": "cross_entropy", "targets": torch.ones(40)}, "must be of torch.int64"),
    ({"loss": "cross_entropy", "targets": torch.arange(40) % 4}, "from 0 to 2.*got 0 to 3"),
    ({"loss": "cross_entropy", "targets": torch.arange(40) % 3 - 1}, "got -1 to 1"),
    ({"loss": "l1"}, "loss must be one of 'mse', 'cross_entropy', got 'l1'"),
    ({"optimizer": "lamb"}, "optimizer must be one of 'sgd', 'adam', 'adamw'"),
    *(({"batch_size": n}, "batch_size must be a whole .* 1 to 40") for n in (0, 41, 2.5, 2.0)),
    *(({"lr": lr}, "lr must be a finite float32 at least 1.18e-38") for lr in BAD_RATES),
    *(({"eps": eps}, "eps must be a finite float32 at least") for eps in BAD_RATES),
    *(({"loss_scale": scale}, "loss_scale must be a finite float32") for scale in BAD_RATES),
    *(({"betas": betas}, r"betas\[1\] must be") for betas in ((0.9, 1), (0.9, 1 - 1e-12))),
    ({"momentum": 1.0}, "momentum must be a finite float32 at least 0 and below 1; got 1.0"),
    ({"betas": (0.9,)}, r"betas must be two numbers; got \(0.9,\)"),
    ({"weight_decay": -1}, "weight_decay must be"),
    ({"loss_scale": "static"}, "loss_scale must be 'auto', 'dynamic', a number"),
    ({"history": 0}, "history must be a whole number, 1 or more, got 0"),
    ({"tune": True}, "tune must be False on a CPU"),
]


def test_what_cannot_be_trained_is_refused() -> None:
    net = make_net((24, 40, 3))
    arguments: dict[str, Any] = {
        "inputs": torch.ones(40, 24),
        "targets": torch.ones(40, 3),
        "batch_size": 20,
    }
    for changes, sentence in BAD:
        with pytest.raises(InputError, match=sentence):
            MLPTrainer(net, **arguments | changes)
    trainer = MLPTrainer(net, **arguments)
    counts: list[Any] = [0, -1, 1.5, "2", 1_000_001]
    for count in counts:
        with pytest.raises(InputError, match=f"count must be .* from 1 to 1000000, got {count!r}"):
            trainer.steps(count)
    model: Any = torch.nn.Linear(2, 2)
    with pytest.raises(InputError, match="model must be a FusedMLP; got Linear"):
        MLPTrainer(model, torch.ones(4, 2), torch.ones(4, 2), batch_size=2)
    with pytest.raises(InputError, match="master_weights must be True"):
        make_all(device="cpu", optimizer="adam", master_weights=False)


@pytest.mark.cuda
def test_what_a_gpu_cannot_train_is_refused() -> None:
    with pytest.raises(InputError, match="dtype must be one of"):
        make_all((24, 3), torch.float64)
