#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

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

/// The times at which operations of torch.distributed begin, on any thread of the process, by
/// now_nanoseconds(). Only one object can exist at a time.
class CONVTIME_API CollectiveStamps {
 public:
  CollectiveStamps();
  ~CollectiveStamps();
  CollectiveStamps(const CollectiveStamps&) = delete;
  CollectiveStamps& operator=(const CollectiveStamps&) = delete;

  /// Return the number of operations so far; may be called from any thread.
  std::size_t count() const;

  /// Return the times since the last take(), in order.
  std::vector<std::int64_t> take();

 private:
  std::uint64_t handle_;
};

}  // namespace convtime::ops
