#include "kernels/conv_epilogue/conv_epilogue.h"

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/cuda.h"
#include "gpu.h"

namespace convtime {
namespace {

float wide(float value) { return value; }
float wide(__half value) { return __half2float(value); }

template <typename T>
T narrow(float value) {
  if constexpr (sizeof(T) == 2) {
    return __float2half_rn(value);
  } else {
    return value;
  }
}

template <typename T>
constexpr ElementType kType = sizeof(T) == 2 ? ElementType::kHalf : ElementType::kFloat;

/// Memory of host and device.
template <typename T>
class Managed {
 public:
  explicit Managed(std::int64_t count) {
    void* data = nullptr;
    CONVTIME_CUDA_CHECK(cudaMallocManaged(&data, static_cast<std::size_t>(count) * sizeof(T)));
    data_ = static_cast<T*>(data);
  }
  Managed(const Managed&) = delete;
  Managed& operator=(const Managed&) = delete;
  ~Managed() { CONVTIME_CUDA_WARN(cudaFree(data_)); }

  T* get() const { return data_; }
  T& operator[](std::int64_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
};

/// A number that every dtype holds, as it does its sums with others.
float number(std::int64_t i) { return static_cast<float>(i * 7919 % 129 - 64) / 8; }

struct Images {
  std::int64_t count, channels, plane, pitch;
  std::int64_t size() const { return count * channels * plane; }
  std::int64_t in_planes(std::int64_t image, std::int64_t channel, std::int64_t pixel) const {
    return (image * channels + channel) * plane + pixel;
  }
  std::int64_t in_pixels(std::int64_t image, std::int64_t channel, std::int64_t pixel) const {
    return (image * plane + pixel) * pitch + channel;
  }
};

template <typename Function>
void for_elements(const Images& images, const Function& function) {
  for (std::int64_t image = 0; image < images.count; ++image) {
    for (std::int64_t channel = 0; channel < images.channels; ++channel) {
      for (std::int64_t pixel = 0; pixel < images.plane; ++pixel) {
        function(image, channel, pixel);
      }
    }
  }
}

/// Compare what is computed from channels-last images with pitches to images of planes with a loop.
template <typename T>
void check_from_channels_last(const Images& images, bool has_z, std::int64_t z_offset,
                              std::int64_t b_offset) {
  const Managed<T> from(images.count * images.plane * images.pitch);
  const Managed<T> y(images.size());
  const Managed<T> z(images.size() + z_offset);
  const Managed<T> b(images.channels + b_offset);
  std::fill_n(from.get(), images.count * images.plane * images.pitch, narrow<T>(NAN));
  for_elements(images, [&](auto... at) {
    from[images.in_pixels(at...)] = narrow<T>(number(images.in_planes(at...)));
    z[images.in_planes(at...) + z_offset] = narrow<T>(number(3 * images.in_planes(at...)));
  });
  for (std::int64_t channel = 0; channel < images.channels; ++channel) {
    b[channel + b_offset] = narrow<T>(number(5 * channel));
  }
  const ConvEpilogue epilogue{.y = y.get(),
                              .z = has_z ? z.get() + z_offset : nullptr,
                              .b = b.get() + b_offset,
                              .alpha = 0.5,
                              .activation = Activation::kRelu,
                              .negative_slope = 0,
                              .count = images.size(),
                              .channels = images.channels,
                              .plane = images.plane,
                              .channels_last = false};
  launch_conv_epilogue_from_channels_last(kType<T>, from.get(), images.pitch, epilogue, nullptr);
  CONVTIME_CUDA_CHECK(cudaDeviceSynchronize());
  for_elements(images, [&](std::int64_t image, std::int64_t channel, std::int64_t pixel) {
    const std::int64_t at = images.in_planes(image, channel, pixel);
    float expected = wide(from[images.in_pixels(image, channel, pixel)]);
    expected += (has_z ? 0.5F * wide(z[at + z_offset]) : 0.0F) + wide(b[channel + b_offset]);
    ASSERT_EQ(wide(y[at]), wide(narrow<T>(std::max(expected, 0.0F))))
        << images.channels << " channels of " << images.plane << ", pitch " << images.pitch
        << ", image " << image << ", channel " << channel << ", pixel " << pixel;
  });
}

class ConvEpilogueShapes : public GpuTest, public testing::WithParamInterface<Images> {};

TEST_P(ConvEpilogueShapes, FromChannelsLastWithAnyPitch) {
  for (const bool has_z : {false, true}) {
    for (const auto& [z_offset, b_offset] : {std::pair{0, 0}, {0, 1}, {1, 0}}) {
      check_from_channels_last<float>(GetParam(), has_z, z_offset, b_offset);
      check_from_channels_last<__half>(GetParam(), has_z, z_offset, b_offset);
    }
  }
}

// Squares, whole planes and tiles; with channels that fill a pack of 16 bytes or do not.
INSTANTIATE_TEST_SUITE_P(Shapes, ConvEpilogueShapes,
                         testing::Values(Images{2, 64, 64, 64}, Images{2, 94, 64, 96},
                                         Images{3, 61, 32, 64}, Images{2, 28, 49, 28},
                                         Images{2, 30, 12, 32}, Images{1, 334, 16, 336},
                                         Images{2, 17, 31, 17}, Images{2, 17, 31, 24},
                                         Images{3, 1, 50, 8}, Images{1, 3, 1000, 4}));

}  // namespace
}  // namespace convtime
