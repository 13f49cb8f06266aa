#include "timing/trace/cupti_scope.h"

#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "core/cupti_check.h"
#include "timing/trace/cupti_buffers.h"
#include "timing/trace/cupti_functions.h"

namespace convtime {
namespace {

/// For work of other threads, where no caller waits for CUPTI.
constexpr std::chrono::milliseconds kDrainPatience(5);

class GlobalScope final : public ActivityScope {
 public:
  explicit GlobalScope(std::span<const CUpti_ActivityKind> kinds)
      : kinds_(kinds.begin(), kinds.end()) {}

  void start() {
    // Registered each time: another tool may have registered its own callbacks since.
    CONVTIME_CUPTI_CHECK(cuptiActivityRegisterCallbacks(on_buffer_requested, on_buffer_completed));
    started_ = true;
    resume();
  }

  void pause() override {
    for (; enabled_ > 0; --enabled_) {
      CONVTIME_CUPTI_CHECK(cuptiActivityDisable(kinds_[enabled_ - 1]));
    }
  }

  void resume() override {
    for (; enabled_ < kinds_.size(); ++enabled_) {
      CONVTIME_CUPTI_CHECK(cuptiActivityEnable(kinds_[enabled_]));
    }
    // An application calls functions that issue no device work far more often than others. If CUPTI
    // cannot disable one, its records are skipped.
    for (const CUpti_CallbackId function : CuptiFunctions::of_runtime().others()) {
      (void)cuptiActivityEnableRuntimeApi(function, 0);
    }
    for (const CUpti_CallbackId function : CuptiFunctions::of_driver().others()) {
      (void)cuptiActivityEnableDriverApi(function, 0);
    }
  }

  void flush(Flush which) override {
    if (which == Flush::kFinished) {
      CONVTIME_CUPTI_CHECK(cuptiActivityFlushAll(0));
      return;
    }
    const ForcedFlush forced;
    CONVTIME_CUPTI_CHECK(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED));
  }

  void drain(std::chrono::milliseconds patience) noexcept override {
    using std::chrono::steady_clock;
    const auto end = steady_clock::now() + patience;
    CONVTIME_CUPTI_WARN(cuptiActivityFlushAll(0));
    while (lends_buffers() && steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      CONVTIME_CUPTI_WARN(cuptiActivityFlushAll(0));
    }
    if (lends_buffers()) {
      const ForcedFlush forced;
      CONVTIME_CUPTI_WARN(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED));
    }
  }

  void abandon() noexcept override { started_ = false; }

  ~GlobalScope() override {
    if (!started_) {
      return;
    }
    for (; enabled_ > 0; --enabled_) {
      CONVTIME_CUPTI_WARN(cuptiActivityDisable(kinds_[enabled_ - 1]));
    }
    // The next tool's callback must not get buffers that we provided.
    drain(kDrainPatience);
  }

 private:
  static void CUPTIAPI on_buffer_requested(uint8_t** buffer, size_t* size, size_t* max_records) {
    request_buffer(buffer, size, max_records);
  }

  static void CUPTIAPI on_buffer_completed(CUcontext context, uint32_t stream, uint8_t* buffer,
                                           size_t, size_t valid_bytes) {
    complete_buffer(buffer, [&](CUpti_Activity** record) {
      return cuptiActivityGetNextRecord(buffer, valid_bytes, record);
    });
    size_t dropped = 0;
    if (cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS &&
        dropped > 0) {
      record_sink.load()->lose();
    }
  }

  std::vector<CUpti_ActivityKind> kinds_;
  std::size_t enabled_ = 0;  ///< the first ones that are enabled
  bool started_ = false;
};

}  // namespace

std::unique_ptr<ActivityScope> open_global_scope(std::span<const CUpti_ActivityKind> kinds) {
  auto scope = std::make_unique<GlobalScope>(kinds);
  scope->start();  // if it throws, the destructor undoes the completed steps
  return scope;
}

}  // namespace convtime
