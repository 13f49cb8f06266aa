#include "program/image_cache.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

namespace convtime {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSuffix = ".image";
constexpr const char* kMagic = "convtime image 1\n";

/// FNV-1a in 64 bits.
std::uint64_t hash_of(const std::string& text, std::uint64_t basis = 0xcbf29ce484222325ULL) {
  for (const char c : text) {
    basis = (basis ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return basis;
}

std::string hex(std::uint64_t number) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(number));
  return text.data();
}

void append(std::string& to, const std::string& part) {
  to += std::to_string(part.size()) + "\n" + part;
}

/// Read what append() has written; return whether the text has it.
bool read_part(std::istream& text, std::string& part) {
  std::size_t size = 0;
  if (!(text >> size) || text.get() != '\n') {
    return false;
  }
  part.resize(size);
  return text.read(part.data(), static_cast<std::streamsize>(size)).good();
}

std::string serialize(const std::string& key, const Image& image) {
  std::string body;
  append(body, key);
  body += std::to_string(image.symbols.size()) + "\n";
  for (const std::string& symbol : image.symbols) {
    append(body, symbol);
  }
  append(body, image.code);
  return kMagic + hex(hash_of(body)) + "\n" + body;
}

std::optional<Image> parse(const std::string& text, const std::string& key) {
  const std::size_t head = std::min(text.size(), std::strlen(kMagic) + 17);
  const std::string body = text.substr(head);
  if (text.substr(0, head) != kMagic + hex(hash_of(body)) + "\n") {
    return std::nullopt;
  }
  std::istringstream parts(body);
  std::string stored_key;
  std::size_t symbols = 0;
  if (!read_part(parts, stored_key) || stored_key != key || !(parts >> symbols)) {
    return std::nullopt;
  }
  parts.get();
  Image image;
  image.symbols.resize(symbols);
  const bool is_complete =
      std::ranges::all_of(image.symbols,
                          [&](std::string& symbol) { return read_part(parts, symbol); }) &&
      read_part(parts, image.code);
  return is_complete ? std::optional(image) : std::nullopt;
}

struct File {
  fs::path path;
  std::int64_t bytes;
  fs::file_time_type used;
};

std::vector<File> files_in(const std::string& folder) {
  std::vector<File> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    // Another process may remove files at any time.
    std::error_code gone;
    const auto bytes = static_cast<std::int64_t>(entry->file_size(gone));
    const fs::file_time_type used = entry->last_write_time(gone);
    if (!gone && entry->path().extension() == kSuffix) {
      files.push_back({entry->path(), bytes, used});
    }
  }
  return files;
}

}  // namespace

std::string ImageCache::default_folder() {
  // As platformdirs has it for Python.
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  std::string folder = cache == nullptr ? "" : cache;
  if (folder.empty() || folder.front() != '/') {
    const char* home = std::getenv("HOME");
    if (home == nullptr || *home == '\0') {
      const passwd* const user = getpwuid(geteuid());
      home = user == nullptr ? nullptr : user->pw_dir;
    }
    if (home == nullptr || *home != '/') {
      return "";
    }
    folder = std::string(home) + "/.cache";
  }
  return folder + "/convtime/kernels";
}

std::string ImageCache::path_of(const std::string& key) const {
  return folder_ + "/" + hex(hash_of(key)) + hex(hash_of(key, 0x84222325cbf29ce4ULL)) + kSuffix;
}

std::optional<Image> ImageCache::read(const std::string& key) const {
  if (folder_.empty()) {
    return std::nullopt;
  }
  const std::string path = path_of(key);
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;  // fails quietly, also for a folder
  if (!(text << file.rdbuf())) {
    return std::nullopt;
  }
  std::optional<Image> image = parse(text.str(), key);
  if (image) {
    std::error_code ignored;  // the time of the last use, for remove_oldest()
    fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
  }
  return image;
}

std::string ImageCache::write(const std::string& key, const Image& image) const {
  const std::string problem = store(serialize(key, image), path_of(key));
  if (problem.empty()) {
    remove_oldest();
  }
  return problem;
}

std::string ImageCache::problem() const {
  const std::string path = folder_ + "/trial-" + std::to_string(getpid());
  std::string problem = store(std::string(1024, ' '), path);
  unlink(path.c_str());
  return problem;
}

/// Store a file in a way that it appears complete or not at all.
std::string ImageCache::store(const std::string& text, const std::string& path) const {
  if (folder_.empty()) {
    return "there is no home folder: set XDG_CACHE_HOME";
  }
  std::error_code error;
  fs::create_directories(folder_, error);
  // With the suffix, so that the files of processes that were killed are removed as the others are.
  std::string temporary = folder_ + "/new-XXXXXX" + kSuffix;
  const int file = mkstemps(temporary.data(), static_cast<int>(std::strlen(kSuffix)));
  if (file < 0) {
    return "cannot write to " + folder_ + ": " + std::strerror(errno);
  }
  std::size_t written = 0;
  int failure = 0;
  while (written < text.size() && failure == 0) {
    const ssize_t count = ::write(file, text.data() + written, text.size() - written);
    if (count >= 0) {
      written += static_cast<std::size_t>(count);
    } else if (errno != EINTR) {
      failure = errno;
    }
  }
  if (close(file) != 0 && failure == 0) {
    failure = errno;
  }
  if (failure == 0 && std::rename(temporary.c_str(), path.c_str()) != 0) {
    failure = errno;
  }
  if (failure != 0) {
    unlink(temporary.c_str());
    return "cannot write to " + folder_ + ": " + std::strerror(failure);
  }
  return "";
}

ImageCache::Size ImageCache::size() const {
  Size size;
  for (const File& file : files_in(folder_)) {
    ++size.files;
    size.bytes += file.bytes;
  }
  return size;
}

void ImageCache::remove_oldest() const {
  std::vector<File> files = files_in(folder_);
  std::int64_t bytes = 0;
  for (const File& file : files) {
    bytes += file.bytes;
  }
  if (bytes <= most_bytes_) {
    return;
  }
  std::sort(files.begin(), files.end(),
            [](const File& a, const File& b) { return a.used < b.used; });
  for (const File& file : files) {
    if (bytes <= most_bytes_ / 2) {
      return;
    }
    std::error_code ignored;
    fs::remove(file.path, ignored);
    bytes -= file.bytes;
  }
}

}  // namespace convtime
