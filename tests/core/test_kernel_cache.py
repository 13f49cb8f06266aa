"""Kernels that are compiled when they are first used: the cache, and what it must survive."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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
three = {"min_samples": 3, "max_samples": 3, "stop": "count"}
timed = convtime.time_op(torch.relu, x, **three)
first = convtime.time_op(convtime.ops.relu_max_pool2d, x, 3, **three)
is_right = torch.equal(convtime.ops.relu_max_pool2d(x, 3), right) and timed.median > 0
seconds = first.first_call_compile_seconds
print(json.dumps({"right": is_right, "compiled": seconds, "cache": _C.kernel_cache()}))
"""

# Each new window is a new kernel, which takes longer to compile than a thread's turn.
TAKE_TURNS = """
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


def printed(code: str, cache: Path | str) -> str:
    """Return what a process prints that has its cache in a folder."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def use(cache: Path | str) -> dict[str, Any]:
    used: dict[str, Any] = json.loads(printed(USE, cache).splitlines()[-1])
    assert used["right"]
    return used


@pytest.mark.cuda
@pytest.mark.thorough
def test_a_second_process_compiles_nothing_and_damaged_files_are_compiled_again(
    tmp_path: Path,
) -> None:
    first, second = use(tmp_path), use(tmp_path)
    assert first["cache"]["files"] == second["cache"]["files"] > 0
    assert first["compiled"] > second["compiled"] > 0
    cache = kernel_cache()
    assert cache is not None
    assert convtime.show_config()["kernels"]["compiler"] == cache.compiler
    assert cache.compiler.startswith(f"NVRTC {(torch.version.cuda or '').split('.')[0]}.")
    for damage in ("truncated", "overwritten", "empty", "a folder"):
        for file in (tmp_path / "convtime" / "kernels").iterdir():
            content = file.read_bytes() if file.is_file() else b""
            if damage == "a folder":
                file.unlink()
                file.mkdir()
            else:
                changed = {"truncated": content[: len(content) // 2], "empty": b""}
                file.write_bytes(changed.get(damage, content[:-9] + b"damaged!!"))
        use(tmp_path)


@pytest.mark.cuda
@pytest.mark.thorough
@pytest.mark.parametrize("place", ["/proc/no/such/folder", "/dev/null"])
def test_a_folder_that_is_not_writable_only_costs_time(place: str) -> None:
    cache = use(place)["cache"]
    assert cache["files"] == 0
    assert "cannot write to" in cache["problem"]


@pytest.mark.cuda
@pytest.mark.thorough
def test_processes_share_an_empty_cache(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        assert len([*pool.map(use, [tmp_path] * 3)]) == 3
    files = (tmp_path / "convtime" / "kernels").iterdir()
    assert {file.suffix for file in files} == {".image"}


@pytest.mark.cuda
@pytest.mark.thorough
def test_other_threads_of_python_run_while_kernels_are_compiled(tmp_path: Path) -> None:
    assert printed(TAKE_TURNS, tmp_path).startswith("True")
