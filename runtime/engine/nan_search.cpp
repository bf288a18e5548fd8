#include "runtime/engine/nan_search.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/escaped.h"

namespace ofsdp::runtime {
namespace {

// An operand of a node with its values' range.
struct SeenOperand {
  const char* role;
  std::string name, type;
  ValueRange range;
  bool floating = false;
};

// Adds the operands that are there. Inputs are looked at before the node runs: it may write over
// them.
Status look_at(const char* role, const std::vector<TensorView>& views,
               const std::vector<ValueId>& values, const Graph& graph, const NanSearch& search,
               std::vector<SeenOperand>& seen) {
  for (size_t i = 0; i < views.size(); ++i) {
    if (views[i].data == nullptr) continue;
    const TensorDesc& desc = views[i].desc;
    SeenOperand operand{
        role,
        i < values.size() ? graph.value(values[i]).name : "",
        format_text("{}[{}]", dtype_name(desc.dtype), joined(desc.shape.axes(), ",")),
        {},
        is_floating(desc.dtype)};
    OFSDP_ASSIGN_OR_RETURN(operand.range, search.range(views[i]));
    seen.push_back(std::move(operand));
  }
  return {};
}

std::string padded(std::string text, size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

std::string table(const Node& node, const std::vector<SeenOperand>& seen) {
  size_t names = 0, types = 0;
  for (const SeenOperand& operand : seen) {
    names = std::max(names, escaped(operand.name).size());
    types = std::max(types, operand.type.size());
  }
  std::string text =
      format_text("operands of '{}' ({}):", escaped(node.name), escaped(node.op->full_name()));
  for (const SeenOperand& operand : seen) {
    text += format_text("\n  {}  {}  {}  {}", padded(operand.role, 6),
                        padded("'" + escaped(operand.name) + "'", names + 2),
                        padded(operand.type, types), runtime::text(operand.range));
  }
  return text;
}

// Runs the node; returns the first NaN that it reads or makes, or the first infinity that it
// makes of finite operands.
Result<NanFound> nan_of(const Operation& op, const BoundRun& run, const Graph& graph,
                        const NanSearch& search, bool infinities) {
  const Node& node = *run.node;
  std::vector<SeenOperand> seen;
  OFSDP_RETURN_IF_ERROR(look_at("input", run.inputs, node.inputs, graph, search, seen));
  const size_t inputs = seen.size();
  OFSDP_RETURN_IF_ERROR(search.execute(op));
  OFSDP_RETURN_IF_ERROR(look_at("output", run.outputs, node.outputs, graph, search, seen));
  const auto has_nan = [](const SeenOperand& o) { return o.floating && o.range.nans > 0; };
  auto found = std::ranges::find_if(seen, has_nan);
  if (found == seen.end() && infinities) {
    const auto is_infinite = [](const SeenOperand& o) {
      return o.floating && o.range.infinite > 0;
    };
    found = std::ranges::find_if(seen, is_infinite);
    if (found - seen.begin() < static_cast<std::ptrdiff_t>(inputs)) found = seen.end();
  }
  if (found == seen.end()) return NanFound{};
  const bool read = static_cast<size_t>(found - seen.begin()) < inputs;
  return NanFound{
      read ? format_text("first in '{}', which node '{}' ({}) reads", found->name, node.name,
                         node.op->full_name())
           : format_text("first made by node '{}' ({})", node.name, node.op->full_name()),
      table(node, seen)};
}

}  // namespace

bool is_of_unshard(const Operation& op) {
  return op.kind == OpKind::kUnshard || op.kind == OpKind::kCopyUp;
}

bool any_nan(std::span<const float> values) {
  return std::ranges::any_of(values, [](float value) { return std::isnan(value); });
}

Result<NanFound> first_nan(const BoundProgram& program, const NanSearch& search) {
  NanFound found;
  bool backward = false;
  for (const Operation& op : program.operations) {
    if (op.kind == OpKind::kCheckLoss && !search.gradients) break;
    backward = backward || op.kind == OpKind::kCheckLoss;
    if (!found.first.empty() && !search.together) break;
    const bool runs = op.kind == OpKind::kRun && search.here && found.first.empty();
    if (runs) {
      const BoundRun& run = program.runs[static_cast<size_t>(op.run)];
      OFSDP_ASSIGN_OR_RETURN(found, nan_of(op, run, program.plan->graph, search, backward));
    } else if (is_of_unshard(op)) {
      OFSDP_RETURN_IF_ERROR(search.execute(op));
    }
  }
  if (found.first.empty()) found.first = "none found when run again";
  return found;
}

Status loss_fault(const ProgramPlan& plan, float loss, int64_t step, int rank,
                  const NanFound& found) {
  const bool training = plan.options.training;
  Status line =
      fault("{}: {} is {} {} step {}, rank {}{}{}", plan.graph.file,
            training ? "loss" : "evaluation loss", std::isnan(loss) ? "NaN" : "infinite",
            training ? "at" : "after", step, rank, found.first.empty() ? "" : ": ", found.first);
  return with_table(std::move(line), found.operands);
}

Status with_table(Status error, const std::string& lines) {
  if (error.ok() || lines.empty()) return error;
  return {error.kind(), error.message() + "\n" + lines};
}

}  // namespace ofsdp::runtime
