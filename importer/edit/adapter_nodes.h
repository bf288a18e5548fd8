// The nodes of one adapter at one product. Threads: any. Errors: none.
#pragma once

#include "importer/edit/adapters.h"
#include "importer/edit/products.h"

namespace ofsdp::importer {

// Changes `node`, which is the product, and adds nodes that go before it and after it.
struct AdapterNodes {
  std::vector<onnx::NodeProto> before, after;
};
AdapterNodes adapter_nodes(ModelEditor& editor, onnx::NodeProto& node, const Product& product,
                           const Adapter& adapter, double dropout);

}  // namespace ofsdp::importer
