#include "timing/timers/event_timer.h"

#include "timing/timers/device_tick.h"

namespace convtime {

EventTimer::EventTimer(cudaStream_t stream, std::size_t capacity) : stream_(stream) {
  starts_.reserve(capacity);
  stops_.reserve(capacity);
  for (std::size_t i = 0; i < capacity; ++i) {
    starts_.push_back(make_event());
    stops_.push_back(make_event());
  }
  tick_seconds_ =
      device_tick(DeviceClock::kEvents, [&] { return measure_tick(*this, stream_, capacity); });
}

void EventTimer::run(std::span<Callable* const> calls) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    calls[i]->prepare();
    CONVTIME_CUDA_CHECK(cudaEventRecord(starts_.at(i).get(), stream_));
    calls[i]->call();
    CONVTIME_CUDA_CHECK(cudaEventRecord(stops_[i].get(), stream_));
    calls[i]->discard_result();
  }
}

void EventTimer::collect(std::span<double> seconds) {
  CONVTIME_CUDA_CHECK(cudaStreamSynchronize(stream_));
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    float milliseconds = 0;
    CONVTIME_CUDA_CHECK(
        cudaEventElapsedTime(&milliseconds, starts_.at(i).get(), stops_.at(i).get()));
    seconds[i] = static_cast<double>(milliseconds) * 1e-3;
  }
}

}  // namespace convtime
