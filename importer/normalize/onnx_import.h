// import_onnx converts an OnnxFile into a Graph with symbolic input axes.
//
// It checks the model, inlines functions, converts to kOpset, makes the model float32 if weights
// have another type (compute_in_float32), and reads nodes, constants and parameters. Weights never
// pass through here: the skeleton declares them as inputs (importer/file/onnx_file.h), so the
// converter's model copies are small.
//
// The operators must outlive the graph. Errors: kInput naming the file; one message lists all
// unknown operators in the way, with their nodes.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "importer/file/onnx_file.h"
#include "importer/graph/graph.h"
#include "kernels/base/status.h"

namespace onnx {
class ModelProto;
class NodeProto;
}  // namespace onnx

namespace ofsdp::importer {

// Values that the loss, the prediction and metrics name. Each becomes an output of the graph.
struct WantedValues {
  std::vector<std::string> names;
  bool complete = false;  // the run needs no other output
};

// `forward`: a serialized model with the same weights that replaces the skeleton; empty: the
// skeleton. Nodes without a kernel are left out if no wanted value needs them, and `wanted` is
// complete or they only make class labels of scores (scikit-learn's ZipMap); Graph::left_out then
// names the file's outputs that are gone.
Result<Graph> import_onnx(const OnnxFile& file, const Operators& operators,
                          const std::string& forward = "", const WantedValues& wanted = {});

// Returns whether an import failed because control flow depends on sizes or numbers that the file
// leaves open.
bool lacks_known_numbers(const Status& error);

// An unknown operator in the file, for a plug-in to supply: attributes, and the most inputs and
// outputs that a node has.
struct MissingOperator {
  std::string domain;
  std::string name;
  size_t inputs = 0;
  size_t outputs = 0;
  Attributes attributes;
};
Result<std::vector<MissingOperator>> missing_operators(const OnnxFile& file,
                                                       const Operators& operators);

// Converts a model to a newer opset, and tells the oldest opset from which an ai.onnx operator can
// be converted, which the operator table promises. Each step uses our own rules (opset_rules.h),
// else the adapters in ONNX's version converter. The converter's header defines every adapter, so
// only one source includes it.
//
// Errors: kInput naming the node and the opset.

// Returns a small floating-point initializer's elements, which a skeleton lacks, if it exists.
using FloatsOf = std::function<std::optional<std::vector<float>>(const std::string& name)>;

// Copies `model`, which is in ai.onnx's opset `from`. Infers shapes first if a node needs them; the
// copy declares the model's shapes.
Result<onnx::ModelProto> convert_version(const onnx::ModelProto& model, int from, int to,
                                         const FloatsOf& floats_of = {});

// Returns 1 for a name that ONNX does not have.
int oldest_opset(const std::string& op);

// Returns an ONNX exception's message as one line, without source locations.
std::string onnx_message(const std::exception& error);

// Finds each initializer's module in the exported program, from traces that exporters leave in a
// file. A module has a dotted path from the model down ("bert.encoder.layer.0"; the model is "")
// and, if the exporter names it, a class.
//
//   pkg.torch.onnx.name_scopes, .class_hierarchy   node metadata: paths and classes, outermost
//                                                  first; the last entry is the operation itself
//   namespace                                      the same as one text: "path: class/path: class"
//   /encoder/layer.0/attention/MatMul              node names, from the TorchScript exporter
//                                                  (and from TensorFlow's, without first slash)
//   encoder.layer.0.attention.weight               initializer names
//
// An initializer's module is the innermost one that holds all nodes that read it, so a tied weight
// often belongs to the model. If a node that reads it has no scope, or if no node reads it, the
// initializer's name decides; it may also name a deeper module than the nodes do.
//
// Reads the model as it is in the file, because inlining and version conversion drop metadata.
// Leaves out whatever it cannot read.

struct ModuleScopes {
  std::map<std::string, std::string> initializers;  // name -> module path
  std::map<std::string, std::string> classes;       // path -> class, if known
};

ModuleScopes module_scopes(const onnx::ModelProto& model,
                           const std::vector<std::string>& initializers);

// Returns a node's module path, or "" if the exporter left none.
std::string module_of(const onnx::NodeProto& node);

// Turns a model file into one for inference: Dropout and BatchNormalization lose their training
// switches, in the main graph, the branches and the functions. A BatchNormalization over weights
// (weight standardization) keeps its switch, as in an evaluation. Everything else stays.
//
// Rewrites the file in place (a temporary that nobody has seen yet); external data stay. Errors:
// kInput naming a node if something reads the training outputs.

Status make_inference_model(const std::string& path);

// Returns the error that make_inference_model would return for the model or a trained copy of it.
Status check_inference_model(const OnnxFile& file);

// Counts the nodes that a model for inference computes otherwise.
struct TrainingSwitches {
  int batch_norms = 0;  // they use the statistics of a batch
  int dropouts = 0;     // they drop at random

  bool any() const { return batch_norms > 0 || dropouts > 0; }
};

// REQUIRES: `graph` is specialized for training, and not fused.
TrainingSwitches training_switches(const Graph& graph);

}  // namespace ofsdp::importer
