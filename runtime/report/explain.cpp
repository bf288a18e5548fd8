#include "runtime/report/explain.h"

#include <algorithm>

#include "kernels/base/escaped.h"
#include "kernels/core/device.h"
#include "kernels/core/registry.h"
#include "plugins/loading/device_kernel.h"

namespace ofsdp::runtime {
namespace {

std::string choice_text(const KernelChoice& choice) {
  std::string text = choice.taken.empty() ? "none" : choice.taken;
  std::string refused;
  for (const KernelChoice::Refused& r : choice.refused) {
    refused += (refused.empty() ? "not " : "; not ") + r.name;
    if (!r.reason.empty()) refused += ": " + r.reason;
  }
  return refused.empty() ? text : text + " (" + refused + ")";
}

KernelChoice choice_of(const OpDef& op, const Problem& problem, Device* device) {
  KernelChoice choice;
  if (device != nullptr && plugin_takes(op, problem)) {
    choice.taken = "plug-in";
  } else if (device != nullptr) {
    const auto kernel = device->make_kernel(op.full_name(), problem, &choice);
    if (kernel != nullptr && choice.taken.empty()) choice.taken = "not known without the GPU";
  } else {
    (void)create_kernel(op, problem, &choice).ok();
  }
  return choice;
}

}  // namespace

std::string explain(const RunPlan& plan) {
  const ProgramPlan& program = std::ranges::max_element(plan.programs, {}, [](const auto& entry) {
                                 return entry.second.memory.arena_bytes;
                               })->second;
  std::string text = "kernels:\n";
  for (const Node& node : program.graph.nodes) {
    if (node.op->view) continue;
    const KernelChoice choice = choice_of(*node.op, problem_of(program.graph, node), plan.device);
    text += format_text("  {} '{}': {}\n", escaped(node.op->full_name()), escaped(node.name),
                        choice_text(choice));
  }
  return text;
}

}  // namespace ofsdp::runtime
