"""Kernels that are compiled when they are first used: the cache, and what it must survive."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import convtime
from convtime.device.state import kernel_cache

# Times, pools, and prints what the cache says, and whether the result is right.
USE = """
import json, torch, convtime
from convtime.core.load import _C
x = torch.randn(2, 5, 9, 9, device="cuda")
right = torch.nn.functional.max_pool2d(torch.relu(x), 3)
timed = convtime.time_op(torch.relu, x, min_samples=3, max_samples=3, stop="count")
pool = convtime.ops.relu_max_pool2d
first = convtime.time_op(pool, x, 3, min_samples=3, max_samples=3, stop="count")
print(json.dumps({
    "right": torch.equal(convtime.ops.relu_max_pool2d(x, 3), right) and timed.median > 0,
    "compiled": first.first_call_compile_seconds,
    "cache": _C.kernel_cache(),
}))
"""


def use(cache: Path | str) -> dict:
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", USE], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_its_folder_is_of_the_users_caches(tmp_path):
    code = "from convtime.device.state import kernel_cache; print(kernel_cache().folder)"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    if kernel_cache() is None:
        pytest.skip("this build has no CUDA")
    folder = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert Path(folder.strip()) == tmp_path / "convtime" / "kernels"


def test_config_has_it():
    cache = kernel_cache()
    shown = convtime.show_config()["kernels"]
    if cache is None:
        assert shown is None
    else:
        assert shown["compiler"] == cache.compiler
        assert cache.compiler.startswith(f"NVRTC {torch.version.cuda.split('.')[0]}.")


@pytest.mark.cuda
def test_a_second_process_compiles_nothing(tmp_path):
    first, second = use(tmp_path), use(tmp_path)
    assert first["right"]
    assert second["right"]
    assert first["cache"]["files"] == second["cache"]["files"] > 0
    assert first["compiled"] > second["compiled"] > 0


@pytest.mark.cuda
@pytest.mark.parametrize("damage", ["truncated", "overwritten", "empty", "a folder"])
def test_damaged_files_are_compiled_again(tmp_path, damage):
    use(tmp_path)
    for file in (tmp_path / "convtime" / "kernels").iterdir():
        content = file.read_bytes()
        if damage == "truncated":
            file.write_bytes(content[: len(content) // 2])
        elif damage == "overwritten":
            file.write_bytes(content[:-9] + b"damaged!!")
        elif damage == "empty":
            file.write_bytes(b"")
        else:
            file.unlink()
            file.mkdir()
    assert use(tmp_path)["right"]


@pytest.mark.cuda
@pytest.mark.parametrize("place", ["/proc/no/such/folder", "/dev/null"])
def test_a_folder_that_is_not_writable_only_costs_time(place):
    used = use(place)
    assert used["right"]
    assert used["cache"]["files"] == 0
    assert "cannot write to" in used["cache"]["problem"]


@pytest.mark.cuda
def test_processes_share_an_empty_cache(tmp_path):
    found = []
    threads = [threading.Thread(target=lambda: found.append(use(tmp_path))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [used["right"] for used in found] == [True] * 3
    files = (tmp_path / "convtime" / "kernels").iterdir()
    assert {file.suffix for file in files} == {".image"}


@pytest.mark.cuda
def test_other_threads_of_python_run_while_kernels_are_compiled(tmp_path):
    """Each new window is a new kernel, which takes longer to compile than a thread's turn."""
    code = """
import threading, time, torch, convtime
x = torch.randn(2, 5, 40, 40, device="cuda")
turns, seen, ends = 0, [], False
def count():
    global turns
    while not ends:
        turns += 1
        time.sleep(0)
thread = threading.Thread(target=count)
thread.start()
for window in (2, 3, 4):
    before = turns
    convtime.ops.relu_max_pool2d(x, window)
    seen.append(turns - before)
ends = True
thread.join()
print(all(turns > 0 for turns in seen), seen)
"""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.startswith("True"), done.stdout + done.stderr
