#pragma once

#include <cupti.h>

#include <cstdint>
#include <vector>

#include "timing/trace/attribution.h"

namespace convtime {

/// The functions of the CUDA runtime or of the driver that CUPTI knows, by what they give a device
/// to do, which their names tell.
class CuptiFunctions {
 public:
  static const CuptiFunctions& of_runtime();
  static const CuptiFunctions& of_driver();

  ApiKind kind(CUpti_CallbackId function) const;

  /// Those that give a device nothing to do.
  const std::vector<CUpti_CallbackId>& others() const { return others_; }

 private:
  CuptiFunctions(CUpti_CallbackDomain domain, CUpti_CallbackId count);

  std::vector<ApiKind> kinds_;  // by CUPTI's number
  std::vector<CUpti_CallbackId> others_;
};

}  // namespace convtime
