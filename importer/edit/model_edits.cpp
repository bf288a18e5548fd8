#include "importer/edit/model_edits.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "importer/edit/model_editor.h"
#include "importer/normalize/onnx_import.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

// --replace-head N gives the last Gemm or MatMul before the prediction, with the bias, N outputs.
// Weight and bias are drawn as torch.nn.Linear draws them, from the seed.
//
// Nodes after the head must not depend on the output count. Activations, Softmax, casts, Transpose,
// ArgMax and a loss do not; any other reader is an error that names it.
//
// Errors: kInput.

// Elementwise operators, and operators over the output axis with any length.
constexpr std::array kKeepsShape = {
    "Identity", "Cast",    "Dropout", "Softmax",   "LogSoftmax",  "Sigmoid",  "Tanh",
    "Relu",     "Neg",     "Exp",     "Log",       "Gelu",        "Elu",      "Clip",
    "Softplus", "Hardmax", "Selu",    "LeakyRelu", "HardSigmoid", "Softsign", "Abs"};
constexpr std::array kDropsAxis = {"ArgMax", "ArgMin"};
constexpr std::array kWithNumber = {"Mul", "Div", "Add", "Sub"};
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
    } else {
      others_.push_back(described(next));
    }
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
    set_shapes();
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
      if (at >= 0) shape.mutable_dim(at)->set_dim_value(outputs_);
    }
  }

  ModelEditor& editor_;
  int64_t outputs_;
  uint64_t seed_;
  const ProtoUses uses_;
  Product head_;
  std::set<std::string> biases_;
  std::map<std::string, int> axes_;  // values that have the head's outputs in that axis
  std::set<std::string> stale_;      // other values with changed shapes
  std::set<int> visited_;
  std::vector<std::string> others_;  // the shape's readers
};

// `prediction`: the graph output; empty: the first floating-point tensor.
Status replace_head(ModelEditor& editor, int64_t outputs, const std::string& prediction,
                    uint64_t seed) {
  return HeadReplacement(editor, outputs, seed).run(prediction);
}

// Merged copies: an older exporter merged initializers with equal values (zeros and ones, where
// norms and biases start), although several modules train their own.
//
// find_merged names initializers with equal elements that several modules in a repeated block read.
// untie gives each reader a copy: NAME, NAME.1, ... in the order in which nodes first use the
// value. A reader is a node that takes NAME, or an Identity over it.
//
// Errors: kInput for a pattern without a match; kFault if the file cannot be read.

struct MergedCopy {
  std::string name;
  size_t readers = 0;
};
Result<std::vector<MergedCopy>> find_merged(const OnnxFile& file);

struct CopyReader {
  int node = 0;
  int first_use = 0;
  std::string module;  // "": unknown
  std::string op;
};

class Copies {
 public:
  explicit Copies(const onnx::GraphProto& graph) : graph_(graph), uses_(graph) {}

  // Returns readers in first-use order.
  std::vector<CopyReader> readers(const std::string& name) const {
    std::vector<CopyReader> list;
    for (const ProtoUse& use : uses_.readers(name)) {
      const auto same = [&](const CopyReader& r) { return r.node == use.node; };
      if (std::ranges::any_of(list, same)) continue;
      const int first = first_use(use.node);
      const int told_by = first == kNever ? use.node : first;
      const auto& teller = graph_.node(told_by);
      list.push_back({use.node, first, module_of(teller), teller.op_type()});
    }
    std::ranges::stable_sort(list, {}, &CopyReader::first_use);
    return list;
  }

 private:
  static constexpr int kNever = std::numeric_limits<int>::max();

  int first_use(int node) const {
    if (!is_identity(node)) return node;
    int first = kNever;
    for (const ProtoUse& use : uses_.readers(graph_.node(node).output(0))) {
      first = std::min(first, use.node == node ? kNever : first_use(use.node));
    }
    return first;
  }
  bool is_identity(int node) const {
    const auto& proto = graph_.node(node);
    return proto.op_type() == "Identity" && short_domain(proto.domain()).empty();
  }

  const onnx::GraphProto& graph_;
  const ProtoUses uses_;
};

bool has_number(const std::string& module) {
  for (size_t at = 0; at < module.size();) {
    const size_t end = std::min(module.find('.', at), module.size());
    const std::string_view piece = std::string_view(module).substr(at, end - at);
    if (!piece.empty() &&
        std::ranges::all_of(piece, [](unsigned char c) { return isdigit(c) != 0; })) {
      return true;
    }
    at = end + 1;
  }
  return false;
}

// Returns whether several modules read it, at least two in a numbered block list. If modules are
// unknown: whether nodes with the same operator read it.
bool of_repeated_block(const std::vector<CopyReader>& readers) {
  std::set<std::string> modules, operators;
  int numbered = 0;
  size_t unknown = 0;
  for (const CopyReader& reader : readers) {
    if (reader.module.empty()) ++unknown;
    if (reader.module.empty()) operators.insert(reader.op);
    if (modules.insert(reader.module).second && has_number(reader.module)) ++numbered;
  }
  return numbered >= 2 || unknown > operators.size();
}

Result<bool> all_equal(const OnnxFile& file, const Initializer& weight) {
  constexpr int64_t kChunk = 4096;
  float first = 0;
  OFSDP_RETURN_IF_ERROR(file.read(weight, 0, {&first, 1}));
  std::vector<float> chunk(kChunk);
  for (int64_t at = 0; at < weight.shape.numel(); at += kChunk) {
    const auto part =
        std::span(chunk).first(static_cast<size_t>(std::min(kChunk, weight.shape.numel() - at)));
    OFSDP_RETURN_IF_ERROR(file.read(weight, at, part));
    if (std::ranges::any_of(part, [&](float x) { return x != first; })) return false;
  }
  return true;
}

void give_copies(ModelEditor& editor, const Initializer& weight) {
  const Initializer original = weight;  // the list grows
  onnx::GraphProto& graph = editor.graph();
  const std::vector<CopyReader> readers = Copies(graph).readers(original.name);
  for (size_t k = 1; k < readers.size(); ++k) {
    const std::string name = editor.free_name(format_text("{}.{}", original.name, k));
    editor.add_copy(name, original);
    for (auto& input : *graph.mutable_node(readers[k].node)->mutable_input()) {
      if (input == original.name) input = name;
    }
  }
}

Result<std::vector<MergedCopy>> find_merged(const OnnxFile& file) {
  OFSDP_ASSIGN_OR_RETURN(const onnx::ModelProto model, parse_model(file));
  std::vector<MergedCopy> merged;
  const Copies copies(model.graph());
  for (const Initializer& weight : file.initializers()) {
    const bool floats = is_floating(weight.dtype) || weight.quantization != nullptr;
    if (!floats || weight.shape.numel() < 2) continue;
    const std::vector<CopyReader> readers = copies.readers(weight.name);
    if (readers.size() < 2 || !of_repeated_block(readers)) continue;
    OFSDP_ASSIGN_OR_RETURN(const bool equal, all_equal(file, weight));
    if (equal) merged.push_back({weight.name, readers.size()});
  }
  return merged;
}

// `patterns`: names, globs, or "auto" for find_merged's result. Returns whether anything changed.
Result<bool> untie(ModelEditor& editor, const std::vector<std::string>& patterns) {
  std::set<std::string> chosen;
  for (const std::string& pattern : patterns) {
    if (pattern == "auto") {
      OFSDP_ASSIGN_OR_RETURN(const auto merged, find_merged(editor.file()));
      for (const MergedCopy& copy : merged) chosen.insert(copy.name);
      continue;
    }
    const bool literal = editor.weight(pattern) != nullptr;
    bool found = false;
    for (const Initializer& weight : editor.weights()) {
      const bool matches =
          literal ? weight.name == pattern : fnmatch(pattern.c_str(), weight.name.c_str(), 0) == 0;
      if (matches) chosen.insert(weight.name);
      found = found || matches;
    }
    OFSDP_REJECT_IF(!found, "--untie {}: matches no initializer of {}", pattern, editor.path());
  }
  const size_t before = editor.weights().size();
  for (const std::string& name : chosen) give_copies(editor, *editor.weight(name));
  return editor.weights().size() > before;
}

using Json = nlohmann::json;

// Returns the file to write: with untied copies and the new head.
Result<std::shared_ptr<const OnnxFile>> base_of(OnnxFile file, const ModelEdits& edits) {
  auto given = std::make_shared<const OnnxFile>(std::move(file));
  if (edits.untie.empty() && !edits.head) return given;
  OFSDP_ASSIGN_OR_RETURN(ModelEditor editor, ModelEditor::make(given));
  OFSDP_ASSIGN_OR_RETURN(const bool untied, untie(editor, edits.untie));
  if (edits.head) {
    OFSDP_RETURN_IF_ERROR(replace_head(editor, *edits.head, edits.prediction, edits.seed));
  } else if (!untied) {
    return given;
  }
  OFSDP_ASSIGN_OR_RETURN(OnnxFile edited, editor.finish());
  return std::make_shared<const OnnxFile>(std::move(edited));
}

}  // namespace

Result<EditedModel> edit_model(OnnxFile file, const ModelEdits& edits) {
  EditedModel model;
  OFSDP_ASSIGN_OR_RETURN(model.base, base_of(std::move(file), edits));
  OFSDP_ASSIGN_OR_RETURN(ModelEditor editor, ModelEditor::make(model.base));
  if (!edits.adapters.patterns.empty()) {
    OFSDP_ASSIGN_OR_RETURN(model.adapters, add_adapters(editor, edits.adapters));
  }
  OFSDP_ASSIGN_OR_RETURN(model.file, editor.finish());
  return model;
}

Result<std::string> merged_copies_warning(const OnnxFile& file) {
  OFSDP_ASSIGN_OR_RETURN(const auto merged, find_merged(file));
  if (merged.empty()) return std::string();
  std::vector<std::string> names;
  for (const MergedCopy& copy : merged) {
    names.push_back(format_text("'{}' ({} readers)", copy.name, copy.readers));
  }
  return format_text(
      "{}: several modules share what an exporter may have merged since the values were equal: {} "
      "(--untie auto gives each its own)",
      file.path(), joined(names, ", "));
}

std::string text_of(const ModelEdits& edits) {
  if (!edits.any()) return "";
  Json json = {{"untie", edits.untie}, {"prediction", edits.prediction}, {"seed", edits.seed}};
  json["head"] = edits.head ? Json(*edits.head) : Json();
  const AdapterSpec& spec = edits.adapters;
  json["lora"] = {{"patterns", spec.patterns},
                  {"rank", spec.rank},
                  {"alpha", spec.alpha},
                  {"dropout", spec.dropout}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<ModelEdits> edits_from(const std::string& text) {
  ModelEdits edits;
  if (text.empty()) return edits;
  try {
    const Json json = Json::parse(text);
    json.at("untie").get_to(edits.untie);
    json.at("prediction").get_to(edits.prediction);
    json.at("seed").get_to(edits.seed);
    if (!json.at("head").is_null()) edits.head = json.at("head").get<int64_t>();
    const Json& lora = json.at("lora");
    lora.at("patterns").get_to(edits.adapters.patterns);
    lora.at("rank").get_to(edits.adapters.rank);
    lora.at("alpha").get_to(edits.adapters.alpha);
    lora.at("dropout").get_to(edits.adapters.dropout);
  } catch (const std::exception& error) {
    return input_error("expected edits of a model, found: {}", error.what());
  }
  const bool fits = edits.adapters.rank > 0 && edits.head.value_or(1) > 0;
  if (!fits) return input_error("expected edits of a model with a rank and a head above 0");
  edits.adapters.seed = edits.seed;
  return edits;
}

}  // namespace ofsdp::importer
