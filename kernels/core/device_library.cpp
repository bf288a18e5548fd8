// Where the CUDA library is looked for, and whether it may be used.
#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <filesystem>

#include "kernels/core/device.h"

namespace ofsdp::kernels {
namespace {

constexpr const char* kLibrary = "libofsdp_cuda.so";

struct Library {
  void* handle = nullptr;
  const ofsdp_device_table* table = nullptr;
};

// OFSDP_CUDA_LIBRARY alone where it is set; else beside the program and in ../lib.
std::vector<std::filesystem::path> candidates() {
  if (const char* named = std::getenv("OFSDP_CUDA_LIBRARY"); named != nullptr && *named != 0) {
    return {named};
  }
  std::error_code error;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  return {folder / kLibrary, folder.parent_path() / "lib" / kLibrary};
}

Result<Library> load(const std::filesystem::path& path) {
  Library library;
  library.handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library.handle == nullptr) return input_error("{}", dlerror());
  const auto entry =
      reinterpret_cast<ofsdp_device_entry>(dlsym(library.handle, OFSDP_DEVICE_ENTRY));
  if (entry == nullptr) return input_error("{}: no function {}", path.string(), OFSDP_DEVICE_ENTRY);
  library.table = entry(OFSDP_DEVICE_VERSION);
  if (library.table == nullptr || library.table->version != OFSDP_DEVICE_VERSION ||
      library.table->size < sizeof(ofsdp_device_table)) {
    return input_error("{}: expected device interface {} of {} bytes, found version {} of {}",
                       path.string(), OFSDP_DEVICE_VERSION, sizeof(ofsdp_device_table),
                       library.table == nullptr ? 0 : library.table->version,
                       library.table == nullptr ? 0 : library.table->size);
  }
  return library;
}

Result<Library> find_library() {
  std::string tried;
  for (const auto& path : candidates()) {
    std::error_code error;
    if (std::filesystem::exists(path, error)) return load(path);
    tried += (tried.empty() ? "" : ", ") + path.string();
  }
  return input_error("no {} (looked for {})", kLibrary, tried);
}

Result<int> devices_of(const Library& library) {
  std::array<char, 512> why{};
  const int count = library.table->probe(why.data(), why.size());
  if (count > 0) return count;
  return input_error("{}", why.data());
}

}  // namespace

Result<int> count_devices() {
  OFSDP_ASSIGN_OR_RETURN(const Library library, find_library());
  return devices_of(library);
}

Result<std::unique_ptr<Device>> find_device(int ordinal) {
  OFSDP_ASSIGN_OR_RETURN(const Library library, find_library());
  OFSDP_ASSIGN_OR_RETURN(const int count, devices_of(library));
  if (ordinal >= count) {
    return input_error("--device cuda: rank {} of this host has no GPU of its own, found {}",
                       ordinal, count);
  }
  return Device::open(*library.table, ordinal, library.handle);
}

}  // namespace ofsdp::kernels
