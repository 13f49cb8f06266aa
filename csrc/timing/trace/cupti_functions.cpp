#include "timing/trace/cupti_functions.h"

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

}  // namespace convtime
