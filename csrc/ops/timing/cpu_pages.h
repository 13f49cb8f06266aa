#pragma once

#include <string>

#include "core/enum_names.h"
#include "core/export.h"

namespace convtime::ops {

/// The kind of memory pages that PyTorch's CPU tensors get.
enum class Pages {
  kFresh,     ///< untouched: the kernel maps and zeroes each page at its first access
  kRetained,  ///< pages of freed tensors, which are already mapped
};
constexpr auto names_of(Pages /*all*/) { return std::array{"fresh", "retained"}; }

/// While it exists, PyTorch allocates CPU memory from such pages, in all threads. Blocks smaller
/// than a page use the previous allocator. Nested and concurrent objects share the effect of the
/// first one.
class CONVTIME_API CpuPages {
 public:
  explicit CpuPages(Pages pages);
  ~CpuPages();
  CpuPages(const CpuPages&) = delete;
  CpuPages& operator=(const CpuPages&) = delete;

  /// Return why the pages are not as requested so far; empty if they are.
  std::string reason() const;

 private:
  std::string refused_;
};

}  // namespace convtime::ops
