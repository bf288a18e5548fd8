// Errors that end a run on a device: for a NaN loss, the node that made it; for bad data, the
// message of the CPU's kernel.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/core/op_def.h"
#include "runtime/compile/program/step_program.h"
#include "runtime/engine/device/device_engine.h"

namespace ofsdp::runtime {
namespace {

// Only the device's report, without running the node on the host.
Status in_words(const ofsdp_data_fault& found) {
  if (found.extent == 0) return input_error("a value in its data is out of range");
  return input_error("{} is out of range for {}", found.value, found.extent);
}

RefusedNode node_of(const BoundProgram& program, const ofsdp_data_fault& found) {
  const bool known = found.node <= program.runs.size();
  return {&program.plan->graph, known ? program.runs[found.node - 1].node : nullptr};
}

std::string subject(const RefusedNode& refused, int64_t step, int rank) {
  const std::string node =
      refused.node != nullptr ? refused.graph->describe(*refused.node) : refused.graph->file;
  return format_text("{}, step {}, rank {}", node, step, rank);
}

// Aligned bytes.
struct HostBytes {
  explicit HostBytes(size_t size) : bytes(size + kTensorAlignment) {
    data = bytes.data();
    const size_t behind = reinterpret_cast<uintptr_t>(data) % kTensorAlignment;
    if (behind != 0) data += kTensorAlignment - behind;
  }
  std::vector<std::byte> bytes;
  std::byte* data;
};

}  // namespace

// The run is over, so this may be slow. Nothing was updated since, and the slot still has the
// inputs, so the forward pass runs again, node by node. Ranks with a finite loss take part in its
// gathers.
Status DeviceEngine::blame(size_t slot) {
  BoundProgram& program = *slots_[slot].program;
  const int64_t step = slots_[slot].step;
  const ofsdp_data_fault data = pinned_result(slot).fault;
  const bool here = !slots_[slot].empty && (data.node != 0 || any_nan(losses_in(slot)));
  empty_ = false;
  step_.numbers = device_numbers(slot);
  step_.samples = slots_[slot].samples;
  patch_inputs(program, slot);
  OFSDP_RETURN_IF_ERROR(settle());
  if (data.node != 0) return blame_data(program, data, step);
  OFSDP_ASSIGN_OR_RETURN(const NanFound first, find_nan(program, here));
  if (!here) return ranks_->wait_for_failure(step);
  return loss_fault(*program.plan, step, ranks_->rank(), first);
}

// Ranks evaluate independently, so other ranks go on and cannot take part in a second forward pass.
Status DeviceEngine::check_evaluation(BoundProgram& program) {
  if (!any_nan(result_.losses)) return {};
  NanFound first;
  if (!ranks_->several()) {
    OFSDP_RETURN_IF_ERROR(settle());
    OFSDP_ASSIGN_OR_RETURN(first, find_nan(program, true));
  }
  return loss_fault(*program.plan, numbers_.step, ranks_->rank(), first);
}

Result<NanFound> DeviceEngine::find_nan(BoundProgram& program, bool here) {
  program_ = &program;
  const auto again = [&](const Operation& op) {
    OFSDP_RETURN_IF_ERROR(execute(*this, op));
    return settle();
  };
  const auto range = [&](const TensorView& view) { return range_of(view); };
  return first_nan(program, {.execute = again, .range = range, .here = here, .together = true});
}

// REQUIRES: both streams are done.
Status DeviceEngine::settle() {
  for (ofsdp_stream* stream : {device_.compute(), device_.communication()}) {
    OFSDP_RETURN_IF_ERROR(device_.record(slots_[0].done.get(), stream).with_prefix("an event"));
    OFSDP_RETURN_IF_ERROR(ranks_->wait(slots_[0].done.get(), numbers_.step));
  }
  return {};
}

Result<ValueRange> DeviceEngine::range_of(const TensorView& view) {
  ValueRange range;
  OFSDP_RETURN_IF_ERROR(in_pieces(view, [&](std::span<const std::byte> piece) {
    range.add(view.desc.dtype, piece);
    return true;
  }));
  return range;
}

Status DeviceEngine::in_pieces(const TensorView& view,
                               const std::function<bool(std::span<const std::byte>)>& see) {
  std::byte* const bounce = context_.memory.pinned() + context_.io.bounce;
  const TensorDesc dense = view.desc.dense();
  const bool apart = view.desc.pitch != 0;
  const size_t rows = apart ? static_cast<size_t>(dense.numel() / dense.row()) : 1;
  const size_t bytes = dense.bytes() / rows, next = view.desc.bytes() / rows;
  for (size_t row = 0; row < rows; ++row) {
    for (size_t done = 0; done < bytes; done += kBounceBytes) {
      const size_t piece = std::min(kBounceBytes, bytes - done);
      const std::byte* from = view.data + row * next + done;
      OFSDP_RETURN_IF_ERROR(
          device_.copy(device_.compute(), bounce, from, piece).with_prefix("a copy"));
      OFSDP_RETURN_IF_ERROR(device_.synchronize().with_prefix("a copy"));
      if (!see({bounce, piece})) return {};
    }
  }
  return {};
}

// The run is over, so this may be slow. Runs the forward pass up to the node again, then the node
// on the host. Other ranks find nothing but take part in the gathers (find_nan).
Status DeviceEngine::blame_data(BoundProgram& program, const ofsdp_data_fault& found,
                                int64_t step) {
  refused_ = node_of(program, found);
  Status culprit;
  bool met = false;
  program_ = &program;
  for (const Operation& op : program.operations) {
    if (op.kind == OpKind::kCheckLoss) break;
    const bool run = op.kind == OpKind::kRun;
    if (run ? met : !is_of_unshard(op)) continue;
    met = run && static_cast<uint64_t>(op.run) + 1 == found.node;
    if (met) {
      culprit = ask_the_cpu(program.plan->graph, program.runs[static_cast<size_t>(op.run)]);
      continue;
    }
    OFSDP_RETURN_IF_ERROR(execute(*this, op));
    OFSDP_RETURN_IF_ERROR(settle());
  }
  if (culprit.ok()) culprit = in_words(found);
  return std::move(culprit).with_prefix(subject(refused_, step, ranks_->rank()));
}

// Ranks evaluate independently, so with several ranks none can be asked for gathers.
Status DeviceEngine::blame_evaluation(size_t slot) {
  BoundProgram& program = *slots_[slot].program;
  const ofsdp_data_fault found = pinned_result(slot).fault;
  const int64_t step = slots_[slot].step;
  refused_ = node_of(program, found);
  if (ranks_->several()) {
    return in_words(found).with_prefix(subject(refused_, step, ranks_->rank()));
  }
  step_.numbers = device_numbers(slot);
  step_.samples = slots_[slot].samples;
  patch_inputs(program, slot);
  OFSDP_RETURN_IF_ERROR(settle());
  return blame_data(program, found, step);
}

// Returns ok if the CPU finds nothing wrong.
Status DeviceEngine::ask_the_cpu(const Graph& graph, const BoundRun& run) {
  Problem problem = problem_of(graph, *run.node);
  for (auto* descs : {&problem.inputs, &problem.outputs}) {
    for (TensorDesc& desc : *descs) desc = desc.dense();
  }
  OFSDP_ASSIGN_OR_RETURN(const auto kernel, create_kernel(*run.node->op, problem));
  std::vector<HostBytes> memory;
  const auto on_host = [&](const std::vector<TensorView>& views) {
    std::vector<TensorView> made = views;
    for (TensorView& view : made) {
      view.desc = view.desc.dense();
      if (view.data != nullptr) view.data = memory.emplace_back(view.desc.bytes()).data;
    }
    return made;
  };
  const std::vector<TensorView> inputs = on_host(run.inputs), outputs = on_host(run.outputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].data != nullptr) OFSDP_RETURN_IF_ERROR(read_back(run.inputs[i], inputs[i].data));
  }
  const HostBytes workspace(kernel->workspace_bytes());
  return kernel->run({inputs, outputs, workspace.data, &step_});
}

Status DeviceEngine::read_back(const TensorView& view, std::byte* to) {
  return in_pieces(view, [&](std::span<const std::byte> piece) {
    std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
    return true;
  });
}

}  // namespace ofsdp::runtime
