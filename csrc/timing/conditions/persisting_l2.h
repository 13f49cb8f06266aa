#pragma once

#include <cstddef>
#include <string>

#include "core/export.h"

namespace convtime {

/// While it lives, nothing of a device's L2 cache is set aside for persisting accesses
/// (cudaLimitPersistingL2CacheSize), whose lines would outlast a flush; then as much as before is.
/// Some is by default: 11 MiB of an H200's.
class CONVTIME_API WithoutPersistingL2 {
 public:
  /// Throws CudaError where there is no such device.
  explicit WithoutPersistingL2(int device);
  ~WithoutPersistingL2();
  WithoutPersistingL2(const WithoutPersistingL2&) = delete;
  WithoutPersistingL2& operator=(const WithoutPersistingL2&) = delete;

  /// Why lines may outlast a flush nevertheless; empty where they do not.
  const std::string& told() const { return told_; }

 private:
  int device_;
  std::size_t restored_bytes_ = 0;  ///< by the destructor
  std::string told_;
};

}  // namespace convtime
