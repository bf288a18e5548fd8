#include "importer/normalize/node_order.h"

#include <set>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ofsdp::importer {
namespace {

using Makers = std::unordered_map<std::string_view, int>;

// Adds the nodes that make what `node` reads, its inner graphs included.
void add_makers(const onnx::NodeProto& node, const Makers& makers, std::set<int>& found);

void add_makers(const onnx::GraphProto& inner, const Makers& makers, std::set<int>& found) {
  for (const auto& node : inner.node()) add_makers(node, makers, found);
  for (const auto& output : inner.output()) {
    if (const auto it = makers.find(output.name()); it != makers.end()) found.insert(it->second);
  }
}

void add_makers(const onnx::NodeProto& node, const Makers& makers, std::set<int>& found) {
  for (const auto& name : node.input()) {
    if (const auto it = makers.find(name); it != makers.end()) found.insert(it->second);
  }
  for (const auto& attribute : node.attribute()) {
    if (attribute.has_g()) add_makers(attribute.g(), makers, found);
    for (const auto& inner : attribute.graphs()) add_makers(inner, makers, found);
  }
}

// The nodes in an order that runs, the earliest first that can; fewer where there is a cycle.
std::vector<int> runnable_order(const std::vector<std::set<int>>& waits) {
  std::vector<std::vector<int>> readers(waits.size());
  std::vector<size_t> missing;
  std::set<int> ready;
  for (size_t i = 0; i < waits.size(); ++i) {
    missing.push_back(waits[i].size());
    if (waits[i].empty()) ready.insert(static_cast<int>(i));
    for (const int maker : waits[i]) readers[maker].push_back(static_cast<int>(i));
  }
  std::vector<int> order;
  while (!ready.empty()) {
    const int next = *ready.begin();
    ready.erase(ready.begin());
    order.push_back(next);
    for (const int reader : readers[next]) {
      if (--missing[reader] == 0) ready.insert(reader);
    }
  }
  return order;
}

}  // namespace

void sort_nodes(onnx::GraphProto& graph) {
  Makers makers;
  for (int i = 0; i < graph.node_size(); ++i) {
    for (auto& attribute : *graph.mutable_node(i)->mutable_attribute()) {
      if (attribute.has_g()) sort_nodes(*attribute.mutable_g());
      for (auto& inner : *attribute.mutable_graphs()) sort_nodes(inner);
    }
    for (const auto& name : graph.node(i).output()) {
      if (!name.empty()) makers[name] = i;
    }
  }
  std::vector<std::set<int>> waits(graph.node_size());
  bool sorted = true;
  for (int i = 0; i < graph.node_size(); ++i) {
    add_makers(graph.node(i), makers, waits[i]);
    sorted = sorted && (waits[i].empty() || *waits[i].rbegin() < i);
  }
  if (sorted) return;
  const std::vector<int> order = runnable_order(waits);
  if (static_cast<int>(order.size()) < graph.node_size()) return;
  google::protobuf::RepeatedPtrField<onnx::NodeProto> nodes;
  for (const int i : order) nodes.Add()->Swap(graph.mutable_node(i));
  graph.mutable_node()->Swap(&nodes);
}

}  // namespace ofsdp::importer
