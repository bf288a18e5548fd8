// Updater: makes a rank's update kernels before the first step, and runs them. There is one list of
// kernels per unit and part of the update; the CPU and devices have the same lists.
//
//   advance   with the reduced gradient: each optimizer's operations `advance` and `keep`, and the
//             average of parameters that move in `advance`. On the CPU it is called for each block
//             that a reduction has summed
//   sums      sums of squares for factored second moments. Ranks add them up; `factors` follows
//   norms     squares of parameters and directions, over unique spans (the part of the shard that
//             only this rank counts). Ranks add them up
//   apply     the steps that need whole parameters, the average of these parameters, and the
//             rounded copy that nodes read
//
// If the model brings an update of its own (update_program.h), a kernel of it replaces `advance`.
//
// Engines call advance, then, if the table asks for it, sum_squares, advance_factors, add_norms and
// apply, as the schedule says. One thread calls; on the CPU several threads may call `advance` on
// different stretches unless of_one_thread(). The updater owns the kernels; the update table and
// the memory outlive it. `make` returns kInput if a device lacks an optimizer; nothing allocates
// after it. All other functions return kernel errors.
//
// [Note: the norm's blocks] Squares of gradients are summed in double: first over blocks of
// kReduceBlock elements that start at multiples of kReduceBlock in a rank's span of the padded flat
// unit, then over blocks, units in schedule order and ranks in order. The sum is the same with
// every strategy.
//
// [Note: the norms of parameters] A rank sums the squares of the unique part of each parameter in
// double, in blocks of kUpdateBlock elements from the beginning of the part. Ranks exchange the
// sums and add them in rank order. The parts, and so the bits, are the same with every strategy;
// with hybrid strategies the sum differs in rounding. With --deterministic across_ranks the sums
// are exact (ExactSquares), with one exchange per norm.
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
  int64_t optimizer_step = 0;  // from 1, without skipped updates; begin_update sets it
  double factor = 0;           // lr / base rate, for groups with a base rate of their own
  // Updates skipped so far, by which lr and factor are computed. A device may have skipped the
  // update before, which the host does not know yet; in that case lr_if_skipped and
  // factor_if_skipped hold.
  int64_t skipped = 0;
  double lr_if_skipped = 0, factor_if_skipped = 0;

  // Returns the numbers for an update before which `known` updates were skipped.
  UpdateNumbers after(int64_t known) const {
    UpdateNumbers now = *this;
    if (known <= skipped) return now;
    now.lr = lr_if_skipped;
    now.factor = factor_if_skipped;
    return now;
  }
};

// The state in which `advance` gets a gradient. There is one kernel per form, which does the rest.
enum class GradientForm {
  kSum,       // float32, complete
  kScaled,    // float32, still to be multiplied by the clip factor
  kSlot,      // in the dtype of the unit's slot, still to be rounded to the reduction dtype
  kSlotOnto,  // as kSlot, and then earlier micro-batches are still to be added
};
inline constexpr size_t kGradientForms = 4;

// Returns the kernel of a model's own update for a unit's rows.
using RuleKernels =
    std::function<std::unique_ptr<Kernel>(const Problem& problem, std::vector<UpdateRow> rows)>;

struct UpdaterContext {
  Device* device = nullptr;  // null: the CPU updates
  const UpdateTable& table;
  const std::vector<UnitState>& units;  // addresses, on the device if it updates
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
  // Returns true if only the rank's thread may call `advance`: a model's own update has one scratch
  // memory, and a plug-in starts threads itself.
  bool of_one_thread() const { return of_one_thread_; }

  // Sets the numbers of the next calls. Only on the CPU: a device reads them from device memory.
  void begin(const UpdateNumbers& numbers);

  struct Gradient {
    const void* values = nullptr;  // the stretch's elements
    const float* onto = nullptr;   // kSlotOnto: the sum of earlier micro-batches
  };
  // Runs `advance` on the elements `stretch` of the unit's shard; null: on all. On a device, `step`
  // must be a DeviceStepContext with a stream, here and below.
  Status advance(int unit, GradientForm form, const Gradient& gradient, const Stretch* stretch,
                 const StepContext& step) const;
  // The same on the CPU for shard elements [begin, begin + gradient.size()), in the form kSum.
  Status advance(int unit, int64_t begin, std::span<const float> gradient) const;
  // Adds the squares of gradient elements to their row's and column's sum, for the elements that
  // this rank counts: the unique span, or with across_ranks the whole unit. gradient[0] is the
  // first of them. REQUIRES: `sums` is 0.
  Status sum_squares(int unit, const float* gradient, float* sums, const StepContext& step);
  // Runs `factors`. REQUIRES: ranks have added up their `sums`.
  Status advance_factors(int unit, float* sums, const StepContext& step);
  // Adds the squares of all parameters and directions in this rank's unique spans to `squares`.
  Status add_norms(const StepContext& step) const;
  // On the CPU: add_norms, then the exchange with all ranks. Collective. `update`: the number, for
  // messages.
  Status agree_on_norms(Communicator& communicator, int64_t update);
  // Muon: orthogonalizes this rank's matrices in `values`, the whole unit (orthogonal_plan.h), and
  // sets other ranks' matrices to 0; all ranks but the first in the group also set the elements
  // outside of matrices to 0. So the sum over ranks has every matrix and every other element once.
  Status orthogonalize(int unit, float* values, std::byte* work, const StepContext& step);
  // Runs `apply`. REQUIRES: norms, factors or orthogonalized directions are complete.
  Status apply(int unit, const StepContext& step) const;

  // Rounds the rank's shard into the copy that nodes read, if there is one.
  Status round(int unit, const StepContext& step) const;
  // Swaps the parameters with their average, and rounds them; a second call swaps back.
  Status swap_average(const StepContext& step) const;

 private:
  using Listing = std::vector<std::unique_ptr<Kernel>>;
  // A matrix that this rank transforms, or elements to set to 0.
  struct MatrixUpdate {
    int64_t offset = 0;  // first element, counted in the flat unit
    OrthogonalMatrix* matrix = nullptr;
    std::unique_ptr<Kernel> clear = nullptr;
    TensorDesc cleared = {};
  };
  struct UnitUpdate {
    std::vector<TensorView> operands;  // UpdateOut
    std::array<Listing, kGradientForms> advance;
    Listing sums, factors, norms, apply, swap, round;
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
  ofsdp_step_numbers numbers_{};
  ofsdp_run_state state_{};
  std::vector<double> squares_, limbs_, gathered_;
  std::vector<float> means_;
};

}  // namespace ofsdp::runtime
