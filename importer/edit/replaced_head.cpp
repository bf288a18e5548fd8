// --replace-head N gives the last Gemm or MatMul before the prediction, with the bias, N outputs.
// Weight and bias are drawn as torch.nn.Linear draws them, from the seed.
//
// Nodes after the head must not depend on the output count. Activations, Softmax (also in pieces:
// a reduction over the outputs, and arithmetic with its result), casts, Transpose, ArgMax and a
// loss do not. A Reshape that ends with the old count gets N in its place. Any other reader is an
// error that names it.
//
// Errors: kInput.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "importer/edit/model_editor.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

// Elementwise operators, and operators over the output axis with any length.
constexpr std::array kKeepsShape = {
    "Identity",    "Cast",     "Dropout",  "Softmax",   "LogSoftmax", "Sigmoid",
    "Tanh",        "Relu",     "Neg",      "Exp",       "Log",        "Gelu",
    "Elu",         "Clip",     "Softplus", "Hardmax",   "Selu",       "LeakyRelu",
    "HardSigmoid", "Softsign", "Abs",      "Reciprocal"};
constexpr std::array kDropsAxis = {"ArgMax", "ArgMin"};
constexpr std::array kReduces = {"ReduceMax", "ReduceSum", "ReduceLogSumExp", "ReduceLogSum"};
constexpr std::array kWithNumber = {"Mul", "Div", "Add", "Sub"};
constexpr std::array kShapes = {"Reshape", "Expand"};
constexpr std::array kMakesShape = {"Concat", "Cast", "Identity"};
constexpr std::array kLosses = {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"};

bool is_one_of(const auto& list, const onnx::NodeProto& node) {
  if (!short_domain(node.domain()).empty()) return false;
  return std::ranges::any_of(list, [&](const char* op) { return node.op_type() == op; });
}

class HeadReplacement {
 public:
  HeadReplacement(ModelEditor& editor, int64_t outputs, uint64_t seed)
      : editor_(editor), outputs_(outputs), seed_(seed), uses_(editor.graph()) {}

  Status run(const std::string& prediction) {
    OFSDP_ASSIGN_OR_RETURN(const std::string output, prediction_of(prediction));
    OFSDP_RETURN_IF_ERROR(find_head(output));
    prediction_rank_ = rank_of_output(output);
    check_weight();
    add_gemm_bias();
    follow();
    OFSDP_REJECT_IF(!others_.empty(),
                    "--replace-head {}: the shape of the head, {} of {}, is read by {}", outputs_,
                    described(node()), editor_.path(), joined(others_, ", "));
    apply();
    return {};
  }

 private:
  const onnx::NodeProto& node() const { return editor_.graph().node(head_.node); }

  Result<std::string> prediction_of(const std::string& given) const {
    for (const auto& output : editor_.graph().output()) {
      const auto& type = output.type().tensor_type();
      const bool fits = is_floating(dtype_from_onnx_number(type.elem_type())) &&
                        (!type.has_shape() || type.shape().dim_size() > 0);
      if (given.empty() ? fits : output.name() == given) return output.name();
    }
    return input_error("--replace-head {}: {} has no output '{}'", outputs_, editor_.path(), given);
  }

  int rank_of_output(const std::string& name) const {
    for (const auto& output : editor_.graph().output()) {
      const auto& type = output.type().tensor_type();
      if (output.name() == name && type.has_shape()) return type.shape().dim_size();
    }
    return 0;
  }

  // Finds the last product among the nodes that make the prediction.
  Status find_head(const std::string& prediction) {
    std::set<int> ancestors;
    std::vector<std::string> open{prediction};
    while (!open.empty()) {
      const std::string value = open.back();
      open.pop_back();
      const int maker = uses_.maker(value);
      if (maker < 0 || !ancestors.insert(maker).second) continue;
      for (const auto& input : editor_.graph().node(maker).input()) open.push_back(input);
    }
    int last = -1;
    for (const int at : ancestors) {
      if (is_one_of(std::array{"Gemm", "MatMul"}, editor_.graph().node(at))) last = at;
    }
    OFSDP_REJECT_IF(last < 0, "--replace-head {}: {} has no Gemm or MatMul before '{}'", outputs_,
                    editor_.path(), prediction);
    for (const Product& p : find_products(editor_, editor_.graph(), uses_)) {
      if (p.node != last || p.is_left() || p.dequantized) continue;
      head_ = p;
      return {};
    }
    return input_error(
        "--replace-head {}: expected a floating-point weight of two axes in the last product of "
        "{} before '{}', {}, found none",
        outputs_, editor_.path(), prediction, described(editor_.graph().node(last)));
  }

  // No other node may read the weight.
  void check_weight() {
    std::vector<std::string> values{head_.weight};
    for (const int at : head_.path) values.push_back(editor_.graph().node(at).output(0));
    for (const std::string& value : values) {
      stale_.insert(value);
      for (const ProtoUse& use : uses_.readers(value)) {
        const bool own = use.node == head_.node && use.input == head_.operand;
        const bool between = std::ranges::find(head_.path, use.node) != head_.path.end();
        if (!own && !between) others_.push_back(described(editor_.graph().node(use.node)));
      }
      if (uses_.in_body(value)) others_.push_back("the body of a loop or branch");
    }
  }

  // An initializer that follows the head: as many numbers as outputs, one after the other.
  bool add_bias(const std::string& value, int reader) {
    std::string name = value;
    for (int maker; (maker = uses_.maker(name)) >= 0;) {
      const auto& made_by = editor_.graph().node(maker);
      if (made_by.op_type() != "Identity") return false;
      stale_.insert(name);
      name = input_or_none(made_by, 0);
    }
    const Initializer* weight = editor_.weight(name);
    const bool fits = weight != nullptr && weight->shape.rank() > 0 &&
                      weight->shape.numel() == head_.out &&
                      weight->shape[weight->shape.rank() - 1] == head_.out;
    if (!fits) return false;
    for (const std::string& read : {name, value}) {
      for (const ProtoUse& use : uses_.readers(read)) {
        const auto& node = editor_.graph().node(use.node);
        const bool own = use.node == reader ||
                         (read != value && node.op_type() == "Identity" && node.output(0) == value);
        if (!own) others_.push_back(described(node));
      }
    }
    biases_.insert(name);
    return true;
  }

  void add_gemm_bias() {
    if (node().op_type() != "Gemm" || input_or_none(node(), 2).empty()) return;
    if (is_number(node().input(2)) || add_bias(node().input(2), head_.node)) return;
    others_.push_back(described(node()) + " as a bias");
  }

  // Returns whether the value has one element, which fits any shape.
  bool is_number(const std::string& value) const {
    if (const Initializer* weight = editor_.weight(value)) return weight->shape.numel() == 1;
    for (const auto& tensor : editor_.graph().initializer()) {
      if (tensor.name() == value) return numel_of(tensor) == 1;
    }
    const int maker = uses_.maker(value);
    if (maker < 0 || editor_.graph().node(maker).op_type() != "Constant") return false;
    const auto& node = editor_.graph().node(maker);
    const auto* tensor = find_attribute(node, "value");
    return tensor == nullptr ? find_attribute(node, "value_float") != nullptr
                             : numel_of(tensor->t()) == 1;
  }
  static int64_t numel_of(const onnx::TensorProto& tensor) {
    int64_t numel = 1;
    for (const int64_t axis : tensor.dims()) numel *= axis;
    return numel;
  }

  // Walks on from the head. `axis` counts from the end.
  void follow() {
    bool biased = !biases_.empty();
    axes_[node().output(0)] = -1;
    for (int i = head_.node + 1; i < editor_.graph().node_size(); ++i) {
      const auto& next = editor_.graph().node(i);
      for (int k = 0; k < next.input_size(); ++k) {
        const auto found = axes_.find(next.input(k));
        if (found == axes_.end() || visited_.contains(i)) continue;
        visited_.insert(i);
        follow(i, k, found->second, biased);
      }
      if (!visited_.contains(i)) follow_reduced(next);
    }
    for (const auto& [value, axis] : axes_) {
      if (uses_.in_body(value)) others_.push_back("the body of a loop or branch");
    }
  }

  void follow(int at, int input, int axis, bool& biased) {
    const auto& next = editor_.graph().node(at);
    const std::string other = next.input_size() == 2 ? next.input(1 - input) : "";
    if (is_one_of(kDropsAxis, next)) return;
    if (is_one_of(kLosses, next) && input == 0 && input_or_none(next, 2).empty()) return;
    if (is_one_of(kReduces, next) && input == 0 && reduces(next, axis)) {
      reduced_[next.output(0)] = {axis, int_attribute(next, "keepdims", 1) != 0};
      return;
    }
    if (is_one_of(kWithNumber, next) && fits_axis(other, axis)) {
      axes_[next.output(0)] = axis;
      return;
    }
    if (is_one_of(kKeepsShape, next) || (is_one_of(kWithNumber, next) && is_number(other))) {
      axes_[next.output(0)] = axis;
    } else if (!biased && axis == -1 && next.op_type() == "Add" && add_bias(other, at)) {
      biased = true;
      axes_[next.output(0)] = axis;
    } else if (const auto* perm = find_attribute(next, "perm");
               next.op_type() == "Transpose" && perm != nullptr) {
      const int rank = perm->ints_size();
      for (int to = 0; to < rank; ++to) {
        if (perm->ints(to) == rank + axis) axes_[next.output(0)] = to - rank;
      }
    } else if (const auto target = target_of(at, input, axis)) {
      targets_.push_back(*target);
      axes_[next.output(0)] = axis;
    } else {
      others_.push_back(described(next));
    }
  }

  // Returns whether the value has one element or all of them on that axis.
  bool fits_axis(const std::string& value, int axis) const {
    const auto full = axes_.find(value);
    if (full != axes_.end()) return full->second == axis;
    const auto one = reduced_.find(value);
    return one != reduced_.end() && one->second.kept && one->second.axis == axis;
  }

  // Follows values that have no axis of the outputs any more, or one element on it.
  void follow_reduced(const onnx::NodeProto& next) {
    if (next.output_size() == 0) return;
    for (int k = 0; k < next.input_size(); ++k) {
      const auto found = reduced_.find(next.input(k));
      if (found == reduced_.end()) continue;
      Reduced made = found->second;
      const std::string other = next.input_size() == 2 ? next.input(1 - k) : "";
      const auto beside = reduced_.find(other);
      const bool alike = beside != reduced_.end() && beside->second == made;
      const bool limit = next.op_type() == "Max" && is_number(other);
      if (is_one_of(kWithNumber, next) && (alike || is_number(other))) {
        reduced_[next.output(0)] = made;
      } else if (is_one_of(kKeepsShape, next) || limit) {
        reduced_[next.output(0)] = made;
      } else if (is_one_of(kShapes, next) && k == 0 && made.axis == -1 &&
                 (made.kept || next.op_type() == "Reshape") && last_entry(next.input(1)) == 1) {
        reduced_[next.output(0)] = {made.axis, true};
      } else if (next.op_type() == "Unsqueeze" && !made.kept && k == 0) {
        made.kept = axes_of(next) == std::vector<int64_t>{made.axis};
        if (made.kept) reduced_[next.output(0)] = made;
      }
      return;
    }
  }

  // Returns the axes of a reduction or an Unsqueeze, counted from the end; empty: unknown.
  std::vector<int64_t> axes_of(const onnx::NodeProto& next) const {
    std::vector<int64_t> axes;
    if (const auto* attribute = find_attribute(next, "axes")) {
      axes.assign(attribute->ints().begin(), attribute->ints().end());
    } else if (const onnx::TensorProto* tensor = tensor_of(input_or_none(next, 1))) {
      axes = ints_of(*tensor);
    }
    for (int64_t& axis : axes) {
      if (axis >= 0 && rank() == 0) return {};
      if (axis >= 0) axis -= rank();
    }
    return axes;
  }

  bool reduces(const onnx::NodeProto& next, int axis) const {
    return axes_of(next) == std::vector<int64_t>{axis};
  }

  const onnx::TensorProto* tensor_of(const std::string& value) const {
    for (const auto& tensor : editor_.graph().initializer()) {
      if (tensor.name() == value) return &tensor;
    }
    const int maker = value.empty() ? -1 : uses_.maker(value);
    if (maker < 0 || editor_.graph().node(maker).op_type() != "Constant") return nullptr;
    const auto* tensor = find_attribute(editor_.graph().node(maker), "value");
    return tensor == nullptr ? nullptr : &tensor->t();
  }

  // The input of a node that has a Reshape's sizes as numbers, the last one the head's outputs.
  struct Operand {
    int node, input;
  };
  std::optional<Operand> target_of(int at, int input, int axis) const {
    const auto& next = editor_.graph().node(at);
    if (next.op_type() != "Reshape" || input != 0 || axis != -1) return {};
    if (last_entry(next.input(1)) != head_.out) return {};
    if (tensor_of(next.input(1)) != nullptr) return Operand{at, 1};
    const int maker = uses_.maker(next.input(1));
    const auto& concat = editor_.graph().node(maker);
    const int last = concat.input_size() - 1;
    const bool own = concat.op_type() == "Concat" && uses_.readers(next.input(1)).size() == 1 &&
                     !uses_.in_body(next.input(1)) && tensor_of(concat.input(last)) != nullptr;
    return own ? std::optional(Operand{maker, last}) : std::nullopt;
  }

  // Returns the last size in a shape, if the file has it as a number.
  std::optional<int64_t> last_entry(const std::string& shape) const {
    if (const onnx::TensorProto* tensor = tensor_of(shape)) {
      const std::vector<int64_t> ints = ints_of(*tensor);
      return ints.empty() ? std::nullopt : std::optional(ints.back());
    }
    const int maker = shape.empty() ? -1 : uses_.maker(shape);
    if (maker < 0 || !is_one_of(kMakesShape, editor_.graph().node(maker))) return {};
    const auto& made_by = editor_.graph().node(maker);
    return last_entry(made_by.input(made_by.input_size() - 1));
  }

  static std::vector<int64_t> ints_of(const onnx::TensorProto& tensor) {
    if (tensor.data_type() == onnx::TensorProto::INT32) {
      std::vector<int32_t> ints(tensor.int32_data().begin(), tensor.int32_data().end());
      if (ints.empty()) {
        ints.resize(tensor.raw_data().size() / sizeof(int32_t));
        std::memcpy(ints.data(), tensor.raw_data().data(), ints.size() * sizeof(int32_t));
      }
      return {ints.begin(), ints.end()};
    }
    if (tensor.data_type() != onnx::TensorProto::INT64) return {};
    std::vector<int64_t> ints(tensor.int64_data().begin(), tensor.int64_data().end());
    if (!ints.empty()) return ints;
    ints.resize(tensor.raw_data().size() / sizeof(int64_t));
    std::memcpy(ints.data(), tensor.raw_data().data(), ints.size() * sizeof(int64_t));
    return ints;
  }

  // Returns the rank of the head's result, which elementwise nodes and reductions that keep their
  // axes keep; 0: unknown.
  int rank() const {
    if (!targets_.empty()) return 0;
    if (node().op_type() == "Gemm") return 2;
    const std::string& x = node().input(1 - head_.operand);
    const auto rank_of = [&](const auto& infos) {
      for (const auto& info : infos) {
        const bool same = info.name() == x || axes_.contains(info.name());
        const auto& type = info.type().tensor_type();
        if (same && type.has_shape()) return type.shape().dim_size();
      }
      return 0;
    };
    const onnx::GraphProto& graph = editor_.graph();
    const int hint = std::max(rank_of(graph.value_info()), rank_of(graph.input()));
    return hint > 0 ? hint : prediction_rank_;
  }

  void apply() {
    const std::vector<int64_t> axes =
        head_.in_by_out ? std::vector{head_.in, outputs_} : std::vector{outputs_, head_.in};
    editor_.replace_weight(head_.weight, Shape(axes), drawn(head_.weight));
    for (const std::string& name : biases_) {
      Shape shape = editor_.weight(name)->shape;
      shape[shape.rank() - 1] = outputs_;
      editor_.replace_weight(name, shape, drawn(name));
      stale_.insert(name);
    }
    for (const Operand& target : targets_) end_with_outputs(target);
    set_shapes();
  }

  // Gives a shape's sizes N in place of the old count.
  void end_with_outputs(const Operand& target) {
    auto& graph = editor_.graph();
    auto& node = *graph.mutable_node(target.node);
    std::vector<int64_t> sizes = ints_of(*tensor_of(node.input(target.input)));
    sizes.back() = outputs_;
    auto& tensor = *graph.add_initializer();
    tensor.set_name(editor_.free_name(node.input(target.input) + ".outputs"));
    tensor.set_data_type(onnx::TensorProto::INT64);
    tensor.add_dims(std::ssize(sizes));
    for (const int64_t size : sizes) tensor.add_int64_data(size);
    node.set_input(target.input, tensor.name());
  }

  std::shared_ptr<const ValueSource> drawn(const std::string& name) const {
    return std::make_shared<LinearDraw>(name, seed_, head_.in);
  }

  // Shapes between nodes are hints, so changed ones go.
  void set_shapes() {
    auto& infos = *editor_.graph().mutable_value_info();
    for (int i = infos.size(); i-- > 0;) {
      if (stale_.contains(infos[i].name()) || axes_.contains(infos[i].name())) {
        infos.DeleteSubrange(i, 1);
      }
    }
    for (auto& output : *editor_.graph().mutable_output()) {
      const auto found = axes_.find(output.name());
      if (found == axes_.end() || !output.type().tensor_type().has_shape()) continue;
      auto& shape = *output.mutable_type()->mutable_tensor_type()->mutable_shape();
      const int at = shape.dim_size() + found->second;
      const bool certain = targets_.empty() || (at >= 0 && shape.dim(at).dim_value() == head_.out);
      if (at >= 0 && certain) shape.mutable_dim(at)->set_dim_value(outputs_);
    }
  }

  ModelEditor& editor_;
  int64_t outputs_;
  uint64_t seed_;
  const ProtoUses uses_;
  Product head_;
  std::set<std::string> biases_;
  std::map<std::string, int> axes_;  // values that have the head's outputs in that axis
  struct Reduced {
    int axis = -1;     // of the outputs, from the end
    bool kept = true;  // with one element on it
    bool operator==(const Reduced&) const = default;
  };
  std::map<std::string, Reduced> reduced_;
  std::vector<Operand> targets_;  // of Reshapes
  int prediction_rank_ = 0;       // 0: unknown
  std::set<std::string> stale_;   // other values with changed shapes
  std::set<int> visited_;
  std::vector<std::string> others_;  // the shape's readers
};

}  // namespace

Status replace_head(ModelEditor& editor, int64_t outputs, const std::string& prediction,
                    uint64_t seed) {
  return HeadReplacement(editor, outputs, seed).run(prediction);
}

}  // namespace ofsdp::importer
