#include "runtime/engine/nan_search.h"

#include <algorithm>
#include <cmath>

namespace ofsdp::runtime {
namespace {

Result<bool> found_in(const TensorView& view, const NanSearch& search) {
  if (view.data == nullptr || view.desc.dtype != DType::kFloat32) return false;
  return search.has_nan(view);
}

// Names an input of a node that has a NaN, or nothing. Call it before the node runs: it may write
// over its inputs.
Result<std::string> nan_read(const BoundRun& run, const Graph& graph, const NanSearch& search) {
  const Node& node = *run.node;
  for (size_t i = 0; i < run.inputs.size(); ++i) {
    OFSDP_ASSIGN_OR_RETURN(const bool found, found_in(run.inputs[i], search));
    if (!found) continue;
    return format_text("first in '{}', which node '{}' ({}) reads",
                       graph.value(node.inputs[i]).name, node.name, node.op->full_name());
  }
  return std::string();
}

Result<std::string> nan_made(const BoundRun& run, const NanSearch& search) {
  const Node& node = *run.node;
  for (const TensorView& output : run.outputs) {
    OFSDP_ASSIGN_OR_RETURN(const bool found, found_in(output, search));
    if (found) return format_text("first made by node '{}' ({})", node.name, node.op->full_name());
  }
  return std::string();
}

}  // namespace

bool is_of_unshard(const Operation& op) {
  return op.kind == OpKind::kUnshard || op.kind == OpKind::kCopyUp;
}

bool any_nan(std::span<const float> values) {
  return std::ranges::any_of(values, [](float value) { return std::isnan(value); });
}

Result<std::string> first_nan(const BoundProgram& program, const NanSearch& search) {
  std::string first;
  for (const Operation& op : program.operations) {
    if (op.kind == OpKind::kCheckLoss) break;
    if (!first.empty() && !search.together) break;
    const bool runs = op.kind == OpKind::kRun && search.here && first.empty();
    if (!runs && !is_of_unshard(op)) continue;
    if (!runs) {
      OFSDP_RETURN_IF_ERROR(search.execute(op));
      continue;
    }
    const BoundRun& run = program.runs[static_cast<size_t>(op.run)];
    OFSDP_ASSIGN_OR_RETURN(first, nan_read(run, program.plan->graph, search));
    OFSDP_RETURN_IF_ERROR(search.execute(op));
    if (!first.empty()) continue;
    OFSDP_ASSIGN_OR_RETURN(first, nan_made(run, search));
  }
  return first.empty() ? "none found when run again" : first;
}

Status loss_fault(const ProgramPlan& plan, float loss, int64_t step, int rank,
                  const std::string& first) {
  const bool training = plan.options.training;
  return fault("{}: {} is {} {} step {}, rank {}{}{}", plan.graph.file,
               training ? "loss" : "evaluation loss", std::isnan(loss) ? "NaN" : "infinite",
               training ? "at" : "after", step, rank, first.empty() ? "" : ": ", first);
}

}  // namespace ofsdp::runtime
