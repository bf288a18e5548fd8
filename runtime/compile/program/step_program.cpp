#include "runtime/compile/program/step_program.h"

#include <algorithm>

#include "kernels/base/budgets.h"
#include "kernels/base/hash.h"
#include "kernels/core/memory.h"
#include "kernels/cpu/parallel.h"
#include "plugins/loading/loader.h"
#include "runtime/compile/program/arena_map.h"

namespace ofsdp::runtime {
namespace {

// Returns a + b, at most kMaxGraphBytes.
size_t added(size_t a, size_t b) {
  const auto most = static_cast<size_t>(kMaxGraphBytes);
  return std::min(std::min(a, most) + std::min(b, most), most);
}

// Two problems with the same key are the same problem.
std::string problem_key(const OpDef& op, const Problem& problem) {
  std::string key = op.full_name() + "|" + problem.attributes.text();
  for (const auto& [name, value] : problem.attributes.all()) {
    if (const auto* constant = std::get_if<ConstantPtr>(&value)) {
      key += format_text("|{}", static_cast<const void*>(constant->get()));
    }
  }
  for (const TensorDesc& desc : problem.inputs) key += "|" + desc.text();
  for (const TensorDesc& desc : problem.outputs) key += ">" + desc.text();
  for (const ConstantPtr& constant : problem.constants) {
    key += format_text("|{}", static_cast<const void*>(constant.get()));
  }
  return key + format_text("|{}", problem.node_seed);
}

// Returns kInput if sums of bytes could overflow.
Status check_bytes(const Graph& graph, const std::vector<size_t>& workspace) {
  size_t sum = 0;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    size_t bytes = workspace[n];
    for (const auto* ids : {&node.inputs, &node.outputs}) {
      for (const ValueId id : *ids)
        bytes = added(bytes, id == 0 ? 0 : graph.value(id).desc.bytes());
    }
    sum = added(sum, bytes);
  }
  if (sum < static_cast<size_t>(kMaxGraphBytes)) return ok_status();
  return input_error("{}: {} or more bytes of operands do not fit into any memory", graph.file,
                     kMaxGraphBytes);
}

}  // namespace

Problem problem_of(const Graph& graph, const Node& node) {
  Problem problem{node.attributes, {}, {}, {}, 0, pool_threads()};
  for (ValueId id : node.inputs) {
    problem.inputs.push_back(id == 0 ? TensorDesc{} : graph.value(id).desc);
    problem.constants.push_back(id == 0 ? nullptr : graph.value(id).constant);
  }
  for (ValueId id : node.outputs) {
    problem.outputs.push_back(id == 0 ? TensorDesc{} : graph.value(id).desc);
  }
  problem.node_seed = node_seed(node);
  return problem;
}

Result<Kernel*> KernelCache::get(const OpDef& op, const Problem& problem) {
  auto& slot = kernels_[problem_key(op, problem)];
  if (slot == nullptr) {
    OFSDP_ASSIGN_OR_RETURN(slot, make(op, problem));
  }
  return slot.get();
}

Result<std::unique_ptr<Kernel>> KernelCache::make(const OpDef& op, const Problem& problem) {
  if (device_ == nullptr) return create_kernel(op, problem);
  // A device has only our own operators; a plug-in's operator may have the same name.
  const bool plugins = plugin_takes(op, problem);
  std::unique_ptr<Kernel> kernel;
  if (!plugins) kernel = device_->make_kernel(op.full_name(), problem);
  if (plugins && problem.all_dense()) kernel = make_plugin_kernel(*device_, op, problem);
  if (kernel != nullptr) return kernel;
  std::string inputs;
  for (const TensorDesc& desc : problem.inputs) {
    inputs += (inputs.empty() ? "" : ", ") + desc.text();
  }
  return input_error("operator {}{} has no CUDA kernel for ({})", op.full_name(),
                     plugins ? " of a plug-in" : "", inputs);
}

Result<StepProgram> compile_program(Graph graph, const Plan& plan, const CompileOptions& options,
                                    KernelCache& cache) {
  StepProgram program{std::move(graph), options, {}, {}, {}};
  std::vector<size_t> workspace;
  std::string missing;
  for (const Node& node : program.graph.nodes) {
    Kernel* kernel = nullptr;
    if (!node.op->view) {
      auto made = cache.get(*node.op, problem_of(program.graph, node));
      if (made.ok()) {
        kernel = *made;
      } else {
        missing += format_text("{}node '{}': {}", missing.empty() ? "" : "; ", node.name,
                               made.error().message());
      }
    }
    program.kernels.push_back(kernel);
    workspace.push_back(kernel == nullptr ? 0 : kernel->workspace_bytes());
  }
  if (!missing.empty()) return input_error("{}: {}", program.graph.file, missing);
  OFSDP_RETURN_IF_ERROR(check_bytes(program.graph, workspace));
  program.schedule = make_schedule(program.graph, plan, options);
  program.memory = map_arena(program.graph, plan, program.schedule, workspace, options.matrices);
  return program;
}

KeptValues::Key KeptValues::key(const Graph& graph, ValueId storage) {
  const Value& value = graph.value(storage);
  if (value.kind == ValueKind::kConstant) return {value.constant.get(), -1};
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    if (graph.parameters[i].value == storage) return {nullptr, static_cast<int>(i)};
  }
  return {nullptr, -1};
}

void KeptValues::add(const StepProgram& program, const Plan& plan) {
  const Graph& graph = program.graph;
  const auto storage = storage_of(graph);
  const auto parameter = parameter_behind(graph);
  const auto unit = unit_of_parameter(graph, plan);
  for (const Node& node : graph.nodes) {
    if (node.op->view) continue;
    for (ValueId id : node.inputs) {
      const ValueId root = storage[static_cast<size_t>(id)];
      const ValueKind kind = graph.value(root).kind;
      const bool frozen = kind == ValueKind::kParameter &&
                          unit[static_cast<size_t>(parameter[static_cast<size_t>(root)])] < 0;
      if (id == 0 || !(frozen || kind == ValueKind::kConstant)) continue;
      const Key k = key(graph, root);
      if (!index_.try_emplace(k, entries_.size()).second) continue;
      const Value& value = graph.value(root);
      entries_.push_back({bytes_, value.desc, frozen ? nullptr : value.constant, k.second});
      bytes_ += align_up(value.desc.bytes(), kTensorAlignment);
    }
  }
}

size_t KeptValues::offset(const Graph& graph, ValueId storage) const {
  const auto it = index_.find(key(graph, storage));
  OFSDP_CHECK(it != index_.end(), "{} is not kept", graph.value(storage).name);
  return entries_[it->second].offset;
}

}  // namespace ofsdp::runtime
