// A model to train, wherever it comes from. It makes the graph of any micro-batch, has the loss and
// the update that the model may bring, and optimizer states to start from. It writes the trained
// model in the form of the input.
//
// Implementations: a plain .onnx file (here), a model with a training_info
// (dialects/training_info/rules_source.h), a folder of ONNX Runtime's training artifacts
// (dialects/onnxruntime/ort_source.h). Callers need not know which one they have.
//
// Weights and states are float32; a rank reads and writes only elements of its own shards. Registry
// and Lowering must outlive it. Threads: one. Errors: kInput naming file and node or flag; kFault
// for the disk.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "importer/file/onnx_file.h"
#include "importer/graph/update_rules.h"
#include "importer/passes/specialize.h"
#include "importer/pipeline.h"
#include "importer/write/model_output.h"
#include "kernels/core/optimizer.h"

namespace ofsdp::importer {

// The state of training that the trained model records if the form has a place for it.
struct TrainedState {
  int64_t step = 0;  // updates of the optimizer's states so far
  float learning_rate = 0;
  size_t states = 0;  // of each parameter
};

// The trained model while all ranks write it. REQUIRES: one rank writes each element; every rank
// calls `finish`, then all meet, then rank 0 calls `commit`. Without a commit the files are
// removed.
class TrainedOutput {
 public:
  virtual ~TrainedOutput() = default;
  virtual std::string ticket() const = 0;  // rank 0, for `join_output` on the others
  // Write elements `first` ... of a weight; of state number k of a weight; a scalar of the source's
  // update as the bytes of the type (rank 0 only). A form without a place for states drops them.
  virtual Status write(const Parameter& p, int64_t first, std::span<const float> src) const = 0;
  virtual Status write_state(const Parameter& /*p*/, size_t /*k*/, int64_t /*first*/,
                             std::span<const float> /*src*/) const {
    return {};
  }
  virtual Status write_scalar(size_t /*k*/, std::span<const std::byte> /*value*/) const {
    return {};
  }
  // Call it before any write, on every rank. `scales`: changed scales of quantized weights, by
  // initializer. A form without quantized weights has none.
  virtual void rescale(const std::map<int, std::vector<float>>& /*scales*/) {}
  virtual Status finish() const = 0;
  virtual Status commit() = 0;
};

// A TrainedOutput to a model file.
class FileOutput : public TrainedOutput {
 public:
  explicit FileOutput(ModelOutput output) : output_(std::move(output)) {}
  std::string ticket() const override { return output_.ticket(); }
  Status write(const Parameter& p, int64_t first, std::span<const float> src) const override {
    return output_.write(static_cast<size_t>(p.initializer), first, src);
  }
  void rescale(const std::map<int, std::vector<float>>& scales) override {
    output_.rescale(scales);
  }
  Status finish() const override { return output_.finish(); }
  Status commit() override { return output_.commit(); }

 protected:
  ModelOutput output_;
};

class TrainingSource {
 public:
  TrainingSource(OnnxFile file, Graph symbolic, const Lowering* lowering)
      : file_(std::move(file)), symbolic_(std::move(symbolic)), lowering_(lowering) {}
  virtual ~TrainingSource() = default;

  const OnnxFile& file() const { return file_; }
  // Returns the file that has the values of a parameter.
  const OnnxFile& file_of(const Parameter& p) const {
    return p.of_teacher ? teacher_->file : file_;
  }
  const Teacher* teacher() const { return teacher_ ? &*teacher_ : nullptr; }
  const Graph& symbolic() const { return symbolic_; }  // its parameters tell which are trained
  const GraphSettings& settings() const { return settings_; }

  // All of these forget the graphs built so far.
  void configure(GraphSettings settings);
  void set_symbolic(Graph symbolic);
  // Adds the parameters and inputs of the teacher to the symbolic graph. REQUIRES: no backward of
  // its own.
  Status follow(Teacher teacher);

  // Finds the order of the weights of NhwcConv. REQUIRES: the rows of the inputs are configured.
  Result<NhwcOrder> nhwc_order(int64_t batch) const;
  // Refuses a teacher if the outputs have their samples in another order than `losses`.
  Status check_teacher(int64_t batch, std::span<const LossSpec> losses,
                       const BatchAxes& axes) const;

  // Returns the forward graph without a loss.
  Result<Graph> specialized(int64_t batch, Mode mode) const;
  // Returns the finished graph of a micro-batch; built once for each batch and mode.
  Result<Graph> graph(int64_t batch, Mode mode) const;
  // Returns a training graph for other programs: not fused, float32, plain layouts.
  Result<Graph> gradient_graph(int64_t batch) const;
  // The same before autodiff: the forward graph with the loss.
  Result<Graph> forward_graph(int64_t batch) const;
  // Returns forward_graph fused, in the type that nodes compute in.
  Result<Graph> fused_graph(int64_t batch) const;
  int graphs_built() const { return graphs_built_; }

  // --- what the model itself says of its training ---
  virtual const UpdateRules* updates() const { return nullptr; }     // null: a named optimizer
  virtual const OptimizerDef* optimizer() const { return nullptr; }  // of `updates`: its states
  virtual int64_t steps_done() const { return 0; }                   // updates of its states so far

  // Reads elements `first` ... of state number k of a trained parameter. A source without states
  // does not change `dst`.
  virtual Status load_state(const Parameter& /*p*/, size_t /*k*/, int64_t /*first*/,
                            std::span<float> /*dst*/) const {
    return {};
  }

  // --- the trained model ---
  // Checks before training that `path` can be written and that everything fits.
  virtual Status check_output(const std::string& path, const TrainedState& state) const;
  virtual Result<std::unique_ptr<TrainedOutput>> begin_output(const std::string& path,
                                                              const TrainedState& state) const;
  virtual Result<std::unique_ptr<TrainedOutput>> join_output(const std::string& ticket,
                                                             const TrainedState& state) const;

 private:
  Result<Graph> passed(int64_t batch, Mode mode, std::initializer_list<PassStage> stages) const;
  PassContext context(int64_t batch, Mode mode) const;

  OnnxFile file_;
  Graph symbolic_;
  std::optional<Teacher> teacher_;
  const Lowering* lowering_;
  GraphSettings settings_;
  mutable std::map<std::pair<int64_t, Mode>, Graph> graphs_;
  mutable int graphs_built_ = 0;
};

// Opens a plain model file; names decide the trained set.
Result<std::unique_ptr<TrainingSource>> open_plain_source(OnnxFile file, const Operators& operators,
                                                          const TrainedRules& rules);

}  // namespace ofsdp::importer
