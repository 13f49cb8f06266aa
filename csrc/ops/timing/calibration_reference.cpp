#include "ops/timing/calibration_reference.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace convtime::ops {
namespace {

/// Excludes the caller's Python dispatch modes (e.g. FakeTensorMode), so that they do not see the
/// reference's operators.
class WithoutModes {
 private:
  c10::impl::ExcludeDispatchKeyGuard guard_{
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
};

class Relu final : public Callable {
 public:
  void call() override {
    const WithoutModes guard;
    const c10::InferenceMode no_autograd;
    result_ = at::relu(input_);
  }
  void discard_result() override { result_.reset(); }

 private:
  /// Takes 2 to 4 us on an H200: long enough to hide the launch of the following work.
  static constexpr std::int64_t kElements = 1 << 20;

  static at::Tensor make_input() {
    const WithoutModes guard;
    return at::zeros({kElements}, at::device(at::kCUDA).dtype(at::kFloat));
  }

  at::Tensor input_ = make_input();
  at::Tensor result_;
};

}  // namespace

std::unique_ptr<Callable> torch_calibration_reference() { return std::make_unique<Relu>(); }

}  // namespace convtime::ops
