#include "importer/proto/graph_names.h"

namespace ofsdp::importer {
namespace {

void replace(std::string& name, const NameMap& bound) {
  const auto found = bound.find(name);
  if (found != bound.end()) name = found->second;
}

}  // namespace

GraphNames::GraphNames(const onnx::GraphProto& graph) { collect(graph); }

void GraphNames::collect(const onnx::GraphProto& graph) {
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

std::string GraphNames::fresh(const std::string& name) {
  std::string made = name;
  while (made.empty() || !taken_.insert(made).second) {
    made = name + "__" + std::to_string(++last_[name]);
  }
  return made;
}

void GraphNames::define(std::string& name, NameMap& bound) {
  if (name.empty()) return;
  const auto found = bound.find(name);
  name = found != bound.end() ? found->second : bound[name] = fresh(name);
}

void GraphNames::rename(onnx::NodeProto& node, NameMap& bound) {
  if (!node.name().empty()) node.set_name(fresh(node.name()));
  for (auto& name : *node.mutable_input()) replace(name, bound);
  for (auto& attribute : *node.mutable_attribute()) {
    if (attribute.has_g()) rename(*attribute.mutable_g(), bound);
  }
  for (auto& name : *node.mutable_output()) define(name, bound);
}

void GraphNames::rename(onnx::GraphProto& graph, NameMap bound) {
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

}  // namespace ofsdp::importer
