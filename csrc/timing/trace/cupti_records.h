#pragma once

#include <cupti.h>

#include <array>
#include <cstddef>
#include <vector>

#include "timing/trace/attribution.h"

namespace convtime {

/// The functions of the CUDA runtime or driver that CUPTI knows, classified by the device work in
/// their names.
class CuptiFunctions {
 public:
  static const CuptiFunctions& of_runtime();
  static const CuptiFunctions& of_driver();

  ApiKind kind(CUpti_CallbackId function) const;

  /// Return the functions that issue no device work.
  const std::vector<CUpti_CallbackId>& others() const { return others_; }

 private:
  CuptiFunctions(CUpti_CallbackDomain domain, CUpti_CallbackId count);

  std::vector<ApiKind> kinds_;  // by CUPTI's number
  std::vector<CUpti_CallbackId> others_;
};

// The types of the records that CUPTI of the headers' version writes. CuptiSession refuses a loaded
// CUPTI of another version, so the loaded CUPTI writes these, too.

#if CUPTI_API_VERSION >= 130400
using KernelRecord = CUpti_ActivityKernel13;
#elif CUPTI_API_VERSION >= 130300
using KernelRecord = CUpti_ActivityKernel12;
#elif CUPTI_API_VERSION >= 130100
using KernelRecord = CUpti_ActivityKernel11;
#elif CUPTI_API_VERSION >= 130000
using KernelRecord = CUpti_ActivityKernel10;
#else  // 12.6
using KernelRecord = CUpti_ActivityKernel9;
#endif

#if CUPTI_API_VERSION >= 130400
using MemcpyRecord = CUpti_ActivityMemcpy7;
#elif CUPTI_API_VERSION >= 26  // 12.8
using MemcpyRecord = CUpti_ActivityMemcpy6;
#else
using MemcpyRecord = CUpti_ActivityMemcpy5;
#endif

#if CUPTI_API_VERSION >= 130400
using MemsetRecord = CUpti_ActivityMemset5;
#else
using MemsetRecord = CUpti_ActivityMemset4;
#endif

using PeerMemcpyRecord = CUpti_ActivityMemcpyPtoP4;

// A CUPTI that is newer than this list may write yet newer types. Up to 13.5, a new type only
// appends fields to the previous one, so those that convtime reads, of which graphId is the last,
// stay where they were in 12.6.
static_assert(offsetof(KernelRecord, graphId) == offsetof(CUpti_ActivityKernel9, graphId));
static_assert(offsetof(MemcpyRecord, graphId) == offsetof(CUpti_ActivityMemcpy5, graphId));
static_assert(offsetof(MemsetRecord, graphId) == offsetof(CUpti_ActivityMemset4, graphId));

/// The activity kinds that read_record() supports. API calls come first: they are enabled before
/// all others and disabled after them. Work that another thread issues during this may then lack
/// its activity, which is not an error outside of windows, but no activity lacks the API call that
/// issued it.
inline constexpr std::array kActivityKinds = {
    CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER,  CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    CUPTI_ACTIVITY_KIND_MEMCPY,  CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET};

/// Add one of CUPTI's records. Skips records of other kinds, and API calls that issue no device
/// work.
void read_record(const CUpti_Activity& record, TraceRecords& records);

}  // namespace convtime
