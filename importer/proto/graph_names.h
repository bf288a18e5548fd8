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
  explicit GraphNames(const onnx::GraphProto& graph);

  // `name` or, when something is called so already, `name` followed by a number.
  std::string fresh(const std::string& name);

  // Names in `bound` become what they are bound to; whatever else the node defines, in subgraphs
  // too, becomes fresh and is added to `bound`. All else belongs to an outer graph and stays.
  void rename(onnx::NodeProto& node, NameMap& bound);

 private:
  void collect(const onnx::GraphProto& graph);
  void rename(onnx::GraphProto& graph, NameMap bound);
  void define(std::string& name, NameMap& bound);

  std::unordered_set<std::string> taken_;
  std::unordered_map<std::string, int> last_;
};

}  // namespace ofsdp::importer
