#include "program/program.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gpu.h"
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
  try {
    const Nvrtc nvrtc(library);
  } catch (const CompileError& error) {
    return error.what();
  }
  return "";
}

TEST(NvrtcTest, SaysWhatIsWrongWithTheLibrary) {
  const std::string missing = failure_of("libno_such_library.so");
  EXPECT_NE(missing.find("cannot open libno_such_library.so"), std::string::npos) << missing;
  EXPECT_NE(missing.find("reinstall torch"), std::string::npos) << missing;
  const std::string incomplete = failure_of("libm.so.6");
  EXPECT_NE(incomplete.find("libm.so.6 has no function nvrtc"), std::string::npos) << incomplete;
  const std::string other = failure_of(FAKE_NVRTC);
  EXPECT_NE(other.find("is NVRTC 11.8, but convtime was built for CUDA"), std::string::npos)
      << other;
}

TEST(NvrtcTest, KnowsTheGpusOfToday) {
  for (const int capability : {75, 80, 86, 89, 90, 100, 120}) {
    const Target target = Nvrtc::instance().target_for(capability);
    EXPECT_EQ(target.capability, capability);
    EXPECT_TRUE(target.is_machine_code);
  }
}

TEST(NvrtcTest, CompilesPtxForGpusItDoesNotKnow) {
  const Target target = Nvrtc::instance().target_for(990);
  EXPECT_FALSE(target.is_machine_code);
  EXPECT_GE(target.capability, 120);
  EXPECT_LT(target.capability, 990);
  const Image image = Nvrtc::instance().compile(timing_program(), target);
  EXPECT_NE(image.code.find(".target sm_"), std::string::npos);
  EXPECT_NE(image.code.find(".visible .entry " + image.symbols.front()), std::string::npos);
}

TEST(NvrtcTest, RefusesGpusThatAreTooOld) {
  try {
    (void)Nvrtc::instance().target_for(30);
    FAIL() << "compute capability 3.0 was accepted";
  } catch (const CompileError& error) {
    EXPECT_NE(std::string(error.what()).find("this GPU has 3.0"), std::string::npos);
  }
}

TEST(NvrtcTest, ShowsTheCompilersLog) {
  try {
    (void)Nvrtc::instance().compile({"core/device_clocks.cuh", {"convtime::no_kernel"}}, {90});
    FAIL() << "an unknown kernel was compiled";
  } catch (const CompileError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("cannot compile convtime::no_kernel"), std::string::npos);
    EXPECT_NE(message.find("sm_90a"), std::string::npos);
    EXPECT_NE(message.find("no_kernel\""), std::string::npos) << "no log:\n" << message;
  }
}

TEST(NvrtcTest, CompilesForAllGpus) {
  for (const int capability : {75, 80, 86, 89, 90, 100, 103, 120}) {
    const Target target = Nvrtc::instance().target_for(capability);
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

TEST(ProgramsOnGpu, LoadOnceForAllThreads) {
  SKIP_WITHOUT_GPU();
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

TEST(ProgramsOnGpu, LoadDuringACapture) {
  SKIP_WITHOUT_GPU();
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

TEST(ProgramsOnGpu, FailAgainAfterAFailure) {
  SKIP_WITHOUT_GPU();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(load_kernels({"core/device_clocks.cuh", {"convtime::no_kernel"}}), CompileError);
  }
}

}  // namespace
}  // namespace convtime
