"""Benchmarks whose cases are drawn: their command line, and compiling beforehand."""

import json
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

    def make_cases(device, seed, budget):
        def case(index):
            drawn = index >= 3
            return running.Case(
                lambda: {"kind": "speed", "seconds": {"convtime": budget, "index": index}},
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
        monkeypatch.setattr(results, "summary_of", lambda benchmark, rows: [])
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        running.run("mlp", make_cases, on="cpu", seed=families.SEED, budget=0.5)
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
        assert run("--compile", "1/2") is None
        assert config.compile_threads == 1
        assert run.compiled == [3]
        with pytest.raises(SystemExit, match="not compiled: case 4"):
            run("--compile", "2/2")
        assert run.compiled == [4]
        assert "case 4: RuntimeError: no such kernel\n" in capsys.readouterr().out
        with pytest.raises(SystemExit, match="not compiled: case 4"):
            run("--compile", "1/1")
        assert run.compiled == [3, 4]
        with pytest.raises(SystemExit):
            run("--compile", "3/2")
        assert "got '3/2', but must be I/N with I from 1 to N" in capsys.readouterr().err


def test_drawn_sizes_are_spread_over_octaves():
    source = families.chance("pool", 0, 0)
    drawn = [families.log_uniform(source, 1, 16) for _ in range(1000)]
    for octave in (1, 2, 4, 8):
        assert 200 < sum(octave <= each < 2 * octave for each in drawn) < 300
