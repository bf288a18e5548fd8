// Finds the CUDA library and checks that it belongs to this program.
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

#include "kernels/base/own_folder.h"
#include "kernels/core/device.h"
#include "kernels/core/device_build.h"

namespace ofsdp::kernels {
namespace {

constexpr const char* kLibrary = "libofsdp_cuda.so";

// Returns OFSDP_CUDA_LIBRARY alone if it is set; else paths next to us and in ../lib.
std::vector<std::filesystem::path> candidates() {
  if (const char* named = std::getenv("OFSDP_CUDA_LIBRARY"); named != nullptr && *named != 0) {
    return {named};
  }
  const auto folder = own_folder();
  return {folder / kLibrary, folder.parent_path() / "lib" / kLibrary};
}

// The library stays mapped: threads and exit handlers of the driver may still be in it at the end.
Result<const DeviceLibrary*> load(const std::filesystem::path& path) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return input_error("{}", dlerror());
  const auto* library = static_cast<const DeviceLibrary*>(dlsym(handle, "ofsdp_device_library"));
  const std::string_view build = library == nullptr ? "none" : library->build;
  if (build == kDeviceBuild) return library;
  return fault("{}: expected a library of this program's build {}, found {}", path.string(),
               kDeviceBuild, build);
}

Result<const DeviceLibrary*> find_library() {
  std::string tried;
  for (const auto& path : candidates()) {
    std::error_code error;
    if (std::filesystem::exists(path, error)) return load(path);
    tried += (tried.empty() ? "" : ", ") + path.string();
  }
  return input_error("no {} (looked for {})", kLibrary, tried);
}

}  // namespace

Result<int> count_devices() {
  OFSDP_ASSIGN_OR_RETURN(const DeviceLibrary* const library, find_library());
  return library->count();
}

Result<std::unique_ptr<Device>> find_device(int ordinal) {
  OFSDP_ASSIGN_OR_RETURN(const DeviceLibrary* const library, find_library());
  OFSDP_ASSIGN_OR_RETURN(const int count, library->count());
  if (ordinal >= count) {
    return input_error("--device cuda: rank {} of this host has no GPU of its own, found {}",
                       ordinal, count);
  }
  OFSDP_ASSIGN_OR_RETURN(auto device, library->open(ordinal));
  return with_streams(std::move(device));
}

}  // namespace ofsdp::kernels
