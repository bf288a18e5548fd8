#include "runtime/compile/program/operation.h"

#include <algorithm>
#include <array>

namespace ofsdp::runtime {

namespace {

constexpr std::array kKindNames{
#define OPERATION(kind, engine, cost, traffic, description) #kind,
#define HOST_OPERATION(kind, description) #kind,
#include "runtime/compile/program/steps.inc"
};
constexpr std::array kAreaNames{"none",   "arena", "kept",  "state",       "shared",
                                "common", "host",  "input", "loss-weight", "run-state"};

std::string text(const Operand& o) {
  if (o.area == Area::kInput) return format_text("input {}", o.offset);
  const std::string rows = o.pitch == 0 ? "" : format_text(" in rows of {}", o.pitch);
  return format_text("{}+{}[{} {}{}]{}", kAreaNames[static_cast<size_t>(o.area)], o.offset, o.count,
                     dtype_name(o.dtype), rows, o.writes ? " w" : "");
}

std::string text(const Stages& stages) {
  std::string out;
  if (stages.ordered) out += " ordered";
  if (stages.round_to != DType::kFloat32)
    out += format_text(" round {}", dtype_name(stages.round_to));
  if (stages.adds) out += " add";
  if (stages.positive_zero) out += " positive-zero";
  if (stages.norm) out += " norm";
  if (stages.exact) out += " exact";
  if (stages.update) out += " update";
  return out;
}

bool conflict(const MemoryAccess& a, const MemoryAccess& b) {
  if (!a.writes && !b.writes) return false;
  return a.data < b.data + b.bytes && b.data < a.data + a.bytes;
}

bool conflict(const std::vector<MemoryAccess>& a, const std::vector<MemoryAccess>& b) {
  for (const MemoryAccess& x : a) {
    for (const MemoryAccess& y : b) {
      if (conflict(x, y)) return true;
    }
  }
  return false;
}

class StreamScheduler {
 public:
  explicit StreamScheduler(const std::vector<StepAccess>& steps) : accesses_(steps) {
    plan_.steps.resize(steps.size());
  }

  StreamSchedule run() {
    for (size_t s = 0; s < accesses_.size(); ++s) {
      if (accesses_[s].touches.empty()) continue;
      accesses_[s].stream == Lane::kCompute ? compute(s) : communicate(s);
    }
    for (const auto* steps : {&communication_, &download_}) {
      if (!steps->empty()) plan_.joins.push_back(recorded(steps->back()));
    }
    return std::move(plan_);
  }

 private:
  // How many steps a stream has waited for, on each of the two other streams.
  struct Waited {
    size_t communication = 0, download = 0;
  };

  void communicate(size_t s) {
    StreamStep& step = plan_.steps[s];
    step.stream = accesses_[s].stream;
    if (computed_ || (communication_.empty() && download_.empty())) {
      step.forks = plan_.events++;
      of_copies_ = of_compute_;
    }
    computed_ = false;
    wait(accesses_[s].touches, download_, of_communication_.download, step.waits);
    const std::vector<MemoryAccess>& copies = accesses_[s].copies;
    wait(copies, download_, of_copies_.download, step.copies_wait);
    wait(copies, communication_, of_copies_.communication, step.copies_wait);
    (step.stream == Lane::kDownload ? download_ : communication_).push_back(s);
  }

  // A download's end follows all earlier communication steps.
  void compute(size_t s) {
    computed_ = true;
    const std::vector<MemoryAccess>& touches = accesses_[s].touches;
    std::vector<int>& waits = plan_.steps[s].waits;
    if (wait(touches, download_, of_compute_.download, waits)) {
      const size_t last = download_[of_compute_.download - 1];
      const auto before = std::ranges::lower_bound(communication_, last) - communication_.begin();
      of_compute_.communication = std::max(of_compute_.communication, static_cast<size_t>(before));
    }
    wait(touches, communication_, of_compute_.communication, waits);
  }

  // A wait for a step includes all earlier steps of that stream.
  bool wait(const std::vector<MemoryAccess>& touches, const std::vector<size_t>& others,
            size_t& waited, std::vector<int>& waits) {
    for (size_t i = others.size(); i > waited; --i) {
      const size_t other = others[i - 1];
      if (!conflict(touches, accesses_[other].touches)) continue;
      waits.push_back(recorded(other));
      waited = i;
      return true;
    }
    return false;
  }

  int recorded(size_t s) {
    int& event = plan_.steps[s].records;
    if (event < 0) event = plan_.events++;
    return event;
  }

  const std::vector<StepAccess>& accesses_;
  StreamSchedule plan_;
  std::vector<size_t> communication_, download_;  // steps so far
  Waited of_compute_, of_communication_, of_copies_;
  bool computed_ = false;  // since the last fork
};

}  // namespace

std::string text(const Operation& op) {
  constexpr std::array kLanes{"", " communication", " download"};
  std::string out = kKindNames[static_cast<size_t>(op.kind)];
  if (op.node >= 0) out += format_text(" n{}", op.node);
  if (op.unit >= 0) out += format_text(" u{}", op.unit);
  out += kLanes[static_cast<size_t>(op.lane)];
  if (op.channel >= 0) out += format_text(" channel {}", op.channel);
  if (op.group.count > 1) {
    out += format_text(" ranks {}:{}:{}", op.group.first, op.group.count, op.group.stride);
  }
  if (op.part.numel > 0) out += format_text(" part {}+{}", op.part.begin, op.part.numel);
  if (op.src.area != Area::kNone) out += " src " + text(op.src);
  if (op.onto.area != Area::kNone) out += " onto " + text(op.onto);
  if (op.dst.area != Area::kNone) out += " dst " + text(op.dst);
  if (op.converts) out += " converts";
  if (op.rowless) out += " rowless";
  if (op.slot >= 0) out += format_text(" slot {}", op.slot);
  out += text(op.stages);
  for (const Operand& operand : op.operands) {
    if (op.node >= 0) out += " " + text(operand);
  }
  return out;
}

std::vector<StepAccess> step_accesses(std::span<const Operation> operations, size_t steps) {
  constexpr uintptr_t kApart = uintptr_t{1} << 42;
  std::vector<StepAccess> list(steps);
  const auto add = [](const Operand& o, bool writes, std::vector<MemoryAccess>& to) {
    if (o.area == Area::kNone || o.area == Area::kInput || o.count == 0) return;
    const uintptr_t place = static_cast<uintptr_t>(o.area) * kApart;
    to.push_back({reinterpret_cast<const std::byte*>(place + static_cast<uintptr_t>(o.offset)),
                  o.bytes(), writes});
  };
  for (const Operation& op : operations) {
    StepAccess& step = list[static_cast<size_t>(op.step)];
    step.stream = std::max(step.stream, op.lane);
    for (const Operand& o : op.operands) add(o, o.writes, step.touches);
    if (op.kind == OpKind::kCopyUp) add(op.dst, true, step.copies);
  }
  return list;
}

StreamSchedule schedule_streams(const std::vector<StepAccess>& steps) {
  return StreamScheduler(steps).run();
}

}  // namespace ofsdp::runtime
