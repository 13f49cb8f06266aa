#include "conv/problem.h"

#include <algorithm>
#include <bit>

namespace convtime::conv {
namespace {

constexpr std::int64_t kMaxAlignment = 32;

std::size_t hash_of(const TensorShape& shape) {
  return Hasher(shape.sizes, shape.strides, shape.alignment).hash();
}

std::size_t hash_of(const Epilogue& epilogue) {
  return Hasher(hash_of(epilogue.z.value_or(TensorShape())),
                hash_of(epilogue.b.value_or(TensorShape())),
                std::bit_cast<std::int32_t>(epilogue.alpha), epilogue.activation,
                std::bit_cast<std::int32_t>(epilogue.negative_slope))
      .hash();
}

}  // namespace

std::size_t ProblemHash::operator()(const Problem& problem) const {
  return Hasher(problem.pass, problem.device, problem.rank, problem.data_type, hash_of(problem.x),
                hash_of(problem.w), hash_of(problem.y), problem.padding, problem.stride,
                problem.dilation, hash_of(problem.epilogue), problem.deterministic,
                problem.allow_tf32)
      .hash();
}

TensorShape describe(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides,
                     const void* data, bool channels_last) {
  TensorShape shape;
  std::ranges::copy(sizes, shape.sizes.begin());
  std::ranges::copy(strides, shape.strides.begin());

  std::int64_t dense_stride = 1;
  const auto visit = [&](std::size_t dim) {
    if (sizes[dim] == 1) {
      shape.strides[dim] = dense_stride;
    } else {
      dense_stride *= sizes[dim];
    }
  };
  // From the fastest dimension to the slowest: channels come first in channels_last, otherwise
  // after the spatial ones.
  if (channels_last) {
    visit(1);
  }
  for (std::size_t dim = sizes.size() - 1; dim > 1; --dim) {
    visit(dim);
  }
  if (!channels_last) {
    visit(1);
  }
  visit(0);

  const auto address = reinterpret_cast<std::uintptr_t>(data);
  shape.alignment = 1;
  while (shape.alignment < kMaxAlignment && address % (shape.alignment * 2) == 0) {
    shape.alignment *= 2;
  }
  return shape;
}

std::string to_string(const Policy& policy) {
  return policy.kind == PolicyKind::kEngine ? to_tag(policy.engine) : to_string(policy.kind);
}

std::size_t PlanKeyHash::operator()(const PlanKey& key) const {
  const Policy& policy = key.policy;
  Hasher hasher(ProblemHash{}(key.problem), policy.kind, policy.heuristic_mode_b,
                policy.benchmark_limit, policy.engine.index);
  for (const Knob& knob : policy.engine.knobs) {
    hasher.add(knob.type);
    hasher.add(knob.value);
  }
  return hasher.hash();
}

}  // namespace convtime::conv
