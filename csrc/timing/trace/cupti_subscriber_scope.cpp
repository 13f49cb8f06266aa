#include "timing/trace/cupti_scope.h"

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "core/cupti_check.h"
#include "timing/trace/cupti_buffers.h"

namespace convtime {

#if CUPTI_API_VERSION >= 130200

namespace {

/// For the callbacks, like the record sink.
std::atomic<CUpti_SubscriberHandle> open_subscriber = nullptr;

/// The functions of the subscriber scope; the loaded library may lack them, even if convtime was
/// built with them.
struct SubscriberApi {
  decltype(&cuptiSubscribe_v2) subscribe;
  decltype(&cuptiActivityRegisterCallbacks_v2) register_callbacks;
  decltype(&cuptiActivityEnable_v2) enable;
  decltype(&cuptiActivityDisable_v2) disable;
  decltype(&cuptiActivityGetAttribute_v2) get_attribute;
  // From 13.3 on, subscribers must not use the functions without _v2; null before.
  CUptiResult (*next_record)(CUpti_SubscriberHandle, uint8_t*, size_t, CUpti_Activity**);
  CUptiResult (*dropped_records)(CUpti_SubscriberHandle, CUcontext, uint32_t, size_t*);
  CUptiResult (*timestamp)(CUpti_SubscriberHandle, uint64_t*);
};

/// Return the CUPTI library that the calls in this file use, because a process may have several. It
/// stays loaded.
void* cupti_library() {
  Dl_info cupti{};
  return dladdr(reinterpret_cast<void*>(&cuptiGetVersion), &cupti) == 0
             ? nullptr
             : dlopen(cupti.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
}

template <typename Function>
bool load(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

std::optional<SubscriberApi> load_subscriber_api() {
  void* const library = cupti_library();
  SubscriberApi api{};
  if (library == nullptr || !load(library, "cuptiSubscribe_v2", api.subscribe) ||
      !load(library, "cuptiActivityRegisterCallbacks_v2", api.register_callbacks) ||
      !load(library, "cuptiActivityEnable_v2", api.enable) ||
      !load(library, "cuptiActivityDisable_v2", api.disable) ||
      !load(library, "cuptiActivityGetAttribute_v2", api.get_attribute)) {
    return std::nullopt;
  }
  load(library, "cuptiActivityGetNextRecord_v2", api.next_record);
  load(library, "cuptiActivityGetNumDroppedRecords_v2", api.dropped_records);
  load(library, "cuptiGetTimestamp_v2", api.timestamp);
  return api;
}

const std::optional<SubscriberApi>& subscriber_api() {
  static const std::optional<SubscriberApi> api = load_subscriber_api();
  return api;
}

/// CUPTI shared with other subscribers of the same kind. Requires subscriber_api().
class SubscriberScope final : public ActivityScope {
 public:
  explicit SubscriberScope(std::span<const CUpti_ActivityKind> kinds)
      : kinds_(kinds.begin(), kinds.end()) {}

  void start() {
    subscribe();
    CONVTIME_CUPTI_CHECK(
        api().register_callbacks(subscriber_, on_buffer_requested, on_buffer_completed));
    started_ = true;
    resume();
  }

  void pause() override {
    for (; enabled_ > 0; --enabled_) {
      CONVTIME_CUPTI_CHECK(api().disable(subscriber_, kinds_[enabled_ - 1], nullptr));
    }
  }

  void resume() override {
    for (; enabled_ < kinds_.size(); ++enabled_) {
      CONVTIME_CUPTI_CHECK(api().enable(subscriber_, kinds_[enabled_], nullptr));
    }
  }

  /// CUPTI cannot flush one subscriber: the others get their finished records a little earlier, but
  /// never unfinished ones.
  void flush(Flush) override { CONVTIME_CUPTI_CHECK(cuptiActivityFlushAll(0)); }

  void drain(std::chrono::milliseconds) noexcept override {
    CONVTIME_CUPTI_WARN(cuptiActivityFlushAll(0));
  }

  /// Others cannot take over a subscriber's resources.
  void abandon() noexcept override {}

  ~SubscriberScope() override {
    for (; enabled_ > 0; --enabled_) {
      CONVTIME_CUPTI_WARN(api().disable(subscriber_, kinds_[enabled_ - 1], nullptr));
    }
    if (started_) {
      drain({});
    }
    if (subscriber_ != nullptr) {
      CONVTIME_CUPTI_WARN(cuptiUnsubscribe(subscriber_));
      open_subscriber = nullptr;
    }
  }

 private:
  static const SubscriberApi& api() { return *subscriber_api(); }

  void subscribe() {
    char other[CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN] = "";
    CUpti_SubscriberParams params{};
    params.structSize = CUpti_SubscriberParams_STRUCT_SIZE;
    params.subscriberName = "convtime";
    params.oldSubscriberName = other;
    params.oldSubscriberSize = sizeof(other);
    params.allowMultipleSubscribers = 1;
    const CUptiResult status = api().subscribe(&subscriber_, ignore, nullptr, &params);
    if (status == CUPTI_SUCCESS) {
      open_subscriber = subscriber_;
      return;
    }
    subscriber_ = nullptr;
    if (status == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
      const std::string name(other, strnlen(other, sizeof(other)));
      throw CuptiError(detail::cupti_result(status),
                       "CUPTI is in use by a tool that does not share it" +
                           (name.empty() ? name : " ('" + name + "')"));
    }
    throw detail::cupti_error(status, "cuptiSubscribe_v2", __FILE__, __LINE__);
  }

  /// No callback is enabled, but CUPTI requires one.
  static void CUPTIAPI ignore(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {}

  static void CUPTIAPI on_buffer_requested(uint8_t** buffer, size_t* size, size_t* max_records,
                                           CUpti_BufferCallbackRequestInfo*) {
    request_buffer(buffer, size, max_records);
  }

  static void CUPTIAPI on_buffer_completed(uint8_t* buffer, size_t, size_t valid_bytes,
                                           CUpti_BufferCallbackCompleteInfo*) {
    const CUpti_SubscriberHandle subscriber = open_subscriber;
    complete_buffer(buffer, [&](CUpti_Activity** record) {
      return api().next_record == nullptr
                 ? cuptiActivityGetNextRecord(buffer, valid_bytes, record)
                 : api().next_record(subscriber, buffer, valid_bytes, record);
    });
    size_t dropped = 0;
    if (api().dropped_records != nullptr &&
        api().dropped_records(subscriber, nullptr, 0, &dropped) == CUPTI_SUCCESS && dropped > 0) {
      record_sink.load()->lose();
    }
  }

  CUpti_SubscriberHandle subscriber_ = nullptr;
  std::vector<CUpti_ActivityKind> kinds_;
  std::size_t enabled_ = 0;  ///< the first ones that are enabled
  bool started_ = false;
};

}  // namespace

std::unique_ptr<ActivityScope> open_subscriber_scope(std::span<const CUpti_ActivityKind> kinds) {
  if (!subscriber_api().has_value()) {
    return nullptr;
  }
  auto scope = std::make_unique<SubscriberScope>(kinds);
  scope->start();  // if it throws, the destructor undoes the completed steps
  return scope;
}

Sharing sharing() {
  if (!subscriber_api().has_value()) {
    return Sharing::kNobodyAsked;
  }
  std::uint8_t state = 0;
  size_t bytes = sizeof(state);
  const CUptiResult status = subscriber_api()->get_attribute(
      nullptr, CUPTI_ACTIVITY_ATTR_MULTIPLE_SUBSCRIBER_STATE, &bytes, &state);
  return status == CUPTI_SUCCESS ? static_cast<Sharing>(state) : Sharing::kUnknown;
}

CUptiResult read_activity_clock(std::uint64_t& now) {
  const CUpti_SubscriberHandle subscriber = open_subscriber;
  return subscriber != nullptr && subscriber_api()->timestamp != nullptr
             ? subscriber_api()->timestamp(subscriber, &now)
             : cuptiGetTimestamp(&now);
}

#else

std::unique_ptr<ActivityScope> open_subscriber_scope(std::span<const CUpti_ActivityKind>) {
  return nullptr;
}

Sharing sharing() { return Sharing::kNobodyAsked; }

CUptiResult read_activity_clock(std::uint64_t& now) { return cuptiGetTimestamp(&now); }

#endif

}  // namespace convtime
