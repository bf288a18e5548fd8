#include "importer/edit/adapters.h"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "importer/edit/adapter_nodes.h"
#include "importer/edit/drawn_values.h"
#include "importer/file/ort_adapter_file.h"
#include "importer/file/safetensors_file.h"
#include "importer/normalize/module_scopes.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

constexpr int kDropoutInputs =
    12;  // the first opset whose Dropout is active where its inputs say so

bool all_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) { return isdigit(c); });
}

// A constant that an exporter named itself: onnx::MatMul_23, val_7, 137, /up/Transpose_output_0.
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

// "_Q4", "_Q8", "_Q4G32": what quantizers append.
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

Result<TensorFile> open_adapter_file(const std::string& path) {
  OFSDP_ASSIGN_OR_RETURN(const bool ort, is_ort_adapter(path));
  return ort ? open_ort_adapter(path) : open_safetensors(path);
}

// PEFT's name of the module.
std::string name_of_module(const std::string& weight, const onnx::NodeProto& product) {
  const std::string stem = stem_of(weight);
  if (!named_by_exporter(stem)) return stem;
  const std::string module = module_of(product);
  return module.empty() ? stem : module;
}

// Whether all that reads a value are products that have the adapter.
class Merging {
 public:
  Merging(const onnx::GraphProto& graph, const ProtoUses& uses,
          const std::vector<Product>& products)
      : graph_(graph), uses_(uses) {
    for (const Product& p : products) {
      operands_.insert({p.node, p.operand});
      between_.insert(p.path.begin(), p.path.end());
    }
  }

  // Returns the other readers, or "".
  std::string other_readers(const std::string& value) const {
    std::vector<std::string> names;
    collect(value, names);
    return joined(names, ", ");
  }

 private:
  void collect(const std::string& value, std::vector<std::string>& names) const {
    if (uses_.is_output(value)) names.push_back("output '" + printable(value) + "'");
    if (uses_.in_body(value)) names.push_back("the body of a loop or branch");
    for (const ProtoUse& use : uses_.readers(value)) {
      if (operands_.contains({use.node, use.input})) continue;
      const auto& node = graph_.node(use.node);
      if (between_.contains(use.node) && use.input == 0) {
        collect(node.output(0), names);
      } else {
        names.push_back(described(node));
      }
    }
  }

  const onnx::GraphProto& graph_;
  const ProtoUses& uses_;
  std::set<std::pair<int, int>> operands_;
  std::set<int> between_;
};

class Adding {
 public:
  Adding(ModelEditor& editor, const AdapterSpec& spec)
      : editor_(editor), spec_(spec), before_(editor.graph()), uses_(before_) {}

  Result<std::vector<Adapter>> run() {
    const int opset = version_of(editor_.model().opset_import(), "");
    OFSDP_REJECT_IF(spec_.dropout > 0 && opset < kDropoutInputs,
                    "--lora-dropout: expected opset {} or newer, {} has {}", kDropoutInputs,
                    editor_.path(), opset);
    products_ = find_products(editor_, before_, uses_);
    OFSDP_RETURN_IF_ERROR(choose());
    for (const Product& p : products_) {
      if (chosen_.contains(p.weight)) add_adapter(p);
    }
    set_unmergeable();
    OFSDP_RETURN_IF_ERROR(add_weights());
    rewrite();
    return std::move(adapters_);
  }

 private:
  std::set<std::string> initializers() const {
    std::set<std::string> names;
    for (const auto& tensor : before_.initializer()) names.insert(tensor.name());
    for (const Initializer& weight : editor_.weights()) names.insert(weight.name);
    return names;
  }

  // A pattern must name a weight of a product.
  Status choose() {
    std::set<std::string> weights, packed;
    for (const Product& p : products_) {
      weights.insert(p.weight);
      if (p.packed) packed.insert(p.weight);
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

  void add_adapter(const Product& p) {
    const auto [at, first] = index_.try_emplace(p.weight, adapters_.size());
    if (!first) return;
    Adapter adapter{.weight = p.weight,
                    .rank = spec_.rank,
                    .in = p.in,
                    .out = p.out,
                    .in_by_out = p.in_by_out,
                    .scale = spec_.alpha / static_cast<double>(spec_.rank)};
    adapter.name = name_of_module(p.weight, before_.node(p.node));
    if (!names_.insert(adapter.name).second) {  // two constants of one module
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
    for (const auto& tensor : before_.initializer()) {
      if (tensor.name() == weight) return tensor.dims_size();
    }
    return 0;
  }

  void set_unmergeable() {
    std::vector<Product> adapted;
    for (const Product& p : products_) {
      if (chosen_.contains(p.weight)) adapted.push_back(p);
    }
    const Merging merging(before_, uses_, adapted);
    for (Adapter& adapter : adapters_) {
      if (!adapter.unmergeable.empty()) continue;
      const std::string others = merging.other_readers(adapter.weight);
      if (!others.empty()) adapter.unmergeable = "is also read by " + others;
    }
  }

  // A and B of a convolution have as many axes as its weight.
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
      const bool is_a = name.ends_with(".lora_A.weight");
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
      OFSDP_REJECT_IF(!names.contains(tensor.name), "'{}' fits no weight that --lora names",
                      printable(tensor.name));
    }
    return {};
  }

  void rewrite() {
    onnx::GraphProto& graph = editor_.graph();
    std::vector<onnx::NodeProto> nodes;
    size_t next = 0;
    for (int i = 0; i < before_.node_size(); ++i) {
      onnx::NodeProto node = before_.node(i);
      AdapterNodes more;
      if (next < products_.size() && products_[next].node == i) {
        const Product& product = products_[next++];
        if (chosen_.contains(product.weight)) {
          const Adapter& adapter = adapters_[index_.at(product.weight)];
          more = adapter_nodes(editor_, node, product, adapter, spec_.dropout);
        }
      }
      for (auto& made : more.before) nodes.push_back(std::move(made));
      nodes.push_back(std::move(node));
      for (auto& made : more.after) nodes.push_back(std::move(made));
    }
    graph.clear_node();
    for (auto& node : nodes) *graph.add_node() = std::move(node);
  }

  ModelEditor& editor_;
  const AdapterSpec& spec_;
  const onnx::GraphProto before_;
  const ProtoUses uses_;
  std::vector<Product> products_;
  std::set<std::string> chosen_;
  std::vector<Adapter> adapters_;
  std::map<std::string, size_t> index_;      // of the adapter of a weight
  std::map<std::string, int> convolutions_;  // axes of a convolution's weight; 0: a matrix
  std::set<std::string> names_;
};

}  // namespace

std::string adapter_file_name(const std::string& tensor) { return "base_model.model." + tensor; }

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
