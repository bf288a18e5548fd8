// StepProgram: one kind of micro-batch (batch size, training or evaluation, position in the
// accumulation) before anything is allocated: graph, kernels, schedule and offsets.
//
// KernelCache: nodes with the same problem share a kernel, in all programs, because a rank runs one
// node at a time. If it has a device, all kernels are the device's. KeptValues: constants and
// frozen parameters that nodes read, stored once for all programs.
//
// CompiledRun owns all three; programs point into the cache.
#pragma once

#include <map>
#include <memory>

#include "kernels/core/device.h"
#include "runtime/compile/program/arena_map.h"
#include "runtime/compile/program/schedule.h"

namespace ofsdp::runtime {

Problem problem_of(const Graph& graph, const Node& node);

class KernelCache {
 public:
  explicit KernelCache(Device* device = nullptr) : device_(device) {}  // null: the CPU
  Result<Kernel*> get(const OpDef& op, const Problem& problem);
  size_t size() const { return kernels_.size(); }
  Device* device() const { return device_; }

 private:
  Result<std::unique_ptr<Kernel>> make(const OpDef& op, const Problem& problem);

  Device* device_;
  std::map<std::string, std::unique_ptr<Kernel>> kernels_;
};

struct StepProgram {
  Graph graph;
  CompileOptions options;
  Schedule schedule;
  ArenaMap memory;
  std::vector<Kernel*> kernels;  // per node; null for views
};

// Returns kInput, with all such nodes in one message, if an operator has no kernel for a problem.
Result<StepProgram> compile_program(Graph graph, const Plan& plan, const CompileOptions& options,
                                    KernelCache& cache);

class KeptValues {
 public:
  void add(const StepProgram& program, const Plan& plan);
  size_t bytes() const { return bytes_; }

  struct Entry {
    size_t offset = 0;
    TensorDesc desc;
    ConstantPtr constant;  // null: a frozen parameter
    int parameter = -1;    // index in Graph::parameters
  };
  const std::vector<Entry>& entries() const { return entries_; }
  // REQUIRES: `storage` is a constant or a frozen parameter.
  size_t offset(const Graph& graph, ValueId storage) const;

 private:
  using Key = std::pair<const Constant*, int>;
  static Key key(const Graph& graph, ValueId storage);

  std::vector<Entry> entries_;
  std::map<Key, size_t> index_;
  size_t bytes_ = 0;
};

}  // namespace ofsdp::runtime
