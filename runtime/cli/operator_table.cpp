#include "runtime/cli/operator_table.h"

#include <nlohmann/json.hpp>

#include "importer/onnx_import.h"
#include "importer/opset_range.h"

namespace ofsdp {
namespace {

// Operators without a gradient of their own are either backward operators or not differentiable.
std::string cpu_kernels(const OpDef& op) {
  if (op.view) return "view";
  std::vector<std::string> names;
  for (const Implementation& implementation : op.cpu) names.push_back(implementation.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

// Opsets of files that the importer takes the operator from.
std::string versions(const OpDef& op) {
  if (!op.domain.empty()) return "1";
  return fmt::format("{}-{}", oldest_opset(op.name), kOpset);
}

nlohmann::ordered_json row(const OpDef& op) {
  return {{"domain", op.domain.empty() ? "ai.onnx" : op.domain},
          {"name", op.name},
          {"versions", versions(op)},
          {"forward", true},
          {"backward", op.grad != nullptr},
          {"cpu", cpu_kernels(op)},
          {"cuda", ""}};
}

}  // namespace

std::string operator_table(const Registry& registry, bool json) {
  if (json) {
    auto rows = nlohmann::ordered_json::array();
    for (const auto& [key, op] : registry.all()) rows.push_back(row(op));
    return rows.dump(1) + "\n";
  }
  std::string out = fmt::format("{:<9} {:<28} {:<9} {:<8} {:<9} {}\n", "domain", "name", "versions",
                                "forward", "backward", "cpu");
  for (const auto& [key, op] : registry.all()) {
    out += fmt::format("{:<9} {:<28} {:<9} {:<8} {:<9} {}\n",
                       op.domain.empty() ? "ai.onnx" : op.domain, op.name, versions(op), "yes",
                       op.grad != nullptr ? "yes" : "no", cpu_kernels(op));
  }
  return out;
}

}  // namespace ofsdp
