// DeviceRules: the updates that a model's own training_info describes
// (importer/graph/update_rules.h), on a rank's shards on a device.
//
// DeviceRulesPlan, made while planning: every stretch of a shard that one rule updates is cut into
// parts of at most kPart elements, and the rule's nodes are made kernels of the device for each
// length that occurs. A part is updated on the communication stream:
//
//   gradient  reduced into scratch; where there is a clip factor, multiplied by it
//   nodes     kernel after kernel, over the shard, the states and scratch
//   results   into parameter and states, by the optimizer "assign": as every optimizer of a device
//             it does nothing after a NaN
//
// The scalars of an update (rate, count of updates) are computed on the host, which knows the
// update's number since none is skipped (float16 is refused), and go up with the numbers of the
// step. So the host knows rate and scalars of each update as it does on the CPU.
//
// Ownership: the plan points into the kernel cache; DeviceRules owns the optimizer and views the
// rest. Threads: one. No allocation in `update`. Errors: kInput from make, naming node or limit;
// the device's.
#pragma once

#include <map>

#include "runtime/engine/device/device_updates.h"
#include "runtime/engine/update_program.h"
#include "runtime/program/device_memory.h"

namespace ofsdp::runtime {

struct DeviceRulesPlan {
  static constexpr int64_t kPart = int64_t{1} << 22;

  struct Part {
    RuleProgram program;
    std::shared_ptr<Kernel> scale;  // gradient times clip factor
  };
  std::map<std::pair<int, int64_t>, Part> parts;  // by rule and length
  size_t slots = 0;                               // of the rule that has most
  size_t slot_bytes = 0;                          // of the longest part
  size_t workspace = 0;
  size_t scalar_bytes = 0;

  // The slots, one for the gradient before it is scaled, the clip factor, the workspace.
  size_t scratch_bytes() const {
    return (slots + 1) * slot_bytes + kTensorAlignment + align_up(workspace, kTensorAlignment);
  }

  // `stretches`: rule and length of what this rank updates at once, in any order.
  static Result<DeviceRulesPlan> make(const UpdateRules& updates,
                                      const std::vector<std::pair<int, int64_t>>& stretches,
                                      KernelCache& kernels);

  // Takes places for scratch and, in both slots, scalars.
  void add_to(DeviceIoPlan& io) const;
};

class DeviceRules {
 public:
  // `scratch` is the device's; null: the device has no way to assign.
  static Result<std::unique_ptr<DeviceRules>> make(Device& device, const DeviceRulesPlan& plan,
                                                   UpdateProgram& scalars, std::byte* scratch);

  // The scalars of update `number`, from 1, for the device to be given.
  size_t write_scalars(int64_t number, std::byte* to);  // gives their bytes
  // `stretch` as a device's own optimizer gets it; `scalars` is device memory.
  Status update(int rule, const ofsdp_device_update& stretch, const DeviceStepContext& step,
                const std::byte* scalars);

 private:
  DeviceRules(Device& device, const DeviceRulesPlan& plan, UpdateProgram& scalars,
              std::byte* scratch);
  Status update_part(const DeviceRulesPlan::Part& part, const ofsdp_device_update& given,
                     const DeviceStepContext& step, const std::byte* scalars);
  Status take_gradient(const DeviceRulesPlan::Part& part, const ofsdp_device_update& given,
                       const DeviceStepContext& step);
  Status place(const RuleProgram& program, const ofsdp_device_update& given);
  Status run(const RuleStep& step, const DeviceStepContext& context, const std::byte* scalars);
  Status assign(const RuleProgram& program, const ofsdp_device_update& given);
  std::byte* scratch_slot(size_t i) const { return scratch_ + i * plan_.slot_bytes; }

  Device& device_;
  const DeviceRulesPlan& plan_;
  UpdateProgram& scalars_;
  std::byte* scratch_;
  float* factor_;
  std::byte* workspace_;
  DeviceOptimizer assign_;
  std::vector<std::byte*> slots_;     // of the part that runs
  std::vector<TensorView> in_, out_;  // of the step that runs
};

}  // namespace ofsdp::runtime
