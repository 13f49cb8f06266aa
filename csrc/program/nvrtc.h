#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "core/export.h"

namespace convtime {

/// A program to compile: a header of the library, and the kernels to instantiate from it.
struct ProgramSource {
  std::string header;              ///< as an #include names it: "kernels/mlp/clusters.cuh"
  std::vector<std::string> names;  ///< name expressions: "convtime::mlp::fill_kernel"
};

/// The code to generate: machine code of one GPU, or PTX, which the driver compiles for later ones.
struct Target {
  int capability = 0;  ///< 90 for compute capability 9.0
  bool is_machine_code = true;

  /// Return "sm_90a" or "compute_90". From 9.0 on, machine code may use all of its GPU's
  /// instructions, as the suffix says.
  CONVTIME_API std::string name() const;
};

/// What the compiler made of a program.
struct Image {
  std::vector<std::string> symbols;  ///< of the kernels, in the order of ProgramSource::names
  std::string code;
};

/// NVRTC is unavailable or does not compile a program. The message is one sentence, followed by the
/// compiler's log where there is one.
class CompileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// NVRTC, the compiler that comes with PyTorch, opened when it is first used. Thread-safe.
class Nvrtc {
 public:
  /// Return PyTorch's NVRTC. Throws what the constructor throws, and tries again in the next call.
  CONVTIME_API static const Nvrtc& instance();

  /// Open a library, which is never closed. Throws CompileError if it is missing, incomplete, or of
  /// another major version than the CUDA version that convtime was built for.
  CONVTIME_API explicit Nvrtc(const std::string& library);

  /// Return the version, such as "13.2".
  const std::string& version() const { return version_; }

  /// Return the target for a GPU: its machine code, or PTX of the latest GPU that NVRTC knows if
  /// the GPU is newer. Throws CompileError if NVRTC does not support a GPU that old.
  CONVTIME_API Target target_for(int capability) const;

  /// Throws CompileError.
  CONVTIME_API Image compile(const ProgramSource& source, const Target& target) const;

 private:
  struct Functions;

  const Functions* functions_;
  std::string version_;
  std::vector<int> capabilities_;  // that it compiles for, ascending
};

}  // namespace convtime
