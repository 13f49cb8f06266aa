#include "program/image_cache.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "helpers.h"

namespace convtime {
namespace {

namespace fs = std::filesystem;

class ImageCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "cacheXXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path only_file() const { return fs::directory_iterator(folder_)->path(); }

  static std::string text_of(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  fs::path folder_;
};

// Bytes that a text file would change or end at.
const Image kImage{{"first", "second\n3\n"}, std::string("\0\n12\n\r\xff", 7)};

bool is_kept(const ImageCache& cache, const std::string& key) {
  const std::optional<Image> image = cache.read(key);
  return image && image->symbols == kImage.symbols && image->code == kImage.code;
}

TEST_F(ImageCacheTest, ReadsWhatItWrote) {
  const ImageCache cache(folder_ / "made" / "here");
  EXPECT_FALSE(cache.read("key"));
  EXPECT_EQ(cache.write("key", kImage), "");
  EXPECT_TRUE(is_kept(cache, "key"));
  EXPECT_FALSE(cache.read("another key"));
  EXPECT_EQ(cache.size().files, 1);
  EXPECT_EQ(cache.problem(), "");
}

TEST_F(ImageCacheTest, NoticesEachChangedByte) {
  const ImageCache cache(folder_);
  cache.write("key", kImage);
  const fs::path path = only_file();
  const std::string text = text_of(path);
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    std::ofstream(path, std::ios::binary) << damaged;
    EXPECT_FALSE(cache.read("key")) << "byte " << i;
    std::ofstream(path, std::ios::binary) << text.substr(0, i);
    EXPECT_FALSE(cache.read("key")) << "first " << i << " bytes";
  }
  std::ofstream(path, std::ios::binary) << text << "more";
  EXPECT_FALSE(cache.read("key"));
  EXPECT_EQ(cache.write("key", kImage), "");
  EXPECT_TRUE(is_kept(cache, "key"));
}

TEST_F(ImageCacheTest, TakesNothingFromAFolder) {
  const ImageCache cache(folder_);
  cache.write("key", kImage);
  const fs::path path = only_file();
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_FALSE(cache.read("key"));
  EXPECT_NE(cache.write("key", kImage), "");
}

TEST_F(ImageCacheTest, RefusesAnotherKeysFile) {
  const ImageCache cache(folder_);
  cache.write("key", kImage);
  const fs::path path = only_file();
  const std::string text = text_of(path);
  cache.write("foreign", kImage);
  for (const auto& entry : fs::directory_iterator(folder_)) {
    std::ofstream(entry.path(), std::ios::binary) << text;
  }
  EXPECT_TRUE(is_kept(cache, "key"));
  EXPECT_FALSE(cache.read("foreign"));
}

TEST_F(ImageCacheTest, SaysWhyItCannotWrite) {
  EXPECT_TRUE(contains(ImageCache("").write("key", kImage), "XDG_CACHE_HOME"));
  EXPECT_FALSE(ImageCache("").read("key"));

  const fs::path file = folder_ / "file";
  std::ofstream(file) << "not a folder";
  const ImageCache blocked(file / "kernels");
  EXPECT_TRUE(contains(blocked.write("key", kImage), "cannot write to"));
  EXPECT_NE(blocked.problem(), "");
  EXPECT_FALSE(blocked.read("key"));
  EXPECT_EQ(blocked.size().files, 0);
}

/// A limit on the size of files fails in the middle of a write, as a full disk does.
TEST_F(ImageCacheTest, LeavesNothingOnAFullDisk) {
  const ImageCache cache(folder_);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{100, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string problem = cache.write("key", {{"symbol"}, std::string(1000, 'x')});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_NE(problem, "");
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(ImageCacheTest, SharesAFolderBetweenProcesses) {
  const ImageCache cache(folder_);
  constexpr int kProcesses = 4;
  for (int i = 0; i < kProcesses; ++i) {
    if (fork() == 0) {
      bool is_whole = true;
      for (int round = 0; round < 200; ++round) {
        is_whole = cache.write("key", kImage).empty() && is_kept(cache, "key") && is_whole;
      }
      _exit(is_whole ? 0 : 1);
    }
  }
  for (int i = 0; i < kProcesses; ++i) {
    int status = 0;
    wait(&status);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(cache.size().files, 1);
}

TEST_F(ImageCacheTest, RemovesWhatWasUnusedForLongest) {
  const Image large{{"symbol"}, std::string(1000, 'x')};
  const ImageCache cache(folder_, 5000);
  for (const char* const key : {"a", "b", "c", "d"}) {
    EXPECT_EQ(cache.write(key, large), "");
  }
  const auto now = fs::file_time_type::clock::now();
  for (const auto& entry : fs::directory_iterator(folder_)) {
    fs::last_write_time(entry.path(), now - std::chrono::hours(1));
  }
  EXPECT_TRUE(cache.read("a"));  // used now
  EXPECT_EQ(cache.write("e", large), "");
  EXPECT_TRUE(cache.read("a"));
  EXPECT_TRUE(cache.read("e"));
  EXPECT_EQ(cache.size().files, 2);
}

TEST(ImageCacheFolder, FollowsTheUsersSettings) {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const std::string before = cache == nullptr ? "" : cache;
  setenv("XDG_CACHE_HOME", "/somewhere", 1);
  EXPECT_EQ(ImageCache::default_folder(), "/somewhere/convtime/kernels");
  setenv("XDG_CACHE_HOME", "relative", 1);  // which the specification tells to ignore
  EXPECT_TRUE(contains(ImageCache::default_folder(), "/.cache/convtime/kernels"));
  before.empty() ? unsetenv("XDG_CACHE_HOME") : setenv("XDG_CACHE_HOME", before.c_str(), 1);
}

}  // namespace
}  // namespace convtime
