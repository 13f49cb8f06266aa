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
from torch.nn import functional as F

from convtime.core.errors import InputError
from convtime.nn import FusedMLP, MLPTrainer
from tests.helpers.mlp_nets import (
    LOSSES,
    ON_CHIP,
    OPTIMIZERS,
    SCALE,
    TORCHS,
    WIDE,
    error,
    exact_copy,
    flat_weights,
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


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@BIASES
def test_steps_are_pytorchs(optimizer: str, bias: bool) -> None:
    for loss in LOSSES:
        net = make_net((24, 40, 64, 3), torch.float64, bias=bias)
        model = exact_copy(net)
        inputs, targets = make_data(net, 75, loss)
        trainer = make_trainer(net, inputs, targets, 20, loss, optimizer)
        for _ in range(4):
            trainer.step()
        trainer.steps(5)
        losses = train_by_torch(model, inputs, targets, 20, 9, loss, optimizer)
        torch.testing.assert_close(
            flat_weights(net.to_sequential()), flat_weights(model), rtol=1e-5, atol=1e-7
        )
        torch.testing.assert_close(trainer.losses().double(), torch.tensor(losses).double())
        assert trainer.steps_taken == 9
        assert trainer.steps_skipped == 0


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
        inputs, targets = make_data(net, 2 * 512)
        before = net.weights.detach().clone()
        trainer = make_trainer(net, inputs, targets, 512, optimizer="momentum", tune=tune)
        assert torch.equal(net.weights, before)
        assert trainer.steps_taken == 0
        assert trainer.losses().numel() == 0
        trainer.steps(20)
        losses.append(trainer.losses())
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-2, atol=1e-3)


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
    plans = torch.ops.convtime.mlp_plans(net.weights, width, width, batch)
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
        for name, tensor in trainer.state_dict().items():
            assert torch.equal(tensor.nan_to_num(), state[name].nan_to_num()), (plans[plan], name)
    trainer._options["plan"] = len(plans)
    with pytest.raises(RuntimeError, match=f"plan must be .* {len(plans)} plans of mlp_plans"):
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
        net = make_net(widths, dtype, "cuda", bias=bias)
        inputs, targets = make_data(net, 40)
        trainer = make_trainer(net, inputs, targets, 20)
        assert why in trainer.path_reason
        assert trainer.path == ("on-chip" if "at most 128" in why else "wide")


@pytest.mark.cuda
@pytest.mark.thorough
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("batch", [1024, 8192])
def test_weights_are_as_exact_as_pytorchs_float16(loss: str, batch: int) -> None:
    net = make_net(ON_CHIP["square"], torch.float16, "cuda", gain=1.0)
    theirs, exact = net.to_sequential(), exact_copy(net)
    inputs, targets = make_data(net, 4 * batch, loss)
    trainer = make_trainer(net, inputs, targets, batch, loss, "momentum", master_weights=False)
    trainer.steps(50)
    train_by_torch(theirs, inputs, targets, batch, 50, loss, "momentum")
    train_by_torch(exact, inputs.double(), to_exact(targets), batch, 50, loss, "momentum")
    truth = flat_weights(exact)
    ours = error(flat_weights(net.to_sequential()), truth)
    assert ours <= 1.1 * error(flat_weights(theirs), truth)


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
    net = make_net((width,) * 5, torch.float16, "cuda")
    inputs, targets = make_data(net, 2 * batch)
    trainer = make_trainer(net, inputs, targets, batch, optimizer="momentum")
    begin = trainer.state_dict()
    trainer.steps(3)
    expected = net.weights.detach().clone()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(repeats):
        trainer.load_state_dict(begin)
        trainer.steps(3)
        wrong += net.weights.detach().ne(expected).any()
    assert int(wrong) == 0


@pytest.mark.cuda
@SIZES_BY_AMOUNT
def test_a_graph_of_steps_goes_on_with_the_next_batches(
    batch: int, width: int, repeats: int
) -> None:
    states = []
    for captured in (False, True):
        net = make_net((width,) * 5, torch.float16, "cuda")
        inputs, targets = make_data(net, 3 * batch)
        trainer = make_trainer(net, inputs, targets, batch, optimizer="adam")
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
    net = make_net(ON_CHIP["square"], torch.float16, "cuda")
    inputs, targets = make_data(net, 1024)
    trainer = make_trainer(net, inputs, targets, 1024)
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
    net = make_net((24, 40, 3), torch.float16, device, bias=bias)
    inputs, targets = make_data(net, 40)
    before = net.weights.detach().clone()
    trainer = make_trainer(net, inputs, 1000 * targets, 20, optimizer="adam")
    assert trainer.loss_scale == 65536
    trainer.step()
    assert torch.equal(net.weights, before)
    assert (trainer.steps_taken, trainer.steps_skipped, trainer.loss_scale) == (1, 1, 32768)
    while trainer.steps_skipped == trainer.steps_taken < 20:
        trainer.step()
    assert trainer.steps_taken < 20
    assert not torch.equal(net.weights, before)
    assert bool(net.weights.isfinite().all())


@pytest.mark.parametrize("overflows", [True, False])
def test_a_dynamic_scale_keeps_within_what_can_be_gone_on_from(
    overflows: bool, device: torch.device
) -> None:
    bound = 2.0**-126 if overflows else 2.0**126
    for widths in ((24, 40, 3), (24, 192, 3)):
        net = make_net(widths, torch.float16, device)
        inputs, targets = make_data(net, 40)
        # Gradients of 0 never overflow.
        inputs, targets = (inputs * math.nan, targets) if overflows else (0 * inputs, 0 * targets)
        trainer = make_trainer(net, inputs, targets, 20)
        state = trainer.state_dict()
        state["rates"][1] = bound
        state["counters"][:] = torch.tensor([2000, 0, 1999])
        trainer.load_state_dict(state)
        trainer.step()
        assert trainer.loss_scale == bound
        assert trainer.steps_skipped == overflows
        trainer.load_state_dict(trainer.state_dict())


def test_a_dynamic_scale_doubles_after_2000_steps(device: torch.device) -> None:
    net = make_net((24, 40, 3), torch.float16, device)
    inputs, targets = make_data(net, 40)
    trainer = make_trainer(net, 0 * inputs, 0 * targets, 20)
    state = trainer.state_dict()
    trainer.load_state_dict(state | {"counters": torch.tensor([2100, 101, 1997])})
    for scale in (65536, 65536, 2 * 65536, 2 * 65536):  # after 1998, 1999 and 2000 steps, and 1
        trainer.step()
        assert trainer.loss_scale == scale


def test_scales_that_are_given_stay_and_without_one_nan_spreads(device: torch.device) -> None:
    net = make_net((24, 40, 3), torch.float16, device)
    inputs, targets = make_data(net, 40)
    trainer = make_trainer(net, inputs, 1000 * targets, 20, loss_scale=65536.0)
    trainer.steps(3)
    assert (trainer.steps_skipped, trainer.loss_scale) == (3, 65536)
    net = make_net((24, 40, 3), torch.bfloat16, device)
    inputs, targets = make_data(net, 40)
    inputs[3, 3] = math.nan
    trainer = make_trainer(net, inputs, targets, 20)
    trainer.step()
    assert bool(net.weights.isnan().any())
    assert math.isnan(float(trainer.losses()[0]))
    assert trainer.loss_scale is None


def test_a_state_is_gone_on_from(device: torch.device) -> None:
    net = make_net((24, 40, 3), torch.float16, device)
    inputs, targets = make_data(net, 60)
    trainer = make_trainer(net, inputs, targets, 20, optimizer="adam")
    trainer.steps(3)
    state = trainer.state_dict()
    trainer.steps(4)
    expected = net.weights.detach().clone()
    fresh = make_net((24, 40, 3), torch.float16, device)
    other = make_trainer(fresh, inputs, targets, 20, optimizer="adam")
    other.load_state_dict(state)
    other.steps(4)
    assert torch.equal(other.model.weights, expected)
    with pytest.raises(InputError, match="state must have the tensors"):
        other.load_state_dict({"weights": expected})


def test_states_that_no_trainer_gives_are_refused() -> None:
    net = make_net((24, 3))
    trainer = make_trainer(net, *make_data(net, 60), 20)
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
    net = make_net((24, 64, 3))
    inputs, targets = make_data(net, 60)
    trainer = make_trainer(net, inputs, targets, 20, history=4)
    every = make_trainer(make_net((24, 64, 3)), inputs, targets, 20)
    assert trainer.losses().numel() == 0
    loss = F.mse_loss(net(inputs), targets)
    for taken in range(1, 11):
        trainer.step()
        every.step()
        assert torch.equal(trainer.losses(), every.losses()[-4:]), taken
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def change_in_place(net: FusedMLP) -> None:
    with torch.no_grad():
        net.weights[:, 0].fill_(0.5)


def change_by_data(net: FusedMLP) -> None:
    net.weights.data[:, 0].fill_(0.5)


def change_by_fused_optimizer(net: FusedMLP) -> None:
    # Not SGD: for 16-bit weights on a CPU, torch 2.11's fused SGD changes nothing.
    net.weights.grad = torch.zeros_like(net.weights)
    net.weights.grad[:, 0] = 1
    torch.optim.Adam(net.parameters(), lr=0.5, fused=True).step()


@pytest.mark.parametrize(
    "change", [change_in_place, change_by_data, change_by_fused_optimizer], ids=lambda c: c.__name__
)
def test_changes_between_steps_are_trained(
    change: Callable[[FusedMLP], None], device: torch.device
) -> None:
    """Also those that PyTorch does not count; weights that stay keep their 32 bits."""
    for widths, optimizer in (((64, 64, 64), "sgd"), ((256, 256), "sgd"), ((64, 64), "adamw")):
        net = make_net(widths, torch.bfloat16, device)
        trainer = make_trainer(net, *make_data(net, 60), 20, optimizer=optimizer)
        trainer.steps(2)
        before = trainer.state_dict()
        assert not torch.equal(before["master"], before["weights"].float())
        change(net)
        changed = net.weights.detach().clone()
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
    net = make_net((width, width, width), torch.bfloat16, "cuda")
    trainer = make_trainer(net, *make_data(net, 2 * batch), batch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        trainer.step()
    graph.replay()
    net.weights.data.fill_(0.5)
    trainer.lr = 1e-30
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(net.weights, torch.full_like(net.weights, 0.5))


@BIASES
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_padding_that_was_written_is_not_trained(
    optimizer: str, bias: bool, device: torch.device
) -> None:
    dtype = torch.float32 if device.type == "cuda" else torch.float64
    net = make_net((24, 40, 50, 3), dtype, device, bias=bias)
    inputs, targets = make_data(net, 60)
    trainer = make_trainer(net, inputs, targets, 20, optimizer=optimizer)
    with torch.no_grad():
        net.weights.normal_(std=0.1)
    model = exact_copy(net)
    trainer.steps(3)
    train_by_torch(model, inputs.double(), targets.double(), 20, 3, optimizer=optimizer)
    assert error(flat_weights(net.to_sequential()), flat_weights(model)) < 1e-4


def test_weights_that_were_replaced_are_refused_and_trainers_are_not_copied() -> None:
    replacements: list[Callable[[FusedMLP], object]] = [
        lambda net: net.double(),
        lambda net: net.to("meta"),
        lambda net: net.load_state_dict(copy.deepcopy(net.state_dict()), assign=True),
    ]
    for replace in replacements:
        net = make_net((24, 40, 3))
        trainer = make_trainer(net, *make_data(net, 60), 20)
        for copied in (copy.deepcopy, pickle.dumps):
            with pytest.raises(InputError, match="a trainer must not be copied or pickled"):
                copied((net, trainer))
        replace(net)
        with pytest.raises(InputError, match="must stay the tensor that the trainer was made"):
            trainer.step()


BAD_RATES = [0, math.nan, math.inf, 1e39, 10**400, 1e-50]
BAD: list[tuple[dict[str, Any], str]] = [
    ({"inputs": torch.ones(40, 25)}, r"inputs must have shape \(rows, 24\).*got \(40, 25\)"),
    ({"inputs": torch.ones(40, 24).double()}, "inputs must be of torch.float32; got"),
    ({"targets": torch.ones(39, 3)}, r"targets must have shape \(40, 3\)"),
    ({"targets": torch.ones(40, 3, device="meta")}, "targets must be on the model's device"),
    ({"loss": "cross_entropy"}, r"targets must have shape \(40,\)"),
    ({"loss": "cross_entropy", "targets": torch.ones(40)}, "must be of torch.int64"),
    (
        {"loss": "cross_entropy", "targets": torch.arange(40)},
        "targets must be classes from 0 to 2.*got 0 to 39",
    ),
    ({"loss": "cross_entropy", "targets": torch.arange(40) % 4}, "got 0 to 3"),
    ({"loss": "cross_entropy", "targets": torch.arange(40) % 3 - 1}, "got -1 to 1"),
    ({"loss": "l1"}, "loss must be one of mse, cross_entropy; got 'l1'"),
    ({"optimizer": "lamb"}, "optimizer must be one of sgd, adam, adamw"),
    ({"batch_size": 0}, "batch_size must be a whole number from 1 to the 40 rows"),
    ({"batch_size": 2.0}, "batch_size must be a whole number .* got 2.0"),
    ({"inputs": [[0.0] * 24] * 40}, "inputs must be a tensor; got list"),
    ({"targets": None}, "targets must be a tensor; got NoneType"),
    *(({"lr": lr}, "lr must be a finite float32 at least 1.18e-38") for lr in BAD_RATES),
    *(({"eps": eps}, "eps must be a finite float32 at least") for eps in BAD_RATES),
    *(({"loss_scale": scale}, "loss_scale must be") for scale in BAD_RATES),
    *(({"betas": betas}, r"betas\[1\] must be") for betas in ((0.9, 1), (0.9, 1 - 1e-12))),
    *(({"batch_size": size}, "batch_size must be a whole .* 1 to the 40") for size in (41, 2.5)),
    ({"momentum": 1.0}, "momentum must be a finite float32 at least 0 and below 1; got 1.0"),
    ({"betas": (0.9, 1)}, r"betas\[1\] must be"),
    ({"betas": (0.9,)}, r"betas must be two numbers; got \(0.9,\)"),
    ({"eps": 0.0}, "eps must be a finite float32 at least 1.18e-38"),
    ({"weight_decay": -1}, "weight_decay must be"),
    ({"loss_scale": "static"}, "loss_scale must be 'auto', 'dynamic', a number"),
    ({"loss_scale": 0.0}, "loss_scale must be a finite float32 at least 1.18e-38"),
    ({"history": 0}, "history must be a whole number from 1; got 0"),
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
        with pytest.raises(InputError, match=f"count must be .* from 1 to 1000000; got {count!r}"):
            trainer.steps(count)
    model: Any = torch.nn.Linear(2, 2)
    with pytest.raises(InputError, match="model must be a FusedMLP; got Linear"):
        MLPTrainer(model, torch.ones(4, 2), torch.ones(4, 2), batch_size=2)
    short = make_net((24, 40, 3), torch.float16)
    with pytest.raises(InputError, match="master_weights must be True"):
        make_trainer(short, *make_data(short, 40), 20, optimizer="adam", master_weights=False)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_weight_decay_has_torchs_default(optimizer: str) -> None:
    net = make_net((24, 40, 3), torch.float64)
    model = net.to_sequential()
    inputs, targets = make_data(net, 40)
    MLPTrainer(net, inputs, targets, batch_size=20, optimizer=optimizer, lr=1e-3).steps(2)
    reference: Any = TORCHS[optimizer](model.parameters(), lr=1e-3)
    for rows in (slice(0, 20), slice(20, 40)):
        reference.zero_grad()
        F.mse_loss(model(inputs[rows]), targets[rows]).backward()
        reference.step()
    torch.testing.assert_close(flat_weights(net.to_sequential()), flat_weights(model))


@pytest.mark.cuda
def test_what_a_gpu_cannot_train_is_refused() -> None:
    net = make_net((24, 3), torch.float64, "cuda")
    inputs, targets = make_data(net, 40)
    with pytest.raises(InputError, match="dtype must be one of"):
        make_trainer(net, inputs, targets, 20)
