#include "timing/options.h"

#include <array>

#include "core/enum_names.h"

namespace convtime {
namespace {

constexpr std::array kMethods = {Method::kAuto,  Method::kKernel, Method::kEvent,
                                 Method::kGraph, Method::kSync,   Method::kCpu};
constexpr std::array kQueues = {Queue::kGate, Queue::kSleep, Queue::kNone};

}  // namespace

const char* to_string(Method method) {
  switch (method) {
    case Method::kAuto:
      return "auto";
    case Method::kKernel:
      return "kernel";
    case Method::kEvent:
      return "event";
    case Method::kGraph:
      return "graph";
    case Method::kSync:
      return "sync";
    case Method::kCpu:
      return "cpu";
  }
  return "unknown";
}

const char* to_string(Queue queue) {
  switch (queue) {
    case Queue::kGate:
      return "gate";
    case Queue::kSleep:
      return "sleep";
    case Queue::kNone:
      return "none";
  }
  return "unknown";
}

Method method_from_string(const std::string& name) {
  return enum_from_string(kMethods, "method", name);
}
Queue queue_from_string(const std::string& name) {
  return enum_from_string(kQueues, "queue", name);
}

}  // namespace convtime
