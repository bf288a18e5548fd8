// module_scopes: which module of the exported program each initializer belongs to, from what
// exporters leave in a file. A module has a path, dotted from the model down
// ("bert.encoder.layer.0"; the model itself is ""), and where the exporter says so a class.
//
//   pkg.torch.onnx.name_scopes, .class_hierarchy   metadata of nodes: paths and classes, outermost
//                                                  first, the last entry being the operation itself
//   namespace                                      the same as one text: "path: class/path: class"
//   /encoder/layer.0/attention/MatMul              names of nodes, of the TorchScript exporter (and
//                                                  without the first slash, of TensorFlow's)
//   encoder.layer.0.attention.weight               names of initializers
//
// An initializer's module is the innermost one that holds all nodes that read it, so that of a tied
// weight is often the model. Where a node that reads it has no scope, or no node does, the
// initializer's name decides; it may also name a deeper module than the nodes do.
//
// Reads the model as it is in the file: inlining and version conversion drop metadata.
// Threads: any. Errors: none; what cannot be read is left out.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace onnx {
class ModelProto;
class NodeProto;
}  // namespace onnx

namespace ofsdp::importer {

struct ModuleScopes {
  std::map<std::string, std::string> initializers;  // name -> path of its module
  std::map<std::string, std::string> classes;       // path -> class, as far as known
};

ModuleScopes module_scopes(const onnx::ModelProto& model,
                           const std::vector<std::string>& initializers);

// The path of the module that a node belongs to; "" where the exporter did not say.
std::string module_of(const onnx::NodeProto& node);

}  // namespace ofsdp::importer
