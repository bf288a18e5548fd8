#include "tests/graphs/trial.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "fsdp/comm/communicator.h"
#include "importer/file/onnx_file.h"
#include "importer/onnx_import.h"
#include "kernels/core/optimizer.h"
#include "runtime/train/batch_trainer.h"
#include "tests/graphs/drawn_graph.h"

namespace ofsdp::graphs {
namespace {

constexpr double kRate = 1 << 20;
constexpr int kDirections = 3;

// A file that is there as long as this.
class ModelFile {
 public:
  explicit ModelFile(const std::string& bytes)
      : path_((std::filesystem::temp_directory_path() / format_text("graph{}.onnx", getpid())).string()) {
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

Columns columns_of(const Graph& graph, int64_t batch, int64_t micro_batches,
                   const std::map<std::string, std::vector<int64_t>>& shapes) {
  Columns columns;
  for (const ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    std::vector<int64_t> dims = shapes.at(input.name);
    dims[0] = batch * micro_batches;
    const TensorDesc desc{input.desc.dtype, Shape(dims)};
    std::vector<std::byte> bytes(desc.bytes());
    from_doubles(column_values(input.name, desc), desc, bytes.data());
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
  options.launch.device = DeviceChoice::kCpu;
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
  return ways;
}

const Way& way_named(const std::vector<Way>& ways, const std::string& name) {
  const auto found = std::ranges::find(ways, name, &Way::name);
  OFSDP_CHECK(found != ways.end(), "no way '{}'", name);
  return *found;
}

Result<Trained> train(const Registry& registry, const Model& model, const Way& way) {
  const ModelFile file(model.bytes);
  const Options options = options_of(file.path(), model, way);
  const auto communicator = make_self_communicator();
  MemoryLedger ledger;
  static const auto optimizers = optimizer_list();
  const ModelOrigin origin;
  const RunContext context{options, origin, registry, optimizers, *communicator, ledger};
  OFSDP_ASSIGN_OR_RETURN(const OnnxFile onnx, OnnxFile::open(file.path()));
  OFSDP_ASSIGN_OR_RETURN(const Graph symbolic, import_onnx(onnx, registry));
  const Columns columns =
      columns_of(symbolic, model.batch, way.accumulation, shapes_of(symbolic));
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
      gradient.values.push_back((static_cast<double>(before[i]) - static_cast<double>(p.values[i])) / kRate);
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

  // All numbers that were given, moved as rounding to another type would.
  Status disturb(double rounding, std::mt19937_64& random) {
    const auto moved = [&](ValueId id) {
      if (!is_floating(graph_.value(id).desc.dtype)) return;
      std::vector<double> values = run_.value(id).values;
      for (double& v : values) {
        v *= 1 + rounding * (2 * static_cast<double>(random() >> 11) * 0x1p-53 - 1);
      }
      run_.set(id, values);
    };
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
      OFSDP_ASSIGN_OR_RETURN(const Slope slope,
                             run.slope({{graph.find(p.name), p.directions[d]}}));
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

Result<Expected> expect(const Registry& registry, const Model& model, int64_t accumulation,
                        double rounding) {
  const ModelFile file(model.bytes);
  const Options options = options_of(file.path(), model, {});
  const auto communicator = make_self_communicator();
  MemoryLedger ledger;
  OFSDP_ASSIGN_OR_RETURN(const OnnxFile onnx, OnnxFile::open(file.path()));
  OFSDP_ASSIGN_OR_RETURN(const Graph symbolic, import_onnx(onnx, registry));
  const Columns columns = columns_of(symbolic, model.batch, accumulation, shapes_of(symbolic));
  Options alone = options;
  alone.batch.grad_accum = {};
  DataSpec data;
  data.train = column_set(columns.arrays, "the batch");
  OFSDP_ASSIGN_OR_RETURN(const ModelSetup setup, ModelSetup::make(alone, {}, registry, *communicator,
                                                                  ledger, &data));
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
  const double share = 1 / static_cast<double>(accumulation);
  double disturbed_loss = 0;
  for (int64_t micro = 0; micro < accumulation; ++micro) {
    std::vector<int64_t> samples(static_cast<size_t>(model.batch));
    std::iota(samples.begin(), samples.end(), micro * model.batch);
    MicroBatch batch(graph, samples);
    OFSDP_RETURN_IF_ERROR(batch.set(onnx, columns, micro));
    expected.loss += share * batch.run().loss();
    OFSDP_RETURN_IF_ERROR(add_slopes(graph, batch.run(), share, false, expected.parameters));
    OFSDP_RETURN_IF_ERROR(batch.disturb(rounding, random));
    disturbed_loss += share * batch.run().loss();
    OFSDP_RETURN_IF_ERROR(add_slopes(graph, batch.run(), share, true, expected.parameters));
  }
  expected.unsteady_loss = std::abs(disturbed_loss - expected.loss);
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

}  // namespace

Judgement judge(const Trained& found, const Expected& expected, bool narrow) {
  const double loss_limit = narrow ? 5e-3 : 2e-4, limit = narrow ? 5e-2 : 2e-3;
  const double size = std::max(std::abs(expected.loss), narrow ? 0.1 : 1e-2);
  const double loss_error = std::abs(found.loss - expected.loss) / size;
  bool unsteady = expected.unsteady_loss / size > loss_limit / 3;
  Judgement judged;
  if (!(loss_error <= loss_limit)) {
    judged = {Verdict::kWrong, format_text("loss {:.9g}, expected {:.9g}", found.loss, expected.loss)};
  }
  double of_all = 0;
  for (const auto& p : expected.parameters) of_all = std::max(of_all, largest_slope(p));
  for (const auto& p : expected.parameters) {
    const auto gradient = std::ranges::find(found.gradients, p.name, &Gradient::name);
    const double scale = std::max({largest_slope(p), 1e-4 * of_all, 1e-9});
    for (size_t d = 0; d < p.slopes.size(); ++d) {
      if (p.slopes[d].kink) continue;
      const double here = gradient == found.gradients.end() ? 0 : dot(gradient->values, p.directions[d]);
      unsteady = unsteady || p.unsteady[d] > limit / 3 * scale || p.slopes[d].error > limit / 3 * scale;
      if (std::abs(here - p.slopes[d].value) <= limit * scale) continue;
      if (judged.verdict == Verdict::kWrong) continue;
      judged = {Verdict::kWrong, format_text("derivative of {} is {:.9g}, expected {:.9g} (scale {:.3g})", p.name, here,
                                             p.slopes[d].value, scale)};
    }
  }
  if (judged.verdict == Verdict::kWrong && unsteady) judged.verdict = Verdict::kUnsteady;
  return judged;
}

Judgement Trial::in(const Way& way) {
  const bool narrow = way.param_dtype != DType::kFloat32;
  const std::pair key{way.accumulation, narrow};
  auto found = expected_.find(key);
  if (found == expected_.end()) {
    found = expected_.emplace(key, expect(registry_, model_, way.accumulation, narrow ? 4e-3 : 1e-6)).first;
  }
  if (!found->second.ok()) return {Verdict::kRefused, "reference: " + found->second.error().message()};
  auto trained = train(registry_, model_, way);
  if (!trained.ok()) return {Verdict::kRefused, trained.error().message()};
  return judge(*trained, *found->second, narrow);
}

}  // namespace ofsdp::graphs
