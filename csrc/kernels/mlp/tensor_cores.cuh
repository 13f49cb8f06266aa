#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/half.cuh"

// The hardware instructions that the kernels in this folder use, one per function.

namespace convtime::mlp {

/// Return the dynamic shared memory of a block.
inline unsigned char* shared_memory() {
  alignas(1024) extern __shared__ unsigned char memory[];
  return memory;
}

/// Round two values and pack them in memory order.
template <typename T>
std::uint32_t pack(float first, float second) {
  std::uint32_t word;
  if constexpr (std::is_same_v<T, Half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  }
  return word;
}

template <typename T>
float2 unpack(std::uint32_t word) {
  if constexpr (std::is_same_v<T, Half>) {
    return {widen(first_of(HalfPair{word})), widen(second_of(HalfPair{word}))};
  } else {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000)};
  }
}

/// Load four 8 × 8 matrices from shared memory. The warp's lanes provide the rows: lanes 0 to 7
/// those of the first matrix. Each lane gets two adjacent values of row lane / 4 of each matrix or
/// its transpose.
template <bool kTransposed, typename T>
void load_matrices(std::uint32_t (&words)[4], const T* row) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  }
}

/// Compute sums += a · b, with shapes 16 × 16 and 16 × 8.
template <typename T>
void multiply_add(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                  std::uint32_t b1) {
  if constexpr (std::is_same_v<T, Half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// Copy 16 bytes from device memory to shared memory, bypassing L1. The data is available after
/// wait_for_copies().
inline void copy_async(void* to, const void* from) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Start to load 16 bytes of device memory that no thread writes. The compiler does not move the
/// load to where they are used.
inline uint4 load_now(const void* address) {
  uint4 words;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(address));
  return words;
}

inline void prefetch_to_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// --- Clusters: blocks that read each other's shared memory, from compute capability 9.0 on

/// Synchronize all threads of the cluster's blocks; their earlier writes to any memory are visible
/// afterwards.
inline void synchronize_cluster() {
#if __CUDA_ARCH__ >= 900
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
#endif
}

/// Return the same address in the shared memory of another block.
template <typename V>
const V* of_block(const V* own, unsigned rank) {
  return static_cast<const V*>(__cluster_map_shared_rank(own, rank));
}

// --- Programmatic dependent launch: a kernel starts before the previous one ends. Before compute
// capability 9.0, no kernel is launched to start early.

/// Let the stream's next kernel start, if it was launched to start early.
inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Wait until the previous kernel has ended, in a kernel that was launched to start early.
inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace convtime::mlp
