// DeviceOffload: what --cpu-offload adds to a step on a device: copies of parameters up and of
// gradients down, next to compute and communication stream, and the update on the host.
//
//   up        host -> device: a rank's part of a unit, before its all-gather; slots of sums; with
//             kOptimizer new parameters
//   download  device -> host: a unit's gradient as soon as it is complete
//
// [Note: an update on the host] The device never waits for the host inside a micro-batch: its steps
// are put on the streams, or launched as one graph, and end with every gradient in pinned memory.
// The host waits for each gradient's event in turn and updates the unit while the device is still
// at the units before it in backward. Where the norm decides (clipping, the loss scale) all
// gradients have landed before the decision, which comes after them on the same stream. The next
// micro-batch, which reads the parameters, is given to the device when all are updated. So an
// update lies between two graphs and nothing of it is captured; the events that the host waits for
// are nodes of the graph (`Device::signal`). CUDA does not say whether such an event, waited
// for right after a launch, may still stand for the launch before. So the device also marks each
// arrival in pinned memory, which the host has cleared, and the mark decides.
//
// The decision (stopped after a NaN, skipped, clip factor) is a copy of the device's run state, so
// the host does what the device would have done.
//
// A copy waits for what the compute stream had before its step (`forked`) and for earlier steps of
// other streams that touch where it goes; what follows on the communication stream waits for the
// copy. Ownership: streams and events; memory is RunMemory's.
// Threads: one. No allocation after make. Errors: what the device says.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>

#include "kernels/core/device.h"
#include "runtime/engine/device/device_trace.h"
#include "runtime/engine/optimizer_step.h"
#include "runtime/program/binding.h"

namespace ofsdp::runtime {

// Updates units in host memory while a device computes, with the optimizers of the CPU.
//
// `run` takes a gradient as it has landed, block by block: it widens the block, rounds it to the
// reduction dtype and scales it. All threads of the rank share the blocks, except for programs and
// plug-ins. Optimizers are elementwise, so neither blocks nor threads change a bit.
//
// If steps need norms of parameters, `run` only advances the states; after the last unit the ranks
// agree on the norms, and take_steps() applies the steps.
//
// Views. `run` and `take_steps` allocate nothing.
class HostUpdate {
 public:
  // Offsets of `offload` count from `pinned`.
  HostUpdate(OptimizerStep& step, const std::vector<UnitState>& units, const OffloadPlan& offload,
             const std::byte* pinned, const Plan& plan, Communicator& communicator);

  // Multiplies gradients by *factor unless it is null.
  void run(int unit, const UpdateNumbers& numbers, const float* factor);
  bool takes_steps() const { return lengths_.has_value(); }
  // Collective if takes_steps().
  Status take_steps(const UpdateNumbers& numbers);

 private:
  void run_block(int unit, int64_t begin, int64_t count, const UpdateNumbers& numbers,
                 const float* factor);

  OptimizerStep& step_;
  const std::vector<UnitState>& units_;
  const OffloadPlan& offload_;
  const std::byte* pinned_;
  Communicator& communicator_;
  std::optional<StepLengths> lengths_;
};

// With masters, states, what the device takes and what else rests in pinned memory there; all else
// as in `units`.
std::vector<UnitState> offloaded_units(const OffloadPlan& offload, CpuOffload what,
                                       std::byte* pinned, std::vector<UnitState> units);

struct OffloadContext {  // what outlives it
  Device& device;
  const Plan& plan;
  const RankMemoryPlan& memory;
  std::byte* pinned;
  std::byte* slots;                            // on the device
  const std::vector<UnitState>& units;         // of the host
  const std::vector<UnitState>& device_units;  // with kOptimizer where new parameters go
};

class DeviceOffload {
 public:
  using Wait = std::function<Status(ofsdp_event*)>;

  static Result<std::unique_ptr<DeviceOffload>> make(const OffloadContext& context,
                                                     HostUpdate host);
  DeviceOffload(const DeviceOffload&) = delete;
  ~DeviceOffload();

  // Sends up what has been loaded and rounded, to where the device takes it from. Waits.
  Status publish();
  void set_trace(DeviceTrace* trace) { trace_ = trace; }  // which outlives it, or null
  // Before a program: what was sent up has to be there.
  Status begin();
  // After a training program that ends an update: LoweredProgram::host. `wait` until an event is
  // reached.
  Status update(const std::vector<Operation>& operations, const UpdateNumbers& numbers, bool scaled,
                const Wait& wait);

  // Operations of a program, in their order.
  void forked(ofsdp_event* event) { fork_ = event; }
  Status wait_to_copy_up(ofsdp_event* event);
  Status copy_up(const Operation& op);
  Status wait_for_copy();  // the communication stream, for the copy up before it
  Status wait_for_slot(int slot);
  Status copy_down(const Operation& op);
  Status decide(const ofsdp_run_state* state);  // once a program
  Status signal(int unit);                      // -1: the decision
  Status join();                                // the end of the program
  ofsdp_stream* download() const { return download_; }

 private:
  DeviceOffload(const OffloadContext& context, HostUpdate host)
      : context_(context), device_(context.device), host_(host) {}
  Status open();
  Status copy(ofsdp_stream* stream, void* dst, const void* src, size_t bytes);
  // As a copy of a unit in the trace, if there is one.
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
  bool sending_ = false;  // new parameters, since `begin`
  DeviceTrace* trace_ = nullptr;
};

}  // namespace ofsdp::runtime
