#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

// The hardware instructions that the kernels in this folder use, one per function.

namespace convtime::mlp {

/// Return the dynamic shared memory of a block.
__device__ inline unsigned char* shared_memory() {
  extern __shared__ __align__(1024) unsigned char memory[];
  return memory;
}

/// Round two values and pack them in memory order.
template <typename T>
__device__ std::uint32_t pack(float first, float second) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(first, second);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
}

template <typename T>
__device__ float2 unpack(std::uint32_t word) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half22float2(*reinterpret_cast<const __half2*>(&word));
  } else {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&word));
  }
}

/// Load four 8 × 8 matrices from shared memory. The warp's lanes provide the rows: lanes 0 to 7
/// those of the first matrix. Each lane gets two adjacent values of row lane / 4 of each matrix or
/// its transpose.
template <bool kTransposed, typename T>
__device__ void load_matrices(std::uint32_t (&words)[4], const T* row) {
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

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

/// Compute sums += a · b, with shapes 16 × 16 and 16 × 8.
template <typename T>
__device__ void multiply_add(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                             std::uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
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
/// wait_for_copies(), or after wait_for_committed() if commit_copies() was called in between.
__device__ inline void copy_async(void* to, const void* from) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ inline void wait_for_committed() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

#else

// A build may also target older architectures, on which these kernels are never launched.
template <typename T>
__device__ void multiply_add(float (&)[4], const std::uint32_t (&)[4], std::uint32_t,
                             std::uint32_t) {
  __trap();
}
__device__ inline void copy_async(void*, const void*) { __trap(); }
__device__ inline void wait_for_copies() { __trap(); }
__device__ inline void commit_copies() { __trap(); }
__device__ inline void wait_for_committed() { __trap(); }

#endif

/// Start to load 16 bytes of device memory that no thread writes. The compiler does not move the
/// load to where they are used.
__device__ inline uint4 load_now(const void* address) {
  uint4 words;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(address));
  return words;
}

__device__ inline void prefetch_to_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// --- Clusters: blocks that read each other's shared memory, from sm_90 on

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

/// Synchronize all threads of the cluster's blocks; their earlier writes to any memory are visible
/// afterwards.
__device__ inline void synchronize_cluster() {
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
}

/// Return the same address in the shared memory of another block.
template <typename V>
__device__ const V* of_block(const V* own, unsigned rank) {
  return static_cast<const V*>(__cluster_map_shared_rank(own, rank));
}

#else

// Kernels that use clusters are also compiled for older architectures, but never launched there.
__device__ inline void synchronize_cluster() { __trap(); }
template <typename V>
__device__ const V* of_block(const V*, unsigned) {
  __trap();
  return nullptr;
}

#endif

// --- Programmatic dependent launch: a kernel starts before the previous one ends

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

/// Let the stream's next kernel start, if it was launched to start early.
__device__ inline void let_next_begin() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// Wait until the previous kernel has ended, in a kernel that was launched to start early.
__device__ inline void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

#else

// On older architectures, no kernel is launched to start early.
__device__ inline void let_next_begin() {}
__device__ inline void wait_for_previous() {}

#endif

}  // namespace convtime::mlp
