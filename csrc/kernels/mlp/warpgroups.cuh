#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/mlp/rows.cuh"

// Instructions that only sm_90a has, one per function: products by warpgroups, which are four warps
// from a multiple of four on, and bulk copies between device memory and shared memory.
//
// The operands of a product are in shared memory, in tiles of 64 columns in 16 bits: rows of 128
// bytes whose eight chunks are permuted by the row's number, as tile_offset<64> does, from an
// address that is a multiple of 1024 bytes on.

namespace convtime::mlp {

constexpr int kGroupThreads = 128;
constexpr int kPartBytes = 1024;  // eight rows of a tile

inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Describe an operand that begins there. Next to each other are 64 values of a row; the next 64
/// are `next_tile_bytes` further on, which only an operand that sums over the tile's rows has.
inline std::uint64_t describe_operand(const void* begin, int next_tile_bytes) {
  constexpr std::uint64_t kSwizzle128Bytes = std::uint64_t{1} << 62;
  return kSwizzle128Bytes | std::uint64_t{kPartBytes / 16} << 32 |
         static_cast<std::uint64_t>(next_tile_bytes / 16) << 16 |
         ((shared_address(begin) & 0x3ffff) / 16);
}

/// Begin a product after other writes to its sums.
inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Wait for all of the warpgroup's products.
inline void wait_for_products() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

#define CONVTIME_FOUR(j) \
  "+f"(sums.value[j][0]), "+f"(sums.value[j][1]), "+f"(sums.value[j][2]), "+f"(sums.value[j][3])
#define CONVTIME_SUMS                                                                           \
  CONVTIME_FOUR(0), CONVTIME_FOUR(1), CONVTIME_FOUR(2), CONVTIME_FOUR(3), CONVTIME_FOUR(4),     \
      CONVTIME_FOUR(5), CONVTIME_FOUR(6), CONVTIME_FOUR(7), CONVTIME_FOUR(8), CONVTIME_FOUR(9), \
      CONVTIME_FOUR(10), CONVTIME_FOUR(11), CONVTIME_FOUR(12), CONVTIME_FOUR(13),               \
      CONVTIME_FOUR(14), CONVTIME_FOUR(15)
#define CONVTIME_PRODUCT(type)                                                            \
  asm volatile(                                                                           \
      "{\n.reg .pred adds;\n.reg .b64 a, b;\nsetp.ne.b32 adds, %66, 0;\n"                 \
      "add.s64 a, %64, %69;\nadd.s64 b, %65, %70;\n"                                      \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                        \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " \
      "a, b, adds, 1, 1, %67, %68;\n}"                                                    \
      : CONVTIME_SUMS                                                                     \
      : "l"(a), "l"(b), "r"(adds ? 1 : 0), "n"(kLeftTransposed ? 1 : 0),                  \
        "n"(kRightTransposed ? 1 : 0), "l"(std::uint64_t{a_bytes / 16}),                  \
        "l"(std::uint64_t{b_bytes / 16}))

/// Start sums += a · b, or sums = a · b unless `adds`, with shapes 64 × 16 and 16 × 128, of
/// operands that begin so many bytes, constants, after those described. A warp gets 16 of the 64
/// rows. An operand sums over its tile's rows if transposed, otherwise over its columns.
///
/// The constants are added here: the compiler would compute all sums ahead of loops, in registers
/// of each thread, from which the tensor cores cannot take them.
template <typename T, bool kLeftTransposed, bool kRightTransposed>
void start_product(Sums<128>& sums, std::uint64_t a, unsigned a_bytes, std::uint64_t b,
                   unsigned b_bytes, bool adds) {
  if constexpr (std::is_same_v<T, Half>) {
    CONVTIME_PRODUCT("f16");
  } else {
    CONVTIME_PRODUCT("bf16");
  }
}

/// Keep the compiler from moving uses of the sums of a product to before the wait for it.
inline void use_after_wait(Sums<128>& sums) { asm volatile("" : CONVTIME_SUMS::"memory"); }

#undef CONVTIME_PRODUCT
#undef CONVTIME_SUMS
#undef CONVTIME_FOUR

/// Return the number of the thread's warpgroup, so that the compiler knows that a warp's threads
/// have the same: products that start in branches which may diverge do not overlap with anything.
inline int group_number() {
  return static_cast<int>(__shfl_sync(0xffffffff, threadIdx.x / kGroupThreads, 0));
}

/// Wait for the other threads of the warpgroup with that number.
inline void synchronize_group(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kGroupThreads) : "memory");
}

/// Let products and bulk copies see this thread's earlier writes and copies to shared memory, once
/// another thread has been synchronized with.
inline void publish_to_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

/// Wait for all of the thread's groups of copies to shared memory but the last `running`, which are
/// at most three.
inline void wait_for_copies_before(int running) {
  switch (running) {
    case 0:
      asm volatile("cp.async.wait_group 0;" ::: "memory");
      return;
    case 1:
      asm volatile("cp.async.wait_group 1;" ::: "memory");
      return;
    case 2:
      asm volatile("cp.async.wait_group 2;" ::: "memory");
      return;
    default:
      asm volatile("cp.async.wait_group 3;" ::: "memory");
  }
}

// --- Bulk copies: one thread copies many bytes, of addresses that are multiples of 16 bytes

/// Start a copy to device memory.
inline void copy_out(void* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
inline void commit_copies_out() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Wait until this thread's groups, except the last kRunning, have read shared memory.
template <int kRunning>
void wait_until_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kRunning) : "memory");
}

/// Wait until all of this thread's copies are in device memory.
inline void wait_for_copies_out() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/// Start a copy to shared memory, whose end a barrier counts in bytes.
inline void copy_in(void* to, const void* from, int bytes, std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

inline void prepare_barrier(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}

/// Arrive at a barrier, whose phase then ends only after as many more bytes have been copied in.
inline void arrive_expecting(std::uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

/// Wait until the barrier's phase of that parity has ended.
inline void wait_for_phase(std::uint64_t* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred ended;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 ended, [%0], %1;\n"
      "@!ended bra again;\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace convtime::mlp
