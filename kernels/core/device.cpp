#include "kernels/core/device.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/process.h"
#include "kernels/core/device_build.h"

namespace ofsdp::kernels {

namespace {

constexpr const char* kLibrary = "libofsdp_cuda.so";

// Returns only OFSDP_CUDA_LIBRARY if set; else paths next to this program and in ../lib.
std::vector<std::filesystem::path> candidates() {
  if (const char* named = std::getenv("OFSDP_CUDA_LIBRARY"); named != nullptr && *named != 0) {
    return {named};
  }
  const auto folder = own_folder();
  return {folder / kLibrary, folder.parent_path() / "lib" / kLibrary};
}

// The library stays mapped: driver threads and exit handlers may still be in it when the process
// ends.
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
  return input_error("this build has no CUDA: see install.md of the documentation (no {})", tried);
}

}  // namespace

Result<std::unique_ptr<Device>> with_streams(std::unique_ptr<Device> device) {
  for (ofsdp_stream** stream : {&device->compute_, &device->communication_, &device->upload_}) {
    auto made = device->make_stream(stream == &device->communication_);
    if (!made.ok()) return std::move(made).status().with_prefix("a stream");
    *stream = *made;
  }
  return device;
}

Result<DeviceMemory> DeviceMemory::allocate(Device& device, MemoryLedger& ledger, size_t bytes,
                                            Place place, const std::string& name) {
  DeviceMemory memory;
  if (bytes == 0) return memory;
  const size_t whole = region_bytes(bytes);
  const auto data = device.allocate(place, whole);
  if (!data.ok()) {
    return fault("no memory for {}: {} bytes ({})", name, whole, data.error().message());
  }
  memory.data_ = {static_cast<std::byte*>(*data), DeviceMemoryDrop{&device, &ledger, place, whole}};
  ledger.add(whole);
  return memory;
}

Result<DeviceEvent> DeviceEvent::make(Device& device, bool timed) {
  auto event = device.make_event(timed);
  if (!event.ok()) return std::move(event).status().with_prefix("an event");
  DeviceEvent made;
  made.event_ = {*event, DeviceEventDrop{&device}};
  return made;
}

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
