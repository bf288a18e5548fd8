#include "runtime/commands/verify_export.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "fsdp/comm/communicator.h"
#include "importer/dialects/onnxruntime/ort_operators.h"
#include "importer/onnx_import.h"
#include "importer/passes/specialize.h"
#include "importer/passes/trained_set.h"
#include "runtime/plan/data_setup.h"
#include "runtime/program/forward.h"

namespace ofsdp::runtime {
namespace {

constexpr int64_t kBatch = 4;
constexpr int64_t kSymbolic = 16;  // the size of an axis that the model leaves open

using Outputs = std::map<std::string, std::vector<float>>;
using ReadTensor = std::function<Status(const std::string& name, std::span<float> dst)>;

// A sample of each input; axes of the same symbol have the same size.
std::map<std::string, Shape> made_up_rows(const Graph& graph) {
  std::map<std::string, Shape> rows;
  for (const ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    std::vector<int64_t> axes;
    for (size_t i = 1; i < input.declared.size(); ++i) {
      axes.push_back(input.declared[i].size < 0 ? kSymbolic : input.declared[i].size);
    }
    rows[input.name] = Shape(std::move(axes));
  }
  return rows;
}

// The graph of a file for one batch, its training switches off.
Result<Graph> inference_graph(const OnnxFile& file, const Manifest& manifest,
                              const Registry& registry) {
  OFSDP_ASSIGN_OR_RETURN(const Graph imported, import_onnx(file, {registry, &ort_operators()}));
  TrainedRules rules;  // what has other values than the file stays a parameter
  for (const NamedTensor& t : manifest.trained) rules.train.push_back(t.name);
  for (const NamedTensor& t : manifest.statistics) rules.train.push_back(t.name);
  OFSDP_ASSIGN_OR_RETURN(const Graph chosen, choose_candidates(imported, rules));
  OFSDP_ASSIGN_OR_RETURN(const Graph graph, with_samples_first(chosen, {}));
  const int64_t fixed = fixed_batch(graph);
  OFSDP_ASSIGN_OR_RETURN(const auto shapes,
                         bind_inputs(graph, made_up_rows(graph), fixed > 0 ? fixed : kBatch));
  return specialize(graph, shapes, Mode::kEval, &ort_operators());
}

Status feed_inputs(const Graph& graph, Feeds& feeds) {
  DataSetup data;
  data.spec.synthetic = true;
  OFSDP_RETURN_IF_ERROR(bind_data(data, graph, 0, {}, {}));
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const TensorDesc& desc = graph.value(graph.inputs[i]).desc;
    std::vector<int64_t> samples(static_cast<size_t>(desc.shape[0]));
    std::iota(samples.begin(), samples.end(), 0);
    auto& bytes = feeds[graph.inputs[i]];
    bytes.resize(desc.bytes());
    OFSDP_RETURN_IF_ERROR(data.synthetic->read_rows(static_cast<int>(i), samples, bytes.data()));
  }
  return ok_status();
}

// Weights that nodes read as they are stored are those of `file`, the graph's.
Result<Outputs> outputs_of(const Graph& graph, const OnnxFile& file, const ReadTensor& read) {
  Feeds feeds;
  OFSDP_RETURN_IF_ERROR(feed_inputs(graph, feeds));
  for (const Parameter& p : graph.parameters) {
    if (graph.value(p.value).kind != ValueKind::kParameter) continue;
    auto& bytes = feeds[p.value];
    bytes.resize(graph.value(p.value).desc.bytes());
    if (p.raw) {
      const auto index = static_cast<size_t>(p.initializer);
      OFSDP_RETURN_IF_ERROR(file.read_raw(file.initializers()[index], 0, bytes));
      continue;
    }
    std::vector<float> values(bytes.size() / sizeof(float));
    OFSDP_RETURN_IF_ERROR(read(p.name, values));
    std::memcpy(bytes.data(), values.data(), bytes.size());
  }
  return run_forward(graph, std::move(feeds));
}

ReadTensor reader_of(const OnnxFile& file) {
  return [&file](const std::string& name, std::span<float> dst) -> Status {
    const auto& all = file.initializers();
    const auto found = std::ranges::find(all, name, &Initializer::name);
    if (found == all.end()) return input_error("{}: no initializer '{}'", file.path(), name);
    return file.read(*found, 0, dst);
  };
}

double largest_difference(const Outputs& a, const Outputs& b) {
  double largest = 0;
  for (const auto& [name, values] : a) {
    const auto found = b.find(name);
    if (found == b.end() || found->second.size() != values.size()) return HUGE_VAL;
    for (size_t i = 0; i < values.size(); ++i) {
      const double difference = std::abs(static_cast<double>(values[i]) - found->second[i]);
      largest = std::isnan(difference) ? HUGE_VAL : std::max(largest, difference);
    }
  }
  return largest;
}

}  // namespace

Result<ForwardSample> sample_forward(const OnnxFile& file, const Registry& registry) {
  OFSDP_ASSIGN_OR_RETURN(const Graph graph, inference_graph(file, Manifest{}, registry));
  ForwardSample sample;
  Feeds feeds;
  OFSDP_RETURN_IF_ERROR(feed_inputs(graph, feeds));
  for (const ValueId id : graph.inputs) {
    sample.inputs.push_back({graph.value(id).name, graph.value(id).desc, feeds.at(id)});
  }
  OFSDP_ASSIGN_OR_RETURN(sample.outputs, outputs_of(graph, file, reader_of(file)));
  return sample;
}

Result<ForwardDifference> compare_forwards(const OnnxFile& input, const std::string& exported,
                                           CheckpointReader& checkpoint, const Registry& registry) {
  const Manifest& manifest = checkpoint.manifest();
  std::set<std::string> trained, statistics;
  for (const NamedTensor& t : manifest.trained) trained.insert(t.name);
  for (const NamedTensor& t : manifest.statistics) statistics.insert(t.name);
  const ReadTensor from_input = reader_of(input);
  const ReadTensor from_state = [&](const std::string& name, std::span<float> dst) -> Status {
    if (trained.contains(name)) return checkpoint.read(kParameterKind, name, 0, dst);
    if (statistics.contains(name)) return checkpoint.read_statistic(name, 0, dst);
    return from_input(name, dst);
  };
  OFSDP_ASSIGN_OR_RETURN(const OnnxFile file, OnnxFile::open(exported));
  OFSDP_ASSIGN_OR_RETURN(const Graph old_graph, inference_graph(input, manifest, registry));
  OFSDP_ASSIGN_OR_RETURN(const Graph new_graph, inference_graph(file, manifest, registry));
  OFSDP_ASSIGN_OR_RETURN(const Outputs state, outputs_of(old_graph, input, from_state));
  OFSDP_ASSIGN_OR_RETURN(const Outputs after, outputs_of(new_graph, file, reader_of(file)));
  OFSDP_ASSIGN_OR_RETURN(const Outputs before, outputs_of(old_graph, input, from_input));
  ForwardDifference difference{.exported = largest_difference(state, after),
                               .input = largest_difference(state, before)};
  for (const auto& [name, values] : state) {
    for (const float v : values) {
      difference.magnitude = std::max(difference.magnitude, static_cast<double>(std::abs(v)));
    }
  }
  return difference;
}

}  // namespace ofsdp::runtime
