// Updates of elements: the decision by the norm, the optimizer's steps, and the norms that --watch
// keeps.
#include "runtime/program/lower_steps.h"

namespace ofsdp::runtime {

void UpdateLowering::clip() {
  Operation& made = add(OpKind::kClip, Lane::kCommunication);
  made.stages.exact = plan_.across_ranks;
  made.operands = {run_state()};
  if (offloads()) offload_.signal(-1, Lane::kCommunication);
}

void UpdateLowering::update(int u) {
  if (offloads()) return send(u);
  if (!options_.matrices.empty()) await_copies(u);
  Operation& made = add(OpKind::kUpdate, Lane::kCommunication, u);
  made.src = places(u).gradient;
  made.part = places(u).span;
  made.operands = touched(u, several_ranks(), true);
}

// Until all have taken their parts of a sum over copies: an optimizer that keeps the gradient
// writes there.
void UpdateLowering::await_copies(int u) {
  if (unit(u).plan.copies == 1 || plan_.across_ranks) return;
  Operation& made = add(OpKind::kAwait, Lane::kCompute, u);
  made.channel = copies_channel(u);
  made.group = copies(u);
}

// If the norm decides, an offload has sent its gradient down before.
void UpdateLowering::send(int u) {
  if (options_.clip) return;
  offload_.send_gradient(u, places(u).gradient, Lane::kDownload).operands =
      touched(u, several_ranks(), true);
  offload_.signal(u, Lane::kDownload);
}

void UpdateLowering::trust() {
  if (offloads()) return;  // the host takes the steps
  Operation& made = add(OpKind::kTrust, Lane::kCommunication);
  for (const Unit& unit : plan_.units) {
    made.operands.push_back(owned(unit.id, false));
    for (const Operand& values : places(unit.id).optimizer) made.operands.push_back(values);
  }
}

void UpdateLowering::apply(int u) {
  if (offloads()) return;
  Operation& made = add(OpKind::kApply, Lane::kCommunication, u);
  made.part = places(u).span;
  made.operands = {owned(u, true)};
  if (unit(u).plan.rounded) made.operands.push_back(places(u).rounded.written());
  for (const Operand& values : places(u).optimizer) made.operands.push_back(values);
}

void UpdateLowering::watch() {
  Operation& made = add(OpKind::kWatch, Lane::kCommunication);
  made.channel = channels().watch();
  made.group = all_ranks();
  made.src = {.area = Area::kShared,
              .offset = static_cast<int64_t>(context_.memory.watch_slot),
              .count = static_cast<int64_t>(context_.memory.watch_slot_bytes / sizeof(float))};
  made.dst = made.src.written();
  made.part = {-1, made.dst.count / plan_.world};
  made.operands = {made.dst};
}

}  // namespace ofsdp::runtime
