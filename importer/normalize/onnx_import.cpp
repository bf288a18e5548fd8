#include "importer/normalize/onnx_import.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>

#include "importer/file/wire.h"
#include "importer/normalize/graph_rewriter.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/namespaces.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

// Returns each domain's opset except ONNX's own, which is converted.
std::map<std::string, int64_t> foreign_opsets(const onnx::ModelProto& model) {
  std::map<std::string, int64_t> opsets;
  for (const auto& import : model.opset_import()) opsets[import.domain()] = import.version();
  return opsets;
}

// Attention operators on rows packed without padding.
constexpr const char* kPackedOperators[] = {
    "com.microsoft.PackedAttention", "com.microsoft.PackedMultiHeadAttention",
    "com.microsoft.RemovePadding", "com.microsoft.RestorePadding"};

// Exporters give these names to every axis with unknown size (PaddlePaddle "?"); each is a separate
// axis.
bool is_unknown(const std::string& symbol) {
  return symbol == "?" || symbol == "None" || symbol == "-1";
}

std::vector<Dim> declared_axes(const onnx::TypeProto::Tensor& type) {
  std::vector<Dim> axes;
  for (const auto& dim : type.shape().dim()) {
    if (dim.has_dim_value()) {
      axes.push_back({dim.dim_value(), {}});
    } else {
      axes.push_back({-1, is_unknown(dim.dim_param()) ? "" : dim.dim_param()});
    }
  }
  return axes;
}

constexpr std::string_view kClassicDomain = "ai.onnx.ml";  // scikit-learn's operators

// Operators that turn scores into class names and dictionaries, after all that is trained.
constexpr std::string_view kLabelOperators[] = {"ai.onnx.ml.ZipMap",
                                                "ai.onnx.ml.ArrayFeatureExtractor",
                                                "ai.onnx.ml.LabelEncoder", "ai.onnx.ml.Binarizer"};

// Returns the remedy for an operator of ai.onnx.ml.
std::string classic_remark(std::string_view op) {
  op.remove_prefix(kClassicDomain.size() + 1);
  if (op.starts_with("Linear")) {
    return "; its weights are attributes, which are not trained: expected MatMul and Add, as "
           "skl2onnx writes MLPClassifier(hidden_layer_sizes=())";
  }
  if (op.starts_with("Tree") || op.starts_with("SVM")) {
    return "; it has no gradient: expected a network, such as scikit-learn's MLPClassifier";
  }
  return "; it is not run here: expected its results as data, and a file that begins after it";
}

// A node that is left out of the graph: nothing here runs it, or it reads the output of such a one.
struct LeftOut {
  std::string op;    // as messages name it
  std::string name;  // of the node
  std::vector<ValueId> inputs = {}, outputs = {};
  bool reads_lost = false;
  bool follows = false;  // could run, but reads another's output
  bool labels = false;   // makes class labels, or text
  Status refused = {};   // if not for its operator
};

class Importer {
 public:
  Importer(const OnnxFile& file, const Operators& operators, Reasons reasons,
           std::map<std::string, int64_t> opsets, const WantedValues& wanted)
      : file_(file),
        operators_(operators),
        reasons_(std::move(reasons)),
        opsets_(std::move(opsets)),
        wanted_(wanted) {
    graph_.file = file.path();
    graph_.registry = &operators.registry;
  }

  Result<Graph> run(const onnx::GraphProto& proto) {
    OFSDP_RETURN_IF_ERROR(add_parameters());
    OFSDP_RETURN_IF_ERROR(add_constants(proto));
    for (const auto& input : proto.input()) OFSDP_RETURN_IF_ERROR(add_input(input));
    for (const auto& node : proto.node()) OFSDP_RETURN_IF_ERROR(add_node(node));
    for (const auto& output : proto.output()) OFSDP_RETURN_IF_ERROR(add_output(output));
    add_wanted();
    if (!left_out_.empty()) OFSDP_RETURN_IF_ERROR(leave_out());
    return std::move(graph_);
  }

 private:
  ValueId lookup(const std::string& name) const {
    const auto it = ids_.find(name);
    return it == ids_.end() ? 0 : it->second;
  }

  ValueId define(Value value) {
    const std::string name = value.name;
    return ids_[name] = GraphEditor(graph_).add_value(std::move(value));
  }

  Status add_parameters() {
    const auto& initializers = file_.initializers();
    for (size_t i = 0; i < initializers.size(); ++i) {
      const auto& source = initializers[i];
      // Parameters are float32 whatever the file stores, except for weights in few bits.
      const bool raw = source.own_type;
      const TensorDesc desc = raw ? source.raw_desc() : TensorDesc{DType::kFloat32, source.shape};
      OFSDP_RETURN_IF_ERROR(check_size(desc).with_prefix(
          format_text("{}: initializer '{}'", file_.path(), printable(source.name))));
      Value value{source.name, ValueKind::kParameter, desc};
      if (desc.numel() <= 16) {
        Constant constant{desc, std::vector<std::byte>(desc.bytes())};
        auto* floats = reinterpret_cast<float*>(constant.bytes.data());
        OFSDP_RETURN_IF_ERROR(
            raw ? file_.read_raw(source, 0, constant.bytes)
                : file_.read(source, 0, {floats, static_cast<size_t>(desc.numel())}));
        value.constant = std::make_shared<const Constant>(std::move(constant));
      }
      Parameter parameter{source.name, define(std::move(value)), static_cast<int>(i), false, raw,
                          {}};
      graph_.parameters.push_back(std::move(parameter));
    }
    return {};
  }

  Status add_constants(const onnx::GraphProto& proto) {
    for (const auto& tensor : proto.initializer()) {
      if (lookup(tensor.name()) != 0) continue;  // a small parameter
      if (dtype_from_onnx_number(tensor.data_type()) == DType::kUndefined) {
        unsupported_[tensor.name()] = tensor.data_type();
        texts_[tensor.name()].assign(tensor.string_data().begin(), tensor.string_data().end());
        continue;
      }
      OFSDP_ASSIGN_OR_RETURN(const ConstantPtr constant,
                             prefixed(file_.path(), constant_from_onnx(tensor)));
      define({tensor.name(), ValueKind::kConstant, constant->desc, {}, constant});
    }
    return {};
  }

  Status add_input(const onnx::ValueInfoProto& input) {
    if (lookup(input.name()) != 0) return {};  // an initializer: no column
    const auto& type = input.type().tensor_type();
    const DType dtype = dtype_from_onnx_number(type.elem_type());
    OFSDP_REJECT_IF(
        !input.type().has_tensor_type() || dtype == DType::kUndefined || is_narrow(dtype),
        "{}: input '{}' is no tensor of a supported type", file_.path(), input.name());
    Value value{input.name(), ValueKind::kInput, {dtype, {}}};
    value.declared = declared_axes(type);
    graph_.inputs.push_back(define(std::move(value)));
    return {};
  }

  Status add_node(const onnx::NodeProto& proto) {
    Node node;
    node.name = !proto.name().empty() || proto.output().empty() ? proto.name() : proto.output(0);
    node.op = operators_.find(proto.domain(), proto.op_type());
    LeftOut out{operator_name(proto), node.name};
    judge(node, proto, out);
    for (const std::string& name : proto.input()) {
      const ValueId id = name.empty() ? 0 : lookup(name);
      out.reads_lost = out.reads_lost || lost_.contains(id);
      OFSDP_REJECT_IF(!name.empty() && id == 0 && node.op != nullptr && out.refused.ok(),
                      "{}: node '{}' reads '{}', which nothing makes", file_.path(), node.name,
                      name);
      node.inputs.push_back(id);
    }
    for (const std::string& name : proto.output()) {
      node.outputs.push_back(name.empty() ? 0 : define({name, ValueKind::kActivation, {}}));
    }
    const bool runs = node.op != nullptr && out.refused.ok();
    out.follows = out.reads_lost && runs;
    if (out.labels) take_class_names(proto);
    if (!runs || out.follows) {
      leave_node_out(std::move(node), std::move(out));
      return {};
    }
    if (node.outputs.empty()) return {};  // it would compute nothing
    OFSDP_RETURN_IF_ERROR(check_opset(node));
    OFSDP_ASSIGN_OR_RETURN(node.attributes,
                           prefixed(graph_.describe(node), attributes_from_onnx(proto)));
    describe_halves(proto, node);
    graph_.nodes.push_back(std::move(node));
    return {};
  }

  // Finds whether the node makes labels, and whether a known operator reads or makes elements of a
  // type that nothing here has.
  void judge(const Node& node, const onnx::NodeProto& proto, LeftOut& out) const {
    out.labels = std::ranges::find(kLabelOperators, out.op) != std::end(kLabelOperators);
    if (node.op == nullptr) return;
    for (const std::string& name : proto.input()) {
      const auto found = unsupported_.find(name);
      if (found == unsupported_.end() || !out.refused.ok()) continue;
      out.labels = found->second == onnx::TensorProto::STRING;
      out.refused = input_error("{}: initializer '{}' has ONNX type {}, which is not supported",
                                graph_.describe(node), name, found->second);
    }
    const bool text = proto.op_type() == "Cast" && short_domain(proto.domain()).empty() &&
                      int_attribute(proto, "to", 0) == onnx::TensorProto::STRING;
    if (!text || !out.refused.ok()) return;
    out.labels = true;
    out.refused = input_error("{}: makes text, which is not supported", graph_.describe(node));
  }

  // scikit-learn's converters name the classes in a ZipMap, or in the list from which an
  // ArrayFeatureExtractor takes the class of the largest score.
  void take_class_names(const onnx::NodeProto& proto) {
    std::vector<std::string> names;
    std::vector<int64_t> numbers;
    for (const auto& attribute : proto.attribute()) {
      if (attribute.name() == "classlabels_strings") {
        names.assign(attribute.strings().begin(), attribute.strings().end());
      } else if (attribute.name() == "classlabels_int64s") {
        numbers.assign(attribute.ints().begin(), attribute.ints().end());
      }
    }
    if (proto.op_type() == "ArrayFeatureExtractor") {
      const auto texts = texts_.find(proto.input(0));
      if (texts != texts_.end()) names = texts->second;
      const ValueId list = lookup(proto.input(0));
      const ConstantPtr constant = list == 0 ? nullptr : graph_.value(list).constant;
      if (constant != nullptr && is_integer(constant->desc.dtype)) {
        for (const double one : to_doubles(constant->desc, constant->bytes.data())) {
          numbers.push_back(static_cast<int64_t>(one));
        }
      }
    }
    bool counts = true;  // 0, 1, ..: then labels are numbers
    for (size_t i = 0; i < numbers.size(); ++i) counts = counts && std::cmp_equal(numbers[i], i);
    for (const int64_t number : numbers) names.push_back(std::to_string(number));
    if (!names.empty() && (numbers.empty() || !counts)) graph_.class_names = std::move(names);
  }

  void leave_node_out(Node node, LeftOut out) {
    out.inputs = std::move(node.inputs);
    out.outputs = std::move(node.outputs);
    lost_.insert(out.outputs.begin(), out.outputs.end());
    lost_.erase(0);
    left_out_.push_back(std::move(out));
  }

  Status add_output(const onnx::ValueInfoProto& output) {
    const ValueId id = lookup(output.name());
    OFSDP_REJECT_IF(id == 0, "{}: output '{}' is made by no node", file_.path(), output.name());
    if (lost_.contains(id)) {
      lost_outputs_.push_back(id);
      return {};
    }
    OFSDP_REJECT_IF(!output.type().has_tensor_type(), "{}: output '{}' is no tensor", file_.path(),
                    output.name());
    graph_.outputs.push_back(id);
    Value& value = graph_.value(id);
    if (value.kind == ValueKind::kActivation) {
      value.declared = declared_axes(output.type().tensor_type());
    }
    return {};
  }

  bool is_output(ValueId id) const {
    return std::ranges::find(graph_.outputs, id) != graph_.outputs.end();
  }

  // Values that the user names are outputs, too.
  void add_wanted() {
    for (const std::string& name : wanted_.names) {
      const ValueId id = lookup(name);
      if (id == 0 || is_output(id) || lost_.contains(id)) continue;
      if (graph_.value(id).kind == ValueKind::kActivation) graph_.outputs.push_back(id);
    }
  }

  // Returns the nodes that keep `values` from being computed, in file order; all for no values.
  std::vector<LeftOut*> roots_of(const std::vector<ValueId>& values) {
    std::set<ValueId> needed(values.begin(), values.end());
    std::vector<LeftOut*> roots;
    for (auto out = left_out_.rbegin(); out != left_out_.rend(); ++out) {
      const bool reached =
          std::ranges::any_of(out->outputs, [&](ValueId id) { return needed.contains(id); });
      if (!reached && !values.empty()) continue;
      needed.insert(out->inputs.begin(), out->inputs.end());
      if (!out->follows) roots.push_back(&*out);
    }
    std::ranges::reverse(roots);
    return roots;
  }

  // [Note: cut] Nodes that cannot run are left out if the loss needs none of them: the user names
  // its values, or they only make labels of scores. Their inputs become outputs if no output of
  // the file is left. The file keeps the nodes.
  Status leave_out() {
    std::vector<ValueId> needed;
    for (const std::string& name : wanted_.names) {
      if (const ValueId id = lookup(name); lost_.contains(id)) needed.push_back(id);
    }
    if (!needed.empty()) return refuse(roots_of(needed));
    const bool labels = std::ranges::all_of(
        left_out_, [](const LeftOut& out) { return out.follows || out.labels; });
    const bool named =
        wanted_.complete &&
        std::ranges::all_of(wanted_.names, [&](const auto& name) { return lookup(name) != 0; });
    if (!named && !labels) return refuse(roots_of({}));
    if (graph_.outputs.empty()) add_borders();
    if (graph_.outputs.empty()) return refuse(roots_of({}));
    drop_inputs();
    for (const ValueId id : lost_outputs_) graph_.left_out.push_back(graph_.value(id).name);
    return {};
  }

  // Drops inputs that only left-out nodes read: the run needs no column for them.
  void drop_inputs() {
    std::set<ValueId> read(graph_.outputs.begin(), graph_.outputs.end()), left;
    for (const Node& node : graph_.nodes) read.insert(node.inputs.begin(), node.inputs.end());
    for (const LeftOut& out : left_out_) left.insert(out.inputs.begin(), out.inputs.end());
    std::erase_if(graph_.inputs,
                  [&](ValueId id) { return left.contains(id) && !read.contains(id); });
  }

  void add_borders() {
    for (const LeftOut& out : left_out_) {
      for (const ValueId id : out.inputs) {
        if (id == 0 || lost_.contains(id) || is_output(id)) continue;
        if (graph_.value(id).kind == ValueKind::kActivation) graph_.outputs.push_back(id);
      }
    }
  }

  // 4-bit elements exist as bytes; the node that unpacks them gets their type and shape.
  void describe_halves(const onnx::NodeProto& proto, Node& node) const {
    if (node.op->full_name() != "com.microsoft.GatherBlockQuantized") return;
    const auto& weights = file_.initializers();
    const auto data = std::ranges::find(weights, proto.input(0), &Initializer::name);
    if (data == weights.end() || data->bits != 4) return;
    const bool is_signed = data->dtype == DType::kInt8;
    node.attributes.set("ofsdp_shape", data->shape.axes());
    node.attributes.set("ofsdp_type",
                        int64_t{is_signed ? onnx::TensorProto::INT4 : onnx::TensorProto::UINT4});
  }

  // Plug-in operators declare the opsets that they support in their domain.
  Status check_opset(const Node& node) const {
    const auto found = opsets_.find(node.op->domain);
    if (node.op->domain.empty() || found == opsets_.end()) return {};
    const int64_t opset = found->second, last = node.op->last_opset;
    if (opset >= node.op->first_opset && (last == 0 || opset <= last)) return {};
    return input_error("{}: the file has opset {} of domain {}, the operator is for {} to {}",
                       graph_.describe(node), opset, node.op->domain, node.op->first_opset,
                       last == 0 ? "any" : std::to_string(last));
  }

  // Returns why it could not be resolved, or that the domain is one for plug-ins.
  std::string remark(const std::string& op) const {
    const auto reason = reasons_.find(op);
    if (reason != reasons_.end()) return "; " + reason->second;
    if (op.starts_with("com.microsoft.nchwc.")) {
      return "; its layout is one machine's: expected a graph saved at level EXTENDED";
    }
    if (std::ranges::find(kPackedOperators, op) != std::end(kPackedOperators)) {
      return "; packs rows without padding: expected a graph saved at level EXTENDED, with padding";
    }
    if (op.starts_with(std::string(kClassicDomain) + ".")) return classic_remark(op);
    return op.find('.') == std::string::npos ? "" : "; a plug-in may supply it";
  }

  Status refuse(const std::vector<LeftOut*>& roots) {
    std::map<std::string, std::vector<std::string>> unknown;
    for (LeftOut* out : roots) {
      if (!out->refused.ok()) return std::move(out->refused);
      // The remedy for an operator of ai.onnx.ml leaves out those that follow it.
      if (out->reads_lost && out->op.starts_with(kClassicDomain)) continue;
      unknown[out->op].push_back(out->name);
    }
    std::string list;
    for (const auto& [op, nodes] : unknown) {
      list += format_text("{}{} ({} node{}: {}{})", list.empty() ? "" : "; ", op, nodes.size(),
                          nodes.size() == 1 ? "" : "s", joined(nodes, ", "), remark(op));
    }
    return input_error("{}: operators without a kernel: {}", file_.path(), list);
  }

  const OnnxFile& file_;
  const Operators operators_;
  Reasons reasons_;
  std::map<std::string, int64_t> opsets_;
  Graph graph_;
  std::unordered_map<std::string, ValueId> ids_;
  std::map<std::string, int> unsupported_;                 // initializers with their ONNX type
  std::map<std::string, std::vector<std::string>> texts_;  // of text initializers
  const WantedValues& wanted_;
  std::vector<LeftOut> left_out_;      // in file order
  std::set<ValueId> lost_;             // what these make
  std::vector<ValueId> lost_outputs_;  // of the file
};

}  // namespace

Result<std::vector<MissingOperator>> missing_operators(const OnnxFile& file,
                                                       const Operators& operators) {
  OFSDP_ASSIGN_OR_RETURN(const NormalizedModel model, normalized_model(file, operators));
  std::map<std::pair<std::string, std::string>, MissingOperator> missing;
  for (const auto& node : model.proto.graph().node()) {
    if (operators.find(node.domain(), node.op_type()) != nullptr) continue;
    MissingOperator& op = missing[{node.domain(), node.op_type()}];
    op.domain = node.domain();
    op.name = node.op_type();
    op.inputs = std::max(op.inputs, static_cast<size_t>(node.input_size()));
    op.outputs = std::max(op.outputs, static_cast<size_t>(node.output_size()));
    for (const auto& attribute : node.attribute()) {
      auto value = attribute_from_onnx(attribute);
      if (value.ok()) op.attributes.set(attribute.name(), *std::move(value));
    }
  }
  std::vector<MissingOperator> list;
  for (auto& [key, op] : missing) list.push_back(std::move(op));
  return list;
}

Result<Graph> import_onnx(const OnnxFile& file, const Operators& operators,
                          const std::string& forward, const WantedValues& wanted) {
  OFSDP_ASSIGN_OR_RETURN(NormalizedModel model, normalized_model(file, operators, forward));
  OFSDP_ASSIGN_OR_RETURN(Graph graph, Importer(file, operators, std::move(model.reasons),
                                               foreign_opsets(model.proto), wanted)
                                          .run(model.proto.graph()));
  graph.initializers = std::move(model.initializers);
  for (Parameter& p : graph.parameters) p.module = model.scopes.initializers.at(p.name);
  graph.classes = std::move(model.scopes.classes);
  return graph;
}

}  // namespace ofsdp::importer
