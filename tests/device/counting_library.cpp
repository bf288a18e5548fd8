// The library's factory and memory, and the facts that the device reports.
#include <sys/mman.h>

#include <cstdlib>
#include <fstream>

#include "kernels/core/device_build.h"
#include "kernels/core/memory.h"
#include "kernels/cpu/parallel.h"
#include "tests/device/counting_device.h"

namespace ofsdp::counting {
namespace {

Result<int> count() {
  const std::string why = variable("COUNTING_DEVICE_PROBE");
  if (!why.empty()) return input_error("{}", why);
  return 1;
}

Result<std::unique_ptr<Device>> open(int) { return std::unique_ptr<Device>(new CountingDevice); }

}  // namespace

CountingDevice::CountingDevice() {
  set_pool_threads(1);  // as many as the program has in the tests
  random = std::strtoull(variable("COUNTING_DEVICE_SEED"), nullptr, 10) * 2 + 1;
}

CountingDevice::~CountingDevice() {
  drop_streams();
  stop_serving();
  const char* file = variable("COUNTING_DEVICE_REPORT");
  if (file[0] == 0) return;
  std::string name = file;
  if (place >= 0) name += "." + std::to_string(place);
  std::ofstream report(name);
  for (const auto& [counter, count] : counts) report << counter << " " << count << "\n";
  for (const std::string& text : violations) report << "violation " << text << "\n";
}

Result<void*> CountingDevice::allocate(DevicePlace where, size_t bytes) {
  const std::lock_guard lock(mutex);
  const bool is_pinned = where == DevicePlace::kPinned;
  if (capturing()) (void)violation("memory is allocated in a capture");
  ++counts[is_pinned ? "pinned_allocations" : "allocations"];
  counts[is_pinned ? "pinned_bytes" : "bytes"] += static_cast<long>(region_bytes(bytes));
  const int may = is_pinned ? PROT_READ | PROT_WRITE : PROT_NONE;
  void* data = mmap(nullptr, region_bytes(bytes), may, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return refused();
  allocations[static_cast<std::byte*>(data)] = {bytes, is_pinned};
  return data;
}

void CountingDevice::release(DevicePlace, void* data) {
  const std::lock_guard lock(mutex);
  const auto it = allocations.find(static_cast<std::byte*>(data));
  if (it == allocations.end()) {
    (void)violation("memory is released that was not allocated");
    return;
  }
  for (ofsdp_stream* stream : streams) {
    if (!stream->queue.empty()) {
      (void)run_until([&] { return stream->queue.empty(); });
    }
  }
  ++counts["releases"];
  munmap(data, region_bytes(it->second.bytes));
  allocations.erase(it);
}

Status CountingDevice::allow(uint32_t what) {
  tf32 = (what & OFSDP_MAY_ROUND_TO_TF32) != 0;
  counts["may_vary"] = (what & OFSDP_MAY_VARY) != 0 ? 1 : 0;
  return {};
}

Status CountingDevice::violation(const std::string& text) {
  error = text;
  if (violations.size() < 20) violations.push_back(text);
  return refused();
}

bool CountingDevice::holds(const void* data, size_t bytes, bool pinned_too, const char* where) {
  const auto* begin = static_cast<const std::byte*>(data);
  auto it = allocations.upper_bound(begin);
  if (it != allocations.begin() && bytes > 0) {
    --it;
    const bool inside = begin + bytes <= it->first + it->second.bytes;
    if (inside && (pinned_too || !it->second.pinned)) return true;
  }
  if (bytes == 0) return true;
  (void)violation(format_text("{}: {} bytes at {} are not in {} allocation", where, bytes, data,
                              pinned_too ? "an" : "a device's"));
  return false;
}

bool CountingDevice::pinned(const void* data) const {
  const auto it = allocations.upper_bound(static_cast<const std::byte*>(data));
  return it != allocations.begin() && std::prev(it)->second.pinned;
}

void CountingDevice::protect(bool open) {
  for (const auto& [data, allocation] : allocations) {
    if (allocation.pinned) continue;
    mprotect(const_cast<std::byte*>(data), region_bytes(allocation.bytes),
             open ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
}

}  // namespace ofsdp::counting

extern "C" {
extern const ofsdp::kernels::DeviceLibrary ofsdp_device_library;
const ofsdp::kernels::DeviceLibrary ofsdp_device_library{
    ofsdp::kernels::kDeviceBuild, ofsdp::counting::count, ofsdp::counting::open};
}
