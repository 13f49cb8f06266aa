#pragma once

namespace convtime {

/// A method's overhead per time, as determined by a calibration.
struct Overhead {
  double seconds = 0;
  double uncertainty_seconds = 0;  ///< its error in either direction, at kConfidence
};

}  // namespace convtime
