// Device: a device library's table (kernels/core/device_table.h) as objects that release themselves
// and as Status. The CPU is no Device: its path does not come here.
//
//   DeviceMemory  an allocation on the device, or pinned on the host; counted in a ledger if given
//   DeviceKernel  an operator for one problem; `run` only puts it on a stream of the device
//   find_device   the library beside the program, in ../lib or where OFSDP_CUDA_LIBRARY says, opened
//                 with dlopen; the program neither contains nor needs it
//
// Ownership: Device owns the library's handle and its streams and outlives all that is made from it.
// Threads: one. Errors: kFault with what the library says; kInput from find_device when there is no
// library, driver or device, in one line.
#pragma once

#include <memory>
#include <string>

#include "kernels/core/device_table.h"
#include "kernels/core/kernel.h"
#include "kernels/core/memory.h"

namespace ofsdp::kernels {

// What kernels of a device get instead of the values of a StepContext, which are in device memory.
struct DeviceStepContext : StepContext {
  const ofsdp_step_numbers* numbers = nullptr;
  int64_t samples = 0;
  ofsdp_data_fault* fault = nullptr;  // device memory
  uint64_t node = 0;                  // what the kernel that runs is called there
  ofsdp_stream* stream = nullptr;     // null: the compute stream
};

class Device {
 public:
  // `library` is a handle of dlopen, or null; the table outlives the Device.
  static Result<std::unique_ptr<Device>> open(const ofsdp_device_table& table, int ordinal,
                                              void* library = nullptr);
  Device(const Device&) = delete;
  ~Device();

  const ofsdp_device_table& table() const { return table_; }
  ofsdp_device* handle() const { return device_; }
  ofsdp_stream* compute() const { return compute_; }
  ofsdp_stream* communication() const { return communication_; }
  ofsdp_stream* upload() const { return upload_; }
  void* native_compute() const { return table_.native_stream(device_, compute_); }
  std::string description() const;
  std::string missing() const;  // libraries that would make it faster: a line each

  // What a call of the table returned.
  Status check(int32_t result, const char* what) const;
  template <typename... Params, typename... Args>
  Status call(const char* what, int32_t (*function)(ofsdp_device*, Params...), Args... args) {
    return check(function(device_, args...), what);
  }

  // Of kernels made from then on.
  Status allow(uint32_t what) { return call("a permission", table_.allow, what); }
  // Null: the library has no kernel that accepts the problem.
  std::unique_ptr<Kernel> make_kernel(const std::string& op, const Problem& problem);

 private:
  Device(const ofsdp_device_table& table, void* library) : table_(table), library_(library) {}

  const ofsdp_device_table& table_;
  void* library_ = nullptr;
  ofsdp_device* device_ = nullptr;
  ofsdp_stream* compute_ = nullptr;
  ofsdp_stream* communication_ = nullptr;
  ofsdp_stream* upload_ = nullptr;
};

class DeviceMemory {
 public:
  enum class Place { kDevice, kShared, kPinned };  // kShared: that other ranks may reach

  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory();

  // 0 bytes give an empty one. Device and ledger outlive it. Counted in whole pages, as a Region.
  static Result<DeviceMemory> allocate(Device& device, MemoryLedger& ledger, size_t bytes,
                                       Place place, const std::string& name);

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  MemoryLedger* ledger_ = nullptr;
  Place place_ = Place::kDevice;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// An event, or a graph: dropped with the device's own function.
class DeviceEvent {
 public:
  DeviceEvent() = default;
  static Result<DeviceEvent> make(Device& device, bool timed = false);
  DeviceEvent(DeviceEvent&& other) noexcept;
  DeviceEvent& operator=(DeviceEvent&& other) noexcept;
  ~DeviceEvent();
  ofsdp_event* get() const { return event_; }

 private:
  Device* device_ = nullptr;
  ofsdp_event* event_ = nullptr;
};

struct DeviceGraphDrop {
  Device* device = nullptr;
  void operator()(ofsdp_device_graph* graph) const {
    device->table().drop_graph(device->handle(), graph);
  }
};
using DeviceGraph = std::unique_ptr<ofsdp_device_graph, DeviceGraphDrop>;

// The CUDA library, and device `ordinal` of it.
Result<std::unique_ptr<Device>> find_device(int ordinal);
// How many devices there are, or why there is none, in one line.
Result<int> count_devices();

}  // namespace ofsdp::kernels
