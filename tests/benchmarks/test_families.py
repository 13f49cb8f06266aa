"""Benchmarks whose cases are drawn: their command line, and compiling beforehand."""

import json
import subprocess
import sys

import pytest
import results
import torch
from common import families, running

COMMIT = "abc"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a benchmark of five cases, two of which are drawn and compiled, from a command line."""
    done = []

    def make_cases(device, seed, seconds):
        def case(index):
            drawn = index >= 3
            return families.Case(
                lambda: {"kind": "speed", "seconds": {"convtime": seconds, "index": index}},
                (lambda: compile_case(index)) if drawn else None,
                seed if drawn else None,
            )

        return {f"case {index}": case(index) for index in range(5)}

    def compile_case(index):
        done.append(index)
        if index == 4:
            raise RuntimeError("no such kernel\nmore")

    def run(*arguments):
        done.clear()
        command = ["mlp.py", "--output", str(tmp_path), "--commit", COMMIT, *arguments]
        monkeypatch.setattr(sys, "argv", command)
        monkeypatch.setattr(running, "find_gpu", lambda name: torch.device("cpu"))
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        families.run("mlp", "", lambda rows: {}, make_cases, seconds=0.5)
        path = tmp_path / "mlp.json"
        return json.loads(path.read_text()) if path.exists() else None

    run.compiled = done  # type: ignore[attr-defined]
    return run


def test_drawn_rows_name_their_seed(run):
    rows = {row["key"]: row for row in run("--seed", "7")["rows"]}
    assert [row.get("seed") for row in rows.values()] == [None, None, None, 7, 7]
    assert rows["case 0"]["seconds"]["convtime"] == 0.5
    assert not run.compiled


def test_rows_of_another_seed_are_measured_anew(run, capsys):
    assert run("--seed", "7")["command"] == "mlp.py --seed 7"
    assert {row["seed"] for row in run()["rows"] if "seed" in row} == {families.SEED}
    assert "starting anew" in capsys.readouterr().out


def test_a_share_is_compiled_and_nothing_measured(run, capsys):
    from torch._inductor import config

    with config.patch(compile_threads=2):  # monkeypatch would hide it afterwards
        assert run("--probe", "compile", "1/2") is None
        assert config.compile_threads == 1
        assert run.compiled == [3]
        with pytest.raises(SystemExit, match="not compiled: case 4"):
            run("--probe", "compile", "2/2")
        assert run.compiled == [4]
        assert "case 4: RuntimeError: no such kernel\n" in capsys.readouterr().out
        with pytest.raises(SystemExit, match="not compiled: case 4"):
            run("--probe", "compile", "1/1")
        assert run.compiled == [3, 4]


@pytest.mark.parametrize(
    ("probe", "says"),
    [
        (("race", "1/2"), "must be compile I/N, got 'race'"),
        (("compile", "3/2"), "got '3/2', but must be I/N with I from 1 to N"),
        (("compile",), "expected 2 arguments"),
    ],
)
def test_a_wrong_probe_is_refused(run, capsys, probe, says):
    with pytest.raises(SystemExit):
        run("--probe", *probe)
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("name", ["pool", "epilogue", "mlp"])
def test_benchmarks_have_the_options(name):
    done = subprocess.run(
        [sys.executable, results.scripts()[name], "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for option in ("--seed", "--seconds", "--probe compile I/N", "--shard I/N"):
        assert option in done.stdout


def test_drawn_sizes_are_spread_over_octaves():
    source = families.chance("pool", 0, 0)
    drawn = [families.log_uniform(source, 1, 16) for _ in range(1000)]
    for octave in (1, 2, 4, 8):
        assert 200 < sum(octave <= each < 2 * octave for each in drawn) < 300


@pytest.mark.parametrize(("in_pairs", "type_", "counted"), [(True, "fp16", 8), (False, "fp32", 16)])
def test_comparisons_are_all_made(tmp_path, monkeypatch, in_pairs, type_, counted):
    """By the instructions of the kernel for an H100: none are optimized away."""
    compiler = pytest.importorskip("triton.compiler")
    from common import comparisons
    from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # or a warning asks for a choice
    source = compiler.ASTSource(
        fn=comparisons.compare_in_registers,
        signature={"x": f"*{type_}", "y": f"*{type_}"}
        | dict.fromkeys(("ROUNDS", "BLOCK", "IN_PAIRS"), "constexpr"),
        constexprs={"ROUNDS": 256, "BLOCK": 2048, "IN_PAIRS": in_pairs},
    )
    kernel = compiler.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    unrolled = 16
    # A thread has 16 of a block's values; a pair takes one instruction.
    assert kernel.asm["ptx"].count("max.NaN") == unrolled * counted
