#pragma once

#include <cupti.h>

#include <cstddef>

namespace convtime {

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

}  // namespace convtime
