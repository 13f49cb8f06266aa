#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace convtime {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

inline std::vector<double> one_to(std::size_t count) {
  std::vector<double> values(count);
  std::iota(values.begin(), values.end(), 1.0);
  return values;
}

/// From 0 on: `rows` numbers, each `length` times in a row.
inline std::vector<std::size_t> in_rows(std::size_t rows, std::size_t length) {
  std::vector<std::size_t> numbers(rows * length);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = i / length;
  }
  return numbers;
}

/// From 0 on, and around again.
inline std::vector<std::size_t> in_turn(std::size_t count, std::size_t places) {
  std::vector<std::size_t> numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    numbers[i] = i % places;
  }
  return numbers;
}

/// What `call` throws as an `Error`; empty if it throws nothing.
template <typename Error = std::exception>
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline testing::AssertionResult contains(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  return (found ? testing::AssertionSuccess() : testing::AssertionFailure())
         << "'" << part << "' in '" << text << "'";
}

inline std::ptrdiff_t open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

/// Until its end, this process may open no more files.
class LimitOfFiles {
 public:
  explicit LimitOfFiles(rlim_t files) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit limit{files, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ~LimitOfFiles() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
  LimitOfFiles(const LimitOfFiles&) = delete;
  LimitOfFiles& operator=(const LimitOfFiles&) = delete;

 private:
  rlimit before_{};
};

/// Compute for so long. A busy machine takes a hundred times as long for a short sleep.
inline void spin(std::chrono::nanoseconds duration) {
  const auto end = std::chrono::steady_clock::now() + duration;
  while (std::chrono::steady_clock::now() < end) {
  }
}

}  // namespace convtime
