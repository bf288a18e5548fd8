// A model to train, wherever it comes from. It makes the graph for any micro-batch, has the loss
// and the update that the model may bring, and optimizer states to start from. It writes the
// trained model in the input's form.
//
// Implementations: a plain .onnx file (here), a model with a training_info
// (dialects/training_info/rules_source.h), a folder with ONNX Runtime's training artifacts
// (dialects/onnxruntime/ort_artifacts.h). Callers need not know which one they have.
//
// Words of this header. The symbolic graph is the imported model before the batch has a size; a
// specialized graph is a copy of it for one batch size. A finished graph is specialized, has loss
// and backward nodes, and has gone through all passes of importer/pipeline.h. A Lowering says which
// nodes have kernels on the run's device (importer/pipeline.h). A Teacher is a second model, not
// trained, whose outputs the loss compares with (--teacher). WantedValues name the inputs and
// outputs that the run uses.
//
// Weights and states are float32; a rank reads and writes only elements in its shards. Registry and
// Lowering must outlive it. Threads: one. Errors: kInput naming file and node or flag; kFault for
// the disk.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"
#include "importer/passes/specialize.h"
#include "importer/pipeline.h"
#include "importer/write/model_output.h"
#include "kernels/core/optimizer.h"

namespace ofsdp::importer {

// UpdateRules: an update that the model itself brings for the trained parameters, as graph nodes.
// Each parameter has a few elementwise nodes over the parameter, the gradient, tensors with the
// same shape (optimizer states) and scalars (rate, update count). Other nodes compute the scalars'
// next values.
//
// [Note: what an update may be] A value is a tensor in the update if it depends on a gradient, on a
// parameter or on an initializer with more than one element; otherwise it is a scalar. A node on
// tensors must be elementwise over one shape and may also read scalars. Tensors that one node
// combines must belong to one parameter. A node on scalars may be anything. Everything else (norms,
// a mean over the parameters, a product with a matrix) needs more than a shard and is refused.
//
// The registry must outlive the rules.

struct UpdateState {  // an initializer with a parameter's shape, or a scalar
  std::string initializer;
  int training_info = -1;  // the algorithm that has it; -1: the model's graph has it
  ValueId value = 0;
  ValueId next = 0;               // 0: it never changes
  ConstantPtr initial = nullptr;  // scalars only: the value in the file
};

struct UpdateRule {
  std::string parameter;
  ValueId value = 0;
  ValueId gradient = 0;  // 0: the update does not read it
  ValueId next = 0;
  std::vector<UpdateState> states{};
  std::vector<int> nodes{};  // in the graph, in order
};

struct UpdateRules {
  std::string loss;                  // the output to differentiate
  std::vector<std::string> trained;  // the order of `parameters`
  Graph graph;
  std::vector<UpdateRule> parameters;
  std::vector<UpdateState> scalars;
  std::vector<int> scalar_nodes;
  ValueId rate = 0;  // the learning rate, a scalar; 0: unknown

  size_t most_states() const {
    size_t most = 0;
    for (const UpdateRule& rule : parameters) most = std::max(most, rule.states.size());
    return most;
  }
};

// Training state that the trained model records if the form has a place for it.
struct TrainedState {
  int64_t step = 0;  // optimizer updates so far
  float learning_rate = 0;
  size_t states = 0;       // per parameter
  bool inference = false;  // the file is for inference (make_inference_model)
};

// The trained model while all ranks write it. REQUIRES: one rank writes each element; every rank
// calls `finish`, then all meet, then rank 0 calls `commit`. Without a commit the files are
// removed.
class TrainedOutput {
 public:
  virtual ~TrainedOutput() = default;
  virtual std::string ticket() const = 0;  // rank 0, for `join_output` on the others
  // Write elements `first` ... in a weight; in a weight's state k; a scalar in the source's update
  // as bytes in the stored type (rank 0 only). A form without a place for states drops them.
  virtual Status write(const Parameter& p, int64_t first, std::span<const float> src) const = 0;
  virtual Status write_state(const Parameter& /*p*/, size_t /*k*/, int64_t /*first*/,
                             std::span<const float> /*src*/) const {
    return {};
  }
  virtual Status write_scalar(size_t /*k*/, std::span<const std::byte> /*value*/) const {
    return {};
  }
  // Call it before any write, on every rank. `scales`: the changed scales of quantized weights, by
  // index of the weight's initializer. Forms that have no quantized weights ignore it.
  virtual void rescale(const std::map<int, std::vector<float>>& /*scales*/) {}
  virtual Status finish() const = 0;
  virtual Status commit() = 0;
};

// Rank 0, after finish on every rank: lets the file appear, with `inference` as one for inference.
Status commit_output(ModelOutput& output, bool inference);

// A TrainedOutput to a model file.
class FileOutput : public TrainedOutput {
 public:
  FileOutput(ModelOutput output, bool inference)
      : output_(std::move(output)), inference_(inference) {}
  std::string ticket() const override { return output_.ticket(); }
  Status write(const Parameter& p, int64_t first, std::span<const float> src) const override {
    return output_.write(static_cast<size_t>(p.initializer), first, src);
  }
  void rescale(const std::map<int, std::vector<float>>& scales) override {
    output_.rescale(scales);
  }
  Status finish() const override { return output_.finish(); }
  Status commit() override { return commit_output(output_, inference_); }

 protected:
  ModelOutput output_;

 private:
  const bool inference_;
};

class TrainingSource {
 public:
  TrainingSource(OnnxFile file, Graph symbolic, const Lowering* lowering)
      : file_(std::move(file)), symbolic_(std::move(symbolic)), lowering_(lowering) {}
  virtual ~TrainingSource() = default;

  const OnnxFile& file() const { return file_; }
  // Returns the file that has a parameter's values.
  const OnnxFile& file_of(const Parameter& p) const {
    return p.of_teacher ? teacher_->file : file_;
  }
  const Teacher* teacher() const { return teacher_ ? &*teacher_ : nullptr; }
  const Graph& symbolic() const { return symbolic_; }  // tells which parameters are trained
  const GraphSettings& settings() const { return settings_; }
  const Lowering* lowering() const { return lowering_; }  // the import's, or null

  // These four change the source, which then builds each graph anew.
  void configure(GraphSettings settings);
  void set_symbolic(Graph symbolic);
  // Adds the teacher's parameters and inputs to the symbolic graph. REQUIRES: the file brings no
  // backward.
  Status follow(Teacher teacher);

  // For --free-batch: lets each Reshape of `fixed` samples keep any batch (passes/sample_order.h).
  // REQUIRES: the input rows are configured.
  Status free_reshapes(int64_t fixed);

  // Finds NhwcConv's weight order. REQUIRES: the input rows are configured.
  Result<NhwcOrder> nhwc_order(int64_t batch) const;
  // If a loss takes scores and its prediction ends in a Softmax or Sigmoid, the value before that
  // node becomes the loss's input: sets LossSpec::scores, and makes the value an output of the
  // source's graphs and of `graph`. Refuses a teacher whose output does not end in the same node.
  // REQUIRES: `graph` is specialized for `batch`, and the losses are resolved.
  Status take_scores(int64_t batch, Graph& graph, std::vector<LossSpec>& losses);
  // Refuses a teacher if an output has its samples along another axis, or in another order of rows,
  // than the prediction of the loss in `losses` that reads it.
  Status check_teacher(int64_t batch, std::span<const LossSpec> losses,
                       const BatchAxes& axes) const;

  // Returns the forward graph without a loss.
  Result<Graph> specialized(int64_t batch, Mode mode) const;
  // Returns a micro-batch's finished graph; built once for each batch, mode and length. `length`:
  // the size of the axes in GraphSettings::cut_axes, for batches of shorter rows (--bucket-by); 0:
  // the size that the data have.
  Result<Graph> graph(int64_t batch, Mode mode, int64_t length = 0) const;
  // Returns a training graph for other programs: not fused, float32, plain layouts.
  Result<Graph> gradient_graph(int64_t batch) const;
  // The same before autodiff: the forward graph with the loss, and with documents apart.
  Result<Graph> forward_graph(int64_t batch, Mode mode = Mode::kTrain) const;
  // Returns forward_graph fused, in the type that nodes compute in.
  Result<Graph> fused_graph(int64_t batch) const;
  // Returns an evaluation's fused forward graph, without a loss. `together`: with the inputs of
  // separate_documents.
  Result<Graph> forward_of_documents(int64_t batch, bool together) const;
  int graphs_built() const { return graphs_built_; }

  // --- training as the model itself describes it ---
  virtual const UpdateRules* updates() const { return nullptr; }     // null: a named optimizer
  virtual const OptimizerDef* optimizer() const { return nullptr; }  // the states in `updates`
  virtual int64_t steps_done() const { return 0; }                   // updates so far

  // Reads elements `first` ... in a trained parameter's state k. A source without states does not
  // change `dst`.
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
  // Returns the path of the adapter file that is written in place of a model, since adapters cannot
  // be merged into the weights; else "".
  virtual std::string adapter_alone() const { return {}; }

 private:
  Result<Graph> passed(int64_t batch, Mode mode, std::initializer_list<PassStage> stages) const;
  PassContext context(int64_t batch, Mode mode) const;
  GraphSettings cut_settings(int64_t length) const;

  OnnxFile file_;
  Graph symbolic_;
  std::optional<Teacher> teacher_;
  const Lowering* lowering_;
  GraphSettings settings_;
  mutable std::map<std::tuple<int64_t, Mode, int64_t>, Graph> graphs_;
  mutable int graphs_built_ = 0;
};

// Opens a plain model file; names decide the trained set.
Result<std::unique_ptr<TrainingSource>> open_plain_source(OnnxFile file, const Operators& operators,
                                                          const TrainedRules& rules,
                                                          const WantedValues& wanted = {});

}  // namespace ofsdp::importer
