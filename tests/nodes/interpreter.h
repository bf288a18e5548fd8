// Interpreter: runs a specialized graph node by node with kernels. No schedule and no memory plan:
// each value has separate bytes, filled with garbage before.
//
// In order: plan, set (inputs) and set_parameters, run, take. Ownership: values; the graph must
// outlive it. Threads: one. Errors: those of kernels and the file, with the node.
#pragma once

#include <memory>
#include <vector>

#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"
#include "kernels/core/op_def.h"
#include "tests/support/namespaces.h"

namespace ofsdp::nodes {

class Interpreter {
 public:
  explicit Interpreter(const Graph& graph);
  ~Interpreter();

  Status plan();
  void set(ValueId id, const Constant& constant);
  Status set_parameters(const OnnxFile& file);
  Status run();
  Constant take(ValueId id);

 private:
  class Bytes;

  Problem problem_of(const Node& node) const;
  std::byte* make(ValueId id);
  TensorView view_of(ValueId id);
  Status run_node(const Node& node, Kernel* kernel);

  const Graph& graph_;
  std::vector<std::unique_ptr<Bytes>> bytes_;  // per value
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::vector<int64_t> samples_;
};

}  // namespace ofsdp::nodes
