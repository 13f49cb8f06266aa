#include "program/nvrtc.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nvrtc.h>

#include <algorithm>
#include <memory>
#include <type_traits>

#include "program/sources.h"

namespace convtime {
namespace {

constexpr int kCudaMajor = CUDART_VERSION / 1000;
/// From this compute capability on, GPUs have instructions that later ones lack, and which the
/// compiler generates only for a target with the suffix "a".
constexpr int kFirstWithSuffix = 90;

[[noreturn]] void fail(const std::string& sentence) { throw CompileError(sentence); }

std::string joined(const std::vector<std::string>& parts) {
  std::string result;
  for (const std::string& part : parts) {
    result += (result.empty() ? "" : " ") + part;
  }
  return result;
}

}  // namespace

std::string Target::name() const {
  const bool has_suffix = is_machine_code && capability >= kFirstWithSuffix;
  return (is_machine_code ? "sm_" : "compute_") + std::to_string(capability) +
         (has_suffix ? "a" : "");
}

struct Nvrtc::Functions {
  decltype(&nvrtcVersion) version;
  decltype(&nvrtcGetErrorString) error_string;
  decltype(&nvrtcGetNumSupportedArchs) count_capabilities;
  decltype(&nvrtcGetSupportedArchs) capabilities;
  decltype(&nvrtcCreateProgram) create;
  decltype(&nvrtcDestroyProgram) destroy;
  decltype(&nvrtcAddNameExpression) add_name;
  decltype(&nvrtcCompileProgram) compile;
  decltype(&nvrtcGetLoweredName) lowered_name;
  decltype(&nvrtcGetProgramLogSize) log_size;
  decltype(&nvrtcGetProgramLog) log;
  decltype(&nvrtcGetCUBINSize) cubin_size;
  decltype(&nvrtcGetCUBIN) cubin;
  decltype(&nvrtcGetPTXSize) ptx_size;
  decltype(&nvrtcGetPTX) ptx;

  void check(nvrtcResult status, const char* call) const {
    if (status != NVRTC_SUCCESS) {
      fail(std::string("NVRTC call failed: ") + call + " returned " + error_string(status));
    }
  }
};

const Nvrtc& Nvrtc::instance() {
  // Never destroyed: threads may compile while the process ends.
  static const auto* const nvrtc = new Nvrtc("libnvrtc.so." + std::to_string(kCudaMajor));
  return *nvrtc;
}

Nvrtc::Nvrtc(const std::string& library) {
  // libconvtime's RPATH includes the folder of torch's NVRTC.
  void* const handle = dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = dlerror();
    fail("convtime compiles its GPU kernels with NVRTC, but cannot open " + library + " (" +
         (why == nullptr ? "unknown reason" : why) + "): reinstall torch with its nvidia packages");
  }
  auto functions = std::make_unique<Functions>();
  const auto find = [&](auto& function, const char* name) {
    void* const found = dlsym(handle, name);
    if (found == nullptr) {
      fail(library + " has no function " + name + ": reinstall torch with its nvidia packages");
    }
    function = reinterpret_cast<std::decay_t<decltype(function)>>(found);
  };
  find(functions->version, "nvrtcVersion");
  find(functions->error_string, "nvrtcGetErrorString");
  find(functions->count_capabilities, "nvrtcGetNumSupportedArchs");
  find(functions->capabilities, "nvrtcGetSupportedArchs");
  find(functions->create, "nvrtcCreateProgram");
  find(functions->destroy, "nvrtcDestroyProgram");
  find(functions->add_name, "nvrtcAddNameExpression");
  find(functions->compile, "nvrtcCompileProgram");
  find(functions->lowered_name, "nvrtcGetLoweredName");
  find(functions->log_size, "nvrtcGetProgramLogSize");
  find(functions->log, "nvrtcGetProgramLog");
  find(functions->cubin_size, "nvrtcGetCUBINSize");
  find(functions->cubin, "nvrtcGetCUBIN");
  find(functions->ptx_size, "nvrtcGetPTXSize");
  find(functions->ptx, "nvrtcGetPTX");

  int major = 0;
  int minor = 0;
  functions->check(functions->version(&major, &minor), "nvrtcVersion");
  version_ = std::to_string(major) + "." + std::to_string(minor);
  if (major != kCudaMajor) {
    fail(library + " is NVRTC " + version_ + ", but convtime was built for CUDA " +
         std::to_string(kCudaMajor) + ": reinstall torch with its nvidia packages");
  }
  int count = 0;
  functions->check(functions->count_capabilities(&count), "nvrtcGetNumSupportedArchs");
  capabilities_.resize(static_cast<std::size_t>(count));
  functions->check(functions->capabilities(capabilities_.data()), "nvrtcGetSupportedArchs");
  std::sort(capabilities_.begin(), capabilities_.end());
  functions_ = functions.release();
}

Target Nvrtc::target_for(int capability) const {
  const auto after = std::upper_bound(capabilities_.begin(), capabilities_.end(), capability);
  if (after == capabilities_.begin()) {
    fail("NVRTC " + version_ + " compiles for compute capability " +
         std::to_string(capabilities_.empty() ? 0 : capabilities_.front() / 10) + "." +
         std::to_string(capabilities_.empty() ? 0 : capabilities_.front() % 10) +
         " and later, but this GPU has " + std::to_string(capability / 10) + "." +
         std::to_string(capability % 10) + ": use a newer GPU, or device='cpu'");
  }
  const int known = *std::prev(after);
  return {known, known == capability};
}

Image Nvrtc::compile(const ProgramSource& source, const Target& target) const {
  const Functions& f = *functions_;
  const Sources& sources = Sources::embedded();
  const std::string text = "#include \"" + source.header + "\"\n";
  nvrtcProgram created = nullptr;
  f.check(f.create(&created, text.c_str(), "convtime.cu", static_cast<int>(sources.names.size()),
                   sources.texts.data(), sources.names.data()),
          "nvrtcCreateProgram");
  const auto destroy = [&f](nvrtcProgram program) { f.destroy(&program); };
  const std::unique_ptr<std::remove_pointer_t<nvrtcProgram>, decltype(destroy)> program(created,
                                                                                        destroy);
  for (const std::string& name : source.names) {
    f.check(f.add_name(created, name.c_str()), "nvrtcAddNameExpression");
  }
  // Functions without an attribute are for the device, so that headers of the host need none.
  const std::vector<std::string> options = {"--std=c++20", "--device-as-default-execution-space",
                                            "--gpu-architecture=" + target.name()};
  std::vector<const char*> arguments;
  for (const std::string& option : options) {
    arguments.push_back(option.c_str());
  }
  const nvrtcResult status =
      f.compile(created, static_cast<int>(arguments.size()), arguments.data());
  if (status != NVRTC_SUCCESS) {
    std::size_t size = 0;
    std::string log;
    if (f.log_size(created, &size) == NVRTC_SUCCESS && size > 1) {
      log.resize(size);
      (void)f.log(created, log.data());
      log.resize(size - 1);
    }
    fail("NVRTC " + version_ + " cannot compile " + joined(source.names) + " of " + source.header +
         " for " + target.name() + " (" + f.error_string(status) +
         "): report this as a defect of convtime, with the compiler's log:\n" + log);
  }
  Image image;
  for (const std::string& name : source.names) {
    const char* symbol = nullptr;
    f.check(f.lowered_name(created, name.c_str(), &symbol), "nvrtcGetLoweredName");
    image.symbols.emplace_back(symbol);
  }
  std::size_t size = 0;
  if (target.is_machine_code) {
    f.check(f.cubin_size(created, &size), "nvrtcGetCUBINSize");
    image.code.resize(size);
    f.check(f.cubin(created, image.code.data()), "nvrtcGetCUBIN");
  } else {
    f.check(f.ptx_size(created, &size), "nvrtcGetPTXSize");
    image.code.resize(size);
    f.check(f.ptx(created, image.code.data()), "nvrtcGetPTX");
  }
  return image;
}

}  // namespace convtime
