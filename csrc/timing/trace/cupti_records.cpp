#include "timing/trace/cupti_records.h"

#include <initializer_list>
#include <string_view>

namespace convtime {
namespace {

bool contains_any(std::string_view text, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) {
    if (text.find(part) != std::string_view::npos) {
      return true;
    }
  }
  return false;
}

/// Return the kind of a function such as "cudaLaunchKernel_v7000" or "cuMemcpyHtoDAsync_v2".
ApiKind kind_of(std::string_view name) {
  if (contains_any(name, {"GraphLaunch"})) {
    return ApiKind::kGraphLaunch;
  }
  if (contains_any(name, {"StreamBeginCapture"})) {
    return ApiKind::kBeginCapture;
  }
  if (contains_any(name, {"StreamEndCapture"})) {
    return ApiKind::kEndCapture;
  }
  if (contains_any(name, {"Graph", "Node"})) {
    return ApiKind::kOther;
  }
  // These functions had no activity record with CUPTI 13.
  if (contains_any(
          name, {"MemPrefetch", "MemDiscardAndPrefetch", "MemBatchDecompress", "StreamWriteValue",
                 "StreamWaitValue", "StreamBatchMemOp", "LaunchHostFunc", "StreamAddCallback",
                 "MemMapArrayAsync", "ExternalSemaphoresAsync"})) {
    return ApiKind::kUnrecorded;
  }
  if (contains_any(name, {"Memcpy", "Memset"})) {
    return ApiKind::kTransfer;
  }
  if (contains_any(name, {"Attribute", "Params", "Config", "HostFunc"})) {
    return ApiKind::kOther;
  }
  return contains_any(name, {"Launch"}) ? ApiKind::kLaunch : ApiKind::kOther;
}

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

CuptiFunctions::CuptiFunctions(CUpti_CallbackDomain domain, CUpti_CallbackId count)
    : kinds_(count, ApiKind::kOther) {
  for (CUpti_CallbackId function = 1; function < count; ++function) {
    const char* name = nullptr;
    if (cuptiGetCallbackName(domain, function, &name) == CUPTI_SUCCESS && name != nullptr) {
      kinds_[function] = kind_of(name);
    }
    if (kinds_[function] == ApiKind::kOther) {
      others_.push_back(function);
    }
  }
}

const CuptiFunctions& CuptiFunctions::of_runtime() {
  // Never destroyed, like the driver's: CUPTI's threads read records while the process ends.
  static const auto* const functions =
      new CuptiFunctions(CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID_SIZE);
  return *functions;
}

const CuptiFunctions& CuptiFunctions::of_driver() {
  static const auto* const functions =
      new CuptiFunctions(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_SIZE);
  return *functions;
}

ApiKind CuptiFunctions::kind(CUpti_CallbackId function) const {
  return function < kinds_.size() ? kinds_[function] : ApiKind::kOther;
}

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
