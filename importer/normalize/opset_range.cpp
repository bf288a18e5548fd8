#include "importer/normalize/opset_range.h"

#include <onnx/common/interned_strings.h>
#include <onnx/common/ir.h>
#include <onnx/common/ir_pb_converter.h>
#include <onnx/defs/schema.h>
#include <onnx/version_converter/convert.h>

#include "importer/proto/opset.h"

namespace ofsdp::importer {
namespace {

// The converter's own tables: versions at which operators change, and adapters across changes.
class Tables : public onnx::version_conversion::DefaultVersionConverter {
 public:
  int oldest(const std::string& op) const {
    const auto domains = all_schemas.find(op);
    if (domains == all_schemas.end() || !domains->second.contains("")) return 1;
    const auto& versions = domains->second.at("");
    for (int version = kOpset; version > 1; --version) {
      if (!versions.contains(version)) continue;
      const bool introduced = versions.begin()->first == version;
      if (introduced || !has_adapter(op, version - 1, version)) return version;
    }
    return 1;
  }

 private:
  bool has_adapter(const std::string& op, int from, int to) const {
    const auto of_op = adapters.find(op);
    if (of_op == adapters.end()) return false;
    const auto of_version = of_op->second.find(onnx::OpSetID(from).toString());
    return of_version != of_op->second.end() &&
           of_version->second.contains(onnx::OpSetID(to).toString());
  }
};

// Made once. To free it would only make the end of the program later.
const Tables& tables() {
  static const Tables& kTables = *new Tables;
  return kTables;
}

}  // namespace

onnx::ModelProto convert_version(const onnx::ModelProto& model, int from, int to) {
  return tables().convert_version(model, onnx::OpSetID(from), onnx::OpSetID(to));
}

int oldest_opset(const std::string& op) { return tables().oldest(op); }

}  // namespace ofsdp::importer
