"""What mlp.py makes of its rows, and how it and mlp_overhead.py get them, without a GPU."""

import inspect
import json
import types

import mlp
import mlp_overhead
import pytest
import results

GOALS = results.load_goals()["mlp"]


def speed(shape="w64_l4_b1024", **changes):
    seconds = {
        "convtime": 10e-6,
        "eager": 1000e-6,
        "compiled": 900e-6,
        "eager graph": 60e-6,
        "compiled graph": 40e-6,
    }
    return {
        "key": shape,
        "kind": "speed",
        "shape": shape,
        "ceilings": {"flops_per_second": 1e15, "bytes_per_second": 4e12},
        "seconds": seconds | changes,
    }


def trained(task, ours, theirs, error=1e-3):
    return {
        "key": f"training {task}",
        "kind": "training",
        "task": task,
        "losses": {"convtime": [9.0, *[ours] * 100], "pytorch": [9.0, *[theirs] * 100]},
        "weight_error": {"convtime": error, "pytorch": 2e-3},
    }


def test_a_speedup_is_over_the_fastest_of_pytorchs():
    summary = mlp.summarise([speed(), speed("w128_l5_b65536", convtime=20e-6)])
    assert summary == {
        "w64_l4_b1024_over_best_pytorch": pytest.approx(4),
        "w64_l4_b1024_over_compile_max_autotune": pytest.approx(90),
        "w128_l5_b65536_over_best_pytorch": pytest.approx(2),
    }
    assert set(summary) <= set(GOALS)


def test_the_worse_task_counts():
    rows = [trained("mse", 0.102, 0.1), trained("cross_entropy", 0.99, 1.0, error=3e-3)]
    summary = mlp.summarise(rows)
    assert summary == {
        "final_loss_difference": pytest.approx(0.02),
        "weight_error_over_pytorch_fp16": pytest.approx(1.5),
    }
    assert set(summary) <= set(GOALS)
    assert mlp.summarise(rows[:1]) == {}


def test_the_table_has_each_net_and_task():
    lines = mlp.table([speed(), trained("mse", 0.102, 0.1)]).splitlines()
    assert "| 64 × 4, 1024 | 10.0 | 9 | 0.1 | 1000.0 | 900.0 | 60.0 | 40.0 |" in lines
    assert "| mse | 0.10200 | 0.10000 | 1.00e-03 | 2.00e-03 |" in lines


def test_the_first_layers_input_has_no_gradient():
    assert mlp.flops(64, 4, 1024) == 2 * 1024 * 64 * 64 * (4 + 4 + 3)


def test_the_roofline_is_the_slower_of_products_and_memory():
    small, large = speed(), speed("w4096_l4_b8192")
    numbers = 2 * 1024 * 64 + 4 * 4 * 64 * 64
    assert mlp.roofline(small) == pytest.approx(2 * numbers / 4e12)
    assert mlp.roofline(large) == pytest.approx(2 * 8192 * 4096 * 4096 * 11 / 1e15)


def test_heavy_steps_are_timed_in_smaller_numbers():
    counts = [mlp.steps_of(shape) for shape in mlp.SHAPES.values()]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 100
    assert 5 <= counts[-1] < 10


def test_pytorchs_steps_take_one_batch_after_the_other():
    torch = pytest.importorskip("torch")
    seen = []

    def forward(x, y):
        seen.append((x[0, 0].item(), y[0].item()))
        return model(x).sum()

    model = mlp.make_model(4, 2, 3)
    inputs = torch.arange(24.0).reshape(6, 4)
    step = mlp.make_step(forward, model, inputs, torch.arange(6), 2)
    for _ in range(4):
        step()
    assert seen == [(0, 0), (8, 2), (16, 4), (0, 0)]


def test_there_is_a_case_for_each_net_and_task():
    torch = pytest.importorskip("torch")
    cases = mlp.make_cases(torch.device("cpu"))
    assert list(cases) == ["training mse", "training cross_entropy", *mlp.SHAPES]


@pytest.mark.parametrize("task", mlp.TASKS)
def test_there_is_something_to_learn(task, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(mlp, "TRAINING", (64, 4, 128))
    outputs = 64 if task == "mse" else mlp.CLASSES
    data = mlp.make_data(64, outputs, 128 * mlp.BATCHES, task, torch.device("cpu"))
    torch.manual_seed(0)
    model = mlp.make_model(64, 4, outputs)
    losses = mlp.take(mlp.training(model, *data, task, mixed=False), 500)
    assert sum(losses[-mlp.BATCHES :]) < 0.7 * sum(losses[: mlp.BATCHES])


@pytest.fixture
def compiled(monkeypatch):
    """Has measuring run on a CPU, without times; gives what is compiled until it is timed."""
    torch = pytest.importorskip("torch")
    from common import compiled, graphs

    import convtime

    found: list[str] = []
    is_timed = False

    def compile_whole(function, mode):
        def compile_graph(graph, _):
            assert not is_timed, f"{mode} was compiled anew"
            found.append(mode)
            return graph.forward

        return torch.compile(function, backend=compile_graph, fullgraph=True, dynamic=False)

    def capture(call):
        call()
        return call

    def compare(steps, **options):
        nonlocal is_timed
        signature.bind(steps, **options)
        is_timed = True
        for step in [*steps.values()] * 2:
            step()
        measured = types.SimpleNamespace(median=1.0, seconds=[1.0])
        return types.SimpleNamespace(
            measurements=dict.fromkeys(steps, measured), judge=lambda name: f"{name} is slower"
        )

    def make_trainer(*arguments, tune, **options):
        return trainer(*arguments, **options)

    trainer = convtime.nn.MLPTrainer
    signature = inspect.signature(convtime.compare)
    rates = types.SimpleNamespace(flops_per_second=1e15, bytes_per_second=4e12)
    monkeypatch.setattr(convtime, "ceilings", lambda device: rates)
    monkeypatch.setattr(convtime.nn, "MLPTrainer", make_trainer)
    monkeypatch.setattr(convtime, "compare", compare)
    monkeypatch.setattr(compiled, "compile_whole", compile_whole)
    monkeypatch.setattr(graphs, "capture", capture)
    monkeypatch.setattr(mlp, "MOST_STEPS", 2)
    return found


def test_speed_is_measured_beside_all_peers(compiled, monkeypatch):
    torch = pytest.importorskip("torch")
    shape = "w64_l4_b1024"
    monkeypatch.setitem(mlp.SHAPES, shape, (64, 2, 16))
    row = mlp.measure_speed(shape, torch.device("cpu"))
    assert compiled == ["max-autotune", "max-autotune-no-cudagraphs"]
    assert list(row["seconds"]) == ["convtime", *mlp.PEERS]
    assert list(row["verdicts"]) == list(mlp.PEERS)
    assert len(mlp.summarise(json.loads(json.dumps([row])))) == 2


def test_no_stage_has_another_compiled_anew(compiled, monkeypatch):
    torch = pytest.importorskip("torch")
    net = next(iter(mlp_overhead.NETS))
    monkeypatch.setitem(mlp_overhead.NETS, net, (64, 2, 16))
    row = mlp_overhead.measure(net, torch.device("cpu"))
    assert compiled == ["default", "max-autotune", "max-autotune-no-cudagraphs"]
    assert list(row["seconds"]) == list(mlp_overhead.STAGES)
    assert not torch.backends.cuda.matmul.allow_tf32


def test_tf32_is_for_the_steps_that_are_in_it():
    torch = pytest.importorskip("torch")
    seen = []
    mlp_overhead.repeat_in_tf32(lambda: seen.append(torch.backends.cuda.matmul.allow_tf32), 2)
    assert seen == [True, True]
    assert not torch.backends.cuda.matmul.allow_tf32
