#pragma once

namespace convtime {

/// How a GPU behaves that convtime cannot find out in the time that a timing takes. All of it was
/// seen on an NVIDIA H200, and is assumed of other GPUs: `convtime doctor --prove` checks what
/// depends on it. What can be found out is measured on each device, and not here: the ticks of its
/// clocks (device_tick.h), its highest clock, the gaps that keep it in a burst (starting from
/// these), how many launches its queue holds (likewise), and what a method adds to a time.
struct DeviceTraits {
  /// A rest from which it recovers after full load.
  double rest_seconds = 0.1;
  /// How long its clock is to be watched before it is known not to fall: it falls after 0.06 s of
  /// full load, all at once.
  double watch_seconds = 0.08;
  /// Of the highest clock: one that is lower has fallen. The clock moves in steps of 0.75 %.
  double high_clock_share = 0.98;
  /// Clocks that are closer than this are the same.
  double same_clock_share = 0.01;

  /// The first gap before a burst, and the longest; a rested matmul's clock holds for 0.06 s.
  double first_gap_seconds = 0.3;
  double max_gap_seconds = 1;
  double burst_seconds = 0.005;

  /// Under full load, power is capped again after some 0.8 s. Where pauses are 0.25 s apart, the
  /// clock is not 10 % higher for them.
  double min_sustained_seconds = 2.5;
  double max_sustained_seconds = 8;
  double load_seconds = 0.25;

  /// The queue has room for 1024 launches; some of it is left for the hold itself and the clock's
  /// stamps.
  double queued_launches = 960;
  /// No launch takes the host less.
  double min_launch_seconds = 1e-6;

  /// What is launched after a flush by the first graphs of a process, of some 32 kernels in all,
  /// starts 0.7 us earlier than what later ones launch. So many graphs, of so many kernels, take
  /// these places.
  int first_graphs = 4;
  int kernels_of_first_graphs = 16;
  /// By this the time of a launch after a flush differs from one later graph to the next.
  double flushed_graphs_differ_seconds = 0.4e-6;
};

inline constexpr DeviceTraits kDeviceTraits;

}  // namespace convtime
