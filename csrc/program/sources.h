#pragma once

#include <string_view>
#include <vector>

namespace convtime {

/// The library's device code, which the build embeds (cmake/embed_sources.py): all .cuh files of
/// csrc, what they include, and program/std in place of the C++ standard library.
struct Sources {
  std::vector<const char*> names;  ///< as #include names them
  std::vector<const char*> texts;
  std::string_view digest;  ///< of all names and texts

  static const Sources& embedded();
};

}  // namespace convtime
