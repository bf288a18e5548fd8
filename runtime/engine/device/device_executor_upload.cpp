// What goes up before a micro-batch, and how a step is recorded for --trace.
#include <cstring>

#include "runtime/engine/device/device_executor.h"

namespace ofsdp::runtime {

Status DeviceExecutor::upload(BoundProgram& program, const MicroBatch& batch, size_t slot) {
  bool traced = false;
  if (trace_ != nullptr) {
    OFSDP_ASSIGN_OR_RETURN(traced, trace_->begin(slot, *program.plan, numbers_.step));
  }
  size_t stretch = 0;
  if (traced) {
    OFSDP_ASSIGN_OR_RETURN(stretch, trace_->open(device_.upload(), TraceRow::kInputs, 0));
  }
  OFSDP_RETURN_IF_ERROR(copy_inputs(program, batch, slot));
  if (traced) OFSDP_RETURN_IF_ERROR(trace_->close(stretch, device_.upload()));
  ofsdp_event* uploaded = slots_[slot].uploaded.get();
  OFSDP_RETURN_IF_ERROR(device_.call("an event", table_.record, uploaded, device_.upload()));
  return device_.call("an event", table_.wait, device_.compute(), uploaded);
}

Status DeviceExecutor::copy_inputs(BoundProgram& program, const MicroBatch& batch, size_t slot) {
  auto* numbers = reinterpret_cast<ofsdp_step_numbers*>(context_.memory.pinned() +
                                                        context_.io.pinned_numbers[slot]);
  *numbers = {options_.seed,
              numbers_.step - 1,
              step_.samples,
              numbers_.lr,
              static_cast<float>(batch.loss_weight),
              0};
  const size_t indexes = batch.sample_index.size_bytes();
  if (indexes > 0) std::memcpy(numbers + 1, batch.sample_index.data(), indexes);
  const auto copy = [&](void* to, const void* from, size_t bytes) {
    return device_.call("the upload", table_.copy, device_.upload(), to, from, bytes);
  };
  OFSDP_RETURN_IF_ERROR(copy(device_numbers(slot), numbers, sizeof(*numbers) + indexes));
  if (program.plan->options.training) OFSDP_RETURN_IF_ERROR(upload_scalars(slot));
  const Graph& graph = program.plan->graph;
  std::byte* to = context_.memory.io() + context_.io.inputs[slot];
  for (size_t c = 0; c < graph.inputs.size() && !empty_; ++c) {
    const size_t bytes = graph.value(graph.inputs[c]).desc.bytes();
    if (bytes > 0) OFSDP_RETURN_IF_ERROR(copy(to, batch.columns[c], bytes));
    to += align_up(bytes, kTensorAlignment);
  }
  return {};
}

Status DeviceExecutor::upload_scalars(size_t slot) {
  if (context_.rules == nullptr) return {};
  std::byte* const from = context_.memory.pinned() + context_.io.pinned_scalars[slot];
  const size_t bytes = context_.rules->write_scalars(numbers_.step, from);
  std::byte* const to = context_.memory.io() + context_.io.scalars[slot];
  return device_.call("the upload", table_.copy, device_.upload(), static_cast<void*>(to),
                      static_cast<const void*>(from), bytes);
}

void DeviceExecutor::patch_inputs(BoundProgram& program, size_t slot) {
  const Graph& graph = program.plan->graph;
  for (const InputPatch& patch : program.inputs) {
    std::byte* data = context_.memory.io() + context_.io.inputs[slot];
    for (int c = 0; c < patch.column; ++c) {
      const ValueId input = graph.inputs[static_cast<size_t>(c)];
      data += align_up(graph.value(input).desc.bytes(), kTensorAlignment);
    }
    program.runs[static_cast<size_t>(patch.run)].inputs[static_cast<size_t>(patch.operand)].data =
        data;
  }
}

// A step that lands gradients on the host begins on the stream of the collectives.
Status DeviceExecutor::execute_traced(BoundProgram& program, size_t step, Lane stream) {
  const BoundStep& bound = program.steps[step];
  const bool agrees = bound.kind == StepKind::kCheckLoss && ranks_->several();
  if (!tracing() || !(agrees || is_shown(bound.kind))) return execute(program, bound);
  const bool computes = stream == Lane::kCompute;
  ofsdp_stream* const on = computes ? device_.compute() : device_.communication();
  OFSDP_ASSIGN_OR_RETURN(const size_t stretch,
                         trace_->open(on, computes ? TraceRow::kCompute : TraceRow::kCommunication,
                                      static_cast<int32_t>(step)));
  OFSDP_RETURN_IF_ERROR(execute(program, bound));
  return trace_->close(stretch, on);
}

}  // namespace ofsdp::runtime
