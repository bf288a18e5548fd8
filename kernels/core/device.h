// Device: the interface to a GPU or a stand-in. libofsdp_cuda.so implements it for NVIDIA GPUs
// (kernels/cuda/device), tests/device in host memory, runtime/compile for planning only.
//
//   Device        memory, streams, kernels, arithmetic of updates, ranks, trace
//   DeviceMemory  an allocation on the device, or pinned on the host; counted in a ledger
//   DeviceEvent   an event; DeviceGraph, a captured graph: both release themselves
//   find_device   opens the library with dlopen, next to the program, in ../lib or where
//                 OFSDP_CUDA_LIBRARY says; the program neither contains nor needs it
//
// A stream runs work in order. An event recorded on one stream and awaited on another orders
// the two. No call that takes a stream waits, allocates or reads device memory on the host. Between
// capture_begin and capture_end, the stream, and streams that wait for events from it, record work
// instead of running it; each of them must join it again by an event. A graph may be launched any
// number of times.
//
// The caller that makes a handle (stream, event, graph, group) drops it; the Device outlives all
// handles. Only one thread calls a device unless a comment says otherwise. A failing call returns
// kFault with the device's text. find_device returns kInput if there is no library, driver or
// device, and kFault if library and program were built from different sources.
//
// REQUIRES: the same compiler built library and program from the same sources. DeviceLibrary holds
// a hash over the headers (cmake/device_build.cmake), which find_device compares.
#pragma once

#include <memory>
#include <string>

#include "kernels/core/device_values.h"
#include "kernels/core/kernel.h"
#include "kernels/core/memory.h"

namespace ofsdp::kernels {

// Device kernels read these values from device memory.
struct DeviceStepContext : StepContext {
  const ofsdp_step_numbers* numbers = nullptr;
  int64_t samples = 0;
  ofsdp_data_fault* fault = nullptr;  // device memory
  uint64_t node = 0;                  // the running kernel's number, for reports in `fault`
  ofsdp_stream* stream = nullptr;     // null: the compute stream
};

enum class DevicePlace { kDevice, kShared, kPinned };  // kShared: other ranks may reach it

// A call that an implementation does not override returns kFault.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  virtual ~Device() = default;

  virtual std::string description() const = 0;
  // Returns the missing libraries that would make the device faster, one per line.
  virtual std::string missing() const { return ""; }

  // Every run has these streams.
  ofsdp_stream* compute() const { return compute_; }
  ofsdp_stream* communication() const { return communication_; }
  ofsdp_stream* upload() const { return upload_; }
  void* native_compute() { return native_stream(compute_); }

  // --- Memory, zero-filled ---
  virtual Result<void*> allocate(DevicePlace, size_t /*bytes*/) { return refused(); }
  virtual void release(DevicePlace, void*) {}

  // --- Streams and order ---
  virtual Result<ofsdp_stream*> make_stream(bool /*urgent*/) { return refused(); }
  virtual void drop_stream(ofsdp_stream*) {}
  // Returns the cudaStream_t, for other libraries that put work onto the stream between Device
  // calls, under the same rules. It lives as long as the stream, in the context of the thread that
  // opened the device.
  virtual void* native_stream(ofsdp_stream*) { return nullptr; }
  virtual Result<ofsdp_event*> make_event(bool /*timed*/) { return refused(); }
  virtual void drop_event(ofsdp_event*) {}
  virtual Status record(ofsdp_event*, ofsdp_stream*) { return refused(); }
  // As record, but the host waits for the event. In a capture the event belongs to the graph: each
  // launch records it anew, and no stream may wait for it.
  virtual Status signal(ofsdp_event*, ofsdp_stream*) { return refused(); }
  virtual Status wait(ofsdp_stream*, ofsdp_event*) { return refused(); }  // the stream waits
  virtual Status await(ofsdp_event*) { return refused(); }                // the host waits
  virtual Result<bool> reached(ofsdp_event*) { return refused(); }        // nobody waits
  virtual Status synchronize() { return refused(); }  // the host waits for everything
  virtual Status copy(ofsdp_stream*, void* /*dst*/, const void* /*src*/, size_t) {
    return refused();
  }
  virtual Status clear(ofsdp_stream*, void* /*dst*/, size_t) { return refused(); }  // to 0
  // Writes a value into pinned memory, for a host that must not wait.
  virtual Status mark(ofsdp_stream*, int64_t* /*pinned*/, int64_t /*value*/) { return refused(); }
  virtual Status capture_begin(ofsdp_stream*) { return refused(); }
  virtual Result<ofsdp_device_graph*> capture_end(ofsdp_stream*) { return refused(); }
  virtual Status launch(ofsdp_device_graph*, ofsdp_stream*) { return refused(); }
  virtual void drop_graph(ofsdp_device_graph*) {}

  // --- Kernels ---
  // Permits liberties (a sum of OFSDP_MAY_*) by which kernels made from now on may be faster.
  virtual Status allow(uint32_t /*what*/) { return refused(); }
  // Returns null if no implementation accepts the problem. The kernel's `run` only puts work on a
  // stream.
  virtual std::unique_ptr<Kernel> make_kernel(const std::string& op, const Problem& problem,
                                              KernelChoice* choice = nullptr) = 0;

  // --- Arithmetic between nodes; float32, float16, bfloat16 ---
  virtual Status begin(ofsdp_stream*, ofsdp_run_state*, ofsdp_step_numbers*, bool /*begins_update*/,
                       bool /*scales_loss*/) {
    return refused();
  }
  virtual Status note_loss(ofsdp_stream*, ofsdp_run_state*, int /*index*/, const float*,
                           bool /*stops_at_nan*/) {
    return refused();
  }
  virtual Status convert(ofsdp_stream*, const void* /*src*/, int32_t /*from*/, void* /*dst*/,
                         int32_t /*to*/, int64_t /*count*/) {
    return refused();
  }
  virtual Status add(ofsdp_stream*, const void* /*src*/, int32_t /*from*/, float* /*dst*/,
                     int64_t /*count*/) {
    return refused();
  }
  virtual Status round(ofsdp_stream*, float*, int32_t /*to*/, int64_t) { return refused(); }
  virtual Status reduce(ofsdp_stream*, const ofsdp_reduce*) { return refused(); }
  virtual Status clip(ofsdp_stream*, ofsdp_run_state*, double /*most*/, bool /*scales_loss*/) {
    return refused();
  }
  // Sums squares exactly, independent of order and cuts (kernels/optimizers/squares.h). `sum` must
  // be 0 at first; take_exact_sum clears it and writes OFSDP_EXACT_LIMBS doubles, whole numbers,
  // least significant first, which ranks can add; the first is NaN if a value was not finite.
  virtual Status add_exact_squares(ofsdp_stream*, const float*, int64_t, ofsdp_exact_sum*) {
    return refused();
  }
  virtual Status take_exact_sum(ofsdp_stream*, ofsdp_exact_sum*, double* /*limbs*/) {
    return refused();
  }
  virtual Status exact_norm(ofsdp_stream*, const double* /*limbs*/, ofsdp_run_state*) {
    return refused();
  }

  // --- Several ranks --- All ranks in a group make the same calls in the same order, and capture
  // and launch alike. join_group, split_group, make_known and leave_group may wait for other ranks,
  // as long as the ofsdp_patience given to join_group permits. A group must be left, or aborted and
  // then left, before the device ends.
  virtual uint64_t identity() const { return 0; }  // equal in two processes that share a device
  // Returns ok if ranks can join a group, `sharing` ranks per device; writes the name of the
  // library that joins them to `engine`.
  virtual Status can_join(int /*sharing*/, std::string& /*engine*/) const { return refused(); }
  virtual Status make_group_key(void* /*key*/) { return refused(); }  // place 0 makes it for all
  virtual Result<ofsdp_group*> join_group(const void* /*key*/, int /*place*/, int /*count*/,
                                          const ofsdp_patience&) {
    return refused();
  }
  virtual Result<ofsdp_group*> split_group(ofsdp_group*, int /*color*/, int /*place*/) {
    return refused();
  }
  virtual void leave_group(ofsdp_group*) {}
  // Ends collectives that wait in the group; any thread may call. May block until all groups on the
  // device are being aborted and all graphs with captured collectives are dropped.
  virtual void abort_group(ofsdp_group*) {}
  virtual Status check_group(ofsdp_group*) {
    return refused();
  }  // a failure in the group; never waits
  // Lets a group reach kShared memory directly. `same_offsets`: all ranks pass the same offsets
  // from `data` in every call.
  virtual Status make_known(ofsdp_group*, void* /*data*/, size_t /*bytes*/, bool /*same_offsets*/) {
    return refused();
  }
  // In place: src is this place's part in dst, dst is this place's part in src, or dst is src.
  virtual Status all_gather(ofsdp_stream*, ofsdp_group*, const void*, void*, size_t /*each*/) {
    return refused();
  }
  virtual Status reduce_scatter(ofsdp_stream*, ofsdp_group*, const void*, void*, int32_t /*dtype*/,
                                int64_t /*count_each*/) {
    return refused();
  }
  virtual Status all_reduce(ofsdp_stream*, ofsdp_group*, const void*, void*, int32_t /*dtype*/,
                            int64_t /*count*/, int32_t /*reduction*/) {
    return refused();
  }
  // Sends `bytes_each` bytes from src + offsets[p] to place p, which receives them at dst +
  // this place * bytes_each. The call reads offsets from host memory. dst and src do not overlap.
  virtual Status exchange_parts(ofsdp_stream*, ofsdp_group*, const void*, const size_t* /*offsets*/,
                                int /*places*/, void*, size_t) {
    return refused();
  }

  // --- Trace: time between two timed events, both reached, outside captures ---
  virtual Status elapsed(ofsdp_event* /*first*/, ofsdp_event* /*then*/, double* /*microseconds*/) {
    return refused();
  }

 protected:
  // with_streams runs after construction; an implementation's destructor first drops the streams.
  friend Result<std::unique_ptr<Device>> with_streams(std::unique_ptr<Device> device);
  void drop_streams() {
    for (ofsdp_stream* stream : {compute_, communication_, upload_}) {
      if (stream != nullptr) drop_stream(stream);
    }
  }

 private:
  static Status refused() { return fault("the device cannot do this"); }

  ofsdp_stream* compute_ = nullptr;
  ofsdp_stream* communication_ = nullptr;
  ofsdp_stream* upload_ = nullptr;
};

struct DeviceMemoryDrop {
  Device* device = nullptr;
  MemoryLedger* ledger = nullptr;
  DevicePlace place = DevicePlace::kDevice;
  size_t bytes = 0;
  void operator()(std::byte* data) const {
    device->release(place, data);
    ledger->remove(bytes);
  }
};

class DeviceMemory {
 public:
  using Place = DevicePlace;

  // Empty if bytes is 0. Counts whole pages, as a Region does. Device and ledger outlive it.
  static Result<DeviceMemory> allocate(Device& device, MemoryLedger& ledger, size_t bytes,
                                       Place place, const std::string& name);

  std::byte* data() const { return data_.get(); }
  size_t bytes() const { return data_ == nullptr ? 0 : data_.get_deleter().bytes; }

 private:
  std::unique_ptr<std::byte, DeviceMemoryDrop> data_;
};

struct DeviceEventDrop {
  Device* device = nullptr;
  void operator()(ofsdp_event* event) const { device->drop_event(event); }
};

class DeviceEvent {
 public:
  static Result<DeviceEvent> make(Device& device, bool timed = false);
  ofsdp_event* get() const { return event_.get(); }

 private:
  std::unique_ptr<ofsdp_event, DeviceEventDrop> event_;
};

struct DeviceGraphDrop {
  Device* device = nullptr;
  void operator()(ofsdp_device_graph* graph) const { device->drop_graph(graph); }
};
using DeviceGraph = std::unique_ptr<ofsdp_device_graph, DeviceGraphDrop>;

// A device library exports this as `ofsdp_device_library`. `build` comes first: nothing else may be
// read until it has been compared.
struct DeviceLibrary {
  const char* build;
  Result<int> (*count)();  // device count, or why there is none
  Result<std::unique_ptr<Device>> (*open)(int ordinal);
};

// Makes the device's three streams.
Result<std::unique_ptr<Device>> with_streams(std::unique_ptr<Device> device);
// Opens the CUDA library and device `ordinal`.
Result<std::unique_ptr<Device>> find_device(int ordinal);
// Returns the device count, or in one line why there is none.
Result<int> count_devices();

}  // namespace ofsdp::kernels
