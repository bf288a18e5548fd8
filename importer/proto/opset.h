// The opset that every model is converted to before it becomes a Graph, and the domain of ONNX
// Runtime's own operators.
#pragma once

namespace ofsdp::importer {

inline constexpr int kOpset = 28;  // the newest of the ONNX library that is built in
inline constexpr const char* kMicrosoft = "com.microsoft";

}  // namespace ofsdp::importer
