#include "timing/trace/cupti_global_scope.h"

#include <vector>

#include "core/cupti_check.h"
#include "timing/trace/cupti_buffers.h"

namespace convtime {
namespace {

class GlobalScope final : public ActivityScope {
 public:
  void start(std::span<const CUpti_ActivityKind> kinds) {
    // Each time anew: another tool may have registered its own since.
    CONVTIME_CUPTI_CHECK(cuptiActivityRegisterCallbacks(on_buffer_requested, on_buffer_completed));
    for (const CUpti_ActivityKind kind : kinds) {
      CONVTIME_CUPTI_CHECK(cuptiActivityEnable(kind));
      enabled_.push_back(kind);
    }
  }

  ~GlobalScope() override {
    for (const CUpti_ActivityKind kind : enabled_) {
      CONVTIME_CUPTI_WARN(cuptiActivityDisable(kind));
    }
    if (!enabled_.empty()) {
      // Buffers of ours that are still out must not reach the next tool's callback.
      CONVTIME_CUPTI_WARN(cuptiActivityFlushAll(0));
    }
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

  std::vector<CUpti_ActivityKind> enabled_;
};

}  // namespace

std::unique_ptr<ActivityScope> open_global_scope(std::span<const CUpti_ActivityKind> kinds) {
  auto scope = std::make_unique<GlobalScope>();
  scope->start(kinds);  // where it throws, the destructor takes back what was done
  return scope;
}

}  // namespace convtime
