#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <string_view>
#include <utility>

namespace convtime {

/// A file of /proc or of a cgroup, which is opened once and read again and again.
class TextFile {
 public:
  TextFile() = default;
  explicit TextFile(const std::filesystem::path& path)
      : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~TextFile() {
    if (is_open()) {
      ::close(file_);
    }
  }
  TextFile(TextFile&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  TextFile& operator=(TextFile&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }

  bool is_open() const { return file_ >= 0; }
  int descriptor() const { return file_; }

  /// Return the file's text from its beginning, truncated to the buffer; empty if it is not
  /// readable. A null character follows the text.
  template <std::size_t kSize>
  std::string_view read(std::array<char, kSize>& buffer) const {
    const ssize_t length = is_open() ? ::pread(file_, buffer.data(), kSize - 1, 0) : -1;
    if (length <= 0) {
      return {};
    }
    buffer[static_cast<std::size_t>(length)] = '\0';
    return {buffer.data(), static_cast<std::size_t>(length)};
  }

 private:
  int file_ = -1;
};

}  // namespace convtime
