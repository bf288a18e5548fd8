#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/rank_identity.h"
#include "importer/file/onnx_file.h"
#include "importer/normalize/onnx_import.h"
#include "kernels/core/optimizer.h"
#include "runtime/train/batch_trainer.h"
#include "tests/graphs/drawn_graph.h"
#include "tests/graphs/trial.h"

namespace ofsdp::graphs {
namespace {

constexpr double kRate = 1 << 20;
constexpr int kDirections = 3;
constexpr int kDisturbances = 3;

// A file that exists as long as the object.
class ModelFile {
 public:
  explicit ModelFile(const std::string& bytes)
      : path_((std::filesystem::temp_directory_path() / format_text("graph{}.onnx", getpid()))
                  .string()) {
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  ~ModelFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Rows of each input, as a caller passes them to the library.
struct Columns {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<ColumnArray> arrays;
};

// All micro-batches one after the other; or `count` of them from number `first` on.
Columns columns_of(const Graph& graph, int64_t batch, int64_t micro_batches,
                   const std::map<std::string, std::vector<int64_t>>& shapes, int64_t first = 0,
                   int64_t count = -1) {
  if (count < 0) count = micro_batches;
  Columns columns;
  for (const ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    std::vector<int64_t> dims = shapes.at(input.name);
    dims[0] = batch * micro_batches;
    const TensorDesc desc{input.desc.dtype, Shape(dims)};
    std::vector<std::byte> bytes(desc.bytes());
    from_doubles(column_values(input.name, desc), desc, bytes.data());
    const size_t one = bytes.size() / static_cast<size_t>(micro_batches);
    bytes.erase(bytes.begin(),
                bytes.begin() + static_cast<std::ptrdiff_t>(one * static_cast<size_t>(first)));
    bytes.resize(one * static_cast<size_t>(count));
    dims[0] = batch * count;
    columns.bytes.push_back(std::move(bytes));
    columns.arrays.push_back({input.name, desc.dtype, dims, nullptr});
  }
  for (size_t i = 0; i < columns.bytes.size(); ++i) {
    columns.arrays[i].data = columns.bytes[i].data();
  }
  return columns;
}

Options options_of(const std::string& path, const Model& model, const Way& way) {
  Options options;
  options.model = path;
  options.losses[0].kind = LossKind::kAuto;
  options.launch.device = way.device ? DeviceChoice::kCuda : DeviceChoice::kCpu;
  options.sharding.strategy = way.strategy;
  options.optimizer.kind = OptimizerKind::kSgd;
  options.optimizer.lr = kRate;
  options.optimizer.weight_decay = 0;
  options.optimizer.momentum = 0;
  options.batch.batch_size.value = model.batch;
  options.batch.grad_accum.value = way.accumulation;
  options.sharding.param_dtype = way.param_dtype;
  options.sharding.min_params = 1;
  options.sharding.activation_checkpointing = way.recompute ? Recompute::kUnit : Recompute::kNone;
  options.passes = way.passes;
  options.run.eval_metrics.clear();
  return options;
}

std::map<std::string, std::vector<int64_t>> shapes_of(const Graph& graph) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const ValueId id : graph.inputs) {
    std::vector<int64_t>& dims = shapes[graph.value(id).name];
    for (const Dim& dim : graph.value(id).declared) dims.push_back(dim.size);
  }
  return shapes;
}

std::vector<double> normal_direction(size_t count, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  std::vector<double> direction(count);
  for (double& v : direction) v = normal(random);
  return direction;
}

}  // namespace

std::vector<Way> all_ways() {
  std::vector<Way> ways{{.name = "plain"}};
  Way eager{.name = "eager"};
  eager.passes.fusions.least_chain_bytes = 0;
  ways.push_back(eager);
  Way apart{.name = "apart"};
  for (const std::string& name : fusion_names()) apart.passes.fusions.switched_off.insert(name);
  apart.passes.layouts = false;
  apart.passes.joins = false;
  ways.push_back(apart);
  Way chunks{.name = "chunks"};  // at least one row, scores of any size
  chunks.passes.least_chunked_bytes = 0;
  chunks.passes.least_chunk_rows = 1;
  ways.push_back(chunks);
  Way again{.name = "recompute"};
  again.recompute = true;
  ways.push_back(again);
  Way accumulating{.name = "accumulate"};
  accumulating.accumulation = 2;
  ways.push_back(accumulating);
  Way narrow{.name = "bfloat16"};
  narrow.param_dtype = DType::kBFloat16;
  ways.push_back(narrow);
  Way two{.name = "two_ranks"};
  two.ranks = 2;
  ways.push_back(two);
  Way three{.name = "three_ranks"};
  three.ranks = 3;
  three.accumulation = 2;
  three.strategy = Strategy::kShardGradOp;
  ways.push_back(three);
  if (std::getenv("OFSDP_CUDA_LIBRARY") != nullptr) {
    for (Way way : {ways[0], eager, chunks, narrow}) {
      way.name = way.name == "plain" ? "device" : "device_" + way.name;
      way.device = true;
      ways.push_back(way);
    }
  }
  return ways;
}

namespace {

const std::vector<OptimizerDef>& optimizers() {
  static const auto list = optimizer_list();
  return list;
}

// Gradients, as the change in initializers from one file to another.
Result<std::vector<Gradient>> changes(const OnnxFile& before, const OnnxFile& after) {
  std::vector<Gradient> gradients;
  for (size_t i = 0; i < before.initializers().size(); ++i) {
    const Initializer& source = before.initializers()[i];
    if (source.own_type) continue;
    const auto found = std::ranges::find(after.initializers(), source.name, &Initializer::name);
    OFSDP_CHECK(found != after.initializers().end(), "no initializer '{}'", source.name);
    std::vector<float> from(static_cast<size_t>(source.shape.numel())), to(from.size());
    OFSDP_RETURN_IF_ERROR(before.read(source, 0, from));
    OFSDP_RETURN_IF_ERROR(after.read(*found, 0, to));
    Gradient& gradient = gradients.emplace_back(Gradient{source.name, {}});
    for (size_t k = 0; k < from.size(); ++k) {
      gradient.values.push_back((static_cast<double>(from[k]) - static_cast<double>(to[k])) /
                                kRate);
    }
  }
  return gradients;
}

// Memory shared with a rank's process.
struct RankAnswer {
  double loss;
  char message[1000];
};

Status be_rank(const Registry& registry, const Model& model, const Way& way,
               const std::string& path, const RankIdentity& identity, RankAnswer& answer) {
  const Options options = options_of(path, model, way);
  MemoryLedger ledger;
  const ModelOrigin origin;
  OFSDP_ASSIGN_OR_RETURN(const auto communicator,
                         connect_ranks(identity, std::chrono::seconds(60)));
  const RunContext context{options, origin, registry, optimizers(), *communicator, ledger};
  OFSDP_ASSIGN_OR_RETURN(const OnnxFile onnx, OnnxFile::open(path));
  OFSDP_ASSIGN_OR_RETURN(const Graph symbolic, import_onnx(onnx, registry));
  const Columns columns =
      columns_of(symbolic, model.batch, way.micro_batches(), shapes_of(symbolic),
                 identity.rank * way.accumulation, way.accumulation);
  BatchTrainer trainer(context);
  OFSDP_ASSIGN_OR_RETURN(const StepRow row, trainer.step(columns.arrays));
  answer.loss = row.loss;
  OFSDP_RETURN_IF_ERROR(trainer.save(path + ".trained"));
  return communicator->leave();
}

Result<Trained> train_on_ranks(const Registry& registry, const Model& model, const Way& way) {
  const ModelFile file(model.bytes);
  const size_t bytes = sizeof(RankAnswer) * static_cast<size_t>(way.ranks);
  auto* answers = static_cast<RankAnswer*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  static int runs = 0;
  const std::string name = format_text("graphs-{}-{}", getpid(), ++runs);
  std::fflush(nullptr);
  std::vector<pid_t> pids;
  for (int rank = 0; rank < way.ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      const RankIdentity identity{rank, way.ranks, rank, name, "test"};
      const Status status = be_rank(registry, model, way, file.path(), identity, answers[rank]);
      if (!status.ok())
        status.message().copy(answers[rank].message, sizeof(RankAnswer::message) - 1);
      _exit(status.ok() ? 0 : 1);
    }
    pids.push_back(pid);
  }
  bool well = true;
  for (const pid_t pid : pids) {
    int status = 0;
    waitpid(pid, &status, 0);
    well = well && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  Trained trained{answers[0].loss, {}};
  std::string message;
  for (int rank = 0; rank < way.ranks; ++rank) {
    if (message.empty()) message = answers[rank].message;
  }
  munmap(answers, bytes);
  if (!well) return input_error("a rank failed: {}", message);
  OFSDP_ASSIGN_OR_RETURN(const OnnxFile before, OnnxFile::open(file.path()));
  OFSDP_ASSIGN_OR_RETURN(const OnnxFile after, OnnxFile::open(file.path() + ".trained"));
  std::filesystem::remove(file.path() + ".trained");
  OFSDP_ASSIGN_OR_RETURN(trained.gradients, changes(before, after));
  return trained;
}

}  // namespace

Result<Trained> train(const Registry& registry, const Model& model, const Way& way) {
  if (way.ranks > 1) return train_on_ranks(registry, model, way);
  const ModelFile file(model.bytes);
  const Options options = options_of(file.path(), model, way);
  const auto communicator = make_self_communicator();
  MemoryLedger ledger;
  const ModelOrigin origin;
  const RunContext context{options, origin, registry, optimizers(), *communicator, ledger};
  OFSDP_ASSIGN_OR_RETURN(const OnnxFile onnx, OnnxFile::open(file.path()));
  OFSDP_ASSIGN_OR_RETURN(const Graph symbolic, import_onnx(onnx, registry));
  const Columns columns = columns_of(symbolic, model.batch, way.accumulation, shapes_of(symbolic));
  BatchTrainer trainer(context);
  OFSDP_ASSIGN_OR_RETURN(const StepRow row, trainer.step(columns.arrays));
  OFSDP_ASSIGN_OR_RETURN(const auto parameters, trainer.parameters());
  Trained trained{row.loss, {}};
  for (const auto& p : parameters.all) {
    const auto source = std::ranges::find(onnx.initializers(), p.name, &Initializer::name);
    OFSDP_CHECK(source != onnx.initializers().end(), "no initializer '{}'", p.name);
    std::vector<float> before(p.values.size());
    OFSDP_RETURN_IF_ERROR(onnx.read(*source, 0, before));
    Gradient& gradient = trained.gradients.emplace_back(Gradient{p.name, {}});
    for (size_t i = 0; i < before.size(); ++i) {
      gradient.values.push_back(
          (static_cast<double>(before[i]) - static_cast<double>(p.values[i])) / kRate);
    }
  }
  return trained;
}

namespace {

// The reference for one micro-batch with the weights in the file.
class MicroBatch {
 public:
  MicroBatch(const Graph& graph, std::vector<int64_t> samples)
      : graph_(graph), samples_(std::move(samples)), step_{0, 0, samples_}, run_(graph, step_) {}

  Status set(const OnnxFile& file, const Columns& columns, int64_t micro) {
    for (const Parameter& p : graph_.parameters) {
      const auto& raw = file.initializers()[static_cast<size_t>(p.initializer)];
      if (p.raw) {
        const TensorDesc& desc = graph_.value(p.value).desc;
        std::vector<std::byte> bytes(desc.bytes());
        OFSDP_RETURN_IF_ERROR(file.read_raw(raw, 0, bytes));
        run_.set(p.value, to_doubles(desc, bytes.data()));
        continue;
      }
      std::vector<float> values(static_cast<size_t>(graph_.value(p.value).desc.numel()));
      const auto& source = file.initializers()[static_cast<size_t>(p.initializer)];
      OFSDP_RETURN_IF_ERROR(file.read(source, 0, values));
      run_.set(p.value, {values.begin(), values.end()});
    }
    for (const ColumnArray& column : columns.arrays) {
      const ValueId id = graph_.find(column.name);
      const TensorDesc& desc = graph_.value(id).desc;
      run_.set(id, to_doubles(desc, column.data + static_cast<size_t>(micro) * desc.bytes()));
    }
    return run_.run();
  }

  // Moves all given numbers as rounding to another type would; once more in each call.
  Status disturb(double rounding, std::mt19937_64& random) {
    const auto moved = [&](ValueId id) {
      if (!is_floating(graph_.value(id).desc.dtype)) return;
      std::vector<double> values = run_.value(id).values;
      for (double& v : values) {
        v *= 1 + rounding * (2 * static_cast<double>(random() >> 11) * 0x1p-53 - 1);
      }
      run_.set(id, values);
    };
    run_.disturb(rounding);
    for (const Parameter& p : graph_.parameters) moved(p.value);
    for (const ValueId id : graph_.inputs) moved(id);
    return run_.run();
  }

  ReferenceRun& run() { return run_; }

 private:
  const Graph& graph_;
  std::vector<int64_t> samples_;
  StepContext step_;
  ReferenceRun run_;
};

// Adds a micro-batch's slopes, or their change after a disturbance.
Status add_slopes(const Graph& graph, ReferenceRun& run, double share, bool disturbed,
                  std::vector<Expected::Parameter>& parameters) {
  for (Expected::Parameter& p : parameters) {
    for (size_t d = 0; d < p.directions.size(); ++d) {
      OFSDP_ASSIGN_OR_RETURN(const Slope slope, run.slope({{graph.find(p.name), p.directions[d]}}));
      if (disturbed) {
        p.unsteady[d] += share * slope.value;
        continue;
      }
      p.slopes[d].value += share * slope.value;
      p.slopes[d].error += share * slope.error;
      p.slopes[d].kink = p.slopes[d].kink || slope.kink;
    }
  }
  return {};
}

// Each micro-batch's share in the mean: by samples, or by kept labels. A loss node with reduction
// sum adds them up.
std::vector<double> shares_of(const LossCount& count, const Columns& columns,
                              int64_t micro_batches) {
  std::vector<double> shares(static_cast<size_t>(micro_batches), 1);
  if (count.form == TermForm::kSum) return shares;
  for (const ColumnArray& column : columns.arrays) {
    if (!count.by_label || column.name != count.labels) continue;
    const std::vector<double> labels = to_doubles({column.dtype, Shape(column.dims)}, column.data);
    const size_t each = labels.size() / shares.size();
    for (size_t i = 0; i < shares.size(); ++i) {
      shares[i] = 0;
      for (size_t k = i * each; k < (i + 1) * each; ++k) {
        const auto label = static_cast<int64_t>(labels[k]);
        if (label == count.ignore_index) continue;
        shares[i] +=
            count.class_weights == nullptr
                ? 1
                : static_cast<double>(count.class_weights->as<float>()[static_cast<size_t>(label)]);
      }
    }
  }
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share = sum > 0 ? share / sum : 0;
  return shares;
}

}  // namespace

Result<Expected> expect(const Registry& registry, const Model& model, const Way& way,
                        double rounding) {
  const int64_t micro_batches = way.micro_batches();
  const ModelFile file(model.bytes);
  const Options options = options_of(file.path(), model, {});
  const auto communicator = make_self_communicator();
  MemoryLedger ledger;
  OFSDP_ASSIGN_OR_RETURN(const OnnxFile onnx, OnnxFile::open(file.path()));
  OFSDP_ASSIGN_OR_RETURN(const Graph symbolic, import_onnx(onnx, registry));
  const Columns columns = columns_of(symbolic, model.batch, micro_batches, shapes_of(symbolic));
  Options alone = options;
  alone.batch.grad_accum = {};
  DataSpec data;
  data.train = column_set(columns.arrays, "the batch");
  OFSDP_ASSIGN_OR_RETURN(const ModelSetup setup,
                         ModelSetup::make(alone, {}, registry, *communicator, ledger, &data));
  OFSDP_ASSIGN_OR_RETURN(const Graph graph, setup.source->forward_graph(model.batch));
  Expected expected;
  std::mt19937_64 random(model.seed);
  for (const Parameter& p : graph.parameters) {
    if (!p.trained) continue;
    Expected::Parameter& parameter = expected.parameters.emplace_back();
    parameter.name = p.name;
    const auto count = static_cast<size_t>(graph.value(p.value).desc.numel());
    for (int d = 0; d < kDirections; ++d) {
      parameter.directions.push_back(normal_direction(count, random));
    }
    parameter.slopes.resize(kDirections);
    parameter.unsteady.resize(kDirections);
  }
  const std::vector<double> shares = shares_of(setup.counts.front(), columns, micro_batches);
  std::vector<double> disturbed(kDisturbances);  // losses
  for (int64_t micro = 0; micro < micro_batches; ++micro) {
    const double share = shares[static_cast<size_t>(micro)];
    if (share == 0) continue;      // a mean over nothing
    std::vector<int64_t> samples;  // rows are dealt to the ranks in turn
    for (int64_t i = 0; i < model.batch; ++i) {
      const int64_t row = micro % way.accumulation * model.batch + i;
      samples.push_back(row * way.ranks + micro / way.accumulation);
    }
    MicroBatch batch(graph, samples);
    OFSDP_RETURN_IF_ERROR(batch.set(onnx, columns, micro));
    expected.loss += share * batch.run().loss();
    OFSDP_RETURN_IF_ERROR(add_slopes(graph, batch.run(), share, false, expected.parameters));
    for (double& loss : disturbed) {
      OFSDP_RETURN_IF_ERROR(batch.disturb(rounding, random));
      loss += share * batch.run().loss();
    }
    OFSDP_RETURN_IF_ERROR(add_slopes(graph, batch.run(), share, true, expected.parameters));
  }
  for (const double loss : disturbed) {
    expected.unsteady_loss = std::max(expected.unsteady_loss, std::abs(loss - expected.loss));
  }
  for (Expected::Parameter& p : expected.parameters) {
    for (size_t d = 0; d < p.slopes.size(); ++d) {
      p.unsteady[d] = std::abs(p.unsteady[d] - p.slopes[d].value);
      expected.kinks += p.slopes[d].kink;
    }
  }
  return expected;
}

}  // namespace ofsdp::graphs
