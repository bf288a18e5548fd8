// ProtoUses: who makes and who reads each value of an ONNX graph, by the places of nodes.
//
// A snapshot: make it again when nodes have changed. Threads: any. Errors: none.
#pragma once

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace ofsdp::importer {

struct ProtoUse {
  int node = 0;
  int input = 0;
};

class ProtoUses {
 public:
  explicit ProtoUses(const onnx::GraphProto& graph) {
    for (int i = 0; i < graph.node_size(); ++i) {
      const auto& node = graph.node(i);
      for (const std::string& name : node.output()) {
        if (!name.empty()) makers_[name] = i;
      }
      for (int k = 0; k < node.input_size(); ++k) {
        if (!node.input(k).empty()) readers_[node.input(k)].push_back({i, k});
      }
      for (const auto& attribute : node.attribute()) {
        if (attribute.has_g()) add_inner(attribute.g());
        for (const auto& inner : attribute.graphs()) add_inner(inner);
      }
    }
    for (const auto& output : graph.output()) outputs_.insert(output.name());
  }

  int maker(const std::string& value) const {  // -1: no node
    const auto found = makers_.find(value);
    return found == makers_.end() ? -1 : found->second;
  }
  const std::vector<ProtoUse>& readers(const std::string& value) const {
    static const std::vector<ProtoUse> kNone;
    const auto found = readers_.find(value);
    return found == readers_.end() ? kNone : found->second;
  }
  bool is_output(const std::string& value) const { return outputs_.contains(value); }
  // Whether the body of a loop or of a branch reads it.
  bool in_body(const std::string& value) const { return inner_.contains(value); }

 private:
  void add_inner(const onnx::GraphProto& graph) {
    for (const auto& node : graph.node()) {
      inner_.insert(node.input().begin(), node.input().end());
      for (const auto& attribute : node.attribute()) {
        if (attribute.has_g()) add_inner(attribute.g());
        for (const auto& inner : attribute.graphs()) add_inner(inner);
      }
    }
    for (const auto& output : graph.output()) inner_.insert(output.name());
  }

  std::map<std::string, int> makers_;
  std::map<std::string, std::vector<ProtoUse>> readers_;
  std::set<std::string> outputs_, inner_;
};

// "node 'fc1' (Gemm)"
std::string described(const onnx::NodeProto& node);

}  // namespace ofsdp::importer
