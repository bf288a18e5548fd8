// DeviceOffload (--cpu-offload): the host holds the optimizer states and updates the parameters
// while a device computes. It has two streams of its own for copies:
//
//   up        host to device: before an all-gather, the rank's shard of a unit; sums of gradients
//             over micro-batches; with CpuOffload::kOptimizer, the new parameters
//   download  device to host: a unit's gradient as soon as it is complete
//
// [Note: an update on the host] The device never waits for the host inside a micro-batch: its steps
// are on the streams, or one graph, and end with every gradient in pinned memory. The host waits
// for each gradient's event in turn and updates the unit while the device still works on earlier
// units in backward. If the norm decides (clipping, the loss scale), all gradients arrive before
// the decision, which follows on the same stream. The device gets the next micro-batch, which reads
// the parameters, after all updates. So an update lies between two graphs and is not captured; the
// events that the host waits for are nodes of the graph (`Device::signal`). CUDA does not say
// whether such an event, awaited right after a launch, may still be that of the previous launch. So
// the device also marks each arrival in pinned memory, which the host has cleared, and the mark
// decides.
//
// The decision (stop after a NaN, skip, clip factor) is a copy of the device's run state, so that
// the host updates exactly as the device would.
//
// A copy waits for the compute stream's work before the copy's step (`forked`), and for earlier
// steps on other streams that touch the copy's destination; later work on the communication stream
// waits for the copy. DeviceEngine owns the offload, which owns streams and events; RunMemory owns
// the memory. One thread calls. Nothing allocates after `make`. Errors are the device's and the
// host's kernels'.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>

#include "kernels/core/device.h"
#include "runtime/engine/binding.h"
#include "runtime/engine/device/device_trace.h"
#include "runtime/engine/updater.h"

namespace ofsdp::runtime {

// Updates units in host memory while a device computes, with the CPU's kernels.
//
// `run` takes a gradient from pinned memory block by block: widens it, rounds it to the reduction
// dtype and scales it. All threads of the rank share the blocks, except for rules and plug-ins.
// Neither blocks nor threads change a bit, since `advance` is elementwise.
//
// If steps need norms of parameters, `run` only advances the states; after the last unit the ranks
// agree on the norms, and take_steps() takes the steps.
//
// `run` and `take_steps` allocate nothing.
class HostUpdate {
 public:
  // `offload` has offsets from `pinned`.
  HostUpdate(Updater& updater, const std::vector<UnitState>& units, const OffloadMap& offload,
             const std::byte* pinned, Communicator& communicator)
      : updater_(updater),
        units_(units),
        offload_(offload),
        pinned_(pinned),
        communicator_(communicator) {}

  // Updates a unit whose gradient has arrived. `factor`: null, or a factor on the gradient.
  Status run(int unit, const UpdateNumbers& numbers, const float* factor);
  bool takes_steps() const { return updater_.needs_norms(); }
  // Collective if takes_steps().
  Status take_steps(const UpdateNumbers& numbers);
  Status swap_average() { return updater_.swap_average({}); }

 private:
  Status run_block(int unit, int64_t begin, int64_t count, const float* factor) const;

  Updater& updater_;
  const std::vector<UnitState>& units_;
  const OffloadMap& offload_;
  const std::byte* pinned_;
  Communicator& communicator_;
};

// Returns `units` with the addresses of masters (float32 parameters), optimizer states, the copy
// for the device and, with kParams, frozen parameters replaced by addresses in pinned memory.
std::vector<UnitState> offloaded_units(const OffloadMap& offload, CpuOffload what,
                                       std::byte* pinned, std::vector<UnitState> units);

struct OffloadContext {  // outlives DeviceOffload
  Device& device;
  const Plan& plan;
  const MemoryMap& memory;
  std::byte* pinned;
  std::byte* slots;                            // on the device
  const std::vector<UnitState>& units;         // on the host
  const std::vector<UnitState>& device_units;  // with kOptimizer: where new parameters go
};

class DeviceOffload {
 public:
  using Wait = std::function<Status(ofsdp_event*)>;

  static Result<std::unique_ptr<DeviceOffload>> make(const OffloadContext& context,
                                                     HostUpdate host);
  DeviceOffload(const DeviceOffload&) = delete;
  ~DeviceOffload();

  // Copies loaded, rounded parameters to the device and waits.
  Status publish();
  // Swaps the parameters with their average (--ema), and publishes them.
  Status swap_average();
  void set_trace(DeviceTrace* trace) { trace_ = trace; }  // null, or must outlive this object
  // Called before a program: lets the streams wait for parameters that are being copied up.
  Status begin();
  // Called after the last training program of an update: waits for each gradient and updates the
  // unit. `operations`: LoweredProgram::host; `wait` blocks until an event is reached.
  Status update(const std::vector<Operation>& operations, const UpdateNumbers& numbers, bool scaled,
                const Wait& wait);

  // Called by DeviceEngine for the operations of a program, in order.
  void forked(ofsdp_event* event) { fork_ = event; }
  Status wait_to_copy_up(ofsdp_event* event);
  Status copy_up(const Operation& op);
  Status wait_for_copy();  // the communication stream waits for the last copy up
  Status wait_for_slot(int slot);
  Status copy_down(const Operation& op);
  Status decide(const ofsdp_run_state* state);  // copies the decision down, once per program
  Status signal(int unit);                      // -1: the decision
  Status join();  // at the program's end, the compute stream waits for the copies
  ofsdp_stream* download() const { return download_; }

 private:
  DeviceOffload(const OffloadContext& context, HostUpdate host)
      : context_(context), device_(context.device), host_(host) {}
  Status open();
  Status copy(ofsdp_stream* stream, void* dst, const void* src, size_t bytes);
  // Runs `copies`, and records their time if there is a trace.
  template <typename Copies>
  Status traced(ofsdp_stream* stream, int unit, const Copies& copies);
  Status order(const DeviceEvent& event, ofsdp_stream* first, ofsdp_stream* then);
  Status await(int unit, const Wait& wait) const;
  Status begin_up();
  Status send_up(int unit);
  UpdateNumbers decided(const UpdateNumbers& numbers) const;
  Status take_steps(const UpdateNumbers& numbers);
  const ofsdp_run_state& decision() const {
    return *reinterpret_cast<const ofsdp_run_state*>(context_.pinned +
                                                     context_.memory.offload.decision);
  }
  int64_t* arrival(int unit) const {
    return reinterpret_cast<int64_t*>(context_.pinned + context_.memory.offload.arrivals) + unit +
           1;
  }
  const DeviceEvent& arrived(int unit) const { return arrived_[static_cast<size_t>(unit + 1)]; }

  OffloadContext context_;
  Device& device_;
  HostUpdate host_;
  ofsdp_stream* up_ = nullptr;
  ofsdp_stream* download_ = nullptr;
  std::vector<DeviceEvent> arrived_;  // the decision, then the units
  std::vector<DeviceEvent> free_;     // of the slots
  DeviceEvent went_up_, complete_, sent_;
  std::array<DeviceEvent, 3> joins_;

  ofsdp_event* fork_ = nullptr;  // in the present program
  bool up_used_ = false, download_used_ = false, decided_ = false;
  bool sending_ = false;  // new parameters were sent since `begin`
  DeviceTrace* trace_ = nullptr;
};

}  // namespace ofsdp::runtime
