#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "core/export.h"
#include "program/nvrtc.h"

namespace convtime {

/// Compiled programs on disk, in the user's cache folder. No failure is fatal: what cannot be read
/// is compiled again, and what cannot be written is kept in memory alone. Thread-safe, and shared
/// by processes, since files appear complete or not at all.
class ImageCache {
 public:
  /// The folder `convtime/kernels` of $XDG_CACHE_HOME or ~/.cache; empty if the user has neither.
  CONVTIME_API static std::string default_folder();

  /// When the files have more than `most_bytes`, those that were unused for longest are removed.
  explicit ImageCache(std::string folder, std::int64_t most_bytes = std::int64_t{256} << 20)
      : folder_(std::move(folder)), most_bytes_(most_bytes) {}

  const std::string& folder() const { return folder_; }

  /// Return the image stored for exactly this key, if there is one and it is undamaged.
  CONVTIME_API std::optional<Image> read(const std::string& key) const;

  /// Store an image; return the reason if that was impossible, or an empty string.
  CONVTIME_API std::string write(const std::string& key, const Image& image) const;

  /// Return why nothing can be stored; empty if it can.
  CONVTIME_API std::string problem() const;

  struct Size {
    std::int64_t files = 0;
    std::int64_t bytes = 0;
  };
  CONVTIME_API Size size() const;

 private:
  std::string store(const std::string& text, const std::string& path) const;
  std::string path_of(const std::string& key) const;
  void remove_oldest() const;

  std::string folder_;
  std::int64_t most_bytes_;
};

}  // namespace convtime
