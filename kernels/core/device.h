// Device: one interface of a GPU, or of a stand-in for one. libofsdp_cuda.so implements it for
// NVIDIA GPUs (kernels/cuda/device), tests/device in host memory, runtime/plan for planning only.
//
//   Device        memory, streams and their order, kernels, the step's arithmetic, ranks, the trace
//   DeviceMemory  an allocation on the device, or pinned on the host; counted in a ledger
//   DeviceEvent   an event; DeviceGraph, a captured graph: both release themselves
//   find_device   opens the library next to the program, in ../lib or where OFSDP_CUDA_LIBRARY
//                 says, with dlopen; the program neither contains nor needs it
//
// A device runs in order the work that is put on one stream. An event recorded on one stream and
// waited for on another orders the two. Nothing that takes a stream waits, allocates or reads
// device memory on the host. Between capture_begin and capture_end, work put on that stream, and on
// streams that wait for its events, is recorded instead of run; an event must join each of them to
// it again. A graph may be launched any number of times.
//
// The caller that makes a handle drops it; the Device outlives all handles. One thread uses a
// device, unless a call says otherwise. A failure is a fault with the device's text. find_device
// returns an input error if there is no library, driver or device, and a fault if the library was
// built from other sources than the program. REQUIRES: library and program are built from the same
// sources by the same compiler: DeviceLibrary carries a hash of the headers
// (cmake/device_build.cmake), which is compared on load.
#pragma once

#include <memory>
#include <string>

#include "kernels/core/device_values.h"
#include "kernels/core/kernel.h"
#include "kernels/core/kernel_choice.h"
#include "kernels/core/memory.h"

namespace ofsdp::kernels {

// Kernels of a device read the values of a StepContext from device memory.
struct DeviceStepContext : StepContext {
  const ofsdp_step_numbers* numbers = nullptr;
  int64_t samples = 0;
  ofsdp_data_fault* fault = nullptr;  // device memory
  uint64_t node = 0;                  // number of the running kernel, noted in `fault`
  ofsdp_stream* stream = nullptr;     // null: the compute stream
};

enum class DevicePlace { kDevice, kShared, kPinned };  // kShared: other ranks may reach it

// A call that an implementation does not override is refused.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  virtual ~Device() = default;

  virtual std::string description() const = 0;
  // Libraries that would make it faster, a line each.
  virtual std::string missing() const { return ""; }

  // The streams that every run has.
  ofsdp_stream* compute() const { return compute_; }
  ofsdp_stream* communication() const { return communication_; }
  ofsdp_stream* upload() const { return upload_; }
  void* native_compute() { return native_stream(compute_); }

  // --- Memory. Zero-filled. ---
  virtual Result<void*> allocate(DevicePlace, size_t /*bytes*/) { return refused(); }
  virtual void release(DevicePlace, void*) {}

  // --- Streams and order ---
  virtual Result<ofsdp_stream*> make_stream(bool /*urgent*/) { return refused(); }
  virtual void drop_stream(ofsdp_stream*) {}
  // Returns the cudaStream_t, for others who put work onto the stream between calls of the Device,
  // under the same rules. It lives as long as the stream, in the context of the thread that opened
  // the device.
  virtual void* native_stream(ofsdp_stream*) { return nullptr; }
  virtual Result<ofsdp_event*> make_event(bool /*timed*/) { return refused(); }
  virtual void drop_event(ofsdp_event*) {}
  virtual Status record(ofsdp_event*, ofsdp_stream*) { return refused(); }
  // As record, but the host waits for the event. In a capture it belongs to the graph: each launch
  // records it anew, and no stream may wait for it.
  virtual Status signal(ofsdp_event*, ofsdp_stream*) { return refused(); }
  virtual Status wait(ofsdp_stream*, ofsdp_event*) { return refused(); }  // the stream waits
  virtual Status await(ofsdp_event*) { return refused(); }                // the host waits
  virtual Result<bool> reached(ofsdp_event*) { return refused(); }        // nobody waits
  virtual Status synchronize() { return refused(); }  // the host waits for everything
  virtual Status copy(ofsdp_stream*, void* /*dst*/, const void* /*src*/, size_t) {
    return refused();
  }
  virtual Status clear(ofsdp_stream*, void* /*dst*/, size_t) { return refused(); }  // to 0
  // Writes a value into pinned memory, for a host that may not wait.
  virtual Status mark(ofsdp_stream*, int64_t* /*pinned*/, int64_t /*value*/) { return refused(); }
  virtual Status capture_begin(ofsdp_stream*) { return refused(); }
  virtual Result<ofsdp_device_graph*> capture_end(ofsdp_stream*) { return refused(); }
  virtual Status launch(ofsdp_device_graph*, ofsdp_stream*) { return refused(); }
  virtual void drop_graph(ofsdp_device_graph*) {}

  // --- Kernels --- Allows kernels made from now on the liberties `what` (OFSDP_MAY_*), to be
  // faster.
  virtual Status allow(uint32_t /*what*/) { return refused(); }
  // Null: no implementation accepts the problem. `run` of the kernel only puts it on a stream.
  virtual std::unique_ptr<Kernel> make_kernel(const std::string& op, const Problem& problem,
                                              KernelChoice* choice = nullptr) = 0;

  // --- The arithmetic of a step that is no node; float32, float16, bfloat16 ---
  virtual Status begin(ofsdp_stream*, ofsdp_run_state*, ofsdp_step_numbers*, bool /*begins_update*/,
                       bool /*scales_loss*/) {
    return refused();
  }
  virtual Status note_loss(ofsdp_stream*, ofsdp_run_state*, const float*, bool /*stops_at_nan*/) {
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
  // By the names of kernels/optimizers; "assign" writes the gradient into the parameter,
  // "muon_direction" the direction that follows from gradient and momentum. Null: the device has
  // none of that name.
  virtual ofsdp_device_optimizer* make_optimizer(const char*, const ofsdp_optimizer_settings&) {
    return nullptr;
  }
  virtual void drop_optimizer(ofsdp_device_optimizer*) {}
  virtual Status update(ofsdp_stream*, ofsdp_device_optimizer*, const ofsdp_device_update*) {
    return refused();
  }
  // For an optimizer that needs norms of whole parameters, after `update` of all units: adds the
  // parts' squares to `squares`. When the ranks have added these up, take_step takes the step.
  virtual Status add_squares(ofsdp_stream*, ofsdp_device_optimizer*, const ofsdp_parameter_parts*) {
    return refused();
  }
  virtual Status take_step(ofsdp_stream*, ofsdp_device_optimizer*, const ofsdp_parameter_parts*) {
    return refused();
  }
  // For an optimizer with factors, before add_squares (kernels/optimizers/factors.h): the sums of
  // this rank; when ranks have added these up, the factors; and the mean of the row factors of
  // each of `matrices`, at least eps.
  virtual Status sum_matrix_squares(ofsdp_stream*, const ofsdp_matrix_squares*) {
    return refused();
  }
  virtual Status advance_factors(ofsdp_stream*, const ofsdp_factor_advance*) { return refused(); }
  virtual Status mean_rows(ofsdp_stream*, const float* /*factors*/, int64_t /*rows*/,
                           int64_t /*matrices*/, float* /*means*/) {
    return refused();
  }
  // Parts of Newton-Schulz iterations other than products (runtime/engine/orthogonal_plan.h):
  // values divided by their 2-norm, at least `least`; `scratch`: count / 4096 + 2 doubles.
  virtual Status normalize(ofsdp_stream*, float*, int64_t /*count*/, double /*least*/,
                           double* /*scratch*/) {
    return refused();
  }
  virtual Status scale(ofsdp_stream*, float*, int64_t /*count*/, float /*by*/) { return refused(); }
  // A sum of squares that depends on no order and no cut (runtime/engine/exact_squares.h). `sum` is
  // 0 at first and again once it is taken: as OFSDP_EXACT_LIMBS doubles, whole numbers, least
  // significant first, which ranks add up; NaN in the first if a value was not finite.
  virtual Status add_exact_squares(ofsdp_stream*, const float*, int64_t, ofsdp_exact_sum*) {
    return refused();
  }
  virtual Status take_exact_sum(ofsdp_stream*, ofsdp_exact_sum*, double* /*limbs*/) {
    return refused();
  }
  virtual Status exact_norm(ofsdp_stream*, const double* /*limbs*/, ofsdp_run_state*) {
    return refused();
  }

  // --- Several ranks ---
  // All ranks of a group make the same calls in the same order, and capture and launch alike.
  // Joining, splitting, making known and leaving may wait for the others, as patiently as the
  // joiner. A group is left, or aborted and then left, before its device ends.
  virtual uint64_t identity() const { return 0; }  // equal in two processes: they share the device
  // Whether ranks, `sharing` of them on one device, can be joined; stores the library that joins
  // them in `engine`.
  virtual Status can_join(int /*sharing*/, std::string& /*engine*/) const { return refused(); }
  virtual Status make_group_key(void* /*key*/) { return refused(); }  // by place 0, for all
  virtual Result<ofsdp_group*> join_group(const void* /*key*/, int /*place*/, int /*count*/,
                                          const ofsdp_patience&) {
    return refused();
  }
  virtual Result<ofsdp_group*> split_group(ofsdp_group*, int /*color*/, int /*place*/) {
    return refused();
  }
  virtual void leave_group(ofsdp_group*) {}
  // Ends the collectives that wait in the group; any thread may call. May not return before all
  // groups of the device are being aborted and no graph has captured collectives of it.
  virtual void abort_group(ofsdp_group*) {}
  virtual Status check_group(ofsdp_group*) { return refused(); }  // its own failure; never waits
  // Lets a group reach kShared memory directly. `same_offsets`: all its ranks will give the same
  // offsets from `data` in every call.
  virtual Status make_known(ofsdp_group*, void* /*data*/, size_t /*bytes*/, bool /*same_offsets*/) {
    return refused();
  }
  // In place: src is dst's part of this place; or dst is src's; or they are the same.
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
  // Gives place p `bytes_each` bytes from src + offsets[p] (host memory, read by the call); place p
  // has them at its dst + this place * bytes_each. dst and src do not overlap.
  virtual Status exchange_parts(ofsdp_stream*, ofsdp_group*, const void*, const size_t* /*offsets*/,
                                int /*places*/, void*, size_t) {
    return refused();
  }

  // --- Trace: the time between two timed events, both reached; not of a capture ---
  virtual Status elapsed(ofsdp_event* /*first*/, ofsdp_event* /*then*/, double* /*microseconds*/) {
    return refused();
  }

 protected:
  // Called by whoever makes a device, and first by an implementation's destructor.
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

  // Empty for 0 bytes. Device and ledger outlive it. Counted in whole pages, as a Region.
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

// Exported by a device library as `ofsdp_device_library`. `build` comes first, since nothing else
// may be read before it has been compared.
struct DeviceLibrary {
  const char* build;
  Result<int> (*count)();  // how many devices there are, or why there is none
  Result<std::unique_ptr<Device>> (*open)(int ordinal);
};

// The device with its three streams.
Result<std::unique_ptr<Device>> with_streams(std::unique_ptr<Device> device);
// The CUDA library, and device `ordinal` of it.
Result<std::unique_ptr<Device>> find_device(int ordinal);
// How many devices there are, or why there is none, in one line.
Result<int> count_devices();

}  // namespace ofsdp::kernels
