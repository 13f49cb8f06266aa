#include "timing/trace/cupti_records.h"

namespace convtime {
namespace {

#if CUPTI_API_VERSION >= 130200
using KernelRecord = CUpti_ActivityKernel11;
#else
using KernelRecord = CUpti_ActivityKernel10;
#endif
using MemcpyRecord = CUpti_ActivityMemcpy6;
using MemsetRecord = CUpti_ActivityMemset4;

DeviceActivity read_kernel(const KernelRecord& record) {
  DeviceActivity activity;
  activity.info.kind = ActivityKind::kKernel;
  activity.info.name = record.name == nullptr ? "" : record.name;
  activity.info.grid = {record.gridX, record.gridY, record.gridZ};
  activity.info.block = {record.blockX, record.blockY, record.blockZ};
  activity.info.registers_per_thread = record.registersPerThread;
  activity.info.shared_memory_bytes = record.staticSharedMemory + record.dynamicSharedMemory;
  activity.start_ns = record.start;
  activity.end_ns = record.end;
  activity.correlation = record.correlationId;
  return activity;
}

template <typename Record>
DeviceActivity read_memory(const Record& record, ActivityKind kind) {
  DeviceActivity activity;
  activity.info.kind = kind;
  activity.info.bytes = record.bytes;
  activity.start_ns = record.start;
  activity.end_ns = record.end;
  activity.correlation = record.correlationId;
  return activity;
}

}  // namespace

void read_record(const CUpti_Activity& record, TraceRecords& records) {
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      records.activities.push_back(read_kernel(reinterpret_cast<const KernelRecord&>(record)));
      break;
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      records.activities.push_back(
          read_memory(reinterpret_cast<const MemcpyRecord&>(record), ActivityKind::kMemcpy));
      break;
    case CUPTI_ACTIVITY_KIND_MEMSET:
      records.activities.push_back(
          read_memory(reinterpret_cast<const MemsetRecord&>(record), ActivityKind::kMemset));
      break;
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: {
      const auto& call = reinterpret_cast<const CUpti_ActivityAPI&>(record);
      records.api_calls.push_back({call.start, call.correlationId});
      break;
    }
    default:
      break;
  }
}

}  // namespace convtime
