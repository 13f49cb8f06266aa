#pragma once

#include <cstddef>
#include <string>

#include "core/export.h"

namespace convtime {

/// During its lifetime, no part of a device's L2 cache is set aside for persisting accesses
/// (cudaLimitPersistingL2CacheSize), whose lines would outlast a flush. The destructor restores the
/// previous limit. The default is nonzero: 11 MiB on an H200.
class CONVTIME_API WithoutPersistingL2 {
 public:
  /// Throws CudaError if the device does not exist.
  explicit WithoutPersistingL2(int device);
  ~WithoutPersistingL2();
  WithoutPersistingL2(const WithoutPersistingL2&) = delete;
  WithoutPersistingL2& operator=(const WithoutPersistingL2&) = delete;

  /// Return why lines may still outlast a flush; empty if they do not.
  const std::string& reason() const { return reason_; }

 private:
  int device_;
  std::size_t restored_bytes_ = 0;  ///< by the destructor
  std::string reason_;
};

}  // namespace convtime
