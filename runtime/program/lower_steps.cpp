#include "runtime/program/lower_steps.h"

namespace ofsdp::runtime {

void OperationList::begin(size_t step) {
  begin_ = made_.size();
  step_ = static_cast<int>(step);
}

void OperationList::end() {
  if (made_.size() == begin_) return;
  made_[begin_].begins_step = true;
  made_.back().ends_step = true;
}

Operation& OperationList::add(OpKind kind, Lane lane, int unit) {
  Operation& made = made_.emplace_back();
  made.kind = kind;
  made.lane = lane;
  made.step = step_;
  made.unit = unit;
  made.first = options_.first_micro;
  made.last = options_.last_micro;
  return made;
}

int StepLowering::copies_channel(int u) const {
  return unit(u).plan.shards_gradients ? channels().gradient_shard(u) : channels().gradient(u);
}

Span StepLowering::unique_of_owned(int u) const {
  return {unique(u).begin - places(u).span.begin, unique(u).numel};
}

Operand StepLowering::owned(int u, bool writes) const {
  Operand made = places(u).owned.written(writes);
  made.dtype = DType::kFloat32;
  return made;
}

std::vector<Operand> StepLowering::touched(int u, bool writes_slot, bool updates) const {
  std::vector<Operand> list{places(u).slot.written(writes_slot), places(u).gradient.written()};
  if (!updates) return list;
  list.push_back(owned(u, true));
  if (unit(u).plan.rounded) list.push_back(places(u).rounded.written());
  for (const Operand& values : places(u).optimizer) list.push_back(values.written());
  return list;
}

Operand StepLowering::run_state() {
  return {.area = Area::kRunState, .count = 1, .dtype = DType::kUInt8, .writes = true};
}

}  // namespace ofsdp::runtime
