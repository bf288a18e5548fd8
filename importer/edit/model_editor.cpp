#include "importer/edit/model_editor.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "importer/file/onnx_file.h"
#include "importer/file/tensor_file.h"
#include "importer/file/tensor_record.h"
#include "importer/file/wire.h"
#include "importer/proto/onnx_protos.h"
#include "importer/write/state_dict.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"

namespace ofsdp::importer {
namespace {

constexpr int kOptionalInputs = 4;  // from this IR version on, initializers need not be inputs

using WeightOfFile = StoredValues<OnnxFile, Initializer>;

template <typename List>
void remove_named(List& list, const std::string& name) {
  for (int i = list.size(); i-- > 0;) {
    if (list[i].name() == name) list.DeleteSubrange(i, 1);
  }
}

template <typename List>
bool has_named(const List& list, const std::string& name) {
  return std::ranges::any_of(list, [&](const auto& item) { return item.name() == name; });
}

// Returns what a model declares of a weight. A skeleton has integers that become floats as floats.
onnx::ValueInfoProto declaration_of(const Initializer& weight, bool in_skeleton) {
  onnx::ValueInfoProto info = value_info(weight.name, {weight.dtype, weight.shape});
  const bool as_floats = in_skeleton && weight.quantization != nullptr && !weight.own_type;
  info.mutable_type()->mutable_tensor_type()->set_elem_type(
      as_floats ? int{onnx::TensorProto::FLOAT} : stored_type(weight));
  return info;
}

// Declares a weight as stored, in the place that an input has already.
void declare(onnx::GraphProto& graph, const Initializer& weight) {
  auto& inputs = *graph.mutable_input();
  const auto has = std::ranges::find(inputs, weight.name, &onnx::ValueInfoProto::name);
  (has == inputs.end() ? *graph.add_input() : *has) = declaration_of(weight, false);
}

// Returns a weight without values; external ones keep their location.
onnx::TensorProto head_of(const Initializer& weight, const std::vector<DataFile>& data_files) {
  onnx::TensorProto tensor;
  tensor.set_name(weight.name);
  tensor.set_data_type(stored_type(weight));
  for (const int64_t axis : weight.shape.axes()) tensor.add_dims(axis);
  if (weight.file == 0) return tensor;
  tensor.set_data_location(onnx::TensorProto::EXTERNAL);
  const auto add = [&](const char* key, const std::string& value) {
    auto& entry = *tensor.add_external_data();
    entry.set_key(key);
    entry.set_value(value);
  };
  add("location", data_files[static_cast<size_t>(weight.file - 1)].location);
  add("offset", std::to_string(weight.offset));
  add("length", std::to_string(weight.bytes));
  return tensor;
}

Result<OpenFile> second_descriptor(const OpenFile& file) {
  OpenFile copy{file.path, UniqueFd(fcntl(file.fd.get(), F_DUPFD_CLOEXEC, 0)), file.bytes,
                file.device, file.inode};
  if (!copy.fd.valid()) return fault("{}: {}", file.path, std::strerror(errno));
  return copy;
}

// `like`: the file that it replaces in messages and comparisons.
Result<OpenFile> in_memory(const std::string& bytes, const OpenFile& like) {
  OpenFile file{like.path, UniqueFd(memory_file("ofsdp-model")), static_cast<int64_t>(bytes.size()),
                like.device, like.inode};
  OFSDP_FAULT_IF(!file.fd.valid(), "{}: no memory for its graph: {}", like.path,
                 std::strerror(errno));
  OFSDP_RETURN_IF_ERROR(write_exactly(file, 0, std::as_bytes(std::span(bytes))));
  return file;
}

// Finds the graph and where weights lie in a model's bytes.
Status find_places(const std::string& bytes, OnnxContents& contents) {
  std::map<std::string, int> index;
  for (size_t i = 0; i < contents.initializers.size(); ++i) {
    index[contents.initializers[i].name] = static_cast<int>(i);
  }
  for (WireReader model(std::as_bytes(std::span(bytes))); !model.done();) {
    OFSDP_ASSIGN_OR_RETURN(const WireField graph, model.next());
    if (graph.number != model_field::kGraph) continue;
    contents.graph = {graph.begin, graph.body, graph.end};
    for (WireReader reader(graph.bytes, graph.body); !reader.done();) {
      OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
      if (field.number != graph_field::kInitializer) continue;
      const auto found = index.find(string_field(field.bytes, tensor_field::kName));
      if (found == index.end()) continue;
      const int file = contents.initializers[static_cast<size_t>(found->second)].file;
      contents.places.push_back(
          {{field.begin, field.body, field.end}, file - 1, file == 0 ? found->second : -1});
    }
  }
  return {};
}

// Changes the list of the weights that the file's module does not train, if there is one.
template <typename Change>
void change_frozen(onnx::ModelProto& model, const Change& change) {
  for (auto& entry : *model.mutable_metadata_props()) {
    if (entry.key() != kFrozenEntry) continue;
    const auto names = nlohmann::json::parse(entry.value(), nullptr, false);
    if (!names.is_array() || !std::ranges::all_of(names, &nlohmann::json::is_string)) continue;
    auto frozen = names.get<std::set<std::string>>();
    change(frozen);
    entry.set_value(nlohmann::json(frozen).dump());
  }
}

}  // namespace

Result<ModelEditor> ModelEditor::make(std::shared_ptr<const OnnxFile> file) {
  ModelEditor editor(std::move(file));
  OFSDP_ASSIGN_OR_RETURN(editor.model_, parse_model(*editor.file_));
  editor.model_.clear_training_info();
  onnx::GraphProto& graph = editor.graph();
  for (const Initializer& weight : editor.file_->initializers()) {
    if (editor.model_.ir_version() >= kOptionalInputs) {
      remove_named(*graph.mutable_input(), weight.name);
    }
    editor.weights_.push_back(editor.kept(weight));
  }
  for (const auto& tensor : graph.initializer()) editor.names_.insert(tensor.name());
  for (const auto& value : graph.input()) editor.names_.insert(value.name());
  for (const Initializer& weight : editor.weights_) editor.names_.insert(weight.name);
  for (const auto& node : graph.node()) {
    editor.names_.insert(node.output().begin(), node.output().end());
  }
  return editor;
}

Initializer ModelEditor::kept(const Initializer& tensor) const {
  return tensor.file == 0 ? moved(tensor) : tensor;
}

Initializer ModelEditor::moved(const Initializer& tensor) const {
  Initializer made = tensor;
  made.values = std::make_shared<WeightOfFile>(file_, tensor);
  made.file = 0;
  made.offset = made.stride = 0;
  made.bytes = made.raw_bytes();
  made.encoding = Initializer::Encoding::kList;
  return made;
}

const Initializer* ModelEditor::weight(const std::string& name) const {
  const auto found = std::ranges::find(weights_, name, &Initializer::name);
  return found == weights_.end() ? nullptr : &*found;
}

void ModelEditor::add_weight(const std::string& name, DType dtype, Shape shape,
                             std::shared_ptr<const ValueSource> values) {
  Initializer weight{name, dtype, std::move(shape)};
  weight.bytes = weight.shape.numel() * static_cast<int64_t>(dtype_size(dtype));
  weight.encoding = Initializer::Encoding::kList;
  weight.values = std::move(values);
  weights_.push_back(std::move(weight));
  names_.insert(name);
}

void ModelEditor::add_copy(const std::string& name, const Initializer& of) {
  change_frozen(model_, [&](std::set<std::string>& frozen) {
    if (frozen.contains(of.name)) frozen.insert(name);
  });
  weights_.push_back(of.values == nullptr ? moved(of) : of);
  weights_.back().name = name;
  names_.insert(name);
}

Status ModelEditor::set_values(const std::string& name, std::shared_ptr<const ValueSource> values) {
  const auto found = std::ranges::find(weights_, name, &Initializer::name);
  OFSDP_CHECK(found != weights_.end(), "no weight '{}'", name);
  OFSDP_REJECT_IF(found->quantization != nullptr,
                  "'{}': expected a floating-point weight, found integers", printable(name));
  remove_named(*graph().mutable_initializer(), name);
  remove_named(*graph().mutable_input(), name);  // declared again
  const size_t at = static_cast<size_t>(found - weights_.begin());
  add_weight(name, found->dtype, found->shape, std::move(values));
  weights_[at] = std::move(weights_.back());
  weights_.pop_back();
  return {};
}

void ModelEditor::replace_weight(const std::string& name, Shape shape,
                                 std::shared_ptr<const ValueSource> values) {
  const auto found = std::ranges::find(weights_, name, &Initializer::name);
  OFSDP_CHECK(found != weights_.end(), "no weight '{}'", name);
  const DType dtype = found->dtype;
  change_frozen(model_, [&](std::set<std::string>& frozen) { frozen.erase(name); });
  remove_named(*graph().mutable_initializer(), name);
  remove_named(*graph().mutable_input(), name);  // declared again
  weights_.erase(found);
  add_weight(name, dtype, std::move(shape), std::move(values));
}

std::string ModelEditor::free_name(const std::string& wanted) {
  std::string name = wanted;
  for (int i = 1; !names_.insert(name).second; ++i) name = format_text("{}.{}", wanted, i);
  return name;
}

// Like OnnxFile::skeleton: keeps small weights' values and declares others as inputs.
std::string ModelEditor::skeleton() const {
  onnx::ModelProto model = model_;
  for (const Initializer& weight : weights_) {
    if (has_named(model_.graph().initializer(), weight.name)) continue;
    if (has_named(model.graph().input(), weight.name)) continue;
    *model.mutable_graph()->add_input() = declaration_of(weight, true);
  }
  return model.SerializeAsString();
}

// Returns the file's model without weight values.
onnx::ModelProto ModelEditor::whole() const {
  onnx::ModelProto model = model_;
  onnx::GraphProto& graph = *model.mutable_graph();
  for (const Initializer& weight : weights_) {
    remove_named(*graph.mutable_initializer(), weight.name);
    if (model.ir_version() < kOptionalInputs) declare(graph, weight);
    *graph.add_initializer() = head_of(weight, file_->contents().data_files);
  }
  return model;
}

Result<OnnxFile> ModelEditor::finish() {
  OnnxContents contents;
  contents.skeleton = skeleton();
  contents.initializers = weights_;
  for (const Initializer& constant : file_->contents().constants) {
    contents.constants.push_back(kept(constant));
  }
  contents.other_weights = file_->contents().other_weights;
  contents.input_sizes = file_->contents().input_sizes;
  contents.input_numbers = file_->contents().input_numbers;
  for (const DataFile& data : file_->contents().data_files) {
    OFSDP_ASSIGN_OR_RETURN(OpenFile file, second_descriptor(data.file));
    contents.data_files.push_back({data.location, std::move(file)});
  }
  const std::string bytes = whole().SerializeAsString();
  OFSDP_RETURN_IF_ERROR(find_places(bytes, contents));
  OFSDP_ASSIGN_OR_RETURN(OpenFile file, in_memory(bytes, file_->file()));
  return OnnxFile::of_parts(std::move(file), std::move(contents));
}

namespace {

// A tensor that a product may read: name and axes.
struct Stored {
  std::string name;
  std::vector<int64_t> dims;
  DType dtype = DType::kUndefined;
  std::vector<int> path;
  bool transposed = false;
  bool dequantized = false;
};

class Finder {
 public:
  Finder(const ModelEditor& editor, const onnx::GraphProto& graph, const ProtoUses& uses)
      : editor_(editor), graph_(graph), uses_(uses) {
    for (const auto& tensor : graph.initializer()) tensors_[tensor.name()] = &tensor;
  }

  std::vector<Product> find() const;

  // Returns the initializer, in any type, that a value comes from.
  std::optional<Stored> stored(std::string value) const {
    Stored found;
    for (int depth = 0; depth < 8; ++depth) {
      const int maker = uses_.maker(value);
      if (maker < 0) break;
      const auto& node = graph_.node(maker);
      if (!short_domain(node.domain()).empty() && node.op_type() != "DequantizeLinear") return {};
      if (node.op_type() == "Transpose") {
        if (!swaps_two(node)) return {};
        found.transposed = !found.transposed;
      } else if (node.op_type() == "DequantizeLinear") {
        found.dequantized = true;
        if (found.dtype == DType::kUndefined) found.dtype = type_of(input_or_none(node, 1));
      } else if (const auto path = multiplied(maker); !path.empty()) {
        const auto& cast = graph_.node(path.back());
        found.dequantized = true;
        found.path.insert(found.path.end(), path.begin(), path.end());
        if (found.dtype == DType::kUndefined) {
          found.dtype = dtype_from_onnx_number(int_attribute(cast, "to", 0));
        }
        value = cast.input(0);
        continue;
      } else if (node.op_type() == "Cast") {
        if (found.dtype == DType::kUndefined) {
          found.dtype = dtype_from_onnx_number(int_attribute(node, "to", 0));
        }
      } else if (node.op_type() != "Identity") {
        return {};
      }
      found.path.push_back(maker);
      value = input_or_none(node, 0);
    }
    found.name = value;
    if (const Initializer* weight = editor_.weight(value)) {
      found.dims = weight->shape.axes();
      if (found.dtype == DType::kUndefined) found.dtype = weight->dtype;
      return found;
    }
    const auto tensor = tensors_.find(value);
    if (tensor == tensors_.end() || !found.dequantized) return {};
    found.dims.assign(tensor->second->dims().begin(), tensor->second->dims().end());
    return found;
  }

  // Returns the nodes from a Mul by a weight's scale back to the Cast of its integers; empty: it is
  // no such Mul.
  std::vector<int> multiplied(int mul) const {
    if (graph_.node(mul).op_type() != "Mul") return {};
    for (const std::string& name : graph_.node(mul).input()) {
      std::vector<int> path{mul};
      int maker = uses_.maker(name);
      if (maker >= 0 && graph_.node(maker).op_type() == "Sub") {
        path.push_back(maker);
        maker = uses_.maker(graph_.node(maker).input(0));
      }
      if (maker < 0 || graph_.node(maker).op_type() != "Cast") continue;
      path.push_back(maker);
      const Initializer* weight = editor_.weight(graph_.node(maker).input(0));
      if (weight == nullptr || weight->quantization == nullptr) continue;
      if (weight->quantization->multiplied) return path;
    }
    return {};
  }

  DType type_of(const std::string& value) const {
    const Initializer* weight = editor_.weight(value);
    return weight == nullptr ? DType::kFloat32 : weight->dtype;
  }

  // Requires two axes, as stored or transposed.
  bool set_matrix(Product& p, const onnx::NodeProto& node, bool transposed) const {
    const auto found = stored(input_or_none(node, p.operand));
    if (!found || found->dims.size() != 2) return false;
    take(p, *found);
    const bool turned = found->transposed != transposed;
    // An unchanged right operand is in x out, a left one out x in.
    p.in_by_out = (p.operand > p.other) != turned;
    p.in = found->dims[p.in_by_out ? 0 : 1];
    p.out = found->dims[p.in_by_out ? 1 : 0];
    return true;
  }

  static void take(Product& p, const Stored& stored) {
    p.weight = stored.name;
    p.path = stored.path;
    p.dequantized = stored.dequantized;
    p.dtype = stored.dtype;
  }

 private:
  static bool swaps_two(const onnx::NodeProto& node) {
    const auto* perm = find_attribute(node, "perm");
    if (perm == nullptr) return true;
    return perm->ints_size() == 2 && perm->ints(0) == 1 && perm->ints(1) == 0;
  }

  const ModelEditor& editor_;
  const onnx::GraphProto& graph_;
  const ProtoUses& uses_;
  std::map<std::string, const onnx::TensorProto*> tensors_;
};

bool mat_mul(const Finder& finder, const onnx::NodeProto& node, Product& p) {
  for (const int operand : {1, 0}) {
    p.operand = operand;
    p.other = 1 - operand;
    if (finder.set_matrix(p, node, false)) return true;
  }
  return false;
}

// alpha * op(A) op(B) + beta * C
bool gemm(const Finder& finder, const onnx::NodeProto& node, Product& p) {
  const std::array turned{int_attribute(node, "transA", 0) != 0,
                          int_attribute(node, "transB", 0) != 0};
  p.factor = float_attribute(node, "alpha", 1);
  for (const size_t operand : {1, 0}) {
    p.operand = static_cast<int>(operand);
    p.other = 1 - p.operand;
    p.other_transposed = turned[1 - operand];
    if (finder.set_matrix(p, node, turned[operand])) return true;
  }
  return false;
}

// The activation follows the sum, so the term goes to C.
bool fused_gemm(const Finder& finder, const onnx::NodeProto& node, Product& p) {
  if (!gemm(finder, node, p)) return false;
  p.join = Product::Join::kInput;
  p.join_input = 2;
  p.join_factor = float_attribute(node, "beta", 1);
  return p.join_factor != 0;
}

// The weight has columns for q, k and v, which are separated after the bias is added.
bool packed_attention(const Finder& finder, const onnx::NodeProto& node, Product& p) {
  p.operand = 1;
  p.packed = true;
  p.join = Product::Join::kInput;
  p.join_input = 2;
  return finder.set_matrix(p, node, false);
}

bool fused_mat_mul(const Finder& finder, const onnx::NodeProto& node, Product& p) {
  p.operand = 1;
  p.factor = float_attribute(node, "alpha", 1);
  p.other_transposed = int_attribute(node, "transA", 0) != 0;
  if (int_attribute(node, "transBatchA", 0) != 0) return false;
  return finder.set_matrix(p, node, int_attribute(node, "transB", 0) != 0);
}

// The weight is out x in, in 4-bit or 8-bit blocks.
bool mat_mul_n_bits(const Finder& finder, const onnx::NodeProto& node, Product& p) {
  p.operand = 1;
  p.weight = input_or_none(node, 1);
  p.in = int_attribute(node, "K", 0);
  p.out = int_attribute(node, "N", 0);
  p.dequantized = true;
  p.dtype = finder.type_of(input_or_none(node, 2));
  return p.in > 0 && p.out > 0;
}

bool convolution(const Finder& finder, const onnx::NodeProto& node, Product& p) {
  p.operand = 1;
  p.convolution = true;
  const auto found = finder.stored(input_or_none(node, 1));
  if (!found || found->transposed || found->dims.size() < 3) return false;
  if (int_attribute(node, "group", 1) != 1) return false;
  if (std::any_of(found->dims.begin() + 2, found->dims.end(), [](int64_t n) { return n != 1; })) {
    return false;
  }
  Finder::take(p, *found);
  p.out = found->dims[0];
  p.in = found->dims[1];
  return true;
}

// The activation follows the sum with Z.
bool fused_convolution(const Finder& finder, const onnx::NodeProto& node, Product& p) {
  p.join = Product::Join::kInput;
  p.join_input = 3;
  return convolution(finder, node, p);
}

struct ProductRow {
  const char* domain;
  const char* op;
  bool (*find)(const Finder& finder, const onnx::NodeProto& node, Product& p);
};
constexpr ProductRow kProducts[] = {
    {"", "MatMul", mat_mul},
    {"", "Gemm", gemm},
    {"", "Conv", convolution},
    {kMicrosoft, "Attention", packed_attention},
    {kMicrosoft, "FusedMatMul", fused_mat_mul},
    {kMicrosoft, "FusedGemm", fused_gemm},
    {kMicrosoft, "MatMulNBits", mat_mul_n_bits},
    {kMicrosoft, "FusedConv", fused_convolution},
};

std::vector<Product> Finder::find() const {
  std::vector<Product> products;
  for (int i = 0; i < graph_.node_size(); ++i) {
    const auto& node = graph_.node(i);
    for (const ProductRow& row : kProducts) {
      if (node.op_type() != row.op || short_domain(node.domain()) != row.domain) continue;
      Product product{.node = i};
      if (row.find(*this, node, product)) products.push_back(std::move(product));
    }
  }
  return products;
}

}  // namespace

std::string described(const onnx::NodeProto& node) {
  const std::string& name =
      node.name().empty() && node.output_size() > 0 ? node.output(0) : node.name();
  return format_text("node '{}' ({})", printable(name), node.op_type());
}

std::vector<Product> find_products(const ModelEditor& editor, const onnx::GraphProto& graph,
                                   const ProtoUses& uses) {
  return Finder(editor, graph, uses).find();
}

}  // namespace ofsdp::importer
