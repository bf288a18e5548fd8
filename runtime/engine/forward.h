// A graph's forward pass node by node on the CPU, with memory for each value. For `predict`,
// `export --verify`, --initialize and the check of written files; training uses planned programs
// (executor.h).
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "importer/graph/graph.h"
#include "runtime/engine/executor.h"

namespace ofsdp::runtime {

// A pass that can be repeated: kernels, parameters and constants stay, and an activation's memory
// lives from its node to its last reader. The graph must outlive it. Threads: one. Errors: kInput
// if a node reads a value that nothing provides; kernel errors, with the node as a prefix.
class ForwardPass {
 public:
  explicit ForwardPass(const Graph& graph);
  ~ForwardPass();

  // Sets an input or a parameter.
  void feed(ValueId id, std::span<const std::byte> bytes);
  // `context`: seed and step for random operators.
  Status run(const StepContext& context = {});
  // Returns the bytes of a graph output; empty: it has no value. REQUIRES: run has succeeded.
  std::span<const std::byte> output(ValueId id) const;
  // Returns the node whose error `run` has returned.
  const RefusedNode& refused() const { return refused_; }

 private:
  struct Buffer;

  Status run(size_t index, const StepContext& context);
  void release_after(size_t index);

  const Graph& graph_;
  std::vector<Buffer> values_;
  std::vector<std::unique_ptr<Kernel>> kernels_;  // by node
  std::vector<std::vector<ValueId>> last_read_;   // activations, by their last reader
  RefusedNode refused_;
};

using Feeds = std::map<ValueId, std::vector<std::byte>>;

// Returns the graph's float32 outputs by name after one pass. `feeds`: the bytes of each input and
// parameter.
Result<std::map<std::string, std::vector<float>>> run_forward(const Graph& graph, Feeds feeds,
                                                              const StepContext& context = {});

}  // namespace ofsdp::runtime
