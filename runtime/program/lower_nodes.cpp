// Nodes, running statistics, and the rows that nodes of all ranks join.
#include <algorithm>

#include "importer/graph/rank_rows.h"
#include "runtime/program/lower_steps.h"

namespace ofsdp::runtime {

void NodeLowering::run(size_t step, int n) {
  Operation& made = add(OpKind::kRun, Lane::kCompute);
  made.run = runs_++;
  made.node = n;
  made.rowless = runs_without_rows(*node(n).op);
  for (const ValueId id : node(n).inputs) made.operands.push_back(operands_.value(id, false));
  for (const ValueId id : node(n).outputs) made.operands.push_back(operands_.value(id, true));
  const int64_t workspace = program_.memory.step_offset[step];
  if (workspace < 0) return;
  const size_t bytes = program_.kernels[static_cast<size_t>(n)]->workspace_bytes();
  made.operands.push_back(
      arena_operand(workspace, static_cast<int64_t>(bytes), DType::kUInt8).written());
}

void NodeLowering::check_loss() {
  const bool agrees = context_.on_device && several_ranks();
  Operation& made = add(OpKind::kCheckLoss, agrees ? Lane::kCommunication : Lane::kCompute);
  for (const LossTerm& term : graph_.terms()) {
    made.operands.push_back(operands_.value(term.value, false));
  }
  made.operands.push_back(run_state());
}

void NodeLowering::carry(int k) {
  const Carried& c = graph_.carried[static_cast<size_t>(k)];
  const ValueId parameter = graph_.parameters[static_cast<size_t>(c.parameter)].value;
  Operation& made = add(OpKind::kBuffer, Lane::kCompute);
  made.src = operands_.value(c.next, false);
  made.dst = operands_.kept(parameter);
  made.dst.count = graph_.value(parameter).desc.numel();
  made.dst.dtype = graph_.value(parameter).desc.dtype;
  made.operands = {made.src, made.dst.written()};
  made.rowless = std::ranges::any_of(graph_.nodes, [&](const Node& node) {
    return runs_without_rows(*node.op) && std::ranges::count(node.outputs, c.next) > 0;
  });
}

// A sum over ranks whose parts are zero but for each rank's own is a gather; so the transports that
// sum gradients carry rows as well.
Operation& NodeLowering::add_rows(OpKind kind, int n) {
  const ValueId joined = node(n).outputs[0];
  Operation& made = add(kind, Lane::kCommunication);
  made.node = n;
  made.src = operands_.value(joined, false);
  made.dst = operands_.value(joined, true);
  made.group = all_ranks();
  made.channel = channels().rows(operands_.join(joined));
  made.part = {-1, made.dst.count / plan_.world};
  return made;
}

// A device's exchange begins as soon as this rank's rows are there: the nodes up to the first
// reader run next to it, and that reader waits for it by an event of its stream.
void NodeLowering::post_rows(int n) {
  if (!context_.on_device) add_rows(OpKind::kAwait, n);
  Operation& made = add_rows(OpKind::kPlaceRows, n);
  made.run = runs_++;
  made.operands = {operands_.value(node(n).inputs[0], false), made.dst};
  add_rows(context_.on_device ? OpKind::kJoinRows : OpKind::kPost, n);
}

void NodeLowering::join_rows(int n) {
  if (!context_.on_device) add_rows(OpKind::kJoinRows, n);
}

}  // namespace ofsdp::runtime
