// RunState: a RunPlan made real on this rank: memory mapped, weights read, programs bound, the
// executor ready.
//
// With a checkpoint the trained state comes from there. Each rank reads from the model file only what it owns, and writes only its own span of each unit
// to the trained file; the model is never gathered on one rank.
//
// On a device the host keeps an image of what is loaded and saved: `make` fills it, `fetch` brings it
// up to date, what reads the state (held, kept, write_output) reads the image. What --cpu-offload
// keeps in pinned memory is itself what is loaded and saved.
//
// Ownership: owns the rank's memory; plan, setup and communicator outlive it. Threads: one. `make`
// and `write_output` are collective. Errors: kFault (memory, disk); kInput (a weight that cannot be
// read).
#pragma once

#include "fsdp/checkpoint/checkpoint_reader.h"
#include "runtime/engine/cpu_engine.h"
#include "runtime/engine/device/device_engine.h"
#include "runtime/plan/run_plan.h"

namespace ofsdp::runtime {

// What the trained file says of a run after `updates` of it.
TrainedState trained_state(const Options& options, int64_t updates);

class RunState {
 public:
  static Result<std::unique_ptr<RunState>> make(const RunPlan& plan, const ModelSetup& setup,
                                                Communicator& communicator, MemoryLedger& ledger,
                                                const ExecutorOptions& options,
                                                CheckpointReader* checkpoint = nullptr);

  UpdateRunner& executor() { return *executor_; }
  const TraceRecorder* trace() const { return trace_.get(); }
  // The program for a micro-batch of `size` samples; any other size of the same place for an empty
  // one.
  BoundProgram& program(const ProgramKey& key);
  std::span<std::byte> train_staging() { return staging_.first(eval_staging_); }
  std::span<std::byte> eval_staging() { return staging_.subspan(eval_staging_); }
  // Before held, kept or a save are read: of a device, what it holds now. Waits for it.
  Status fetch();
  Status write_output(const std::string& path, const TrainedState& trained);

  // What this rank holds of a unit: its parameters (state -1) or a state of the optimizer.
  float* held(int unit, int state);
  std::span<float> kept(const KeptPlan::Entry& entry);
  UpdateProgram* update_program() { return update_program_.get(); }  // null: none
  const std::string& model_file() const { return setup_.graph.file; }
  const std::string& parameter_name(int parameter) const {
    return setup_.graph.parameters[static_cast<size_t>(parameter)].name;
  }
  std::span<std::byte> checkpoint_staging() {
    return {memory_.checkpoint.data(), memory_.checkpoint.bytes()};
  }

 private:
  RunState(const RunPlan& plan, const ModelSetup& setup, Communicator& communicator)
      : plan_(plan), setup_(setup), communicator_(communicator) {}
  Status map(MemoryLedger& ledger);
  Status map_images(MemoryLedger& ledger);
  Status load(CheckpointReader* checkpoint);
  Status make_executor(const ExecutorOptions& options);
  Status make_device_executor(const ExecutorOptions& options);
  Result<std::unique_ptr<DeviceOffload>> make_offload();
  Result<std::unique_ptr<DeviceRanks>> join_devices(double timeout_seconds);
  Status load_weights();
  Status make_optimizer(const std::vector<UnitState>& units);
  Result<DeviceOptimizer> make_optimizer_of(Device& device);
  Status load_kept();
  Status load_frozen();
  Status load_converted(int parameter, const Span& elements, DType dtype, std::byte* target) const;
  void bind_programs(const MemoryBases& bases);
  Result<std::unique_ptr<TrainedOutput>> open_output(const std::string& path,
                                                     const TrainedState& trained);
  Status write_shares(const TrainedOutput& output) const;
  Status write_unit(const TrainedOutput& output, const Unit& unit) const;
  Status write_scalars(const TrainedOutput& output) const;
  Status write_carried(const TrainedOutput& output) const;

  const RunPlan& plan_;
  const ModelSetup& setup_;
  Communicator& communicator_;
  MemoryLedger image_ledger_;  // images are no memory of a step: their pages are the system's
  Region shared_image_;
  RankMemory memory_;  // with a device: images, and the checkpoint's copy
  DeviceRankMemory device_memory_;
  MemoryLedger offload_ledger_;  // of what --cpu-offload pins, which is no memory of a device
  DeviceMemory offloaded_;
  std::span<std::byte> staging_;
  size_t eval_staging_ = 0;  // offset
  float* loss_weight_ = nullptr;
  std::vector<UnitState> units_;
  std::vector<UnitState> device_units_;
  std::unique_ptr<UpdateProgram> update_program_;  // of a model with a training_info
  std::unique_ptr<DeviceRules> device_rules_;      // likewise, where a device follows it
  std::unique_ptr<OptimizerStep> optimizer_;
  std::unique_ptr<TraceRecorder> trace_;  // null: nothing is recorded
  std::map<ProgramKey, BoundProgram> programs_;
  std::unique_ptr<UpdateRunner> executor_;
};

}  // namespace ofsdp::runtime
