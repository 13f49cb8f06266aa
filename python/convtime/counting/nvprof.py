"""Metrics of nvprof, which supports no GPU newer than Volta, by their current names.

The translation follows the table in the transition guide of Nsight Compute, in nvprof's units. If
nvprof had a share from 0 to 1 or a level from 0 to 10, the percentage is scaled to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_RATIO = 0.01  # from a percentage to a share from 0 to 1
_LEVEL = 0.1  # from a percentage to a level from 0 to 10


def _sum(*metrics: str, factor: float = 1.0) -> dict[str, float]:
    return dict.fromkeys(metrics, factor)


def _flops(kind: str) -> dict[str, float]:
    """Floating-point operations of one precision; a multiply-add counts as two."""
    name = "smsp__sass_thread_inst_executed_op_{}{}_pred_on.sum".format
    return {name(kind, "add"): 1.0, name(kind, "mul"): 1.0, name(kind, "fma"): 2.0}


def _stall(*reasons: str) -> dict[str, float]:
    return _sum(*(f"smsp__warp_issue_stalled_{reason}_per_warp_active.pct" for reason in reasons))


def _peak(metric: str, *, of: str = "active", factor: float = _LEVEL) -> dict[str, float]:
    return {f"{metric}.avg.pct_of_peak_sustained_{of}": factor}


_GLOBAL_LOAD = "l1tex__{}_pipe_lsu_mem_global_op_ld"
_GLOBAL_STORE = "l1tex__{}_pipe_lsu_mem_global_op_st"
_LOCAL_LOAD = "l1tex__{}_pipe_lsu_mem_local_op_ld"
_LOCAL_STORE = "l1tex__{}_pipe_lsu_mem_local_op_st"
_THREADS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
_PER_REQUEST = "average_t_sectors_per_request"

#: By nvprof's name: the metrics to add, each with its factor.
NVPROF: Final[Mapping[str, Mapping[str, float]]] = {
    # Memory of the GPU.
    "dram_read_bytes": _sum("dram__bytes_read.sum"),
    "dram_read_throughput": _sum("dram__bytes_read.sum.per_second"),
    "dram_read_transactions": _sum("dram__sectors_read.sum"),
    "dram_write_bytes": _sum("dram__bytes_write.sum"),
    "dram_write_throughput": _sum("dram__bytes_write.sum.per_second"),
    "dram_write_transactions": _sum("dram__sectors_write.sum"),
    "dram_utilization": _peak("dram__throughput", of="elapsed"),
    # L2 cache.
    "l2_read_transactions": _sum(
        "lts__t_sectors_op_read.sum", "lts__t_sectors_op_atom.sum", "lts__t_sectors_op_red.sum"
    ),
    "l2_write_transactions": _sum(
        "lts__t_sectors_op_write.sum", "lts__t_sectors_op_atom.sum", "lts__t_sectors_op_red.sum"
    ),
    "l2_tex_hit_rate": _sum("lts__t_sector_hit_rate.pct"),
    "l2_tex_read_hit_rate": _sum("lts__t_sector_op_read_hit_rate.pct"),
    "l2_tex_write_hit_rate": _sum("lts__t_sector_op_write_hit_rate.pct"),
    "l2_tex_read_transactions": _sum("lts__t_sectors_srcunit_tex_op_read.sum"),
    "l2_tex_write_transactions": _sum("lts__t_sectors_srcunit_tex_op_write.sum"),
    "l2_utilization": _peak("lts__t_sectors", of="elapsed"),
    "sysmem_read_transactions": _sum("lts__t_sectors_aperture_sysmem_op_read.sum"),
    "sysmem_write_transactions": _sum("lts__t_sectors_aperture_sysmem_op_write.sum"),
    # L1 cache, and coalescing of accesses.
    "tex_cache_hit_rate": _sum("l1tex__t_sector_hit_rate.pct"),
    "gld_transactions": _sum(_GLOBAL_LOAD.format("t_sectors") + ".sum"),
    "gst_transactions": _sum(_GLOBAL_STORE.format("t_sectors") + ".sum"),
    "gld_throughput": _sum(_GLOBAL_LOAD.format("t_bytes") + ".sum.per_second"),
    "gst_throughput": _sum(_GLOBAL_STORE.format("t_bytes") + ".sum.per_second"),
    "gld_transactions_per_request": _sum(_GLOBAL_LOAD.format(_PER_REQUEST) + ".ratio"),
    "gst_transactions_per_request": _sum(_GLOBAL_STORE.format(_PER_REQUEST) + ".ratio"),
    "gld_efficiency": _sum("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct"),
    "gst_efficiency": _sum("smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct"),
    "global_load_requests": _sum(_GLOBAL_LOAD.format("t_requests") + ".sum"),
    "global_store_requests": _sum(_GLOBAL_STORE.format("t_requests") + ".sum"),
    "local_load_transactions": _sum(_LOCAL_LOAD.format("t_sectors") + ".sum"),
    "local_store_transactions": _sum(_LOCAL_STORE.format("t_sectors") + ".sum"),
    "local_load_throughput": _sum(_LOCAL_LOAD.format("t_bytes") + ".sum.per_second"),
    "local_store_throughput": _sum(_LOCAL_STORE.format("t_bytes") + ".sum.per_second"),
    # Shared memory.
    "shared_efficiency": _sum("smsp__sass_average_data_bytes_per_wavefront_mem_shared.pct"),
    "shared_load_transactions": _sum("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"),
    "shared_store_transactions": _sum("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"),
    "shared_utilization": _peak("l1tex__data_pipe_lsu_wavefronts_mem_shared", of="elapsed"),
    # Multiprocessors and warps.
    "achieved_occupancy": _peak("sm__warps_active", factor=_RATIO),
    "sm_efficiency": _peak("smsp__cycles_active", of="elapsed", factor=1.0),
    "eligible_warps_per_cycle": _sum("smsp__warps_eligible.sum.per_cycle_active"),
    "warp_execution_efficiency": _sum("smsp__average_thread_inst_executed_per_inst_executed.pct"),
    "warp_nonpred_execution_efficiency": _sum(
        "smsp__average_thread_inst_executed_pred_on_per_inst_executed.pct"
    ),
    "branch_efficiency": _sum("smsp__sass_average_branch_targets_threads_uniform.pct"),
    # Instructions. IPC is that of an SM, not of one of its four schedulers.
    "ipc": _sum("sm__inst_executed.avg.per_cycle_active"),
    "issued_ipc": _sum("sm__inst_issued.avg.per_cycle_active"),
    "inst_executed": _sum("smsp__inst_executed.sum"),
    "inst_issued": _sum("smsp__inst_issued.sum"),
    "issue_slots": _sum("smsp__inst_issued.sum"),
    "issue_slot_utilization": _peak("smsp__issue_active", factor=1.0),
    "inst_per_warp": _sum("smsp__average_inst_executed_per_warp.ratio"),
    "inst_executed_global_loads": _sum("smsp__inst_executed_op_global_ld.sum"),
    "inst_executed_global_stores": _sum("smsp__inst_executed_op_global_st.sum"),
    "inst_executed_global_reductions": _sum("smsp__inst_executed_op_global_red.sum"),
    "inst_executed_local_loads": _sum("smsp__inst_executed_op_local_ld.sum"),
    "inst_executed_local_stores": _sum("smsp__inst_executed_op_local_st.sum"),
    "inst_executed_shared_loads": _sum("smsp__inst_executed_op_shared_ld.sum"),
    "inst_executed_shared_stores": _sum("smsp__inst_executed_op_shared_st.sum"),
    "inst_fp_16": _sum(_THREADS.format("fp16")),
    "inst_fp_32": _sum(_THREADS.format("fp32")),
    "inst_fp_64": _sum(_THREADS.format("fp64")),
    "inst_integer": _sum(_THREADS.format("integer")),
    "inst_control": _sum(_THREADS.format("control")),
    "inst_compute_ld_st": _sum(_THREADS.format("memory")),
    # Arithmetic.
    "flop_count_hp": _flops("h"),
    "flop_count_sp": _flops("f"),
    "flop_count_dp": _flops("d"),
    "flop_count_hp_fma": _sum(_THREADS.format("hfma")),
    "flop_count_sp_fma": _sum(_THREADS.format("ffma")),
    "flop_count_dp_fma": _sum(_THREADS.format("dfma")),
    "single_precision_fu_utilization": _peak("smsp__pipe_fma_cycles_active"),
    "double_precision_fu_utilization": _peak("smsp__inst_executed_pipe_fp64"),
    "special_fu_utilization": _peak("smsp__inst_executed_pipe_xu"),
    "ldst_fu_utilization": _peak("smsp__inst_executed_pipe_lsu"),
    "tex_fu_utilization": _peak("smsp__inst_executed_pipe_tex"),
    "tensor_precision_fu_utilization": _peak("sm__pipe_tensor_op_hmma_cycles_active"),
    "tensor_int_fu_utilization": _peak("sm__pipe_tensor_op_imma_cycles_active"),
    # Why warps wait.
    "stall_constant_memory_dependency": _stall("imc_miss"),
    "stall_exec_dependency": _stall("short_scoreboard", "wait"),
    "stall_inst_fetch": _stall("no_instruction"),
    "stall_memory_dependency": _stall("long_scoreboard"),
    "stall_memory_throttle": _stall("drain", "lg_throttle"),
    "stall_not_selected": _stall("not_selected"),
    "stall_other": _stall("dispatch_stall", "misc"),
    "stall_pipe_busy": _stall("math_pipe_throttle", "mio_throttle"),
    "stall_sleeping": _stall("sleeping"),
    "stall_sync": _stall("barrier", "membar"),
    "stall_texture": _stall("tex_throttle"),
}
