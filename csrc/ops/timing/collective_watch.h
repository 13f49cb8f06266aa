#pragma once

#include <cstdint>

#include "core/export.h"

namespace convtime::ops {

/// Counts the operations of torch.distributed (collectives, sends and receives) that any thread of
/// the process dispatches during its lifetime. Any thread, because autograd's threads issue the
/// operations of a backward pass.
class CONVTIME_API CollectiveWatch {
 public:
  CollectiveWatch();
  ~CollectiveWatch();
  CollectiveWatch(const CollectiveWatch&) = delete;
  CollectiveWatch& operator=(const CollectiveWatch&) = delete;

  bool seen() const;

 private:
  std::uint64_t handle_;
  std::uint64_t before_;
};

}  // namespace convtime::ops
