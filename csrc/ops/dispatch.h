#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace convtime::ops {

/// Return the dispatcher's handle of an op of convtime.
template <typename Signature>
c10::TypedOperatorHandle<Signature> find_op(const char* name) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string("convtime::") + name).c_str(), "")
      .template typed<Signature>();
}

/// Call a function whose ops autograd must not see.
template <typename Function>
auto below_autograd(const Function& function) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return function();
}

/// Makes an op's kernel of a function that takes the arguments as one struct, `Call`, in the order
/// of the schema. Call::Signature is the op's.
template <auto kFunction>
struct KernelOf;
template <typename Result, typename Call, Result (*kFunction)(const Call&)>
struct KernelOf<kFunction> {
  template <typename... Arguments>
  static Result run(Arguments... arguments) {
    return kFunction(Call{arguments...});
  }
  static constexpr typename Call::Signature* kSignature = nullptr;
  template <typename... Arguments>
  static constexpr auto with(Result (* /*signature*/)(Arguments...)) {
    return &run<Arguments...>;
  }
};
template <auto kFunction>
inline constexpr auto kernel = KernelOf<kFunction>::with(KernelOf<kFunction>::kSignature);

}  // namespace convtime::ops
