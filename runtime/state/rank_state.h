// RankState: a RunPlan made real on this rank: memory mapped, weights read, programs bound, the
// engine ready. weight_loader.h fills it; trained_writer.h and checkpointing.h write it.
//
// On a device the host keeps an image of what is loaded and saved. Loading fills it, `fetch` brings
// it up to date, and held, share and kept read it. The pinned memory of --cpu-offload is itself
// loaded and saved.
//
// Ownership: owns the rank's memory; plan, setup and communicator outlive it. Threads: one. `make`
// is collective. Errors: kFault (memory, disk); kInput (a weight that cannot be read).
#pragma once

#include <algorithm>

#include "fsdp/checkpoint/checkpoint_reader.h"
#include "runtime/engine/state_layout.h"
#include "runtime/state/runner.h"
#include "runtime/state/shard_view.h"

namespace ofsdp::runtime {

class RankState {
 public:
  // With a checkpoint the trained state comes from there; with `before`, from a state of the same
  // units, fetched, whose programs are for other micro-batches.
  static Result<std::unique_ptr<RankState>> make(const RunPlan& plan, const ModelSetup& setup,
                                                 Communicator& communicator, MemoryLedger& ledger,
                                                 const ExecutorOptions& options,
                                                 CheckpointReader* checkpoint = nullptr,
                                                 RankState* before = nullptr);

  const RunPlan& plan() const { return plan_; }
  const ModelSetup& setup() const { return setup_; }
  int rank() const { return communicator_.rank(); }

  UpdateRunner& executor() { return *runner_.executor; }
  OptimizerStep& optimizer() { return *runner_.optimizer; }
  UpdateProgram* update_program() { return runner_.update_program.get(); }  // null: none
  const Watch* watch() const { return watch_.get(); }                       // null: none
  const TraceRecorder* trace() const { return trace_.get(); }               // null: none
  // The program for a micro-batch of `size` samples. An empty one takes any other size of the same
  // place.
  BoundProgram& program(const ProgramKey& key);

  std::span<std::byte> train_staging() { return memory_.staging().first(eval_staging_); }
  std::span<std::byte> eval_staging() { return memory_.staging().subspan(eval_staging_); }
  std::span<std::byte> checkpoint_staging() {
    return {memory_.host.checkpoint.data(), memory_.host.checkpoint.bytes()};
  }

  std::span<double> metrics() {
    const Region& region = memory_.host.metrics;
    return {reinterpret_cast<double*>(region.data()), region.bytes() / sizeof(double)};
  }

  // Brings the images of a device up to date, before held, share, kept or a save read them. Waits
  // for the device.
  Status fetch() { return memory_.fetch(plan_); }

  // The span of a unit that this rank holds, of the parameters (state -1) or of an optimizer state
  // that all of its parameters have, an element each. REQUIRES: in float32.
  ShardView held(const Unit& unit, int state) const;
  // The part of that which this rank stands for, where every element counts once.
  ShardView share(const Unit& unit, int state) const;
  const StoredState& stored(const Unit& unit, int state) const {
    return memory_.units[static_cast<size_t>(unit.id)].optimizer[static_cast<size_t>(state)];
  }
  // Calls visit(ShardPart), which returns a Status, for what is held of a state of the optimizer,
  // of each parameter that has it: of which matrices alone for factors (StatePart). A state of
  // fewer bits is shown decoded, in pieces, and encoded afterwards, to nearest.
  template <typename Visit>
  Status each_state(const Unit& unit, int state, const Visit& visit) const {
    const UnitState& u = memory_.units[static_cast<size_t>(unit.id)];
    const auto parts = state_parts(plan_.updates, unit, {u.owned_begin, u.owned_numel},
                                   static_cast<size_t>(state));
    return each_part(parts, stored(unit, state), true, visit);
  }
  // The same for what this rank stands for, which is not encoded: it stays as it is.
  template <typename Visit>
  Status each_shared_state(const Unit& unit, int state, const Visit& visit) const {
    const UnitState& u = memory_.units[static_cast<size_t>(unit.id)];
    const auto parts =
        state_share(plan_.updates, unit, {u.owned_begin, u.owned_numel},
                    plan_.plan.represented(unit, rank()), static_cast<size_t>(state));
    return each_part(parts, stored(unit, state), false, visit);
  }
  std::span<std::byte> kept(const KeptPlan::Entry& entry) const;
  std::span<float> statistic(const KeptPlan::Entry& entry) const;  // of carried_entries
  std::byte* frozen(const Unit& unit) const {
    return memory_.units[static_cast<size_t>(unit.id)].frozen;
  }

  const Parameter& parameter(int index) const {
    return setup_.graph.parameters[static_cast<size_t>(index)];
  }

 private:
  RankState(const RunPlan& plan, const ModelSetup& setup, Communicator& communicator)
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

  const RunPlan& plan_;
  const ModelSetup& setup_;
  Communicator& communicator_;
  RunMemory memory_;
  size_t eval_staging_ = 0;  // offset
  std::unique_ptr<TraceRecorder> trace_;
  std::unique_ptr<Watch> watch_;
  Runner runner_;
};

}  // namespace ofsdp::runtime
