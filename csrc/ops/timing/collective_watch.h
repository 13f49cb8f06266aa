#pragma once

#include <cstdint>

#include "core/export.h"

namespace convtime::ops {

/// Sees the operations of torch.distributed (collectives, sends and receives) that any thread of
/// the process dispatches while it lives: autograd's threads issue those of a backward pass.
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
