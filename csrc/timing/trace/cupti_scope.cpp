#include "timing/trace/cupti_scope.h"

#include <pthread.h>
#include <unistd.h>

#include <cstddef>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/cupti_check.h"
#include "timing/trace/cupti_records.h"

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

namespace {

bool is_of_the_other_scope(const CuptiError& error) {
  return error.result() == detail::cupti_result(CUPTI_ERROR_NOT_COMPATIBLE) ||
         error.result() == detail::cupti_result(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
}

}  // namespace

/// Open the global scope, unless another tool has disabled it by subscribing.
///
/// The first subscriber determines the scope for the whole process, and CUPTI does not document
/// that unsubscribing reverts this. kineto uses the global scope and initializes once per process:
/// after a subscriber it might never record again. So convtime never subscribes first, except if
/// nothing is recorded, to find out which tool uses CUPTI.
std::unique_ptr<ActivityScope> open_activity_scope(std::span<const CUpti_ActivityKind> kinds,
                                                   RecordSink& sink) {
  record_sink = &sink;
  try {
    return open_global_scope(kinds);
  } catch (const CuptiError& error) {
    if (!is_of_the_other_scope(error) || sharing() == Sharing::kNobodyAsked) {
      throw;
    }
  }
  return open_subscriber_scope(kinds);  // or throws with the name of the tool that uses CUPTI
}

void refuse_for_another_tool(std::span<const CUpti_ActivityKind> kinds) {
  open_subscriber_scope(kinds);  // throws with its name, if there is one
  throw std::runtime_error("CUPTI records nothing; another tool of this process may be using it");
}

bool subscribers_are_shared() { return sharing() == Sharing::kAllowed; }

std::uint64_t activity_clock() {
  std::uint64_t now = 0;
  CONVTIME_CUPTI_CHECK(read_activity_clock(now));
  return now;
}

std::uint32_t activity_thread() {
  CUpti_ActivityThreadIdType type = CUPTI_ACTIVITY_THREAD_ID_TYPE_DEFAULT;
  CONVTIME_CUPTI_CHECK(cuptiGetThreadIdType(&type));
  return static_cast<std::uint32_t>(type == CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM ? gettid()
                                                                                 : pthread_self());
}

}  // namespace convtime
