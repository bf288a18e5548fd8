#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <tuple>

#include "importer/edit/adapter_file.h"
#include "importer/edit/model_editor.h"
#include "importer/edit/model_edits.h"
#include "importer/file/tensor_file.h"
#include "importer/normalize/onnx_import.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

// One adapter's nodes at one product.

// Changes `node`, the product, and collects nodes to insert before and after it.
struct AdapterNodes {
  std::vector<onnx::NodeProto> before, after;
};
AdapterNodes adapter_nodes(ModelEditor& editor, onnx::NodeProto& node, const Product& product,
                           const Adapter& adapter, double dropout);

class Builder {
 public:
  Builder(ModelEditor& editor, const onnx::NodeProto& product, const std::string& name)
      : editor_(editor), product_(product), name_(name) {}

  // Returns the new node's output.
  std::string add(const std::string& op, const std::string& what,
                  const std::vector<std::string>& inputs) {
    onnx::NodeProto& node = nodes_.emplace_back();
    node.set_op_type(op);
    // A node's name or metadata tells the module.
    node.set_name((product_.name().empty() ? name_ : product_.name()) + ".lora_" + what);
    *node.mutable_metadata_props() = product_.metadata_props();
    for (const std::string& input : inputs) node.add_input(input);
    node.add_output(editor_.free_name(name_ + ".lora." + what));
    return node.output(0);
  }
  onnx::NodeProto& last() { return nodes_.back(); }

  std::string constant(const std::string& what, const TensorDesc& desc, const void* bytes) {
    const std::string name = editor_.free_name(name_ + ".lora." + what);
    nodes_.push_back(constant_node(name, tensor_proto("", desc, bytes)));
    nodes_.back().set_name(name);
    return name;
  }
  std::string number(const std::string& what, double value) {
    const auto number = static_cast<float>(value);
    return constant(what, {DType::kFloat32, Shape()}, &number);
  }

  std::string cast(const std::string& what, const std::string& value, DType to) {
    const std::string made = add("Cast", what, {value});
    add_attribute(last(), "to", onnx_number(to));
    return made;
  }
  std::string transposed(const std::string& what, const std::string& value) {
    const std::string made = add("Transpose", what, {value});
    add_attribute(last(), "perm", std::vector<int64_t>{1, 0});
    return made;
  }

  std::vector<onnx::NodeProto> take() { return std::move(nodes_); }

 private:
  ModelEditor& editor_;
  const onnx::NodeProto& product_;
  std::string name_;
  std::vector<onnx::NodeProto> nodes_;
};

class Term {
 public:
  Term(ModelEditor& editor, const onnx::NodeProto& node, const Product& product,
       const Adapter& adapter, double dropout)
      : builder_(editor, node, adapter.name),
        node_(node),
        product_(product),
        adapter_(adapter),
        dropout_(dropout) {}

  // Returns the value alpha/rank * B A x, in the product's type.
  std::string build() {
    const std::string x = operand();
    const std::string term = product_.convolution ? convolved(x) : multiplied(x);
    return is_float() ? term : builder_.cast("narrow", term, product_.dtype);
  }
  Builder& builder() { return builder_; }

 private:
  bool is_float() const { return product_.dtype == DType::kFloat32; }

  std::string operand() {
    std::string x = node_.input(product_.other);
    if (!is_float()) x = builder_.cast("wide", x, DType::kFloat32);
    if (dropout_ > 0) {
      const std::string ratio = builder_.number("ratio", dropout_);
      const bool training = true;
      const std::string mode = builder_.constant("training", {DType::kBool, Shape()}, &training);
      x = builder_.add("Dropout", "dropout", {x, ratio, mode});
    }
    return x;
  }

  // Scales on the narrow side, where it is cheapest.
  std::string scaled(const std::string& value) {
    const double factor = adapter_.scale * product_.factor / product_.join_factor;
    if (factor == 1) return value;
    const std::string number = builder_.number("scale", factor);
    return builder_.add("Mul", "scaled", {value, number});
  }

  std::string multiplied(std::string x) {
    const bool fused = node_.op_type() == "FusedMatMul";  // any rank
    if (product_.other_transposed && !fused) x = builder_.transposed("turned", x);
    // If several products share a weight, one may use it the other way round.
    const bool turned = product_.in_by_out != adapter_.in_by_out;
    const std::string first = turned ? adapter_.b() : adapter_.a();
    const std::string second = turned ? adapter_.a() : adapter_.b();
    if (product_.other_transposed && fused) {
      const std::string narrow = scaled(fused_product(x, first, !turned));
      return product(turned ? second : builder_.transposed("second", second), narrow, "up");
    }
    if (product_.is_left() == turned) {  // both matrices transposed
      const std::string one = builder_.transposed("first", first);
      const std::string narrow = scaled(product(one, x, "down"));
      const std::string two = builder_.transposed("second", second);
      return product(two, narrow, "up");
    }
    return product(second, scaled(product(first, x, "down")), "up");
  }

  std::string fused_product(const std::string& x, const std::string& matrix, bool transposed) {
    const std::string made = builder_.add("FusedMatMul", "down", {x, matrix});
    builder_.last().set_domain(node_.domain());
    add_attribute(builder_.last(), "transA", int64_t{1});
    add_attribute(builder_.last(), "transB", int64_t{transposed ? 1 : 0});
    return made;
  }

  std::string product(const std::string& matrix, const std::string& x, const char* what) {
    if (product_.is_left()) return builder_.add("MatMul", what, {matrix, x});
    return builder_.add("MatMul", what, {x, matrix});
  }

  std::string convolved(const std::string& x) {
    const std::string narrow = builder_.add("Conv", "down", {x, adapter_.a()});
    for (const auto& attribute : node_.attribute()) {
      static const std::vector<std::string> kPlaces = {"auto_pad", "dilations", "kernel_shape",
                                                       "pads", "strides"};
      if (std::ranges::find(kPlaces, attribute.name()) == kPlaces.end()) continue;
      *builder_.last().add_attribute() = attribute;
    }
    return builder_.add("Conv", "up", {scaled(narrow), adapter_.b()});
  }

  Builder builder_;
  const onnx::NodeProto& node_;
  const Product& product_;
  const Adapter& adapter_;
  double dropout_;
};

AdapterNodes adapter_nodes(ModelEditor& editor, onnx::NodeProto& node, const Product& product,
                           const Adapter& adapter, double dropout) {
  Term term(editor, node, product, adapter, dropout);
  const std::string value = term.build();
  if (product.join == Product::Join::kOutput) {
    const std::string base = editor.free_name(adapter.name + ".lora.base");
    const std::string output = node.output(0);
    node.set_output(0, base);
    term.builder().add("Add", "sum", {base, value});
    term.builder().last().set_output(0, output);
    return {{}, term.builder().take()};
  }
  while (node.input_size() <= product.join_input) node.add_input("");
  const std::string before = node.input(product.join_input);
  node.set_input(product.join_input,
                 before.empty() ? value : term.builder().add("Add", "sum", {before, value}));
  return {term.builder().take(), {}};
}

constexpr int kDropoutInputs = 12;  // the first opset in which inputs activate Dropout

bool all_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) { return isdigit(c); });
}

// Returns whether the exporter invented a constant's name: onnx::MatMul_23, val_7, 137,
// /up/Transpose_output_0.
bool named_by_exporter(const std::string& name) {
  const std::string_view view = name;
  const auto after = [&](std::string_view prefix) {
    return view.starts_with(prefix) && all_digits(view.substr(prefix.size()));
  };
  return view.starts_with("onnx::") || after("val_") || after("_val_") || all_digits(view) ||
         (view.starts_with('/') && view.find("_output_") != std::string_view::npos);
}

bool drop_suffix(std::string& name, std::string_view suffix) {
  if (!name.ends_with(suffix) || name.size() == suffix.size()) return false;
  name.resize(name.size() - suffix.size());
  return true;
}

// Removes "_Q4", "_Q8", "_Q4G32", which quantizers append.
void drop_bits(std::string& name) {
  const size_t at = name.rfind("_Q");
  if (at == std::string::npos || at == 0) return;
  const std::string_view rest = std::string_view(name).substr(at + 2);
  const size_t group = rest.find('G');
  const bool fits = group == std::string_view::npos
                        ? all_digits(rest)
                        : all_digits(rest.substr(0, group)) && all_digits(rest.substr(group + 1));
  if (fits) name.resize(at);
}

std::string stem_of(std::string name) {
  drop_bits(name);
  drop_suffix(name, "_quantized");
  if (!drop_suffix(name, ".qweight")) drop_suffix(name, ".weight");
  return name;
}

// Returns PEFT's name for the module.
std::string name_of_module(const std::string& weight, const onnx::NodeProto& product) {
  const std::string stem = stem_of(weight);
  if (!named_by_exporter(stem)) return stem;
  const std::string module = module_of(product);
  return module.empty() ? stem : module;
}

// A graph, the main one or a body of If, Loop or Scan, which sees the main graph's weights.
struct Scope {
  explicit Scope(const ModelEditor& editor, const onnx::GraphProto& its)
      : graph(&its), uses(its), products(find_products(editor, its, uses)) {}

  const onnx::GraphProto* graph;
  ProtoUses uses;
  std::vector<Product> products;
};

void add_scopes(const ModelEditor& editor, const onnx::GraphProto& graph,
                std::vector<Scope>& scopes) {
  scopes.emplace_back(editor, graph);
  for (const auto& node : graph.node()) {
    for (const auto& attribute : node.attribute()) {
      if (attribute.has_g()) add_scopes(editor, attribute.g(), scopes);
    }
  }
}

// Tells whether all readers are products with the adapter.
class Merging {
 public:
  Merging(const std::vector<Scope>& scopes, const std::set<std::string>& weights)
      : scopes_(scopes) {
    for (const Scope& scope : scopes) {
      for (const Product& p : scope.products) {
        if (!weights.contains(p.weight)) continue;
        operands_.insert({scope.graph, p.node, p.operand});
        for (const int node : p.path) between_.insert({scope.graph, node});
      }
    }
  }

  // Returns the other readers, or "".
  std::string other_readers(const std::string& value) const {
    std::vector<std::string> names;
    for (const Scope& scope : scopes_) collect(scope, value, names);
    return joined(names, ", ");
  }

 private:
  void collect(const Scope& scope, const std::string& value,
               std::vector<std::string>& names) const {
    if (scope.uses.is_output(value)) names.push_back("output '" + printable(value) + "'");
    for (const ProtoUse& use : scope.uses.readers(value)) {
      if (operands_.contains({scope.graph, use.node, use.input})) continue;
      const auto& node = scope.graph->node(use.node);
      if (between_.contains({scope.graph, use.node}) && use.input == 0) {
        const std::string& made = node.output(0);
        if (scope.uses.in_body(made)) names.push_back("the body of a loop or branch");
        collect(scope, made, names);
      } else {
        names.push_back(described(node));
      }
    }
  }

  const std::vector<Scope>& scopes_;
  std::set<std::tuple<const onnx::GraphProto*, int, int>> operands_;
  std::set<std::pair<const onnx::GraphProto*, int>> between_;
};

class Adding {
 public:
  Adding(ModelEditor& editor, const AdapterSpec& spec)
      : editor_(editor), spec_(spec), before_(editor.graph()) {
    add_scopes(editor, before_, scopes_);
  }

  Result<std::vector<Adapter>> run() {
    const int opset = version_of(editor_.model().opset_import(), "");
    OFSDP_REJECT_IF(spec_.dropout > 0 && opset < kDropoutInputs,
                    "--lora-dropout: expected opset {} or newer, {} has {}", kDropoutInputs,
                    editor_.path(), opset);
    OFSDP_RETURN_IF_ERROR(choose());
    for (const Scope& scope : scopes_) {
      for (const Product& p : scope.products) {
        if (chosen_.contains(p.weight)) add_adapter(p, scope.graph->node(p.node));
      }
    }
    set_unmergeable();
    OFSDP_RETURN_IF_ERROR(add_weights());
    rewrite(before_, editor_.graph());
    return std::move(adapters_);
  }

 private:
  std::set<std::string> initializers() const {
    std::set<std::string> names;
    for (const Scope& scope : scopes_) {
      for (const auto& tensor : scope.graph->initializer()) names.insert(tensor.name());
    }
    for (const Initializer& weight : editor_.weights()) names.insert(weight.name);
    return names;
  }

  // Each pattern must name a product's weight.
  Status choose() {
    std::set<std::string> weights, packed;
    for (const Scope& scope : scopes_) {
      for (const Product& p : scope.products) {
        if (std::ranges::find(spec_.whole, p.weight) != spec_.whole.end()) continue;
        weights.insert(p.weight);
        if (p.packed) packed.insert(p.weight);
      }
    }
    const std::set<std::string> all = initializers();
    for (const std::string& pattern : spec_.patterns) {
      std::set<std::string> found;
      for (const std::string& name : weights) {
        const bool matches = all.contains(pattern) ? name == pattern
                                                   : fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
        if (matches || (pattern == "all" && !packed.contains(name))) found.insert(name);
      }
      OFSDP_REJECT_IF(found.empty(),
                      "--lora {}: expected a weight of a MatMul, Gemm or 1x1 convolution of {}, "
                      "found none of that name",
                      pattern, editor_.path());
      chosen_.insert(found.begin(), found.end());
    }
    return {};
  }

  void add_adapter(const Product& p, const onnx::NodeProto& node) {
    const auto [at, first] = index_.try_emplace(p.weight, adapters_.size());
    if (!first) return;
    Adapter adapter{.weight = p.weight,
                    .rank = spec_.rank,
                    .in = p.in,
                    .out = p.out,
                    .in_by_out = p.in_by_out,
                    .scale = spec_.used_alpha() / static_cast<double>(spec_.rank)};
    adapter.name = name_of_module(p.weight, node);
    if (!names_.insert(adapter.name).second) {  // two constants in one module
      adapter.name = stem_of(p.weight);
      names_.insert(adapter.name);
    }
    if (p.dequantized) adapter.unmergeable = "is stored in few bits";
    convolutions_[adapter.weight] = p.convolution ? rank_of(p.weight) : 0;
    adapters_.push_back(std::move(adapter));
  }

  int rank_of(const std::string& weight) const {
    const Initializer* found = editor_.weight(weight);
    if (found != nullptr) return found->shape.rank();
    for (const Scope& scope : scopes_) {
      for (const auto& tensor : scope.graph->initializer()) {
        if (tensor.name() == weight) return tensor.dims_size();
      }
    }
    return 0;
  }

  void set_unmergeable() {
    const Merging merging(scopes_, chosen_);
    for (Adapter& adapter : adapters_) {
      if (!adapter.unmergeable.empty()) continue;
      const std::string others = merging.other_readers(adapter.weight);
      if (!others.empty()) adapter.unmergeable = "is also read by " + others;
    }
  }

  // A convolution's A and B have as many axes as the weight.
  Shape shape_of(const Adapter& adapter, bool is_a) const {
    std::vector<int64_t> axes{is_a ? adapter.rank : adapter.out, is_a ? adapter.in : adapter.rank};
    const int rank = convolutions_.at(adapter.weight);
    while (static_cast<int>(axes.size()) < rank) axes.push_back(1);
    return Shape(std::move(axes));
  }

  Status add_weights() {
    std::map<std::string, Shape> wanted;
    for (const Adapter& adapter : adapters_) {
      for (const std::string& name : {adapter.a(), adapter.b()}) {
        OFSDP_REJECT_IF(editor_.weight(name) != nullptr,
                        "--lora: {} has an initializer '{}' already", editor_.path(), name);
        wanted[name] = shape_of(adapter, name == adapter.a());
        OFSDP_RETURN_IF_ERROR(
            checked_numel(wanted[name].axes()).status().with_prefix("--lora-rank: '" + name + "'"));
      }
    }
    std::shared_ptr<const TensorFile> file;
    if (!spec_.from.empty()) {
      OFSDP_ASSIGN_OR_RETURN(TensorFile opened, open_adapter_file(spec_.from));
      file = std::make_shared<const TensorFile>(std::move(opened));
      OFSDP_RETURN_IF_ERROR(check_fit(*file, wanted).with_prefix("--lora-from " + spec_.from));
    }
    for (const Adapter& adapter : adapters_) {
      const auto add = [&](const std::string& name, std::shared_ptr<const ValueSource> drawn) {
        if (file) drawn = tensor_values(file, *file->find(adapter_file_name(name)));
        editor_.add_weight(name, DType::kFloat32, wanted.at(name), std::move(drawn));
      };
      add(adapter.a(), std::make_shared<LinearDraw>(adapter.a(), spec_.seed, adapter.in));
      add(adapter.b(), std::make_shared<Zeros>());
    }
    return {};
  }

  Status check_fit(const TensorFile& file, const std::map<std::string, Shape>& wanted) const {
    for (const auto& [name, shape] : wanted) {
      const FileTensor* tensor = file.find(adapter_file_name(name));
      OFSDP_REJECT_IF(tensor == nullptr, "expected a tensor '{}', found none",
                      adapter_file_name(name));
      const bool is_a = name.ends_with(kAdapterA);
      const Shape& found = tensor->shape;
      const bool other_rank = found.rank() == shape.rank() && found[is_a ? 0 : 1] != spec_.rank &&
                              found[is_a ? 1 : 0] == shape[is_a ? 1 : 0];
      OFSDP_REJECT_IF(other_rank, "'{}' has rank {}, --lora-rank is {}", tensor->name,
                      found[is_a ? 0 : 1], spec_.rank);
      OFSDP_REJECT_IF(!(found == shape), "'{}': expected shape {}, found {}", tensor->name,
                      shape.text(), found.text());
      OFSDP_REJECT_IF(!is_floating(tensor->dtype),
                      "'{}': expected floating-point numbers, found {}", tensor->name,
                      tensor->type);
    }
    std::set<std::string> names;
    for (const auto& [name, shape] : wanted) names.insert(adapter_file_name(name));
    for (const FileTensor& tensor : file.tensors()) {
      const bool whole = editor_.weight(whole_name(tensor)) != nullptr;  // the model has its values
      OFSDP_REJECT_IF(!whole && !names.contains(tensor.name),
                      "'{}' fits no weight that --lora names", printable(tensor.name));
    }
    return {};
  }

  void rewrite(const onnx::GraphProto& from, onnx::GraphProto& to) {
    const Scope& scope = *std::ranges::find(scopes_, &from, &Scope::graph);
    std::vector<onnx::NodeProto> nodes;
    size_t next = 0;
    for (int i = 0; i < from.node_size(); ++i) {
      onnx::NodeProto node = from.node(i);
      for (int k = 0; k < node.attribute_size(); ++k) {
        const auto& attribute = from.node(i).attribute(k);
        if (attribute.has_g()) rewrite(attribute.g(), *node.mutable_attribute(k)->mutable_g());
      }
      AdapterNodes more;
      if (next < scope.products.size() && scope.products[next].node == i) {
        const Product& product = scope.products[next++];
        if (chosen_.contains(product.weight)) {
          const Adapter& adapter = adapters_[index_.at(product.weight)];
          more = adapter_nodes(editor_, node, product, adapter, spec_.dropout);
        }
      }
      for (auto& made : more.before) nodes.push_back(std::move(made));
      nodes.push_back(std::move(node));
      for (auto& made : more.after) nodes.push_back(std::move(made));
    }
    to.clear_node();
    for (auto& node : nodes) *to.add_node() = std::move(node);
  }

  ModelEditor& editor_;
  const AdapterSpec& spec_;
  const onnx::GraphProto before_;
  std::vector<Scope> scopes_;
  std::set<std::string> chosen_;
  std::vector<Adapter> adapters_;
  std::map<std::string, size_t> index_;      // weight -> adapter
  std::map<std::string, int> convolutions_;  // a convolution weight's axes; 0: a matrix
  std::set<std::string> names_;
};

}  // namespace

void Adapter::add_to(int64_t first, std::span<float> weights, std::span<const float> a_values,
                     std::span<const float> b_values) const {
  const int64_t width = in_by_out ? out : in;
  for (size_t n = 0; n < weights.size(); ++n) {
    const int64_t at = first + static_cast<int64_t>(n);
    const int64_t o = in_by_out ? at % width : at / width;
    const int64_t i = in_by_out ? at / width : at % width;
    double sum = 0;
    for (int64_t r = 0; r < rank; ++r) {
      sum += double{b_values[static_cast<size_t>(o * rank + r)]} *
             double{a_values[static_cast<size_t>(r * in + i)]};
    }
    weights[n] = static_cast<float>(double{weights[n]} + scale * sum);
  }
}

Result<std::vector<Adapter>> add_adapters(ModelEditor& editor, const AdapterSpec& spec) {
  return Adding(editor, spec).run();
}

}  // namespace ofsdp::importer
