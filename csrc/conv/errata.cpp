#include "conv/errata.h"

#include <cublasLt.h>

#include <array>
#include <string_view>

#include "conv/graph.h"

namespace convtime::conv {
namespace {

/// An engine that ATen never runs in a range of cuDNN versions (CUDNN_VERSION).
struct Erratum {
  std::string_view engine;  ///< the start of the plan's tag
  int first_version;
  int end_version;  ///< 0: none
};

constexpr std::array<Erratum, 1> kForAll = {{{"ConvFwd_eng5", 92301, 92400}}};

// These engines may dispatch to a cuBLASLt kernel that is broken on sm_120.
constexpr std::array<Erratum, 3> kForSm120 = {{{"ConvFwd_eng58", 92300, 0},
                                               {"ConvBwdData_eng63", 92300, 0},
                                               {"ConvBwdFilter_eng63", 92300, 0}}};

// Applied only if the user has no errata file.
constexpr std::array<Erratum, 2> kFor3d = {
    {{"ConvFwd_eng23", 90800, 91500}, {"ConvBwdData_eng23", 8000, 0}}};

template <typename Errata>
bool listed(const Errata& errata, const std::string& tag) {
  for (const Erratum& erratum : errata) {
    const std::string with_end = std::string(erratum.engine) + "_";
    // CUDNN_VERSION rather than the version of the loaded library, because PyTorch's rules use it.
    if ((tag + "_").starts_with(with_end) && CUDNN_VERSION >= erratum.first_version &&
        (erratum.end_version == 0 || CUDNN_VERSION < erratum.end_version)) {
      return true;
    }
  }
  return false;
}

constexpr const char* kForbidden = "PyTorch's errata forbid it";

/// Return whether cuBLASLt has the broken kernel. PyTorch asks the version that it is built with,
/// whose header is not always here; the library that is loaded is that version, or a later one.
bool is_cublas_broken() { return cublasLtGetVersion() < 130601; }

bool is_for_sm120(const CudnnPlan& plan) {
  const auto json = nlohmann::json::parse(plan.frontend_plan().getJsonRepresentation());
  return json.contains("engine") && json["engine"].value("smVersion", -1) == 1200;
}

}  // namespace

std::string erratum(cudnnHandle_t handle, const CudnnPlan& plan, int rank) {
  if (listed(kForSm120, plan.tag()) && is_cublas_broken() && is_for_sm120(plan)) {
    return kForbidden;
  }
  return erratum(handle, plan.tag(), rank);
}

std::string erratum(cudnnHandle_t handle, const std::string& tag, int rank) {
  static nlohmann::json users;
  static const bool has_users = cudnn_frontend::load_from_config(users, "");
  if (listed(kForAll, tag)) {
    return kForbidden;
  }
  if (has_users) {
    const bool forbidden = cudnn_frontend::check_errata(users, tag, handle, [] { return true; });
    return forbidden ? "CUDNN_ERRATA_JSON_FILE forbids it" : "";
  }
  return rank > 4 && listed(kFor3d, tag) ? kForbidden : "";
}

std::string erratum(Activation activation, cudnnDataType_t type, bool allow_tf32) {
  if (activation == Activation::kTanh) {
    return "cuDNN's tanh makes NaN of infinity";
  }
  // The error is up to 5e-6, far below the rounding error of a convolution in TF32.
  if (activation == Activation::kGeluTanh && type == CUDNN_DATA_FLOAT && !allow_tf32) {
    return "cuDNN's gelu_tanh is less exact than float32 without TF32";
  }
  return "";
}

}  // namespace convtime::conv
