// DeviceRules: the update that a model's own training_info describes
// (importer/training_source.h), on a rank's shards on a device.
//
// DeviceRulesPlan cuts every row that a rule updates into parts of at most kPart elements; the
// rule's nodes become kernels of the device for each length that occurs. A part is updated on the
// communication stream:
//
//   gradient  reduced into scratch; multiplied by the clip factor, if there is one
//   nodes     kernel after kernel, over the shard, the states and scratch
//   results   into parameter and states, by the update operation "assign", which like every update
//             operation does nothing after a NaN
//
// The host computes the scalars of an update (rate, count of updates) and uploads them with the
// numbers of the step. It knows the update's number since none is skipped (float16 is refused), so
// it knows rate and scalars of each update, as on the CPU.
//
// The plan points into the kernel cache; DeviceRules views the rest. One thread. An update
// allocates nothing. DeviceRulesPlan::make returns kInput with the node or the limit.
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
  size_t slots = 0;                               // the most of any rule
  size_t slot_bytes = 0;                          // for the longest part
  size_t workspace = 0;
  size_t scalar_bytes = 0;

  // Returns the bytes of all slots, one more for the unscaled gradient, the clip factor and the
  // workspace.
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

  // Returns a kernel that updates the rows of a unit in place of an optimizer's
  // (kernels/core/update.h); null if the device has no operation "assign".
  std::unique_ptr<Kernel> kernel(const Problem& problem, std::vector<UpdateRow> rows);
  // Sets the device address of the micro-batch's scalars.
  void use(const std::byte* scalars) { on_device_ = scalars; }

  // Writes the scalars of update `number`, from 1, for upload; returns their bytes.
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
