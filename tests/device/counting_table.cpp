// The table's entry, what it says about itself, and memory.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "kernels/core/memory.h"
#include "kernels/cpu/parallel.h"
#include "tests/device/counting_device.h"

namespace {

using ofsdp::region_bytes;

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int32_t probe(char* text, size_t bytes) {
  std::snprintf(text, bytes, "%s", variable("COUNTING_DEVICE_PROBE"));
  return text[0] == 0 ? 1 : 0;
}

void missing(char* text, size_t) { text[0] = 0; }

ofsdp_device* open(int32_t, char*, size_t) {
  ofsdp::set_pool_threads(1);  // the tests run the program with as many
  auto* device = new ofsdp_device;
  device->random = std::strtoull(variable("COUNTING_DEVICE_SEED"), nullptr, 10) * 2 + 1;
  return device;
}

void close(ofsdp_device* device) {
  device->stop_serving();
  if (const char* file = variable("COUNTING_DEVICE_REPORT"); file[0] != 0) {
    std::string name = file;
    if (device->place >= 0) name += "." + std::to_string(device->place);
    std::ofstream report(name);
    for (const auto& [name, count] : device->counts) report << name << " " << count << "\n";
    for (const std::string& text : device->violations) report << "violation " << text << "\n";
  }
  delete device;
}

void describe(ofsdp_device*, char* text, size_t bytes) {
  std::snprintf(text, bytes, "a device that counts, in host memory");
}

const char* error_text(ofsdp_device* device) { return device->error.c_str(); }

void* map(ofsdp_device* device, size_t bytes, bool pinned) {
  if (device->capturing()) device->violation("memory is allocated in a capture");
  ++device->counts[pinned ? "pinned_allocations" : "allocations"];
  device->counts[pinned ? "pinned_bytes" : "bytes"] += static_cast<long>(region_bytes(bytes));
  const int may = pinned ? PROT_READ | PROT_WRITE : PROT_NONE;
  void* data = mmap(nullptr, region_bytes(bytes), may, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  device->allocations[static_cast<std::byte*>(data)] = {bytes, pinned};
  return data;
}

void* allocate(ofsdp_device* device, size_t bytes) { return map(device, bytes, false); }
void* allocate_host(ofsdp_device* device, size_t bytes) { return map(device, bytes, true); }

void release(ofsdp_device* device, void* data) {
  const auto it = device->allocations.find(static_cast<std::byte*>(data));
  if (it == device->allocations.end()) {
    device->violation("memory is released that was not allocated");
    return;
  }
  for (ofsdp_stream* stream : device->streams) {
    if (!stream->queue.empty()) {
      (void)device->run_until([&] { return stream->queue.empty(); });
    }
  }
  ++device->counts["releases"];
  munmap(data, region_bytes(it->second.bytes));
  device->allocations.erase(it);
}

int32_t allow(ofsdp_device* device, uint32_t what) {
  device->tf32 = (what & OFSDP_MAY_ROUND_TO_TF32) != 0;
  device->counts["may_vary"] = (what & OFSDP_MAY_VARY) != 0 ? 1 : 0;
  return 0;
}

ofsdp_device_table make_table() {
  ofsdp_device_table table{};
  table.version = OFSDP_DEVICE_VERSION;
  table.size = sizeof(table);
  table.probe = probe;
  table.missing = missing;
  table.open = open;
  table.close = close;
  table.describe = describe;
  table.error = error_text;
  table.allow = allow;
  table.allocate = table.allocate_shared = ofsdp::counting::Locked<allocate>::call;
  table.release = table.release_host = ofsdp::counting::Locked<release>::call;
  table.allocate_host = ofsdp::counting::Locked<allocate_host>::call;
  ofsdp::counting::add_order(table);
  ofsdp::counting::add_work(table);
  ofsdp::counting::add_groups(table);
  ofsdp::counting::add_exact(table);
  return table;
}

}  // namespace

int32_t ofsdp_device::violation(const std::string& text) {
  error = text;
  if (violations.size() < 20) violations.push_back(text);
  return 1;
}

bool ofsdp_device::holds(const void* data, size_t bytes, bool pinned_too, const char* where) {
  const auto* begin = static_cast<const std::byte*>(data);
  auto it = allocations.upper_bound(begin);
  if (it != allocations.begin() && bytes > 0) {
    --it;
    const bool inside = begin + bytes <= it->first + it->second.bytes;
    if (inside && (pinned_too || !it->second.pinned)) return true;
  }
  if (bytes == 0) return true;
  violation(ofsdp::format_text("{}: {} bytes at {} are not in {} allocation", where, bytes, data,
                               pinned_too ? "an" : "a device's"));
  return false;
}

bool ofsdp_device::pinned(const void* data) const {
  const auto it = allocations.upper_bound(static_cast<const std::byte*>(data));
  return it != allocations.begin() && std::prev(it)->second.pinned;
}

void ofsdp_device::protect(bool open) {
  for (const auto& [data, allocation] : allocations) {
    if (allocation.pinned) continue;
    mprotect(const_cast<std::byte*>(data), region_bytes(allocation.bytes),
             open ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
}

extern "C" const ofsdp_device_table* ofsdp_device_table_get(uint32_t version) {
  static const ofsdp_device_table table = make_table();
  return version == OFSDP_DEVICE_VERSION ? &table : nullptr;
}
