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

/// How calls go over copies of their data.
struct Rotation {
  /// The copies in the order that calls take them, over and over; may name one twice in a row.
  std::vector<std::size_t> visits{};
  /// Whether an untimed call on the same copy comes before each call, which so finds it cached.
  bool warm = false;
  /// Asked by settle(), whether all of the copies may be called; until then, the first alone is.
  /// Where they may not, `original` is called from then on. Nothing, for once, where that takes
  /// another call on the same copy to tell.
  std::function<std::optional<bool>()> verify{};
  std::unique_ptr<Callable> original{};
  /// Where the copies' results are to lie; null leaves them to the allocator.
  std::unique_ptr<ResultPlaces> results{};
};

/// The same operation on several copies of its data, each at a place of its own: so that a copy has
/// left the cache by the time that it is used again, and so that no one place decides the time.
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

  /// Why results lie where the allocator puts them; empty where they do not, or there are none.
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
