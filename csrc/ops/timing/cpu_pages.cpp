#include "ops/timing/cpu_pages.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace convtime::ops {
namespace {

/// A free block serves requests of at least its size divided by this.
constexpr std::size_t kMaxWaste = 2;
/// Used and free blocks together take at most this many times the peak memory in use.
constexpr std::size_t kMaxFootprint = 2;

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

/// Return the whole pages of a block to the kernel; their contents are lost. Returns whether the
/// kernel took them: it refuses locked memory.
bool discard_pages(void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t page = page_bytes();
  const std::uintptr_t first = (begin + page - 1) / page * page;
  const std::uintptr_t last = (begin + bytes) / page * page;
  return first >= last || madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED) == 0;
}

/// Allocate whole pages, so that a block shares no page with another and all of its pages can be
/// fresh. Returns null if there is no memory.
void* allocate_pages(std::size_t bytes) {
  void* data = nullptr;
  const std::size_t pages = (bytes + page_bytes() - 1) / page_bytes();
  return posix_memalign(&data, page_bytes(), pages * page_bytes()) == 0 ? data : nullptr;
}

/// Keeps freed blocks as long as timings run. All blocks come from malloc, like those of PyTorch's
/// own allocator, so either allocator can free them at any time.
class PageAllocator final : public c10::Allocator {
 public:
  /// Never destroyed, because tensors refer to their allocator as long as they exist.
  static PageAllocator& get() {
    static auto& allocator = *new PageAllocator();
    return allocator;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes < page_bytes() || !governs_.load(std::memory_order_relaxed)) {
      return c10::GetDefaultCPUAllocator()->allocate(bytes);
    }
    void* data = reuse(bytes);
    if (data == nullptr) {
      data = allocate_pages(bytes);
      if (data == nullptr) {
        free_unused();
        return c10::GetDefaultCPUAllocator()->allocate(bytes);
      }
      discard_if_fresh(data);  // malloc may return memory that was used before
      const std::lock_guard lock(mutex_);
      count(malloc_usable_size(data));
    }
    c10::profiledCPUMemoryReporter().New(data, bytes);
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  /// Begin a timing and return an empty string, or return why it did not begin. Must be ended if it
  /// began.
  std::string begin(Pages pages) {
    const std::lock_guard lock(mutex_);
    if (users_ > 0) {
      if (pages_ != pages) {
        return "another running timing determines the pages";
      }
      ++users_;
      return "";
    }
    if (c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator()) {
      c10::SetCPUAllocator(this);
    }
    if (c10::GetCPUAllocator() != this) {
      return "PyTorch's CPU allocator was replaced by another one";
    }
    users_ = 1;
    pages_ = pages;
    peak_ = live_;
    kept_by_kernel_ = false;
    governs_ = true;
    return "";
  }

  void end() {
    std::vector<Block> unused;
    {
      const std::lock_guard lock(mutex_);
      if (--users_ > 0) {
        return;
      }
      governs_ = false;
      if (c10::GetCPUAllocator() == this) {
        c10::SetCPUAllocator(c10::GetDefaultCPUAllocator());
      }
      unused = take_free();
    }
    free_all(unused);
  }

  std::string reason() const {
    if (c10::GetCPUAllocator() != this) {
      return "PyTorch's CPU allocator was replaced during the timing";
    }
    return kept_by_kernel_ ? "the kernel did not take pages back: this process's memory is locked"
                           : "";
  }

 private:
  struct Block {
    void* data;
    std::size_t bytes;  ///< usable size according to malloc, at least the requested size
  };

  PageAllocator() {
    // A child that another thread forks, such as a data-loader worker, also allocates.
    pthread_atfork([] { get().mutex_.lock(); }, [] { get().mutex_.unlock(); },
                   [] { get().mutex_.unlock(); });
  }

  static void release(void* data) {
    if (data != nullptr) {
      c10::profiledCPUMemoryReporter().Delete(data);
      get().keep(data);
    }
  }

  static void free_all(const std::vector<Block>& blocks) {
    for (const Block& block : blocks) {
      discard_pages(block.data, block.bytes);  // malloc keeps blocks in the middle of its heap
      c10::free_cpu(block.data);
    }
  }

  std::vector<Block> take_free() {
    free_bytes_ = 0;
    return std::exchange(free_, {});
  }

  void free_unused() {
    std::vector<Block> unused;
    {
      const std::lock_guard lock(mutex_);
      unused = take_free();
    }
    free_all(unused);
  }

  /// Return the free block that fits best, the most recently freed of several; null if none fits.
  void* reuse(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto best = free_.rend();
    for (auto block = free_.rbegin(); block != free_.rend(); ++block) {
      if (block->bytes >= bytes && block->bytes / kMaxWaste <= bytes &&
          (best == free_.rend() || block->bytes < best->bytes)) {
        best = block;
        if (block->bytes < bytes + page_bytes()) {
          break;  // wastes less than a page; usually found at once
        }
      }
    }
    if (best == free_.rend()) {
      return nullptr;
    }
    const Block found = *best;
    free_.erase(std::next(best).base());
    free_bytes_ -= found.bytes;
    count(found.bytes);
    return found.data;
  }

  void keep(void* data) {
    const Block block{data, malloc_usable_size(data)};
    if (governs_.load(std::memory_order_relaxed)) {
      discard_if_fresh(data);
    }
    std::vector<Block> unused;
    {
      const std::lock_guard lock(mutex_);
      live_ -= std::min(live_, block.bytes);
      free_.push_back(block);
      free_bytes_ += block.bytes;
      const std::size_t most = governs_ ? kMaxFootprint * peak_ : 0;
      while (!free_.empty() && live_ + free_bytes_ > most) {
        unused.push_back(free_.front());  // the block that has been unused longest
        free_bytes_ -= free_.front().bytes;
        free_.erase(free_.begin());
      }
    }
    free_all(unused);
  }

  void discard_if_fresh(void* data) {
    if (pages_ == Pages::kFresh && !discard_pages(data, malloc_usable_size(data))) {
      kept_by_kernel_ = true;
    }
  }

  void count(std::size_t bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }

  mutable std::mutex mutex_;
  std::atomic<bool> governs_ = false;
  std::atomic<bool> kept_by_kernel_ = false;
  std::atomic<Pages> pages_ = Pages::kRetained;
  int users_ = 0;
  std::vector<Block> free_;  ///< in the order of freeing
  std::size_t free_bytes_ = 0;
  std::size_t live_ = 0;  ///< bytes of all blocks in use, including those of earlier timings
  std::size_t peak_ = 0;  ///< peak of live_ since the timing began
};

}  // namespace

CpuPages::CpuPages(Pages pages) : refused_(PageAllocator::get().begin(pages)) {}

CpuPages::~CpuPages() {
  if (refused_.empty()) {
    PageAllocator::get().end();
  }
}

std::string CpuPages::reason() const {
  return refused_.empty() ? PageAllocator::get().reason() : refused_;
}

}  // namespace convtime::ops
