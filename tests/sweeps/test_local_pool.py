"""The processes of a pool: where they run, and what becomes of points whose process ends."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import convtime
from convtime import Sweep
from convtime.core.errors import InputError
from convtime.device import cpu
from convtime.sweeps import local_pool
from convtime.sweeps.local_pool import LocalPool, Resources
from tests.helpers import swept
from tests.helpers.waiting import wait_until
from tests.sweeps.test_executing import QUICK, SIZES, sizes_in


def test_places_of_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 8, 9, 10, 11})
    siblings = {0: "0,8", 1: "1,9", 2: "2,10", 3: "3,11"}
    for first, text in siblings.items():
        for each in (first, first + 8):
            (tmp_path / f"cpu{each}" / "topology").mkdir(parents=True)
            (tmp_path / f"cpu{each}" / "topology" / "thread_siblings_list").write_text(text)
    assert cpu.by_core([0, 1, 8, 9, 20], tmp_path) == [0, 8, 1, 9, 20]
    monkeypatch.setattr(local_pool, "by_core", lambda cpus: cpu.by_core(cpus, tmp_path))
    shares = [each.cpus for each in local_pool.worker_resources(3, "cpu")]
    assert shares == [{0, 8}, {1, 9}, {2, 10}]
    assert cpu.written_cpus([8, 0, 1, 2]) == "0-2,8"
    monkeypatch.setattr(local_pool, "resolve_device", torch.device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a, GPU-b")
    assert local_pool.worker_resources("gpus", "cuda") == [
        Resources(gpu="GPU-a"),
        Resources(gpu="GPU-b"),
    ]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert local_pool.worker_resources(1, "cuda") == [Resources(gpu="0")]
    with pytest.raises(InputError, match="at most 2, the number of GPUs, got 3"):
        local_pool.worker_resources(3, "cuda")
    with pytest.raises(InputError, match="one GPU each, got 'cuda:1'; use 'cuda'"):
        local_pool.worker_resources(1, "cuda:1")


def running(pool: LocalPool, count: int) -> list[int]:
    """The processes of a pool, once there are so many: others are being started."""
    return wait_until(lambda: pids if len(pids := pool.pids) >= count else [])


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    cpus = sorted(os.sched_getaffinity(0))
    with LocalPool(
        [Resources(frozenset({each}), gpu="7") for each in (cpus[0], cpus[-1])]
    ) as opened:
        yield opened
        pids = running(opened, 2)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.thorough
def test_the_processes_of_a_pool_share_the_points(pool: LocalPool, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    found = convtime.sweep(swept.relu, SIZES, executor=pool, file=file, **QUICK)
    assert sorted(sizes_in(file)) == [*SIZES["size"]]
    assert not found.missing
    assert not found.failed
    visits = [point.visit for point in found.controls]
    assert visits == sorted(visits)
    allowed = {f"CPU {each}" for each in os.sched_getaffinity(0)}
    workers = {point.worker for point in found.points}
    assert {" ".join(each.split()[1:]) for each in workers} <= allowed
    assert workers <= {point.worker for point in found.controls}
    assert {row["worker"] for row in found.to_rows()} == workers
    assert Sweep.from_dict(json.loads(found.to_json())) == found
    assert convtime.sweep(swept.relu, SIZES, executor=pool, file=file, **QUICK) == found


@pytest.mark.thorough
def test_a_process_sees_its_gpu_runs_on_its_cpus_and_tells_any_exception(pool: LocalPool) -> None:
    before = running(pool, 2)
    assert pool.submit(os.getenv, "CUDA_VISIBLE_DEVICES").result() == "7"
    assert os.environ.get("CUDA_VISIBLE_DEVICES") != "7"
    assert len(pool.submit(os.sched_getaffinity, 0).result()) == 1
    assert pool.submit(torch.get_num_threads).result() == 1
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result()
    with pytest.raises(RuntimeError, match="^SystemExit: 7$"):
        pool.submit(sys.exit, 7).result()
    with pytest.raises(RuntimeError, match="^UnsendableError: it failed$"):
        pool.submit(swept.raise_unsendable).result()
    assert pool.pids == before


@pytest.mark.thorough
def test_a_point_that_kills_its_processes_fails_and_the_others_stand(
    pool: LocalPool,
) -> None:
    found = convtime.sweep(swept.deadly, {"size": [3, 1, 2, 4, 5]}, executor=pool, **QUICK)
    (failed,) = found.failed
    assert failed.values == {"size": 3}
    assert (
        "2 worker processes ended while measuring it, and the last ended by SIGKILL" in failed.error
    )
    assert len(found.measurements) == 4


@pytest.mark.thorough
def test_dask_measures_points(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    dask = pytest.importorskip("dask")
    file = tmp_path / "a.jsonl"
    over: dict[str, Any] = {"size": [1, 2, 4, 8]}
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "120 s"}),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=None, memory_limit=0
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        found = convtime.sweep(
            {"relu": swept.relu, "double": swept.double}, over, executor=client.get_executor(),
            file=file, **QUICK
        )  # fmt: skip
        assert client.submit(os.getpid).result() != os.getpid()  # it still works
    assert sorted(sizes_in(file)) == sorted(2 * over["size"])
    assert len(found.measurements) == 8
    assert all(point.worker for point in found.points)


@pytest.mark.cuda
@pytest.mark.thorough
def test_each_gpu_has_a_worker() -> None:
    found = convtime.sweep(swept.relu, SIZES, executor="gpus", stop="count", max_samples=3,
                           min_samples=3)  # fmt: skip
    assert all("GPU-" in point.worker for point in found.points)
    assert len({point.worker for point in found.points}) <= torch.cuda.device_count()
