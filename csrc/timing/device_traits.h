#pragma once

namespace convtime {

/// Properties of a GPU that convtime cannot determine within the time of a timing. All were
/// observed on an NVIDIA H200 and are assumed for other GPUs; `convtime doctor --prove` checks
/// results that depend on them. Properties that can be determined are measured on each device
/// instead: the ticks of its clocks (device_timers.h), its maximum clock, the gaps that keep it in
/// a burst and the number of launches that its queue holds (both starting from these values), and a
/// method's overhead.
struct DeviceTraits {
  /// Idle time after which the device has recovered from full load.
  double rest_seconds = 0.1;
  /// How long to watch the clock before concluding that it does not fall: it falls after 0.06 s of
  /// full load, all at once.
  double watch_seconds = 0.08;
  /// A clock below this share of the highest clock has fallen. The clock moves in steps of 0.75 %.
  double high_clock_share = 0.98;
  /// Clocks that differ by less than this are the same.
  double same_clock_share = 0.01;

  /// The first gap before a burst, and the longest; a rested matmul's clock holds for 0.06 s.
  double first_gap_seconds = 0.3;
  double max_gap_seconds = 1;
  double burst_seconds = 0.005;

  /// Under full load, power is capped again after some 0.8 s. Pauses that are 0.25 s apart do not
  /// raise the clock by 10 %.
  double min_sustained_seconds = 2.5;
  double max_sustained_seconds = 8;
  double load_seconds = 0.25;

  /// The queue has room for 1024 launches; some are reserved for the hold itself and the clock's
  /// stamps.
  double queued_launches = 960;
  /// The minimum host time of a launch.
  double min_launch_seconds = 1e-6;

  /// After a flush, launches of the first graphs of a process, some 32 kernels in total, start 0.7
  /// us earlier than those of later graphs. This many graphs with this many kernels occupy those
  /// positions.
  int first_graphs = 4;
  int kernels_of_first_graphs = 16;
  /// The variation in the time of a launch after a flush, from one later graph to the next.
  double flushed_graphs_differ_seconds = 0.4e-6;
};

inline constexpr DeviceTraits kDeviceTraits;

}  // namespace convtime
