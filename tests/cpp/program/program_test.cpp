#include "program/program.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gpu.h"
#include "helpers.h"
#include "program/nvrtc.h"
#include "timing/device/kernels.h"

namespace convtime {
namespace {

const ProgramSource kKnownDuration{
    "kernels/known_duration/known_duration.cuh",
    {"convtime::spin_kernel", "convtime::sleep_kernel<convtime::sm_cycles>"}};

TEST(Targets, NameTheGpusOwnInstructions) {
  EXPECT_EQ((Target{75}.name()), "sm_75");
  EXPECT_EQ((Target{89}.name()), "sm_89");
  EXPECT_EQ((Target{90}.name()), "sm_90a");
  EXPECT_EQ((Target{120}.name()), "sm_120a");
  EXPECT_EQ((Target{120, false}.name()), "compute_120");
}

TEST(KnownSizes, AreTheFirstSixteenOfEachKernel) {
  KnownSizes<std::string, int> sizes;
  for (int size = 0; size < 16; ++size) {
    EXPECT_TRUE(sizes.admit("a", size));
  }
  EXPECT_FALSE(sizes.admit("a", 16));
  EXPECT_TRUE(sizes.admit("a", 15));
  EXPECT_TRUE(sizes.admit("b", 16));
}

std::string failure_of(const std::string& library) {
  return error_of<CompileError>([&] { const Nvrtc nvrtc(library); });
}

TEST(NvrtcTest, SaysWhatIsWrongWithTheLibrary) {
  const std::string missing = failure_of("libno_such_library.so");
  EXPECT_TRUE(contains(missing, "cannot open libno_such_library.so"));
  EXPECT_TRUE(contains(missing, "reinstall torch"));
  EXPECT_TRUE(contains(failure_of("libm.so.6"), "libm.so.6 has no function nvrtc"));
  EXPECT_TRUE(contains(failure_of(FAKE_NVRTC), "is NVRTC 11.8, but convtime was built for CUDA"));
}

TEST(NvrtcTest, CompilesPtxForGpusItDoesNotKnow) {
  const Target target = Nvrtc::instance().target_for(990);
  EXPECT_FALSE(target.is_machine_code);
  EXPECT_GE(target.capability, 120);
  EXPECT_LT(target.capability, 990);
  const Image image = Nvrtc::instance().compile(timing_program(), target);
  EXPECT_TRUE(contains(image.code, ".target sm_"));
  EXPECT_TRUE(contains(image.code, ".visible .entry " + image.symbols.front()));
}

TEST(NvrtcTest, SaysWhatItCannotCompile) {
  EXPECT_TRUE(contains(error_of<CompileError>([] { (void)Nvrtc::instance().target_for(30); }),
                       "this GPU has 3.0"));
  const std::string log = error_of<CompileError>([] {
    (void)Nvrtc::instance().compile({"core/device_clocks.cuh", {"convtime::no_kernel"}}, {90});
  });
  EXPECT_TRUE(contains(log, "cannot compile convtime::no_kernel"));
  EXPECT_TRUE(contains(log, "sm_90a"));
  EXPECT_TRUE(contains(log, "no_kernel\""));
}

TEST(NvrtcTest, CompilesForAllGpus) {
  for (const int capability : {75, 80, 86, 89, 90, 100, 103, 120}) {
    const Target target = Nvrtc::instance().target_for(capability);
    EXPECT_EQ(target.capability, capability);
    EXPECT_TRUE(target.is_machine_code);
    for (const ProgramSource& source : {timing_program(), kKnownDuration}) {
      const Image image = Nvrtc::instance().compile(source, target);
      EXPECT_EQ(image.symbols.size(), source.names.size());
      EXPECT_EQ(image.code.substr(1, 3), "ELF");
    }
  }
}

TEST(NvrtcTest, CompilesInSeveralThreads) {
  std::atomic<int> compiled = 0;
  std::vector<std::thread> threads;
  for (const int capability : {80, 86, 89, 90}) {
    threads.emplace_back([&compiled, capability] {
      compiled += Nvrtc::instance().compile(kKnownDuration, {capability}).code.empty() ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(compiled, 4);
}

using ProgramsOnGpu = GpuTest;

TEST_F(ProgramsOnGpu, LoadOnceForAllThreads) {
  std::array<std::vector<Kernel>, 4> kernels;
  std::vector<std::thread> threads;
  for (std::vector<Kernel>& of_thread : kernels) {
    threads.emplace_back([&of_thread] { of_thread = load_kernels(kKnownDuration); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::vector<Kernel>& of_thread : kernels) {
    ASSERT_EQ(of_thread.size(), 2U);
    EXPECT_EQ(of_thread[0].function(), kernels[0][0].function());
    EXPECT_EQ(of_thread[1].function(), kernels[0][1].function());
  }
  EXPECT_GT(kernel_loading_seconds(), 0);
}

TEST_F(ProgramsOnGpu, LoadDuringACapture) {
  cudaStream_t stream = nullptr;
  CONVTIME_CUDA_CHECK(cudaStreamCreate(&stream));
  CONVTIME_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  // Another order of names makes another program, which no test has loaded.
  const std::vector<Kernel> kernels = load_kernels(
      {kKnownDuration.header, {kKnownDuration.names.rbegin(), kKnownDuration.names.rend()}});
  kernels.front().launch(1, 1, 0, stream, std::uint64_t{1000});
  cudaGraph_t graph = nullptr;
  CONVTIME_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  std::size_t nodes = 0;
  CONVTIME_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 1U);
  CONVTIME_CUDA_CHECK(cudaGraphDestroy(graph));
  CONVTIME_CUDA_CHECK(cudaStreamDestroy(stream));
}

TEST_F(ProgramsOnGpu, FailAgainAfterAFailure) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(load_kernels({"core/device_clocks.cuh", {"convtime::no_kernel"}}), CompileError);
  }
}

}  // namespace
}  // namespace convtime
