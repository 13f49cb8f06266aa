#include "conv/problem.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace convtime::conv {

namespace {

constexpr std::int64_t kMaxAlignment = 32;

void add(Hasher& hasher, const TensorShape& shape) {
  hasher.add(shape.sizes);
  hasher.add(shape.strides);
  hasher.add(shape.alignment);
}

void add(Hasher& hasher, const Epilogue& epilogue) {
  add(hasher, epilogue.z.value_or(TensorShape()));
  add(hasher, epilogue.b.value_or(TensorShape()));
  hasher.add(std::bit_cast<std::int32_t>(epilogue.alpha));
  hasher.add(static_cast<std::int64_t>(epilogue.activation));
  hasher.add(std::bit_cast<std::int32_t>(epilogue.negative_slope));
}

}  // namespace

std::size_t ProblemHash::operator()(const Problem& problem) const {
  Hasher hasher;
  hasher.add(static_cast<std::int64_t>(problem.pass));
  hasher.add(problem.device);
  hasher.add(problem.rank);
  hasher.add(static_cast<std::int64_t>(problem.data_type));
  add(hasher, problem.x);
  add(hasher, problem.w);
  add(hasher, problem.y);
  hasher.add(problem.padding);
  hasher.add(problem.stride);
  hasher.add(problem.dilation);
  add(hasher, problem.epilogue);
  hasher.add(problem.deterministic);
  hasher.add(problem.allow_tf32);
  return hasher.hash();
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
  switch (policy.kind) {
    case PolicyKind::kHeuristic:
      return "heuristic";
    case PolicyKind::kBenchmark:
      return "benchmark";
    case PolicyKind::kEngine:
      return to_tag(policy.engine);
  }
  throw std::logic_error("unknown policy");
}

std::size_t PlanKeyHash::operator()(const PlanKey& key) const {
  Hasher hasher;
  hasher.add(static_cast<std::int64_t>(ProblemHash{}(key.problem)));
  hasher.add(static_cast<std::int64_t>(key.policy.kind));
  hasher.add(key.policy.heuristic_mode_b);
  hasher.add(key.policy.benchmark_limit);
  hasher.add(key.policy.engine.index);
  for (const Knob& knob : key.policy.engine.knobs) {
    hasher.add(knob.type);
    hasher.add(knob.value);
  }
  return hasher.hash();
}

}  // namespace convtime::conv
