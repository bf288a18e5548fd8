// A model may bring an update of its own, a training_info with rules as ONNX nodes
// (importer/training_source.h; on the CPU: update_program.h). DeviceRules runs it on a device, on a
// rank's shards.
//
// DeviceRulesPlan, made while planning, divides every row that a rule updates into parts of at most
// kPart elements, and makes device kernels of the rule's nodes for each length that occurs.
// DeviceRules updates a part on the communication stream:
//
//   gradient  is reduced into scratch memory, and multiplied by the clip factor if there is one
//   nodes     run one after the other, on the shard, the states and scratch memory
//   results   are copied to parameter and states by the update operation "assign", which, as every
//             update operation, does nothing after a NaN
//
// The host computes the scalars of an update (learning rate, update count) and uploads them with
// the step's numbers. It knows them before the update ends, since no update is skipped: float16,
// which may skip updates, is refused with such models.
//
// The plan's kernels belong to the KernelCache. Plan, device and scalars outlive DeviceRules. One
// thread calls. An update allocates nothing. DeviceRulesPlan::make returns kInput that names the
// node without a kernel, or the limit.
#pragma once

#include <map>

#include "kernels/core/device.h"
#include "kernels/core/update.h"
#include "runtime/engine/memory.h"
#include "runtime/engine/update_program.h"

namespace ofsdp::runtime {

struct DeviceRulesPlan {
  static constexpr int64_t kPart = int64_t{1} << 22;

  struct Part {
    RuleProgram program;
    std::shared_ptr<Kernel> scale;  // multiplies the gradient by the clip factor
  };
  std::map<std::pair<int, int64_t>, Part> parts;  // by rule and length
  size_t slots = 0;                               // scratch arrays of the rule with the most
  size_t slot_bytes = 0;                          // bytes of one, for the longest part
  size_t workspace = 0;
  size_t scalar_bytes = 0;

  // Returns the bytes of scratch memory: all slots, another one for the unscaled gradient, the clip
  // factor, and the kernels' workspace.
  size_t scratch_bytes() const {
    return (slots + 1) * slot_bytes + kTensorAlignment + align_up(workspace, kTensorAlignment);
  }

  // `stretches`: rule and length of this rank's rows, in any order.
  static Result<DeviceRulesPlan> make(const UpdateRules& updates,
                                      const std::vector<std::pair<int, int64_t>>& stretches,
                                      KernelCache& kernels);

  // Adds scratch and, for both slots, scalars.
  void add_to(DeviceIoMap& io) const;
};

class DeviceRules {
 public:
  // `scratch`: device memory.
  DeviceRules(Device& device, const DeviceRulesPlan& plan, UpdateProgram& scalars,
              std::byte* scratch);

  // Returns an update kernel (kernels/core/update.h) that updates a unit's rows by their rules;
  // null if the device lacks the operation "assign".
  std::unique_ptr<Kernel> kernel(const Problem& problem, std::vector<UpdateRow> rows);
  // Sets the device address of the micro-batch's scalars.
  void use(const std::byte* scalars) { on_device_ = scalars; }

  // Writes the scalars of update `number` (from 1) to `to`, for the upload. Returns the byte count.
  size_t write_scalars(int64_t number, std::byte* to);

 private:
  bool make_assigns(int64_t count, DType copy);
  Status update(int rule, const ofsdp_device_update& stretch, const DeviceStepContext& step);
  Status update_part(const DeviceRulesPlan::Part& part, const ofsdp_device_update& given,
                     const DeviceStepContext& step);
  Status take_gradient(const DeviceRulesPlan::Part& part, const ofsdp_device_update& given,
                       const DeviceStepContext& step);
  Status place(const RuleProgram& program, const ofsdp_device_update& given);
  Status run(const RuleStep& step, const DeviceStepContext& context);
  Status assign(const RuleProgram& program, const ofsdp_device_update& given,
                const DeviceStepContext& context);
  std::byte* scratch_slot(size_t i) const { return scratch_ + i * plan_.slot_bytes; }

  Device& device_;
  const DeviceRulesPlan& plan_;
  UpdateProgram& scalars_;
  std::byte* scratch_;
  float* factor_;
  std::byte* workspace_;
  const std::byte* on_device_ = nullptr;  // scalars
  // Keyed by element count, and whether a copy is written too.
  std::map<std::pair<int64_t, bool>, std::unique_ptr<Kernel>> assigns_;
  std::vector<std::byte*> slots_;     // of the part that runs
  std::vector<TensorView> in_, out_;  // of the step that runs
};

}  // namespace ofsdp::runtime
