#pragma once

#include <cupti.h>

#include <cstdint>
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

}  // namespace convtime
