// ONNX's schemas for shape inference, with a bound on data propagation: that lists the elements of
// a vector one by one, known or not, so an axis of 2^31 - 1 would take all memory.
//
// Vectors of more than kMostListed elements are no shapes, and what is computed from them stays
// unknown. Owns changed copies of some schemas. Threads: one. Errors: none.
// https://github.com/onnx/onnx/blob/main/docs/proposals/SymbolicShapeInfProposal.md
#pragma once

#include <onnx/defs/schema.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "kernels/base/namespaces.h"

namespace ofsdp::importer {

class BoundedSchemas final : public onnx::ISchemaRegistry {
 public:
  const onnx::OpSchema* GetSchema(const std::string& key, int most_version,
                                  const std::string& domain) const override {
    const auto* schema = onnx::OpSchemaRegistry::Instance()->GetSchema(key, most_version, domain);
    if (schema == nullptr || !schema->has_data_propagation_function()) return schema;
    auto& bounded = bounded_[schema];
    if (bounded == nullptr) {
      bounded = std::make_unique<onnx::OpSchema>(*schema);
      bounded->PartialDataPropagationFunction(
          [propagate = schema->GetDataPropagationFunction()](onnx::DataPropagationContext& c) {
            if (is_short(c)) propagate(c);
          });
    }
    return bounded.get();
  }

 private:
  static constexpr int64_t kMostListed = 4096;

  static bool is_short(const onnx::DataPropagationContext& c) {
    for (size_t i = 0; i < c.getNumInputs(); ++i) {
      const onnx::TypeProto* type = c.getInputType(i);
      if (type == nullptr || !type->has_tensor_type()) continue;
      const auto& shape = type->tensor_type().shape();
      if (shape.dim_size() == 1 && shape.dim(0).dim_value() > kMostListed) return false;
    }
    return true;
  }

  mutable std::map<const onnx::OpSchema*, std::unique_ptr<onnx::OpSchema>> bounded_;
};

}  // namespace ofsdp::importer
