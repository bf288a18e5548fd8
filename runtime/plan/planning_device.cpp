#include "runtime/plan/planning_device.h"

#include <cstdio>
#include <string_view>

namespace ofsdp::runtime {
namespace {

// Handles that nobody looks into.
template <typename T>
T* handle() {
  static char there;
  return reinterpret_cast<T*>(&there);
}

ofsdp_kernel* make_kernel(ofsdp_device*, const ofsdp_problem* problem, size_t* workspace) {
  *workspace = 0;
  const std::string_view op = problem->op;
  const bool joined = op == "ofsdp.GemmEpilogue" || op == "ofsdp.AttentionWithStatistics";
  return joined ? nullptr : handle<ofsdp_kernel>();
}

ofsdp_device_table make_table() {
  ofsdp_device_table table{};
  table.version = OFSDP_DEVICE_VERSION;
  table.size = sizeof(table);
  table.missing = [](char* text, size_t) { text[0] = 0; };
  table.open = [](int32_t, char*, size_t) { return handle<ofsdp_device>(); };
  table.close = [](ofsdp_device*) {};
  table.describe = [](ofsdp_device*, char* text, size_t bytes) {
    std::snprintf(text, bytes, "a GPU that is not here");
  };
  table.error = [](ofsdp_device*) { return "it only plans"; };
  table.make_stream = [](ofsdp_device*, int32_t) { return handle<ofsdp_stream>(); };
  table.drop_stream = [](ofsdp_device*, ofsdp_stream*) {};
  table.native_stream = [](ofsdp_device*, ofsdp_stream*) -> void* {
    return handle<ofsdp_stream>();
  };
  table.allow = [](ofsdp_device*, uint32_t) { return 0; };
  table.make_kernel = make_kernel;
  table.drop_kernel = [](ofsdp_device*, ofsdp_kernel*) {};
  return table;
}

const ofsdp_device_table& planning_table() {
  static const ofsdp_device_table table = make_table();
  return table;
}

}  // namespace

Result<std::unique_ptr<Device>> make_planning_device() { return Device::open(planning_table(), 0); }

bool only_plans(const Device& device) { return &device.table() == &planning_table(); }

}  // namespace ofsdp::runtime
