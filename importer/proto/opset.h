// The opset of every model before it becomes a Graph, and the domain of ONNX Runtime's own
// operators.
#pragma once

namespace ofsdp::importer {

inline constexpr int kOpset = 28;  // the newest opset of the ONNX library
inline constexpr const char* kMicrosoft = "com.microsoft";

}  // namespace ofsdp::importer
