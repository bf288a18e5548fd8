// Shared by the fuzz targets. A target defines LLVMFuzzerTestOneInput, and LLVMFuzzerCustomMutator
// if random bytes would not pass the first check. libFuzzer calls them; so does driver.cpp, which
// needs only the build's compiler.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" [[gnu::weak]] size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most,
                                                        unsigned seed);

namespace ofsdp::fuzzing {

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// A file with these bytes, for this process; the next call with the same name replaces it.
inline std::string file_with(const std::string& name, std::string_view bytes) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("ofsdp_fuzz_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const auto path = folder / name;
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  return path.string();
}

// A message must be one line and not empty.
inline void check_message(const std::string& message) {
  if (message.empty() || message.find('\n') != std::string::npos) std::abort();
}

}  // namespace ofsdp::fuzzing
