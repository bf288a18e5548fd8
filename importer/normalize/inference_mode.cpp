#include <algorithm>
#include <fstream>
#include <set>

#include "importer/normalize/onnx_import.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

using NameSet = std::set<std::string>;

void collect_reads(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes,
                   NameSet& reads);

void collect_reads(const onnx::GraphProto& graph, NameSet& reads) {
  for (const auto& output : graph.output()) reads.insert(output.name());
  collect_reads(graph.node(), reads);
}

void collect_reads(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes,
                   NameSet& reads) {
  for (const auto& node : nodes) {
    reads.insert(node.input().begin(), node.input().end());
    for (const auto& attribute : node.attribute()) {
      if (attribute.has_g()) collect_reads(attribute.g(), reads);
      for (const auto& graph : attribute.graphs()) collect_reads(graph, reads);
    }
  }
}

// Turns off the nodes of a graph or function, in order.
class Switch {
 public:
  // `samples`: the names that depend on a sample; names that nodes make are added.
  Switch(NameSet reads, NameSet samples) : reads_(std::move(reads)), samples_(std::move(samples)) {}

  Status turn_off(google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes) {
    for (auto& node : nodes) {
      follow_samples(node);
      OFSDP_RETURN_IF_ERROR(turn_off(node));
      for (auto& attribute : *node.mutable_attribute()) {
        if (attribute.has_g())
          OFSDP_RETURN_IF_ERROR(turn_off(*attribute.mutable_g()->mutable_node()));
        for (auto& graph : *attribute.mutable_graphs()) {
          OFSDP_RETURN_IF_ERROR(turn_off(*graph.mutable_node()));
        }
      }
    }
    return ok_status();
  }

 private:
  void follow_samples(const onnx::NodeProto& node) {
    NameSet read(node.input().begin(), node.input().end());
    for (const auto& attribute : node.attribute()) {
      if (attribute.has_g()) collect_reads(attribute.g(), read);
      for (const auto& graph : attribute.graphs()) collect_reads(graph, read);
    }
    const auto is_sample = [this](const std::string& name) { return samples_.contains(name); };
    if (std::ranges::none_of(read, is_sample)) return;
    samples_.insert(node.output().begin(), node.output().end());
    for (const auto& attribute : node.attribute()) {  // the body of a loop gets them as inputs
      for (const auto& input : attribute.g().input()) samples_.insert(input.name());
    }
  }

  Status turn_off(onnx::NodeProto& node) const {
    if (!short_domain(node.domain()).empty()) return ok_status();
    // Dropout's third input is training_mode; the default is false.
    if (node.op_type() == "Dropout" && node.input_size() == 3) {
      node.mutable_input()->RemoveLast();
      if (node.input(1).empty()) node.mutable_input()->RemoveLast();
    }
    if (node.op_type() != "BatchNormalization" || node.input_size() == 0) return ok_status();
    if (!samples_.contains(node.input(0))) return ok_status();
    for (auto& attribute : *node.mutable_attribute()) {
      if (attribute.name() == "training_mode") attribute.set_i(0);
    }
    while (node.output_size() > 1) {
      const std::string& output = node.output(node.output_size() - 1);
      OFSDP_REJECT_IF(
          !output.empty() && reads_.contains(output),
          "node '{}' (BatchNormalization): expected running statistics that nobody reads, but "
          "'{}' is read, so it cannot be made for inference",
          node.name(), output);
      node.mutable_output()->RemoveLast();
    }
    return ok_status();
  }

  const NameSet reads_;
  NameSet samples_;
};

// Returns the graph's inputs without those that are initializers, as old files list them.
NameSet sample_names(const onnx::GraphProto& graph) {
  NameSet names;
  for (const auto& input : graph.input()) names.insert(input.name());
  for (const auto& initializer : graph.initializer()) names.erase(initializer.name());
  return names;
}

// `samples`: the main graph's inputs.
Status rewrite(onnx::ModelProto& model, NameSet samples) {
  NameSet reads;
  collect_reads(model.graph(), reads);
  OFSDP_RETURN_IF_ERROR(
      Switch(reads, std::move(samples)).turn_off(*model.mutable_graph()->mutable_node()));
  for (auto& function : *model.mutable_functions()) {
    NameSet inside(function.output().begin(), function.output().end());
    collect_reads(function.node(), inside);
    NameSet arguments(function.input().begin(), function.input().end());
    OFSDP_RETURN_IF_ERROR(Switch(inside, std::move(arguments)).turn_off(*function.mutable_node()));
  }
  return ok_status();
}

// Returns whether the value is one number other than 0, or unknown.
bool may_be_on(const Graph& graph, ValueId id) {
  const ConstantPtr& constant = graph.value(id).constant;
  if (constant == nullptr) return true;
  return std::ranges::any_of(constant->bytes, [](std::byte b) { return b != std::byte{0}; });
}

}  // namespace

Status make_inference_model(const std::string& path) {
  onnx::ModelProto model;
  {
    std::ifstream file(path, std::ios::binary);
    if (!model.ParseFromIstream(&file)) return fault("{}: cannot be read again", path);
  }
  OFSDP_RETURN_IF_ERROR(rewrite(model, sample_names(model.graph())));
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (model.SerializeToOstream(&file) && file.flush()) return ok_status();
  return fault("{}: cannot be written for inference", path);
}

Status check_inference_model(const OnnxFile& file) {
  onnx::ModelProto model;
  OFSDP_REJECT_IF(!model.ParseFromString(file.skeleton()), "{}: cannot be read again", file.path());
  NameSet samples = sample_names(model.graph());  // the skeleton's inputs are weights, too
  for (const Initializer& initializer : file.initializers()) samples.erase(initializer.name);
  return rewrite(model, std::move(samples)).with_prefix(file.path());
}

TrainingSwitches training_switches(const Graph& graph) {
  TrainingSwitches found;
  std::set<ValueId> samples(graph.inputs.begin(), graph.inputs.end());
  for (const Node& node : graph.nodes) {
    const auto is_sample = [&](ValueId id) { return samples.contains(id); };
    if (std::ranges::any_of(node.inputs, is_sample)) {
      for (const ValueId id : node.outputs) samples.insert(id);
    }
    const std::string op = node.op->full_name();
    const bool of_adapter = node.name.ends_with(".lora_dropout");  // in no written file
    if (op == "BatchNormalization" && node.attributes.i("training_mode", 0) != 0) {
      found.batch_norms += samples.contains(node.inputs[0]) ? 1 : 0;
    } else if (op == "Dropout" && node.inputs.size() > 2 && node.inputs[2] != 0 && !of_adapter) {
      const bool drops = node.inputs[1] == 0 || may_be_on(graph, node.inputs[1]);  // ratio above 0
      found.dropouts += drops && may_be_on(graph, node.inputs[2]) ? 1 : 0;
    }
  }
  return found;
}

}  // namespace ofsdp::importer
