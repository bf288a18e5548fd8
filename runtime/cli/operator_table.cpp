#include "runtime/cli/operator_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "importer/normalize/opset_range.h"
#include "importer/onnx_import.h"
#include "kernels/core/lowered.h"

namespace ofsdp::cli {
namespace {

// Operators without a gradient of their own are either backward operators or not differentiable.
bool has_backward(const OpDef& op) { return op.grad != nullptr || is_composite(op); }

std::string cpu_kernels(const OpDef& op) {
  if (op.view) return "view";
  if (is_composite(op)) return "standard operators";
  std::vector<std::string> names;
  for (const Implementation& implementation : op.cpu) names.push_back(implementation.name);
  return format_text("{}", joined(names, ", "));
}

// The kernels of a plug-in that has them.
std::string cuda_kernels(const LoadedPlugins& plugins, const OpDef& op) {
  for (const PluginOperatorPtr& p : plugins.operators) {
    if (p->full_name() != op.full_name() || p->def.cuda_forward == nullptr) continue;
    return p->def.cuda_backward == nullptr ? "plug-in (forward)" : "plug-in";
  }
  return "";
}

// Opsets of files that the importer takes the operator from.
std::string versions(const OpDef& op) {
  if (op.last_opset > 0) return format_text("{}-{}", op.first_opset, op.last_opset);
  if (!op.domain.empty()) return format_text("{}", op.first_opset);
  return format_text("{}-{}", oldest_opset(op.name), kOpset);
}

nlohmann::ordered_json row(const LoadedPlugins& plugins, const OpDef& op) {
  return {{"domain", op.domain.empty() ? "ai.onnx" : op.domain},
          {"name", op.name},
          {"versions", versions(op)},
          {"forward", true},
          {"backward", has_backward(op)},
          {"cpu", cpu_kernels(op)},
          {"cuda", cuda_kernels(plugins, op)}};
}

// With plug-ins, what they offer; else everything.
std::vector<const OpDef*> listed(const LoadedPlugins& plugins) {
  std::vector<const OpDef*> list;
  for (const auto& [key, op] : plugins.registry.all()) {
    const bool theirs = std::ranges::any_of(plugins.operators, [&, &op = op](const auto& p) {
      return p->full_name() == op.full_name();
    });
    if (theirs || plugins.libraries.empty()) list.push_back(&op);
  }
  return list;
}

// "plugin:NAME", what --optimizer takes.
std::vector<std::string> own_optimizers(const LoadedPlugins& plugins) {
  std::vector<std::string> names;
  for (const OptimizerDef& def : plugins.optimizers) {
    if (def.name.starts_with("plugin:")) names.push_back(def.name);
  }
  return names;
}

}  // namespace

std::string operator_table(const LoadedPlugins& plugins, bool json) {
  if (json) {
    auto rows = nlohmann::ordered_json::array();
    for (const OpDef* op : listed(plugins)) rows.push_back(row(plugins, *op));
    return rows.dump(1) + "\n";
  }
  std::string out = format_text("{:<11} {:<28} {:<9} {:<8} {:<9} {}\n", "domain", "name",
                                "versions", "forward", "backward", "cpu");
  for (const OpDef* op : listed(plugins)) {
    out += format_text("{:<11} {:<28} {:<9} {:<8} {:<9} {}\n",
                       op->domain.empty() ? "ai.onnx" : op->domain, op->name, versions(*op), "yes",
                       has_backward(*op) ? "yes" : "no", cpu_kernels(*op));
  }
  for (const OpDef* op : listed(plugins)) {
    const std::string cuda = cuda_kernels(plugins, *op);
    if (!cuda.empty()) out += format_text("cuda kernels: {} ({})\n", op->full_name(), cuda);
  }
  for (const std::string& name : own_optimizers(plugins)) out += "--optimizer " + name + "\n";
  return out;
}

}  // namespace ofsdp::cli
