// Values and types that are known while rewrite_graph (importer/normalize/graph_rewriter.h) works:
// conditions of If, iteration counts, indices of sequences, sizes.
#pragma once

#include <onnx/defs/schema.h>
#include <onnx/onnx_pb.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "importer/graph/graph.h"
#include "kernels/core/op_def.h"

namespace ofsdp::importer {

// ONNX's schemas for shape inference, with a bound on data propagation, which lists a vector's
// elements one by one, known or not: 2^31 - 1 elements would take all memory. Vectors longer than
// kMaxListed are not taken for shapes, and values computed from them stay unknown.
// https://github.com/onnx/onnx/blob/main/docs/proposals/SymbolicShapeInfProposal.md
class BoundedSchemas final : public onnx::ISchemaRegistry {
 public:
  const onnx::OpSchema* GetSchema(const std::string& key, int most_version,
                                  const std::string& domain) const override;

 private:
  static constexpr int64_t kMaxListed = 4096;
  static bool is_short(const onnx::DataPropagationContext& c);
  mutable std::map<const onnx::OpSchema*, std::unique_ptr<onnx::OpSchema>> bounded_;
};

// GraphTypes: value types in an ONNX graph while it is being rewritten, from ONNX's own shape
// inference. Infers nodes on demand, each once. A value without an inferred type has none. The
// model must outlive it and may only get more nodes.
class GraphTypes {
 public:
  // `known` returns the values in small integer tensors (shapes, axes), or null.
  GraphTypes(const onnx::ModelProto& model, std::function<ConstantPtr(const std::string&)> known);
  const onnx::TypeProto* find(const std::string& name);

  // Returns a tensor's axes, -1 for unknown ones; nothing if even the rank is unknown.
  std::optional<std::vector<int64_t>> axes(const std::string& name);

  // Increases if something was inferred, so unknown values may be known now.
  int generation() const { return generation_; }

 private:
  static constexpr int64_t kMaxKnown = 64;  // elements in a value passed to inference
  static constexpr int kMaxRounds = 4;      // values make types, which make values
  static constexpr const char* kKnownSuffix = "//known";
  static bool complete(const onnx::TypeProto& type);
  static bool small_integers(const onnx::TypeProto& type);
  void infer();

  // Keeps sizes in the known type that `type` lacks: the file may declare more than inference can
  // tell (Compress).
  void add(const std::string& name, const onnx::TypeProto& type);
  static void keep_sizes(const onnx::TypeProto& before, onnx::TypeProto& type);

  // Declares a value from outside the part: the type and, if they may matter, the elements.
  void declare(onnx::ModelProto& part, const std::string& name);

  // Returns the nodes from `first` on.
  onnx::ModelProto part_from(int first);
  void infer(onnx::ModelProto& part);

  // Turns known values of the part's own nodes (pads and sizes that a node chain computes) into
  // initializers, which inference reads. Returns whether there was one.
  bool add_known(onnx::ModelProto& part);

  const onnx::ModelProto& model_;
  std::function<ConstantPtr(const std::string&)> known_;
  std::unordered_map<std::string, onnx::TypeProto> types_;
  int inferred_ = 0;  // nodes so far
  int generation_ = 0;
  BoundedSchemas schemas_;
  bool busy_ = false;
};

// Values that depend only on constants and static shapes, while a graph is being rewritten: `If`
// conditions, iteration counts, sequence indices. The registry's own kernels compute them. A vector
// of sizes may be known in part; nodes that select from it see the parts.
//
// Floating-point initializers are weights, so values made from them are unknown, except for numbers
// that training cannot change: of rank 0, or read only by comparisons.
//
// The model, which may only grow, and the registry must outlive it. Null means "unknown".
class KnownValues {
 public:
  KnownValues(const onnx::ModelProto& model, const Registry& registry);

  void set_types(GraphTypes& types) { types_ = &types; }
  // Gives an input its value.
  void know(const std::string& name, ConstantPtr value) { given_[name] = std::move(value); }

  // Finds a value's operands first, on an explicit stack: a node chain in a file may have any
  // length.
  ConstantPtr find(const std::string& name);

  // Returns the single element if it is an integer or bool.
  std::optional<int64_t> scalar(const std::string& name);

 private:
  static constexpr int64_t kUnknownSize = -1;
  static constexpr int kMaxSelections = 16;  // nodes between a shape and a number of it

  // Returns a function that tells whether a node other than a comparison reads a value.
  std::function<bool(const std::string&)> trainable_names() const;
  static void collect_reads(const onnx::NodeProto& node, std::unordered_set<std::string>& names);
  static ConstantPtr ints(const std::vector<int64_t>& values, bool scalar,
                          DType dtype = DType::kInt64);
  static bool is_op(const onnx::NodeProto& node, const char* op);
  void index();

  // A value that waits for the node's inputs, which are looked up in `order` until one is unknown.
  struct Waiting {
    std::string name;
    const onnx::NodeProto* node;
    int maker;
    std::vector<int> order;
    std::vector<ConstantPtr> inputs;
    size_t next = 0;
    bool unknown = false;
    ConstantPtr value = {};  // found before all inputs are

    bool done() const { return unknown || value != nullptr || next == order.size(); }
  };
  Waiting waiting(const std::string& name);
  void take(Waiting& to, ConstantPtr value);
  ConstantPtr finish(Waiting& from);
  ConstantPtr remember(const std::string& name, ConstantPtr value);

  // Returns the value if it depends on no other values; nothing if the node must be examined.
  std::optional<ConstantPtr> at_once(const std::string& name);
  ConstantPtr shape_part(const onnx::NodeProto& node);

  // Returns a Shape's elements as far as they are known, if their number is.
  std::optional<std::vector<int64_t>> axes_of(const onnx::NodeProto& shape);

  // A number or vector of int64 or int32 in which some elements may be unknown.
  struct Sizes {
    std::vector<int64_t> values;  // kUnknownSize: unknown
    bool scalar = false;
    DType dtype = DType::kInt64;
  };

  // Returns the sizes that a node selects, if all of them are known.
  ConstantPtr selected(const onnx::NodeProto& node);
  std::optional<Sizes> sizes_of(const std::string& name, int depth);
  static std::optional<Sizes> sizes_in(const Constant& value);
  std::optional<Sizes> select(const onnx::NodeProto& node, int depth);
  static std::optional<Sizes> cast(const onnx::NodeProto& node, std::optional<Sizes> from);
  std::optional<Sizes> gathered(const onnx::NodeProto& node, std::optional<Sizes> from);
  std::optional<Sizes> sliced(const onnx::NodeProto& node, std::optional<Sizes> from);
  std::optional<Sizes> concatenated(const onnx::NodeProto& node, int depth);

  // Returns the node that makes `shape` in Gather(shape, k), or null.
  const onnx::NodeProto* gathered_shape(const onnx::NodeProto& node) const;

  // Gather(Shape(x), k): one axis may be known although others are not.
  ConstantPtr one_axis(const onnx::NodeProto& node, const Constant& index);

  // Computes only this node, on constants.
  ConstantPtr folded(const onnx::NodeProto& node, const std::string& name,
                     const std::vector<ConstantPtr>& inputs);

  const onnx::ModelProto& model_;
  const Registry& registry_;
  GraphTypes* types_ = nullptr;
  std::unordered_map<std::string, int> makers_;        // value -> the node that makes it
  std::unordered_map<std::string, int> initializers_;  // not floating-point
  // A look-up's result; null: unknown with that generation's types.
  struct Found {
    ConstantPtr value;
    int generation = 0;
  };
  std::unordered_map<std::string, Found> values_;
  std::unordered_map<std::string, ConstantPtr> given_;  // inputs
  int indexed_ = 0;
  int64_t known_bytes_ = 0;  // computed values' bytes
};

}  // namespace ofsdp::importer
