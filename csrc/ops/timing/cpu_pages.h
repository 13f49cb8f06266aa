#pragma once

#include <string>

#include "core/export.h"

namespace convtime::ops {

/// The memory pages that PyTorch's tensors on the CPU get.
enum class Pages {
  kFresh,     ///< never touched: the kernel maps and zeroes each page when it is first touched
  kRetained,  ///< those of freed tensors, which are mapped already
};

/// While it lives, PyTorch allocates memory on the CPU in such pages, in all threads. Blocks of
/// less than a page are left to the previous allocator. Nested and concurrent objects share the
/// effect of the first one.
class CONVTIME_API CpuPages {
 public:
  explicit CpuPages(Pages pages);
  ~CpuPages();
  CpuPages(const CpuPages&) = delete;
  CpuPages& operator=(const CpuPages&) = delete;

  /// Why the pages are not as requested so far; empty if they are.
  std::string reason() const;

 private:
  std::string refused_;
};

}  // namespace convtime::ops
