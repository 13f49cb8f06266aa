#include "timing/judge/statistics.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "timing/judge/order_statistics.h"

namespace convtime {
double quantile(std::span<const double> values, double q) {
  if (!(q >= 0 && q <= 1)) {
    throw std::invalid_argument("quantile must be between 0 and 1, got " + std::to_string(q));
  }
  return quantile_of_sorted(sorted(values), q);
}

double median(std::span<const double> values) {
  return quantile_of_sorted(spread_ties(sorted(values)), 0.5);
}

Interval median_interval(std::span<const double> values) {
  return interval_between(spread_ties(sorted(values)), values_outside_interval(values.size()));
}

Summary summarize(std::span<const double> values) {
  const std::vector<double> ordered = sorted(values);
  Summary summary{};
  summary.count = ordered.size();
  summary.mean = mean_of(ordered);
  summary.stdev = stdev_of(ordered, summary.mean);
  summary.min = ordered.front();
  summary.max = ordered.back();
  summary.median = quantile_of_sorted(spread_ties(ordered), 0.5);
  summary.iqr = quantile_of_sorted(ordered, 0.75) - quantile_of_sorted(ordered, 0.25);
  return summary;
}

double relative_stdev(std::span<const double> values) {
  if (values.empty()) {
    throw std::invalid_argument("a standard deviation needs at least one sample, got none");
  }
  const double mean = mean_of(values);
  return mean > 0 ? stdev_of(values, mean) / mean : kInfinity;
}

Verdict judge(Interval ratio, double margin, double doubt) {
  if (1 - margin <= ratio.low && ratio.high <= 1 + margin) {
    return Verdict::kSame;
  }
  if (ratio.high < 1 - margin - doubt) {
    return Verdict::kFaster;
  }
  return ratio.low > 1 + margin + doubt ? Verdict::kSlower : Verdict::kUncertain;
}

}  // namespace convtime
