#pragma once

#include "core/export.h"
#include "program/program.h"

namespace convtime {

/// The kernels that measure, compiled as one program. kernels.cuh describes each.
struct TimingKernels {
  Kernel read;
  Kernel gate;
  Kernel sleep;
  Kernel probe_clock;
  Kernel finish_probe;
  Kernel probe_window;
  Kernel stamp;
  Kernel spin_cycles;
  Kernel watch_globaltimer;
  Kernel reference;
};

/// Return the current device's kernels. The first call on a device compiles them.
CONVTIME_API const TimingKernels& timing_kernels();

CONVTIME_API ProgramSource timing_program();

}  // namespace convtime
