// Names of an ONNX graph: fresh ones, and bodies (of functions, branches, loops) renamed so that
// they do not clash with names of the graph.
//
// Ownership: values. Threads: one at a time. Errors: none.
#pragma once

#include <onnx/onnx_pb.h>

#include <string>
#include <unordered_map>
#include <unordered_set>

namespace ofsdp::importer {

using NameMap = std::unordered_map<std::string, std::string>;  // inside -> outside

class GraphNames {
 public:
  explicit GraphNames(const onnx::GraphProto& graph) { collect(graph); }

  // `name` or, when something is called so already, `name` followed by a number.
  std::string fresh(const std::string& name) {
    std::string made = name;
    while (made.empty() || !taken_.insert(made).second) {
      made = name + "__" + std::to_string(++last_[name]);
    }
    return made;
  }

  // Names in `bound` become what they are bound to; whatever else the node defines, in subgraphs
  // too, becomes fresh and is added to `bound`. All else belongs to an outer graph and stays.
  void rename(onnx::NodeProto& node, NameMap& bound) {
    if (!node.name().empty()) node.set_name(fresh(node.name()));
    for (auto& name : *node.mutable_input()) replace(name, bound);
    for (auto& attribute : *node.mutable_attribute()) {
      if (attribute.has_g()) rename(*attribute.mutable_g(), bound);
    }
    for (auto& name : *node.mutable_output()) define(name, bound);
  }

 private:
  static void replace(std::string& name, const NameMap& bound) {
    const auto found = bound.find(name);
    if (found != bound.end()) name = found->second;
  }

  void collect(const onnx::GraphProto& graph) {
    for (const auto& info : graph.input()) taken_.insert(info.name());
    for (const auto& info : graph.output()) taken_.insert(info.name());
    for (const auto& tensor : graph.initializer()) taken_.insert(tensor.name());
    for (const auto& node : graph.node()) {
      taken_.insert(node.name());
      for (const auto& name : node.output()) taken_.insert(name);
      for (const auto& attribute : node.attribute()) {
        if (attribute.has_g()) collect(attribute.g());
      }
    }
  }

  void rename(onnx::GraphProto& graph, NameMap bound) {
    std::unordered_set<std::string> local;
    auto shadow = [&](std::string& name) {
      if (local.insert(name).second) bound.erase(name);  // an input may have a default of its name
      define(name, bound);
    };
    for (auto& info : *graph.mutable_input()) shadow(*info.mutable_name());
    for (auto& tensor : *graph.mutable_initializer()) shadow(*tensor.mutable_name());
    for (auto& node : *graph.mutable_node()) rename(node, bound);
    for (auto& info : *graph.mutable_output()) replace(*info.mutable_name(), bound);
  }

  void define(std::string& name, NameMap& bound) {
    if (name.empty()) return;
    const auto found = bound.find(name);
    name = found != bound.end() ? found->second : bound[name] = fresh(name);
  }

  std::unordered_set<std::string> taken_;
  std::unordered_map<std::string, int> last_;
};

}  // namespace ofsdp::importer
