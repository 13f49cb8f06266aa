#include "timing/device/kernels.h"

#include <map>
#include <mutex>
#include <vector>

#include "core/cuda.h"

namespace convtime {

ProgramSource timing_program() {
  return {"timing/device/kernels.cuh",
          {"convtime::read_kernel", "convtime::gate_kernel",
           "convtime::sleep_kernel<convtime::globaltimer_ns>", "convtime::probe_clock_kernel",
           "convtime::finish_probe_kernel", "convtime::probe_window_kernel",
           "convtime::stamp_kernel", "convtime::spin_cycles_kernel",
           "convtime::watch_globaltimer_kernel", "convtime::reference_kernel"}};
}

const TimingKernels& timing_kernels() {
  static auto& mutex = *new std::mutex;  // neither is ever destroyed: a thread may outlive main()
  static auto& known = *new std::map<int, TimingKernels>;
  const int device = current_device();
  {
    const std::lock_guard lock(mutex);
    if (const auto found = known.find(device); found != known.end()) {
      return found->second;
    }
  }
  const std::vector<Kernel> k = load_kernels(timing_program());
  const std::lock_guard lock(mutex);
  return known
      .try_emplace(device,
                   TimingKernels{k[0], k[1], k[2], k[3], k[4], k[5], k[6], k[7], k[8], k[9]})
      .first->second;
}

}  // namespace convtime
