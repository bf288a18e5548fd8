// Updater: lists the update operations of a rank for each unit, makes the kernels, and runs them.
// CPU and devices run the same lists; only kernels differ.
//
//   advance   with the reduced gradient: each optimizer's `advance` and `keep`; the average of
//             parameters that move at once. On the CPU in stretches, as a reduction yields them
//   sums      of squares, for factored second moments. Ranks add them up; `factors` follows
//   norms     of parameters and directions, over unique spans. Ranks add them up
//   apply     steps of whole parameters, their average, the copy that nodes read
//
// A model's own update (update_program.h) is a kernel in place of `advance`.
//
// [Note: the norm's blocks] Squares of gradients are summed in double, over blocks of kReduceBlock
// elements that start at multiples of it in a rank's span of the padded flat unit, then over
// blocks, units in schedule order and ranks in order: the same sum under every strategy.
//
// [Note: the norms of parameters] A rank sums the squares of the unique part of each parameter in
// double, in blocks of kUpdateBlock elements from where the part begins; ranks exchange the sums
// and add them in rank order. Parts, and so bits, are the same under every strategy (hybrid
// strategies: to rounding). With --deterministic across_ranks the sums are exact (ExactSquares),
// with one exchange a norm.
//
// Owns the kernels; table and memory outlive it. One thread calls it, but several may call
// `advance` on the CPU unless of_one_thread(). Allocates nothing after make, which returns kInput
// if a device lacks an optimizer.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "kernels/core/device.h"
#include "kernels/optimizers/squares.h"
#include "runtime/engine/memory.h"
#include "runtime/engine/orthogonal_plan.h"
#include "runtime/engine/update_table.h"

namespace ofsdp::runtime {

struct UpdateNumbers {
  double lr = 0;
  int64_t step = 0;            // from 1
  int64_t optimizer_step = 0;  // from 1, without skipped ones; begin_update sets it
  double factor = 0;           // of the schedule: lr over the base rate
  // lr and factor count with so many skipped updates. A device may have skipped one more that the
  // host does not know yet: then these hold.
  int64_t skipped = 0;
  double lr_if_skipped = 0, factor_if_skipped = 0;

  // Returns the numbers if `known` updates have been skipped.
  UpdateNumbers after(int64_t known) const {
    UpdateNumbers now = *this;
    if (known <= skipped) return now;
    now.lr = lr_if_skipped;
    now.factor = factor_if_skipped;
    return now;
  }
};

// Gradients that `advance` may get; each form has its own kernels.
enum class GradientForm {
  kSum,       // float32, complete
  kScaled,    // the same, before multiplication by the clip factor
  kSlot,      // in the dtype of the unit's slot, before rounding to the reduction dtype
  kSlotOnto,  // the same, before adding earlier micro-batches
};
inline constexpr size_t kGradientForms = 4;

// Makes the kernel of a model's own update for a unit's rows.
using RuleKernels =
    std::function<std::unique_ptr<Kernel>(const Problem& problem, std::vector<UpdateRow> rows)>;

struct UpdaterContext {
  Device* device = nullptr;  // null: the CPU updates
  const UpdateTable& table;
  const std::vector<UnitState>& units;  // addresses on the device, if there is one
  std::vector<OrthogonalUnit> orthogonal = {};
  RuleKernels rules = nullptr;
  // On a device: run state, and memory for norms and factors (DeviceIoMap).
  ofsdp_run_state* state = nullptr;
  double *squares = nullptr, *partials = nullptr;
  float* means = nullptr;
};

class Updater {
 public:
  static Result<std::unique_ptr<Updater>> make(UpdaterContext context);

  const UpdateTable& table() const { return context_.table; }
  bool needs_norms() const { return table().needs_norms(); }
  bool takes_steps() const { return table().takes_steps(); }
  // Returns true if only the rank's thread may call `advance`: for rules, and for plug-ins, which
  // fan out themselves.
  bool of_one_thread() const { return of_one_thread_; }

  // Sets the numbers of an update on the CPU.
  void begin(const UpdateNumbers& numbers);

  struct Gradient {
    const void* values = nullptr;  // of the stretch
    const float* onto = nullptr;   // kSlotOnto
  };
  // `stretch`: null for the whole shard. `step`: a DeviceStepContext with a stream, on a device.
  Status advance(int unit, GradientForm form, const Gradient& gradient, const Stretch* stretch,
                 const StepContext& step) const;
  // On the CPU: elements [begin, begin + gradient.size()) of the shard.
  Status advance(int unit, int64_t begin, std::span<const float> gradient) const;
  // Sums squares by rows and columns, over the elements that this rank counts: its unique span, or
  // the whole unit with across_ranks. `gradient` begins there. REQUIRES: `sums` is 0.
  Status sum_squares(int unit, const float* gradient, float* sums, const StepContext& step);
  // REQUIRES: `sums` are added up over all ranks.
  Status advance_factors(int unit, float* sums, const StepContext& step);
  // Adds the squares of all parameters and directions in this rank's unique spans to `squares`.
  Status add_norms(const StepContext& step) const;
  // On the CPU: add_norms, and the exchange with all ranks. Collective.
  Status agree_on_norms(Communicator& communicator, int64_t update);
  // Orthogonalizes this rank's matrices in `values`, the whole unit. Clears other ranks' matrices;
  // ranks other than the first in the group also clear all elements outside of matrices.
  Status orthogonalize(int unit, float* values, std::byte* work, const StepContext& step);
  Status apply(int unit, const StepContext& step) const;

  // Rounds the rank's shard into the copy that nodes read, if there is one.
  Status round(int unit, const StepContext& step) const;
  // Swaps parameters with their average, and rounds them. On the CPU.
  Status swap_average();

 private:
  struct Listed {
    std::unique_ptr<Kernel> kernel;
    size_t group = 0;
  };
  using Listing = std::vector<Listed>;
  // One of this rank's matrices, or elements to clear.
  struct MatrixUpdate {
    int64_t offset = 0;  // element of the unit
    OrthogonalMatrix* matrix = nullptr;
    std::unique_ptr<Kernel> clear = nullptr;
    TensorDesc cleared = {};
  };
  struct UnitUpdate {
    std::vector<TensorView> operands;  // UpdateOut
    std::array<Listing, kGradientForms> advance;
    Listing sums, factors, norms, apply, round;
    std::vector<MatrixUpdate> matrices;
  };

  explicit Updater(UpdaterContext context);
  friend class UpdateLister;
  Status run(const Listing& listing, const UnitUpdate& unit, const Gradient& gradient,
             const Stretch* stretch, const StepContext& step) const;
  Status exchange(Communicator& communicator, const CollectiveSite& site);
  Status exchange_exact(Communicator& communicator, const CollectiveSite& site);
  UnitUpdate& unit(int u) { return units_[static_cast<size_t>(u)]; }
  const UnitUpdate& unit(int u) const { return units_[static_cast<size_t>(u)]; }

  UpdaterContext context_;
  bool of_one_thread_ = false;
  std::vector<UnitUpdate> units_;
  // On the CPU.
  std::vector<ofsdp_step_numbers> numbers_;  // per group, which may have its own rate
  ofsdp_run_state state_{};
  std::vector<double> squares_, limbs_, gathered_;
  std::vector<float> means_;
};

}  // namespace ofsdp::runtime
