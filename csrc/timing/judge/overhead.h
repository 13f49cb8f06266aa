#pragma once

namespace convtime {

/// What a method itself adds to each time, as a calibration found it.
struct Overhead {
  double seconds = 0;
  double uncertainty_seconds = 0;  ///< how far it may be off, either way, at kConfidence
};

}  // namespace convtime
