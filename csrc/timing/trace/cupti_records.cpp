#include "timing/trace/cupti_records.h"

#include "timing/trace/cupti_activities.h"
#include "timing/trace/cupti_functions.h"

namespace convtime {
namespace {

/// Read the fields that records of all kinds of work have.
template <typename Record>
DeviceActivity read_work(const Record& record, ActivityKind kind) {
  DeviceActivity activity;
  activity.info.kind = kind;
  activity.info.device = record.deviceId;
  activity.start_ns = record.start;
  activity.end_ns = record.end;
  activity.correlation = record.correlationId;
  activity.stream = record.streamId;
  activity.graph = record.graphId;
  return activity;
}

DeviceActivity read_kernel(const KernelRecord& record) {
  DeviceActivity activity = read_work(record, ActivityKind::kKernel);
  activity.info.name = interned(record.name == nullptr ? "" : record.name);
  activity.info.grid = {record.gridX, record.gridY, record.gridZ};
  activity.info.block = {record.blockX, record.blockY, record.blockZ};
  activity.info.registers_per_thread = record.registersPerThread;
  activity.info.shared_memory_bytes = record.staticSharedMemory + record.dynamicSharedMemory;
  return activity;
}

template <typename Record>
DeviceActivity read_memory(const CUpti_Activity& record, ActivityKind kind) {
  const auto& memory = reinterpret_cast<const Record&>(record);
  DeviceActivity activity = read_work(memory, kind);
  activity.info.bytes = memory.bytes;
  return activity;
}

void read_api_call(const CUpti_ActivityAPI& record, bool of_driver, std::vector<ApiCall>& calls) {
  const CuptiFunctions& functions =
      of_driver ? CuptiFunctions::of_driver() : CuptiFunctions::of_runtime();
  const ApiKind kind = functions.kind(record.cbid);
  if (kind != ApiKind::kOther) {
    calls.push_back({.start = record.start,
                     .correlation = record.correlationId,
                     .thread = record.threadId,
                     .function = 2 * record.cbid + (of_driver ? 1 : 0),
                     .kind = kind,
                     .failed = record.returnValue != 0});
  }
}

}  // namespace

void read_record(const CUpti_Activity& record, TraceRecords& records) {
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      records.activities.push_back(read_kernel(reinterpret_cast<const KernelRecord&>(record)));
      break;
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      records.activities.push_back(read_memory<MemcpyRecord>(record, ActivityKind::kMemcpy));
      break;
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      records.activities.push_back(read_memory<PeerMemcpyRecord>(record, ActivityKind::kMemcpy));
      break;
    case CUPTI_ACTIVITY_KIND_MEMSET:
      records.activities.push_back(read_memory<MemsetRecord>(record, ActivityKind::kMemset));
      break;
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER:
      read_api_call(reinterpret_cast<const CUpti_ActivityAPI&>(record),
                    record.kind == CUPTI_ACTIVITY_KIND_DRIVER, records.api_calls);
      break;
    default:
      break;
  }
}

}  // namespace convtime
