// OptimizerStep: the update of what a rank owns of the units, block by block, with the norm of the
// gradient summed on the way.
//
// A gradient arrives in blocks of at most kReduceBlock elements of the owned span. Weight decay may
// differ between parameters (--no-decay), so a block is cut where the parameters change;
// elementwise optimizers give the same bits whatever the cut.
//
// [Note: the norm's blocks] The squares are summed in double per block of kReduceBlock elements
// that starts at a multiple of it in a rank's span of the padded flat unit, blocks in order, units
// in the order of the schedule, ranks in order: the same sum under every strategy.
//
// Ownership: views of the rank's memory. Threads: the one that runs the schedule. No allocation
// after make.
#pragma once

#include <span>
#include <vector>

#include "fsdp/plan.h"
#include "kernels/core/optimizer.h"
#include "runtime/rank_memory.h"

namespace ofsdp {

// What the rank holds of one unit.
struct UnitState {
  float* owned = nullptr;         // parameters: the shard, or the whole
  std::vector<float*> optimizer;  // like owned
  std::byte* frozen = nullptr;    // the share of the frozen ones, in Plan::param_dtype
  std::byte* whole = nullptr;     // all parameters in Plan::param_dtype, where they rest; or null
  float* gradient = nullptr;      // like owned, where the reduced gradient waits; or null
  std::byte* slot = nullptr;      // the unit's gradient slot, whole, in Plan::slot_dtype
  int64_t owned_numel = 0;
  int64_t owned_begin = 0;  // of the unit's flat elements
};

std::vector<UnitState> unit_states(const Plan& plan, int rank, const RankMemoryPlan& offsets,
                                   const MemoryBases& memory);

struct UpdateNumbers {
  double lr = 0;
  int64_t step = 0;            // from 1
  int64_t optimizer_step = 0;  // from 1, without skipped ones; begin_update sets it
};

class OptimizerStep {
 public:
  // `decays`: per parameter of the graph, whether weight decay applies to it.
  OptimizerStep(const OptimizerDef& optimizer, const OptimizerSettings& settings, const Plan& plan,
                const std::vector<UnitState>& units, const std::vector<bool>& decays);

  struct Segment {
    int64_t end;  // of the owned span
    double weight_decay;
  };
  // Per unit, in order, covering the owned span.
  const std::vector<std::vector<Segment>>& segments() const { return segments_; }

  // Elements [begin, begin + gradient.size()) of what is owned of the unit.
  void update(int unit, int64_t begin, std::span<const float> gradient,
              const UpdateNumbers& numbers);

 private:
  const OptimizerDef& optimizer_;
  OptimizerSettings settings_;
  const std::vector<UnitState>& units_;
  std::vector<std::vector<Segment>> segments_;
  std::vector<float*> state_;  // scratch of one call
};

// In double, in a fixed order.
double sum_of_squares(std::span<const float> values);

}  // namespace ofsdp
