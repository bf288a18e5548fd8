// What DeviceExecutor does with gradients where masters and optimizer state are in host memory.
#include "runtime/engine/device/device_executor.h"

namespace ofsdp::runtime {

// A sum over micro-batches that rests on the host comes down after each of them; any other gradient
// when it is complete, be it for the norm or for the update.
Status DeviceExecutor::send_reduced(const BoundProgram& program, int unit, const void* gradient,
                                    bool update) {
  const CompileOptions& options = program.plan->options;
  const bool complete =
      options.last_micro && !context_.plan.units[static_cast<size_t>(unit)].plan.sums_copies;
  if (offload_->of(unit).passes_slots) {
    OFSDP_RETURN_IF_ERROR(offload_->land(unit, gradient));
    OFSDP_RETURN_IF_ERROR(offload_->give_slot_back());
  } else if (update || (complete && options.clip)) {
    OFSDP_RETURN_IF_ERROR(offload_->land(unit, gradient));
  }
  if (!update) return {};
  OFSDP_RETURN_IF_ERROR(offload_->decide(run_state()));
  return offload_->signal(unit);
}

// Where the norm decides, it has landed before and the decision has said so.
Status DeviceExecutor::send_update(const BoundProgram& program, int unit, const void* gradient) {
  if (waits_for_decision(program)) return {};
  OFSDP_RETURN_IF_ERROR(offload_->land(unit, gradient));
  OFSDP_RETURN_IF_ERROR(offload_->decide(run_state()));
  return offload_->signal(unit);
}

Status DeviceExecutor::update_on_host(const BoundProgram& program) {
  const CompileOptions& options = program.plan->options;
  if (!options.training || !options.last_micro) return {};
  return offload_->update(program, numbers_, scales_gradients(), [this](ofsdp_event* event) {
    return ranks_->wait(event, numbers_.step);
  });
}

}  // namespace ofsdp::runtime
