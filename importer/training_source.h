// TrainingSource: a model to train, wherever it comes from. It gives the graph of any micro-batch,
// the loss and the update that the model brings itself, and optimizer states to start from. It
// writes the trained model in the form in which it was read.
//
// Implementations: a plain .onnx file (here), a model with a training_info
// (dialects/training_info/rules_source.h), a folder of ONNX Runtime's training artifacts
// (dialects/onnxruntime/ort_source.h). Nothing above this interface knows which one it has.
//
// Inputs of graphs: settings, from data and options. Weights and states are float32; a rank reads
// and writes the elements of its own shards and no others.
//
// Owns the open file and its graphs; registry and Lowering outlive it. Threads: one. Errors: kInput
// naming file and node or flag; kFault for the disk.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "importer/file/onnx_file.h"
#include "importer/graph/update_rules.h"
#include "importer/passes/loss.h"
#include "importer/passes/nhwc_weights.h"
#include "importer/passes/passes.h"
#include "importer/passes/specialize.h"
#include "importer/passes/teacher.h"
#include "importer/passes/trained_set.h"
#include "importer/write/model_output.h"
#include "kernels/core/optimizer.h"

namespace ofsdp::importer {

// The state of training that the trained model records, if its form has a place for it.
struct TrainedState {
  int64_t step = 0;  // updates that the optimizer's states have seen
  float learning_rate = 0;
  size_t states = 0;  // of each parameter
};

// The trained model while all ranks write it. REQUIRES: each element is written by one rank; every
// rank calls `finish`, then all meet, then rank 0 calls `commit`. What is not committed is removed.
class TrainedOutput {
 public:
  virtual ~TrainedOutput() = default;
  virtual std::string ticket() const = 0;  // of rank 0, for `join_output` of the others
  // Writes elements `first` ... of a weight; of state number k of a weight; a scalar of the
  // source's update as the bytes of its type (rank 0 alone). A form without a place for states
  // drops them.
  virtual Status write(const Parameter& p, int64_t first, std::span<const float> src) const = 0;
  virtual Status write_state(const Parameter& /*p*/, size_t /*k*/, int64_t /*first*/,
                             std::span<const float> /*src*/) const {
    return {};
  }
  virtual Status write_scalar(size_t /*k*/, std::span<const std::byte> /*value*/) const {
    return {};
  }
  // Before any write, on every rank: scales of quantized weights that training has changed, by
  // initializer. A form without quantized weights has none.
  virtual void rescale(const std::map<int, std::vector<float>>& /*scales*/) {}
  virtual Status finish() const = 0;
  virtual Status commit() = 0;
};

// A TrainedOutput that is a model file.
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

// The part of a graph that data and options decide.
struct GraphSettings {
  std::vector<LossSpec> losses;         // at least one
  std::map<std::string, Shape> rows;    // a sample of each input, and of the label columns
  DType param_dtype = DType::kFloat32;  // what nodes compute in
  std::vector<MeasureSpec> measures{};  // of the evaluation graph
  RankRows ranks{};                     // whose rows a micro-batch joins
  bool sync_batch_norm = false;         // statistics over the rows of `ranks`
  PassSwitches passes{};
};

class TrainingSource {
 public:
  TrainingSource(OnnxFile file, Graph symbolic, const Lowering* lowering)
      : file_(std::move(file)), symbolic_(std::move(symbolic)), lowering_(lowering) {}
  virtual ~TrainingSource() = default;

  const OnnxFile& file() const { return file_; }
  // The file that has a parameter's values.
  const OnnxFile& file_of(const Parameter& p) const {
    return p.of_teacher ? teacher_->file : file_;
  }
  const Teacher* teacher() const { return teacher_ ? &*teacher_ : nullptr; }
  const Graph& symbolic() const { return symbolic_; }  // its parameters say what is trained
  const GraphSettings& settings() const { return settings_; }

  // All forget the graphs built so far.
  void configure(GraphSettings settings);
  void set_symbolic(Graph symbolic);
  // The symbolic graph gets the teacher's parameters and inputs. REQUIRES: no backward of its own.
  Status follow(Teacher teacher);

  // Finds the order of the weights of NhwcConv; the rows of the inputs are configured.
  Result<NhwcOrder> nhwc_order(int64_t batch) const;
  // Refuses a teacher whose outputs have their samples in another order than those of `losses`.
  Status check_teacher(int64_t batch, std::span<const LossSpec> losses,
                       const BatchAxes& axes) const;

  // Returns the forward graph without a loss.
  Result<Graph> specialized(int64_t batch, Mode mode) const;
  // Returns the finished graph of a micro-batch; built once for each batch and mode.
  Result<Graph> graph(int64_t batch, Mode mode) const;
  // Returns the training graph for others to read: nothing fused, float32, no layouts.
  Result<Graph> gradient_graph(int64_t batch) const;
  // The same before autodiff: the forward graph with its loss.
  Result<Graph> forward_graph(int64_t batch) const { return with_loss(batch, Mode::kTrain); }
  // Returns forward_graph fused, in the type that nodes compute in.
  Result<Graph> fused_graph(int64_t batch) const;
  int graphs_built() const { return graphs_built_; }

  // --- what the model itself says of its training ---
  virtual const UpdateRules* updates() const { return nullptr; }     // null: a named optimizer
  virtual const OptimizerDef* optimizer() const { return nullptr; }  // of `updates`: its states
  virtual int64_t steps_done() const { return 0; }  // updates that its states have seen

  // Reads elements `first` ... of state number k of a trained parameter. A source without states
  // leaves `dst` as it is.
  virtual Status load_state(const Parameter& /*p*/, size_t /*k*/, int64_t /*first*/,
                            std::span<float> /*dst*/) const {
    return {};
  }

  // --- the trained model ---
  // Checks before training that `path` can be written and that all fits.
  virtual Status check_output(const std::string& path, const TrainedState& state) const;
  virtual Result<std::unique_ptr<TrainedOutput>> begin_output(const std::string& path,
                                                              const TrainedState& state) const;
  virtual Result<std::unique_ptr<TrainedOutput>> join_output(const std::string& ticket,
                                                             const TrainedState& state) const;

 private:
  Result<Graph> specialized_teacher(int64_t batch) const;
  Result<Graph> with_loss(int64_t batch, Mode mode) const;
  Result<Graph> fused(const Graph& graph, const std::vector<ValueId>& wanted) const;
  Result<Graph> training_graph(int64_t batch) const;
  Status synchronized(Graph& graph) const;
  Result<Graph> evaluation_graph(int64_t batch) const;
  Result<Graph> placed(const Graph& graph) const;

  OnnxFile file_;
  Graph symbolic_;
  std::optional<Teacher> teacher_;
  const Lowering* lowering_;
  GraphSettings settings_;
  mutable std::map<std::pair<int64_t, Mode>, Graph> graphs_;
  mutable int graphs_built_ = 0;
};

// A plain model file whose trained set the names decide.
Result<std::unique_ptr<TrainingSource>> open_plain_source(OnnxFile file, const Operators& operators,
                                                          const TrainedRules& rules);

}  // namespace ofsdp::importer
