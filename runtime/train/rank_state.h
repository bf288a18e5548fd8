// RankState: a CompiledRun on this rank: memory mapped, weights loaded, programs
// bound, engine ready. write_trained and checkpointing.h save it.
//
// If a device computes, the host keeps an image of everything that is loaded or saved. Loading
// fills the image, `fetch` updates it, and all accessors from held to frozen refer to it. `make`
// copies the image to the device; later changes reach the device only in `kept`, by store_kept. The
// pinned memory of --cpu-offload needs no image.
//
// Owns the memory of the rank; plan, setup and communicator must outlive it. `make` is collective.
// Errors: kFault (memory, disk), kInput (a weight cannot be read).
#pragma once

#include <algorithm>
#include <span>

#include "fsdp/checkpoint/checkpoint_store.h"
#include "fsdp/plan/plan.h"
#include "kernels/base/overlap.h"
#include "runtime/compile/runner.h"
#include "runtime/engine/update_table.h"

namespace ofsdp::runtime {

// ShardView: a unit's values that a rank holds or represents: parameters or an optimizer state.
// Loading, saving and checking iterate over it by parameter. If several ranks hold the same values,
// each represents a part of them: over all ranks every value is represented once.
struct ShardPart {
  const UnitParam& param;
  int64_t first;            // the first value's index in the parameter
  std::span<float> values;  // the part of the parameter that lies in the span
};

class ShardView {
 public:
  ShardView(const Unit& unit, const Span& span, float* values)
      : unit_(&unit), span_(span), values_(values) {}

  float* values() const { return values_; }

  // Calls visit(ShardPart), which returns a Status, for each parameter in the span.
  template <typename Visit>
  Status for_each_part(const Visit& visit) const {
    return base::for_each_part(
        unit_->params, span_.begin, span_.numel,
        [&](const UnitParam& param, int64_t first, int64_t at, int64_t count) -> Status {
          return visit(ShardPart{param, first, {values_ + at, static_cast<size_t>(count)}});
        });
  }

 private:
  const Unit* unit_;
  Span span_;
  float* values_;
};

class RankState {
 public:
  // Takes the trained state from `checkpoint`; or from `before`, which must have the same units,
  // must have been fetched, and may differ only in micro-batch sizes; or else from the model.
  static Result<std::unique_ptr<RankState>> make(const CompiledRun& plan, const ModelSetup& setup,
                                                 Communicator& communicator, MemoryLedger& ledger,
                                                 const ExecutorOptions& options,
                                                 CheckpointReader* checkpoint = nullptr,
                                                 RankState* before = nullptr);

  const CompiledRun& plan() const { return plan_; }
  const ModelSetup& setup() const { return setup_; }
  int rank() const { return communicator_.rank(); }

  UpdateRunner& executor() { return *runner_.executor; }
  Updater& updater() { return *runner_.updater; }
  UpdateProgram* update_program() { return runner_.update_program.get(); }  // null: none
  const Watch* watch() const { return watch_.get(); }                       // null: none
  const TraceRecorder* trace() const { return trace_.get(); }               // null: none
  // Returns the program for `key`; an empty micro-batch runs a program for another size at the same
  // position.
  BoundProgram& program(const ProgramKey& key);

  // Memory for micro-batches that the loaders of training and evaluation read ahead, and for the
  // copy from which an asynchronous save writes.
  std::span<std::byte> train_staging() { return memory_.staging().first(eval_staging_); }
  std::span<std::byte> eval_staging() { return memory_.staging().subspan(eval_staging_); }
  std::span<std::byte> checkpoint_staging() {
    return {memory_.host.checkpoint.data(), memory_.host.checkpoint.bytes()};
  }

  // This rank's numbers of an evaluation, in the order of MetricLayout (setup/metric_layout.h).
  std::span<double> metrics() {
    const Region& region = memory_.host.metrics;
    return {reinterpret_cast<double*>(region.data()), region.bytes() / sizeof(double)};
  }

  // Updates the images from the device and waits for it. Must be called before a save and before
  // reads by the accessors below.
  Status fetch() { return memory_.fetch(plan_); }
  // Around changes of `kept` during a run: update its image from the device, and the device from
  // its image.
  Status fetch_kept() { return memory_.fetch_kept(plan_); }
  Status store_kept() { return memory_.store_kept(plan_); }

  // Returns the unit's values that this rank holds: parameters (state -1), or an elementwise
  // optimizer state. REQUIRES: float32.
  ShardView held(const Unit& unit, int state) const;
  // Returns the part of `held` that this rank represents.
  ShardView share(const Unit& unit, int state) const;
  const StoredState& stored(const Unit& unit, int state) const {
    return memory_.units[static_cast<size_t>(unit.id)].optimizer[static_cast<size_t>(state)];
  }
  // Calls visit(ShardPart), which returns a Status, for each parameter that has the optimizer
  // state, with the elements that this rank holds; factors exist only for some matrices
  // (StatePart). If the state has fewer bits, it is decoded piece by piece and encoded after the
  // visit, rounding to nearest.
  template <typename Visit>
  Status each_state(const Unit& unit, int state, const Visit& visit) const {
    const UnitState& u = memory_.units[static_cast<size_t>(unit.id)];
    const auto parts = state_parts(plan_.updates, unit, {u.owned_begin, u.owned_numel},
                                   static_cast<size_t>(state));
    return each_part(parts, stored(unit, state), true, visit);
  }
  // The same for the elements that this rank represents; the visitor must not change them.
  template <typename Visit>
  Status each_shared_state(const Unit& unit, int state, const Visit& visit) const {
    const UnitState& u = memory_.units[static_cast<size_t>(unit.id)];
    const auto parts =
        state_share(plan_.updates, unit, {u.owned_begin, u.owned_numel},
                    plan_.shards.represented(unit, rank()), static_cast<size_t>(state));
    return each_part(parts, stored(unit, state), false, visit);
  }
  // Return a constant or whole frozen parameter; a running statistic, which is one of
  // carried_entries (runtime/compile/compile.h).
  std::span<std::byte> kept(const KeptValues::Entry& entry) const;
  std::span<float> statistic(const KeptValues::Entry& entry) const;
  std::byte* frozen(const Unit& unit) const {
    return memory_.units[static_cast<size_t>(unit.id)].frozen;
  }

  const Parameter& parameter(int index) const {
    return setup_.graph.parameters[static_cast<size_t>(index)];
  }

 private:
  RankState(const CompiledRun& plan, const ModelSetup& setup, Communicator& communicator)
      : plan_(plan), setup_(setup), communicator_(communicator) {}

  template <typename Visit>
  static Status each_part(const std::vector<StatePart>& parts, const StoredState& state,
                          bool encodes, const Visit& visit) {
    for (const StatePart& part : parts) {
      if (state.form == StateForm::kFloat32) {
        const std::span values(state.floats() + part.at, static_cast<size_t>(part.count));
        OFSDP_RETURN_IF_ERROR(visit(ShardPart{*part.param, part.first, values}));
      } else {
        OFSDP_RETURN_IF_ERROR(each_piece(part, state, encodes, visit));
      }
    }
    return {};
  }
  template <typename Visit>
  static Status each_piece(const StatePart& part, const StoredState& state, bool encodes,
                           const Visit& visit) {
    constexpr int64_t kPiece = 64 * kStateBlock;
    std::vector<float> values(static_cast<size_t>(std::min(kPiece, part.count)));
    for (int64_t done = 0; done < part.count; done += kPiece) {
      const int64_t count = std::min(kPiece, part.count - done);
      const StoredState piece = state.from(part.at + done);
      read_state(piece, 0, count, values.data());
      const std::span shown(values.data(), static_cast<size_t>(count));
      OFSDP_RETURN_IF_ERROR(visit(ShardPart{*part.param, part.first + done, shown}));
      if (encodes) write_state(piece, values.data(), count, {});
    }
    return {};
  }

  const CompiledRun& plan_;
  const ModelSetup& setup_;
  Communicator& communicator_;
  RunMemory memory_;
  size_t eval_staging_ = 0;  // offset
  std::unique_ptr<TraceRecorder> trace_;
  std::unique_ptr<Watch> watch_;
  Runner runner_;
};

// Writes the trained model in the form in which it was read: each rank writes a share of each
// unit, rank 0 the running statistics. No rank ever holds the whole model. Collective. Errors:
// kInput if the path cannot be written, kFault from the disk.

Status write_trained(RankState& state, Communicator& communicator, const std::string& path,
                     const TrainedState& trained);

// Finds NaN weights before they are saved or evaluated. Infinity is allowed: it may be meant (a
// trained mask, an unused score).
//
// Each rank checks the owned weights once a save and after the last update; rank 0 also
// checks the running statistics. A save that copies weights to checkpoint_staging checks them
// during the copy (copy_has_nan), since the step waits for it. With a device, the caller must fetch
// the host image first. Called by the training thread; the thread pool helps check_weights. Only a
// rank that finds a NaN returns kFault, with rank, step and the first such parameter.

Status check_weights(const RankState& state, int64_t step);

// Copies `n` values and returns true if one was NaN.
bool copy_has_nan(float* to, const float* from, int64_t n);
// Returns the error of check_weights for `parameter`.
Status nan_weights(const RankState& state, int parameter, int64_t step);

}  // namespace ofsdp::runtime
