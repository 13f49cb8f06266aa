#include "timing/conditions/host_probe.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "timing/clock.h"

namespace convtime {
namespace {

constexpr int kAdditionsAtOnce = 16;
constexpr int kAdditions = 200'000;
/// The fastest repeat counts: the others may have been interrupted.
constexpr int kRepeats = 5;

// Adds registers, because some cores add constants without latency.
#if defined(__x86_64__)
#define CONVTIME_ADD "addq %1, %0\n\t"
#elif defined(__aarch64__)
#define CONVTIME_ADD "add %0, %0, %1\n\t"
#endif

#ifdef CONVTIME_ADD
#define CONVTIME_ADD_4 CONVTIME_ADD CONVTIME_ADD CONVTIME_ADD CONVTIME_ADD

std::uint64_t add_in_sequence(std::uint64_t sum, std::uint64_t step) {
  for (int i = 0; i < kAdditions; i += kAdditionsAtOnce) {
    asm volatile(CONVTIME_ADD_4 CONVTIME_ADD_4 CONVTIME_ADD_4 CONVTIME_ADD_4
                 : "+r"(sum)
                 : "r"(step));
  }
  return sum;
}
#endif

}  // namespace

double core_clock_hz() {
#ifdef CONVTIME_ADD
  std::int64_t fastest = std::numeric_limits<std::int64_t>::max();
  std::uint64_t sum = 0;
  for (int i = 0; i < kRepeats; ++i) {
    const std::int64_t start = now_nanoseconds();
    sum = add_in_sequence(sum, 1);
    fastest = std::min(fastest, now_nanoseconds() - start);
  }
  return 1e9 * kAdditions / static_cast<double>(std::max<std::int64_t>(fastest, 1));
#else
  return std::numeric_limits<double>::quiet_NaN();
#endif
}

}  // namespace convtime
