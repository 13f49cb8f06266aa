#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/export.h"
#include "timing/callable.h"
#include "timing/conditions/result_places.h"

namespace convtime {

/// The order in which calls use copies of their data.
struct Rotation {
  /// The copies in the order of the calls, repeated; may name one twice in a row.
  std::vector<std::size_t> visits{};
  /// Whether an untimed call on the same copy precedes each call, so that the data is cached.
  bool warm = false;
  /// Called by settle() to decide whether all copies may be called; until then, only the first is.
  /// If not, `original` is called from then on. May return nothing once, if the decision needs
  /// another call on the same copy.
  std::function<std::optional<bool>()> verify{};
  std::unique_ptr<Callable> original{};
  /// The placement of the copies' results; null leaves it to the allocator.
  std::unique_ptr<ResultPlaces> results{};
};

/// The same operation on several copies of its data at different addresses. A copy has left the
/// cache when it is used again, and no single placement determines the time.
class CONVTIME_API RotatingCallable final : public Callable {
 public:
  explicit RotatingCallable(std::vector<std::unique_ptr<Callable>> copies, Rotation rotation = {});

  void prepare() override;
  bool prepares_work() const override;
  void call() override;
  void discard_result() override;
  void settle() override;
  std::size_t distinct_calls() const override { return copies_.size(); }
  std::size_t place() const override { return current_; }

  /// Return why the allocator chooses the addresses of results; empty if it does not, or if there
  /// are no results.
  const std::string& results_reason() const { return results_reason_; }

 private:
  std::size_t upcoming() const { return rotation_.visits[next_visit_]; }
  void advance();
  void make_ready();
  void call_untimed();
  bool copies_may_be_called();
  void use_original();
  void place_results();
  bool result_lands();

  std::vector<std::unique_ptr<Callable>> copies_;
  Rotation rotation_;
  std::size_t next_visit_ = 0;
  std::size_t current_ = 0;
  bool settled_ = false;
  bool results_open_ = false;
  std::vector<MemoryBlock> first_result_;
  std::string results_reason_;
};

}  // namespace convtime
