#pragma once

#include "kernels/mlp/learning.cuh"
#include "kernels/mlp/rows.cuh"
#include "kernels/mlp/step.h"

// Code shared by the kernels of a step: access to its batch, and its report.

namespace convtime::mlp {

/// The location of a step's batch.
template <typename T>
struct Batch {
  const T* inputs;
  const void* targets;
};

/// Return the batch of the step that starts now.
template <typename T, typename Kind>
Batch<T> find_batch(const Step<T, Kind>& step, const Progress& progress) {
  const std::int64_t row = progress.steps % step.batches * step.batch;
  return {step.data + row * step.inputs,
          static_cast<const char*>(step.targets) + row * step.target_bytes};
}

/// Return the progress of training; for other objectives, the initial values.
template <typename T, typename Kind>
Progress find_progress(const Step<T, Kind>& step) {
  if constexpr (Kind::kTrains) {
    return read_progress(step.learning);
  } else {
    return {0, 0, 0, 0, 1};
  }
}

/// Let learn_kernel start, if it follows, and pass it the progress: one of its blocks overwrites
/// the counters that the progress was read from.
template <typename T, typename Kind>
void announce(const Step<T, Kind>& step, const Progress& progress) {
  if constexpr (Kind::kTrains && Kind::kGathering != Gathering::kCluster) {
    let_next_begin();
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      *step.progress = progress;
    }
  }
}

/// Copy rows of a multiple of eight columns from an array that ends before `end_row`; rows and
/// columns beyond them are zero.
template <typename T, int W>
void copy_chunks(const T* from, int columns, std::int64_t first_row, std::int64_t end_row,
                 int count, T* to) {
  constexpr int kRows = kThreads / (W / 8);  // at a time: a multiple of 8, so that the swizzle
                                             // stays the same
  const int first = static_cast<int>(threadIdx.x / (W / 8));
  const int chunk = static_cast<int>(threadIdx.x % (W / 8));
  const T* source = from + (first_row + first) * columns + 8 * chunk;
  T* target = to + tile_offset<W>(first, chunk);
  const std::int64_t left = 8 * chunk < columns ? end_row - first_row : 0;
#pragma unroll 4
  for (int row = first; row < count; row += kRows) {
    if (row < left) {
      copy_async(target, source);
    } else {
      *reinterpret_cast<uint4*>(target) = uint4{};
    }
    source += kRows * columns;
    target += kRows * W;
  }
}

template <typename T, int W>
void copy_full_rows(const T* from, std::int64_t first_row, std::int64_t end_row, int count, T* to) {
  copy_chunks<T, W>(from, W, first_row, end_row, count, to);
}

/// Copy rows of any number of columns.
template <typename T, int W>
void copy_rows(const T* from, int columns, std::int64_t first_row, std::int64_t end_row, int count,
               T* to) {
  const int column = static_cast<int>(threadIdx.x % W);
  for (int row = static_cast<int>(threadIdx.x / W); row < count; row += kThreads / W) {
    const bool is_there = first_row + row < end_row && column < columns;
    to[tile_offset<W>(row, column / 8) + column % 8] =
        is_there ? from[(first_row + row) * columns + column] : T(0.0F);
  }
}

/// Copy rows of the batch's inputs.
template <typename T, int W, typename Kind>
void copy_inputs(const Step<T, Kind>& step, const Batch<T>& batch, std::int64_t first_row,
                 int count, T* to) {
  if constexpr (Kind::kVectorInputs) {
    copy_chunks<T, W>(batch.inputs, step.inputs, first_row, step.batch, count, to);
  } else {
    copy_rows<T, W>(batch.inputs, step.inputs, first_row, step.batch, count, to);
  }
}

/// A thread's part of the inputs of the block's next tile, of at most kMostTileRows rows of whole
/// vectors, which are on their way to its registers while this tile is computed.
template <typename T, int W, typename Kind>
class NextInputs {
 public:
  void load(const Step<T, Kind>& step, const Batch<T>& batch, std::int64_t first_row) {
    const int column = static_cast<int>(threadIdx.x % kChunks) * 8;
    const std::int64_t left = column < step.inputs ? step.batch - first_row : 0;
    const T* const from = batch.inputs + first_row * step.inputs + column;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int row = row_of(i);
      chunk_[i] = row < step.tile_rows && row < left ? load_now(from + row * step.inputs) : uint4{};
    }
  }

  void store(const Step<T, Kind>& step, T* to) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (row_of(i) < step.tile_rows) {
        T* const place = to + tile_offset<W>(row_of(i), static_cast<int>(threadIdx.x % kChunks));
        *reinterpret_cast<uint4*>(place) = chunk_[i];
      }
    }
  }

 private:
  static constexpr int kChunks = W / 8;
  static constexpr int kRows = kThreads / kChunks;  // at a time
  static constexpr int kCount = kMostTileRows / kRows;
  static int row_of(int i) { return static_cast<int>(threadIdx.x) / kChunks + i * kRows; }

  uint4 chunk_[kCount];
};

/// Prefetch the rows of a tile that are in the batch into L2.
template <typename T, typename Kind>
void prefetch(const Step<T, Kind>& step, const void* rows, int row_bytes, std::int64_t first_row) {
  constexpr int kLine = 128;
  const std::int64_t left = step.batch - first_row;
  const int bytes = row_bytes * static_cast<int>(left < step.tile_rows ? left : step.tile_rows);
  for (int i = static_cast<int>(threadIdx.x) * kLine; i < bytes; i += kThreads * kLine) {
    prefetch_to_l2(static_cast<const char*>(rows) + first_row * row_bytes + i);
  }
}

inline float sum_of_warp(float value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffff, value, distance);
  }
  return value;
}

/// Return the sum over a block's threads, in the first thread; `of_warps` is shared memory.
inline float sum_of_block(float value, float* of_warps) {
  value = sum_of_warp(value);
  if (lane_id() == 0) {
    of_warps[threadIdx.x / 32] = value;
  }
  __syncthreads();
  float sum = 0;
  if (threadIdx.x == 0) {
    for (int warp = 0; warp < kWarps; ++warp) {
      sum += of_warps[warp];
    }
  }
  return sum;
}

/// Report the threads' loss, and whether gradients overflowed.
template <typename T, typename Kind>
void tell(const Step<T, Kind>& step, float loss, bool finite, float* of_warps, Report* report) {
  const float sum = sum_of_block(loss, of_warps);
  const bool overflowed = __syncthreads_or(finite ? 0 : 1) != 0;
  if (threadIdx.x == 0) {
    *report = {sum * step.loss_factor, overflowed ? 1 : 0};
  }
}

inline void keep_loss(const Learning& learning, const Progress& progress, float loss) {
  learning.losses[progress.steps % learning.losses_kept] = loss;
}

}  // namespace convtime::mlp
