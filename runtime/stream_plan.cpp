#include "runtime/stream_plan.h"

namespace ofsdp {
namespace {

bool conflict(const MemoryAccess& a, const MemoryAccess& b) {
  if (!a.writes && !b.writes) return false;
  return a.data < b.data + b.bytes && b.data < a.data + a.bytes;
}

bool conflict(const StepAccess& a, const StepAccess& b) {
  for (const MemoryAccess& x : a.touches) {
    for (const MemoryAccess& y : b.touches) {
      if (conflict(x, y)) return true;
    }
  }
  return false;
}

class StreamPlanner {
 public:
  explicit StreamPlanner(const std::vector<StepAccess>& steps) : accesses_(steps) {
    plan_.steps.resize(steps.size());
  }

  StreamPlan run() {
    for (size_t s = 0; s < accesses_.size(); ++s) {
      if (accesses_[s].touches.empty()) continue;
      accesses_[s].communication ? communicate(s) : compute(s);
    }
    if (!communication_.empty()) plan_.join = recorded(communication_.back());
    return std::move(plan_);
  }

 private:
  void communicate(size_t s) {
    StreamStep& step = plan_.steps[s];
    step.communication = true;
    if (computed_ || communication_.empty()) step.forks = plan_.events++;
    computed_ = false;
    communication_.push_back(s);
  }

  // Waiting for one step of a stream is waiting for all before it.
  void compute(size_t s) {
    computed_ = true;
    for (size_t i = communication_.size(); i > waited_; --i) {
      const size_t other = communication_[i - 1];
      if (!conflict(accesses_[s], accesses_[other])) continue;
      plan_.steps[s].waits = recorded(other);
      waited_ = i;
      return;
    }
  }

  int recorded(size_t s) {
    int& event = plan_.steps[s].records;
    if (event < 0) event = plan_.events++;
    return event;
  }

  const std::vector<StepAccess>& accesses_;
  StreamPlan plan_;
  std::vector<size_t> communication_;  // steps so far
  size_t waited_ = 0;                  // of these, how many the compute stream has waited for
  bool computed_ = false;              // since the last fork
};

}  // namespace

StreamPlan plan_streams(const std::vector<StepAccess>& steps) { return StreamPlanner(steps).run(); }

}  // namespace ofsdp
