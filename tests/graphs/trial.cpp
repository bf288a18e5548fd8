#include "tests/graphs/trial.h"

#include <onnx/onnx_pb.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "fsdp/comm/communicator.h"
#include "fsdp/connect.h"
#include "importer/file/onnx_file.h"
#include "importer/onnx_import.h"
#include "kernels/core/optimizer.h"
#include "runtime/train/batch_trainer.h"
#include "tests/graphs/drawn_graph.h"

namespace ofsdp::graphs {
namespace {

constexpr double kRate = 1 << 20;
constexpr int kDirections = 3;
constexpr int kDisturbances = 3;

// A file that is there as long as this.
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

// Rows of each input, as a caller of the library brings them.
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
  options.loss.kind = LossKind::kAuto;
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

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
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
    Way device{.name = "device"};
    device.device = true;
    ways.push_back(device);
  }
  return ways;
}

namespace {

const std::vector<OptimizerDef>& optimizers() {
  static const auto list = optimizer_list();
  return list;
}

// Gradients as the change of the initializers from one file to another.
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

// Memory that a rank's process shares with this one.
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

// The reference of one micro-batch with the weights of the file.
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

  // All numbers that were given, moved as rounding to another type would; once more each time.
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

// Adds the slopes of one micro-batch, or their change after a disturbance.
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

}  // namespace

namespace {

// The share of each micro-batch in the mean: by samples, or by the labels that it keeps. A loss
// node with reduction sum adds them up.
std::vector<double> shares_of(const LossCount& count, const Columns& columns,
                              int64_t micro_batches) {
  std::vector<double> shares(static_cast<size_t>(micro_batches), 1);
  if (count.sum) return shares;
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
    if (share == 0) continue;      // its own mean is of nothing
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

namespace {

double largest_slope(const Expected::Parameter& p) {
  double largest = 0;
  for (const Slope& slope : p.slopes) largest = std::max(largest, std::abs(slope.value));
  return largest;
}

// True if the graph cancels the derivative (of a bias before a softmax): the reference has 0, and
// `found` is a few units of the last place of the sums that cancel.
bool is_cancelled(const Expected::Parameter& p, double found, double of_all, bool narrow) {
  const double size = std::max(of_all, 1.0);
  return largest_slope(p) <= 1e-9 * size && std::abs(found) <= (narrow ? 1e-2 : 1e-5) * size;
}

struct Limits {
  double loss, slope;
  double unsteady;  // the part that rounding may explain

  explicit Limits(bool narrow)
      : loss(narrow ? 5e-3 : 2e-4), slope(narrow ? 5e-2 : 2e-3), unsteady(narrow ? 0.1 : 0.25) {}
};

// A derivative along direction `d` that is farther away than `limit`.
struct Misfit {
  const Expected::Parameter* parameter;
  size_t d;
  double found, limit;
  bool cancelled;

  double error() const { return std::abs(found - parameter->slopes[d].value); }
};

double derivative(const Trained& trained, const Expected::Parameter& p, size_t d) {
  const auto gradient = std::ranges::find(trained.gradients, p.name, &Gradient::name);
  return gradient == trained.gradients.end() ? 0 : dot(gradient->values, p.directions[d]);
}

double largest_of_all(const Expected& expected) {
  double of_all = 0;
  for (const auto& p : expected.parameters) of_all = std::max(of_all, largest_slope(p));
  return of_all;
}

// A derivative far below those of a loss about 1 has lost its digits: of a saturated Tanh.
double scale_of(const Expected::Parameter& p, double of_all) {
  return std::max({largest_slope(p), 1e-4 * of_all, 1e-4});
}

std::vector<Misfit> misfits_of(const Trained& found, const Expected& expected, bool narrow) {
  const double of_all = largest_of_all(expected);
  std::vector<Misfit> misfits;
  for (const auto& p : expected.parameters) {
    const double limit = Limits(narrow).slope * scale_of(p, of_all);
    for (size_t d = 0; d < p.slopes.size(); ++d) {
      if (p.slopes[d].kink) continue;
      const double here = derivative(found, p, d);
      const Misfit misfit{&p, d, here, limit, is_cancelled(p, here, of_all, narrow)};
      if (!(misfit.error() <= limit)) misfits.push_back(misfit);
    }
  }
  return misfits;
}

double loss_error(const Trained& found, const Expected& expected, bool narrow) {
  return std::abs(found.loss - expected.loss) /
         std::max(std::abs(expected.loss), narrow ? 0.1 : 1e-2);
}

// True if the reference itself moves with rounding.
bool is_unsteady(const Expected& expected, bool narrow) {
  const Limits limits(narrow);
  const double size = std::max(std::abs(expected.loss), narrow ? 0.1 : 1e-2);
  if (expected.unsteady_loss / size > limits.unsteady * limits.loss) return true;
  const double of_all = largest_of_all(expected);
  for (const auto& p : expected.parameters) {
    const double most = limits.unsteady * limits.slope * scale_of(p, of_all);
    for (size_t d = 0; d < p.slopes.size(); ++d) {
      if (p.slopes[d].kink) continue;
      if (p.unsteady[d] > most || p.slopes[d].error > most) return true;
    }
  }
  return false;
}

// The same model with each weight off by `rounding`.
Model disturbed(const Model& model, double rounding, uint64_t seed) {
  onnx::ModelProto proto;
  OFSDP_CHECK(proto.ParseFromString(model.bytes), "a model of its own");
  std::mt19937_64 random(seed);
  for (onnx::TensorProto& tensor : *proto.mutable_graph()->mutable_initializer()) {
    if (tensor.data_type() != onnx::TensorProto::FLOAT) continue;
    std::string& raw = *tensor.mutable_raw_data();
    for (size_t at = 0; at + sizeof(float) <= raw.size(); at += sizeof(float)) {
      float v = 0;
      std::memcpy(&v, raw.data() + at, sizeof(v));
      v *= 1 + static_cast<float>(random() % 2 == 0 ? rounding : -rounding);
      std::memcpy(raw.data() + at, &v, sizeof(v));
    }
  }
  Model made = model;
  made.bytes = proto.SerializeAsString();
  return made;
}

}  // namespace

Judgement judge(const Trained& found, const Expected& expected, bool narrow) {
  const std::vector<Misfit> misfits = misfits_of(found, expected, narrow);
  Judgement judged;
  if (!(loss_error(found, expected, narrow) <= Limits(narrow).loss)) {
    judged = {Verdict::kWrong,
              format_text("loss {:.9g}, expected {:.9g}", found.loss, expected.loss)};
  } else if (!misfits.empty()) {
    const Misfit& first = misfits.front();
    judged = {
        Verdict::kWrong,
        format_text("derivative of {} is {:.9g}, expected {:.9g} (scale {:.3g})",
                    first.parameter->name, first.found, first.parameter->slopes[first.d].value,
                    first.limit / Limits(narrow).slope)};
  }
  const bool cancelled = std::ranges::any_of(misfits, &Misfit::cancelled);
  if (judged.verdict == Verdict::kWrong && (cancelled || is_unsteady(expected, narrow))) {
    judged.verdict = Verdict::kUnsteady;
  }
  return judged;
}

// True if each wrong derivative is near its limit and moves by a quarter of that as soon as all
// weights are off by float32's rounding: backward loses the digits, where p (dp - sum(p dp)) of a
// saturated softmax cancels; the reference, which has no backward, keeps them.
Result<bool> Trial::moves(const Way& way, const Trained& trained, const Expected& expected) const {
  constexpr double kNear = 5;
  constexpr uint64_t kTries = 3;
  std::vector<Misfit> misfits = misfits_of(trained, expected, false);
  if (!(loss_error(trained, expected, false) <= Limits(false).loss)) return false;
  if (std::ranges::any_of(misfits, [](const Misfit& m) { return m.error() > kNear * m.limit; })) {
    return false;
  }
  for (uint64_t i = 0; i < kTries; ++i) {
    OFSDP_ASSIGN_OR_RETURN(const Trained again,
                           train(registry_, disturbed(model_, 1e-6, model_.seed + i), way));
    std::erase_if(misfits, [&](const Misfit& m) {
      return std::abs(derivative(again, *m.parameter, m.d) - m.found) > 0.25 * m.limit;
    });
  }
  return misfits.empty();
}

// The reference reads the file as the product does: unrolled loops, old opsets, constants. Whoever
// made the file knows better. Returns a line if the two part.
std::string Trial::other_loss(const Expected& expected) const {
  if (!model_.loss) return {};
  const double limit = 1e-4 * std::max(std::abs(*model_.loss), 1e-2);
  if (expected.unsteady_loss > 0.25 * limit) return {};
  if (std::abs(expected.loss - *model_.loss) <= limit) return {};
  return format_text("the file's loss is read as {:.9g}, its maker has {:.9g}", expected.loss,
                     *model_.loss);
}

Judgement Trial::in(const Way& way) {
  const bool narrow = way.param_dtype != DType::kFloat32;
  const std::string key =
      format_text("{} {} {}", way.ranks, way.accumulation, narrow ? "narrow" : "");
  auto found = expected_.find(key);
  if (found == expected_.end()) {
    found = expected_.emplace(key, expect(registry_, model_, way, narrow ? 4e-3 : 1e-6)).first;
  }
  if (!found->second.ok()) {
    const std::string& message = found->second.error().message();
    const bool idle = message.find("nothing to train") != std::string::npos;  // one number alone
    return {idle ? Verdict::kUnsteady : Verdict::kRefused, "reference: " + message};
  }
  if (way.micro_batches() == 1 && !narrow) {
    if (std::string line = other_loss(*found->second); !line.empty())
      return {Verdict::kWrong, line};
  }
  auto trained = train(registry_, model_, way);
  // Known: no kernel of Dropout in 16-bit types.
  const bool dropout =
      narrow && !trained.ok() &&
      trained.error().message().find("operator Dropout has no") != std::string::npos;
  if (dropout) return {Verdict::kUnsteady, trained.error().message()};
  if (!trained.ok()) return {Verdict::kRefused, trained.error().message()};
  Judgement judged = judge(*trained, *found->second, narrow);
  if (judged.verdict == Verdict::kWrong && !narrow) {
    const auto moved = moves(way, *trained, *found->second);
    if (moved.ok() && *moved) judged.verdict = Verdict::kUnsteady;
  }
  return judged;
}

}  // namespace ofsdp::graphs
