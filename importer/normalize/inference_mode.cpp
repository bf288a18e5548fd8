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

class Switch {
 public:
  explicit Switch(NameSet reads) : reads_(std::move(reads)) {}

  Status turn_off(google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes) {
    for (auto& node : nodes) {
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
  Status turn_off(onnx::NodeProto& node) const {
    if (!short_domain(node.domain()).empty()) return ok_status();
    // Dropout's third input is training_mode; the default is false.
    if (node.op_type() == "Dropout" && node.input_size() == 3) {
      node.mutable_input()->RemoveLast();
      if (node.input(1).empty()) node.mutable_input()->RemoveLast();
    }
    if (node.op_type() != "BatchNormalization") return ok_status();
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
};

Status rewrite(onnx::ModelProto& model) {
  NameSet reads;
  collect_reads(model.graph(), reads);
  OFSDP_RETURN_IF_ERROR(Switch(reads).turn_off(*model.mutable_graph()->mutable_node()));
  for (auto& function : *model.mutable_functions()) {
    NameSet inside(function.output().begin(), function.output().end());
    collect_reads(function.node(), inside);
    OFSDP_RETURN_IF_ERROR(Switch(inside).turn_off(*function.mutable_node()));
  }
  return ok_status();
}

}  // namespace

Status make_inference_model(const std::string& path) {
  onnx::ModelProto model;
  {
    std::ifstream file(path, std::ios::binary);
    if (!model.ParseFromIstream(&file)) return fault("{}: cannot be read again", path);
  }
  OFSDP_RETURN_IF_ERROR(rewrite(model));
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (model.SerializeToOstream(&file) && file.flush()) return ok_status();
  return fault("{}: cannot be written for inference", path);
}

}  // namespace ofsdp::importer
