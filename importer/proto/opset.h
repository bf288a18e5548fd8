// The opset that every model is converted to before it becomes a Graph.
#pragma once

namespace ofsdp::importer {

inline constexpr int kOpset = 28;  // the newest of the ONNX library that is built in

}  // namespace ofsdp::importer
