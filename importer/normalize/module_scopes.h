// Finds the module of the exported program to which each initializer belongs, from traces that
// exporters leave in a file. A module has a dotted path from the model down
// ("bert.encoder.layer.0"; the model is "") and, if the exporter names it, a class.
//
//   pkg.torch.onnx.name_scopes, .class_hierarchy   metadata of nodes: paths and classes, outermost
//                                                  first; the last entry is the operation itself
//   namespace                                      the same as one text: "path: class/path: class"
//   /encoder/layer.0/attention/MatMul              names of nodes, from the TorchScript exporter
//                                                  (and from TensorFlow's, without first slash)
//   encoder.layer.0.attention.weight               names of initializers
//
// The module of an initializer is the innermost one that holds all nodes that read it, so a tied
// weight often belongs to the model. If a node that reads it has no scope, or if no node reads it,
// the name of the initializer decides; it may also name a deeper module than the nodes do.
//
// Reads the model as it is in the file, because inlining and version conversion drop metadata.
// Leaves out whatever it cannot read.
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
  std::map<std::string, std::string> classes;       // path -> class, if known
};

ModuleScopes module_scopes(const onnx::ModelProto& model,
                           const std::vector<std::string>& initializers);

// Returns the path of the module of a node, or "" if the exporter left none.
std::string module_of(const onnx::NodeProto& node);

}  // namespace ofsdp::importer
