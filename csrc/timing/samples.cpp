#include "timing/samples.h"

#include <iterator>
#include <utility>

namespace convtime {

void append(Series&& more, Series& series) {
  for (std::size_t i = 0; i < series.size(); ++i) {
    series[i].samples.insert(series[i].samples.end(),
                             std::make_move_iterator(more[i].samples.begin()),
                             std::make_move_iterator(more[i].samples.end()));
    series[i].unrecorded.merge(more[i].unrecorded);
  }
}

void append_discarded(const Series& more, Series& series) {
  for (std::size_t i = 0; i < series.size(); ++i) {
    for (const Sample& sample : more[i].samples) {
      series[i].discarded.push_back(sample.seconds);
    }
  }
}

void set_aside(Series& series) {
  append_discarded(series, series);
  forget_first(rounds_of(series), series);
}

void forget_first(std::size_t rounds, Series& series) {
  for (CandidateSamples& candidate : series) {
    candidate.samples.erase(candidate.samples.begin(),
                            candidate.samples.begin() + static_cast<std::ptrdiff_t>(rounds));
  }
}

void keep_rounds(const std::vector<std::size_t>& rounds, Series& series) {
  for (CandidateSamples& candidate : series) {
    std::vector<Sample> kept;
    auto next = rounds.begin();
    for (std::size_t round = 0; round < candidate.samples.size(); ++round) {
      Sample& sample = candidate.samples[round];
      if (next != rounds.end() && *next == round) {
        kept.push_back(std::move(sample));
        ++next;
      } else {
        candidate.discarded.push_back(sample.seconds);
      }
    }
    candidate.samples = std::move(kept);
  }
}

}  // namespace convtime
