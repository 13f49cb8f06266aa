#include "timing/trace/cupti_scope.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/cupti_check.h"
#include "timing/trace/cupti_records.h"

namespace convtime {
namespace {

/// For work of other threads, where no caller waits for CUPTI.
constexpr std::chrono::milliseconds kDrainPatience(5);

/// CUPTI without subscribers, like kineto.
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

template <typename Scope>
std::unique_ptr<ActivityScope> start(std::span<const CUpti_ActivityKind> kinds) {
  auto scope = std::make_unique<Scope>(kinds);
  scope->start();  // if it throws, the destructor undoes the completed steps
  return scope;
}

/// The mode that the process's subscribers have requested, in CUPTI's numbering.
enum class Sharing : std::uint8_t { kRefused = 0, kAllowed = 1, kNobodyAsked = 2, kUnknown = 255 };

#if CUPTI_API_VERSION >= 130200

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

/// Open CUPTI shared with other subscribers of the same kind; returns null if the loaded CUPTI does
/// not support this scope. Throws CuptiError, with the name of a tool that does not share CUPTI.
std::unique_ptr<ActivityScope> open_subscriber_scope(std::span<const CUpti_ActivityKind> kinds) {
  if (!subscriber_api().has_value()) {
    return nullptr;
  }
  return start<SubscriberScope>(kinds);
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

/// Read the clock of the open scope's records, for either scope.
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
    return start<GlobalScope>(kinds);
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
