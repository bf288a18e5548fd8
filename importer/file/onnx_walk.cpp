#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "importer/file/branch_weights.h"
#include "importer/file/onnx_file.h"
#include "importer/file/tensor_record.h"
#include "importer/file/wire.h"
#include "kernels/base/budgets.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

constexpr int64_t kFloat = 1;  // TensorProto.DataType

bool is_model_field(const WireField& field) {
  using namespace model_field;
  constexpr uint32_t kBytes[] = {kProducerName, kProducerVersion, kDomain,        kDocString,
                                 kGraph,        kOpsetImport,     kMetadataProps, kTrainingInfo,
                                 kFunctions,    kConfiguration};
  if (field.number == kIrVersion || field.number == kModelVersion)
    return field.type == WireType::kVarint;
  return std::ranges::find(kBytes, field.number) != std::end(kBytes) &&
         field.type == WireType::kBytes;
}

// ValueInfoProto{name, type{tensor_type{elem_type, shape{dim{dim_value}...}}}}
std::string input_declaration(const TensorRecord& tensor, bool own_type) {
  std::string shape;
  const bool as_it_is = own_type || is_floating(tensor.dtype);
  const int64_t type = as_it_is ? static_cast<int64_t>(tensor.onnx_type) : kFloat;
  for (const int64_t axis : tensor.dims)
    append_bytes(shape, shape_field::kDimension, int_field(dimension_field::kValue, axis));
  const std::string tensor_type = int_field(tensor_type_field::kElementType, type) +
                                  bytes_field(tensor_type_field::kShape, shape);
  return bytes_field(value_info_field::kName, tensor.name) +
         bytes_field(value_info_field::kType, bytes_field(type_field::kTensorType, tensor_type));
}

FieldPlace place_of(const WireField& field) { return {field.begin, field.body, field.end}; }

// Walks over one TrainingInfoProto. The skeleton keeps its bytes except for the data of large
// floating-point initializers in the algorithm graph. Refuses external data, which only the model's
// own weights may have.
class TrainingWalker {
 public:
  TrainingWalker(int index, std::vector<AlgorithmTensor>& tensors)
      : index_(index), tensors_(tensors) {}

  Result<std::string> walk(const WireField& info) {
    info_ = place_of(info);
    std::string body;
    for (WireReader reader(info.bytes, info.body); !reader.done();) {
      OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
      if (field.number == training_info_field::kAlgorithm && field.type == WireType::kBytes) {
        OFSDP_ASSIGN_OR_RETURN(const std::string graph, walk_algorithm(field));
        append_bytes(body, training_info_field::kAlgorithm, graph);
      } else {
        body += as_text(field.whole);
      }
    }
    return bytes_field(model_field::kTrainingInfo, body);
  }

 private:
  Result<std::string> walk_algorithm(const WireField& graph) {
    algorithm_ = place_of(graph);
    std::string body;
    for (WireReader reader(graph.bytes, graph.body); !reader.done();) {
      OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
      OFSDP_REJECT_IF(field.number == graph_field::kSparseInitializer,
                      "algorithm: a sparse initializer: expected a dense one");
      if (field.number != graph_field::kInitializer || field.type != WireType::kBytes) {
        body += as_text(field.whole);
        continue;
      }
      OFSDP_ASSIGN_OR_RETURN(const std::string tensor, walk_tensor(field));
      append_bytes(body, graph_field::kInitializer, tensor);
    }
    return body;
  }

  Result<std::string> walk_tensor(const WireField& field) {
    OFSDP_ASSIGN_OR_RETURN(const TensorRecord tensor, parse_tensor(field.bytes, field.body));
    OFSDP_REJECT_IF(tensor.external,
                    "{} of an algorithm: expected its data in the file, found external data",
                    tensor.label());
    tensors_.push_back({index_,
                        {tensor.name, tensor.dtype, Shape(tensor.dims), 0, tensor.offset,
                         tensor.bytes, tensor.encoding, tensor.stride},
                        place_of(field),
                        info_,
                        algorithm_});
    if (!is_floating(tensor.dtype) || tensor.numel <= kSmallNumel) {
      return std::string(as_text(field.bytes));
    }
    std::string body;
    for (WireReader reader(field.bytes, field.body); !reader.done();) {
      OFSDP_ASSIGN_OR_RETURN(const WireField part, reader.next());
      if (!is_data_field(part.number)) body += as_text(part.whole);
    }
    return body;
  }

  int index_;
  std::vector<AlgorithmTensor>& tensors_;
  FieldPlace info_, algorithm_;
};

// A Constant node that may be a weight.
struct WeightNode {
  WireField message;  // the TensorProto
  TensorRecord tensor;
};

class Walker {
 public:
  Walker(const std::string& path, std::span<const std::byte> bytes,
         const std::vector<std::string>& weights, const std::set<std::string>& plain)
      : path_(path), bytes_(bytes), wanted_(weights), plain_(plain) {}

  Result<OnnxContents> walk() {
    OFSDP_RETURN_IF_ERROR(walk_model().with_prefix(path_));
    return std::move(contents_);
  }

 private:
  // After a ModelProto's first complete field, an error means a damaged model; before it, the file
  // is something else.
  Status walk_model() {
    WireField graph;
    bool has_version = false;
    for (WireReader reader(bytes_); !reader.done();) {
      Result<WireField> field = reader.next();
      if (!field.ok() && !has_version) return no_model(field.error().message());
      if (!field.ok()) return input_error("is truncated: {}", field.error().message());
      if (!is_model_field(*field) &&
          (!has_version || field->number <= model_field::kConfiguration)) {
        return no_model(format_text("unknown field {} at byte {}", field->number, field->begin));
      }
      has_version = has_version || field->number == model_field::kIrVersion;
      if (field->number != model_field::kGraph) continue;
      OFSDP_REJECT_IF(graph.number != 0, "expected one graph, found a second at byte {}",
                      field->begin);
      graph = *field;
    }
    if (!has_version || graph.number == 0) {
      return no_model(has_version ? "it has no graph" : "it has no ir_version");
    }
    return walk_graph(graph);
  }

  static Status no_model(const std::string& why) {
    return input_error("is no ONNX model: {}", why);
  }

  Status walk_graph(const WireField& graph) {
    contents_.graph = place_of(graph);
    OFSDP_RETURN_IF_ERROR(find_inputs(graph).with_prefix("is damaged: graph"));
    OFSDP_RETURN_IF_ERROR(find_quantized(graph).with_prefix("is damaged: graph"));
    std::string& skeleton = contents_.skeleton;
    for (WireReader reader(graph.bytes, graph.body); !reader.done();) {
      OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
      OFSDP_RETURN_IF_ERROR(graph_field(field));
    }
    OFSDP_RETURN_IF_ERROR(read_pending());
    graph_ += added_inputs_;
    OFSDP_RETURN_IF_ERROR(copy_fields(0, graph.begin));
    append_bytes(skeleton, model_field::kGraph, graph_);
    OFSDP_RETURN_IF_ERROR(copy_fields(graph.end, static_cast<int64_t>(bytes_.size())));
    return check_skeleton(static_cast<int64_t>(skeleton.size()));
  }

  static Status check_skeleton(int64_t bytes) {
    if (bytes <= kMaxModelBytes) return ok_status();
    return input_error("expected at most {} bytes beside the floating-point weights, found {}",
                       kMaxModelBytes, bytes);
  }

  // Copies the model's fields outside the graph.
  Status copy_fields(int64_t begin, int64_t end) {
    const auto part = bytes_.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    for (WireReader reader(part, begin); !reader.done();) {
      OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
      if (field.number == model_field::kTrainingInfo) {
        const int index = training_infos_++;
        OFSDP_ASSIGN_OR_RETURN(
            const std::string info,
            prefixed(format_text("training_info[{}]", index),
                     TrainingWalker(index, contents_.algorithm_tensors).walk(field)));
        contents_.skeleton += info;
      } else {
        contents_.skeleton += as_text(field.whole);
      }
    }
    return ok_status();
  }

  Status find_inputs(const WireField& graph) {
    for (WireReader reader(graph.bytes, graph.body); !reader.done();) {
      OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
      const bool message =
          field.number == graph_field::kInput || field.number == graph_field::kInitializer;
      OFSDP_REJECT_IF(message && field.type != WireType::kBytes,
                      "field {} at byte {} has the wrong wire type {}", field.number, field.begin,
                      static_cast<int>(field.type));
      if (field.number == graph_field::kInput)
        inputs_.insert(string_field(field.bytes, value_info_field::kName));
    }
    return ok_status();
  }

  Status find_quantized(const WireField& graph) {
    std::map<std::string, int> integers;
    for (WireReader reader(graph.bytes, graph.body); !reader.done();) {
      OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
      if (field.number != graph_field::kInitializer) continue;
      const auto type = static_cast<int>(int_of(field, tensor_field::kDataType));
      if (integer_carrier(type) == DType::kUndefined) continue;
      const std::string name = string_field(field.bytes, tensor_field::kName);
      if (!plain_.contains(name)) integers[name] = type;
    }
    OFSDP_ASSIGN_OR_RETURN(QuantizedUses uses, quantized_uses(graph, integers));
    quantized_ = std::move(uses.weights);
    own_type_ = std::move(uses.own_type);
    for (const WireField& node : uses.constants) OFSDP_RETURN_IF_ERROR(constant_node(node));
    OFSDP_ASSIGN_OR_RETURN(branch_tensors_, branch_tensors(graph));
    return choose_weights(graph, uses);
  }

  // Chooses the Constant nodes and the tensors in branches that are weights; their bytes stay.
  Status choose_weights(const WireField& graph, const QuantizedUses& uses) {
    const auto read = [&](const TensorRecord& tensor) {
      return (tensor.numel > 1 ? uses.read_as_weights : uses.operands).contains(tensor.name);
    };
    std::erase_if(weight_nodes_, [&](const auto& node) { return !read(node.second.tensor); });
    std::erase_if(branch_tensors_, [&](const auto& one) { return !read(one.tensor); });
    if (weight_nodes_.empty() && branch_tensors_.empty()) return ok_status();
    OFSDP_ASSIGN_OR_RETURN(bool others, has_weights(graph, uses.read_as_weights));
    others = others || !std::ranges::all_of(branch_tensors_, &BranchTensor::in_node);
    const auto left = [&](const std::string& name) {
      const bool taken = !others || std::ranges::any_of(wanted_, [&](const std::string& pattern) {
        return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
      });
      if (!taken) contents_.other_weights.push_back(name);
      return !taken;
    };
    std::erase_if(weight_nodes_, [&](const auto& node) { return left(node.second.tensor.name); });
    std::erase_if(branch_tensors_,
                  [&](const auto& one) { return one.in_node() && left(one.outer); });
    for (const BranchTensor& one : branch_tensors_) lifted_[one.field.begin] = &one;
    return ok_status();
  }

  // Returns whether an initializer is a floating weight.
  Result<bool> has_weights(const WireField& graph, const std::set<std::string>& read) const {
    if (!quantized_.empty() || !own_type_.empty()) return true;
    for (WireReader reader(graph.bytes, graph.body); !reader.done();) {
      OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
      if (field.number != graph_field::kInitializer) continue;
      if (!read.contains(string_field(field.bytes, tensor_field::kName))) continue;
      OFSDP_ASSIGN_OR_RETURN(const TensorRecord tensor, parse_tensor(field.bytes, field.body));
      if (is_floating(tensor.dtype) && tensor.numel > 1) return true;
    }
    return false;
  }

  // Returns that field's last varint; 0: none before a broken field.
  static uint64_t int_of(const WireField& message, uint32_t number) {
    uint64_t value = 0;
    for (WireReader reader(message.bytes, message.body); !reader.done();) {
      const Result<WireField> field = reader.next();
      if (!field.ok()) break;
      if (field->number == number && field->type == WireType::kVarint) value = field->value;
    }
    return value;
  }

  // Scales and zero points may be Constant nodes.
  Status constant_node(const WireField& node) {
    const std::string name = string_field(node.bytes, node_field::kOutput);
    for (WireReader reader(node.bytes, node.body); !reader.done();) {
      OFSDP_ASSIGN_OR_RETURN(const WireField attribute, reader.next());
      if (attribute.number != node_field::kAttribute || attribute.type != WireType::kBytes)
        continue;
      for (WireReader inner(attribute.bytes, attribute.body); !inner.done();) {
        OFSDP_ASSIGN_OR_RETURN(const WireField field, inner.next());
        if (field.number != attribute_field::kTensor || field.type != WireType::kBytes) continue;
        Result<TensorRecord> tensor = parse_tensor(field.bytes, field.body);
        if (!tensor.ok() || tensor->external) continue;  // ONNX's checker reports it
        tensor->name = name;
        list_constant(*tensor, 0, tensor->offset, tensor->bytes);
        const bool dense = tensor->encoding != Initializer::Encoding::kList;
        if (dense && is_floating(tensor->dtype) && !tensor->dims.empty()) {
          weight_nodes_.emplace(node.begin, WeightNode{field, *tensor});
        }
      }
    }
    return ok_status();
  }

  void list_constant(const TensorRecord& tensor, int file, int64_t offset, int64_t bytes) {
    const DType carrier = integer_carrier(static_cast<int>(tensor.onnx_type));
    if (carrier == DType::kUndefined && !is_floating(tensor.dtype)) return;
    contents_.constants.push_back(initializer_of(tensor, file, offset, bytes));
  }

  // `tensor`: an integer weight or a quantization constant, among others.
  static Initializer initializer_of(const TensorRecord& tensor, int file, int64_t offset,
                                    int64_t bytes) {
    const DType carrier = integer_carrier(static_cast<int>(tensor.onnx_type));
    const DType dtype = carrier == DType::kUndefined ? tensor.dtype : carrier;
    const bool inside = file == 0;
    Initializer initializer{tensor.name,
                            dtype,
                            Shape(tensor.dims),
                            file,
                            offset,
                            bytes,
                            inside ? tensor.encoding : Initializer::Encoding::kDense,
                            inside ? tensor.stride : static_cast<int64_t>(dtype_size(dtype))};
    if (half_bytes(tensor.onnx_type)) initializer.bits = 4;
    return initializer;
  }

  Status graph_field(const WireField& field) {
    if (field.number == graph_field::kSparseInitializer) {
      const auto values = string_field(field.bytes, sparse_tensor_field::kValues);
      const auto name = string_field(std::as_bytes(std::span(values)), tensor_field::kName);
      return input_error("sparse initializer '{}': expected a dense one", printable(name));
    }
    if (field.number == graph_field::kInitializer) return initializer(field);
    const auto weight = weight_nodes_.find(field.begin);
    if (weight != weight_nodes_.end()) return weight_node(weight->second);
    const bool node = field.number == graph_field::kNode;
    if (node && (has_lifted(field) || has_external(field))) return lift_from(field);
    keep(field);
    return ok_status();
  }

  bool has_lifted(const WireField& node) const {
    const auto first = lifted_.lower_bound(node.begin);
    return first != lifted_.end() && first->first < node.end;
  }

  // Takes the weights out of a node's branches, and other tensors' data into the node.
  Status lift_from(const WireField& node) {
    inner_bytes_ = 0;
    OFSDP_ASSIGN_OR_RETURN(const std::string body,
                           without_tensors(node, lifted_, [&](const WireField& tensor) {
                             return embedded_in(node, tensor);
                           }));
    append_bytes(graph_, graph_field::kNode, body);
    for (auto one = lifted_.lower_bound(node.begin); one != lifted_.end() && one->first < node.end;
         ++one) {
      WeightNode weight{one->second->message, one->second->tensor};
      weight.tensor.name = one->second->outer;
      if (!weight.tensor.external) {
        OFSDP_RETURN_IF_ERROR(weight_node(weight));
        continue;
      }
      OFSDP_ASSIGN_OR_RETURN(auto path, path_to(node, weight.message));
      OFSDP_RETURN_IF_ERROR(add_name(weight.tensor));
      OFSDP_RETURN_IF_ERROR(external(weight.message, weight.tensor, std::move(path))
                                .with_prefix(weight.tensor.label()));
    }
    return ok_status();
  }

  // Returns the fields from the node to a tensor in it.
  static Result<std::vector<NumberedPlace>> path_to(const WireField& node,
                                                    const WireField& tensor) {
    std::vector<NumberedPlace> path{{node.number, place_of(node)}};
    for (WireField at = node; at.begin != tensor.begin;) {
      WireReader reader(at.bytes, at.body);
      do {
        OFSDP_ASSIGN_OR_RETURN(at, reader.next());
      } while (at.end <= tensor.begin);
      path.push_back({at.number, place_of(at)});
    }
    return path;
  }

  // Returns the body of a tensor in a node with its data.
  Result<std::string> embedded_in(const WireField& node, const WireField& field) {
    OFSDP_ASSIGN_OR_RETURN(const TensorRecord tensor, parse_tensor(field.bytes, field.body));
    OFSDP_ASSIGN_OR_RETURN(auto path, path_to(node, field));
    OFSDP_ASSIGN_OR_RETURN(
        const Pending place,
        prefixed(tensor.label(), external_place(field, tensor, std::move(path))));
    inner_bytes_ += std::min(place.bytes, kMaxModelBytes + 1);
    OFSDP_RETURN_IF_ERROR(
        check_skeleton(static_cast<int64_t>(graph_.size()) + pending_bytes_ + inner_bytes_));
    return prefixed(tensor.label(), with_data(place));
  }

  Status add_name(const TensorRecord& tensor) {
    const bool added = names_.insert(tensor.name).second;
    OFSDP_REJECT_IF(!added, "{}: expected once, found a second", tensor.label());
    return ok_status();
  }

  // Puts an initializer in place of a Constant node.
  Status weight_node(const WeightNode& node) {
    const TensorRecord& tensor = node.tensor;
    OFSDP_RETURN_IF_ERROR(add_name(tensor));
    list(tensor, 0, tensor.offset, tensor.bytes);
    if (tensor.numel > kSmallNumel) {
      declare(tensor);
      return ok_status();
    }
    std::string body = bytes_field(tensor_field::kName, tensor.name);
    for (WireReader reader(node.message.bytes, node.message.body); !reader.done();) {
      OFSDP_ASSIGN_OR_RETURN(const WireField part, reader.next());
      if (part.number != tensor_field::kName) body += as_text(part.whole);
    }
    append_bytes(graph_, graph_field::kInitializer, body);
    return ok_status();
  }

  void keep(const WireField& field) { graph_ += as_text(field.whole); }

  Status initializer(const WireField& field) {
    OFSDP_ASSIGN_OR_RETURN(const TensorRecord tensor, parse_tensor(field.bytes, field.body));
    OFSDP_REJECT_IF(tensor.name.empty(), "initializer at byte {}: expected a name, found none",
                    field.begin);
    OFSDP_REJECT_IF(!names_.insert(tensor.name).second,
                    "{}: expected once, found a second at byte {}", tensor.label(), field.begin);
    Status status = tensor.external ? external(field, tensor) : embedded(field, tensor);
    return std::move(status).with_prefix(tensor.label());
  }

  Status embedded(const WireField& field, const TensorRecord& tensor) {
    if (!is_weight(tensor)) {
      list_constant(tensor, 0, tensor.offset, tensor.bytes);
      keep(field);
      return ok_status();
    }
    if (tensor.encoding == Initializer::Encoding::kList) {
      contents_.places.push_back(
          {place_of(field), -1, static_cast<int>(contents_.initializers.size())});
    }
    list(tensor, 0, tensor.offset, tensor.bytes);
    if (tensor.numel <= kSmallNumel && is_floating(tensor.dtype)) {
      keep(field);
    } else {
      declare(tensor);
    }
    return ok_status();
  }

  bool is_weight(const TensorRecord& tensor) const {
    return is_floating(tensor.dtype) || quantized_.contains(tensor.name) || own_type(tensor);
  }

  // Other tensors with these names are read as floats, or are constants.
  bool own_type(const TensorRecord& tensor) const {
    const bool integers = tensor.dtype == DType::kUInt8 || half_bytes(tensor.onnx_type);
    const bool known = integers || (is_floating(tensor.dtype) && tensor.dtype != DType::kFloat64);
    const bool dense = tensor.external || (tensor.encoding == Initializer::Encoding::kDense);
    return known && dense && own_type_.contains(tensor.name);
  }

  Status external(const WireField& field, const TensorRecord& tensor,
                  std::vector<NumberedPlace> path = {}) {
    OFSDP_ASSIGN_OR_RETURN(const Pending place, external_place(field, tensor, std::move(path)));
    const bool weight = is_weight(tensor);
    if (weight) list(tensor, place.file + 1, place.offset, place.bytes);
    if (!weight) list_constant(tensor, place.file + 1, place.offset, place.bytes);
    if (weight && (tensor.numel > kSmallNumel || !is_floating(tensor.dtype))) {
      declare(tensor);
      return ok_status();
    }
    pending_bytes_ += std::min(place.bytes, kMaxModelBytes + 1);  // so the sum cannot wrap
    pending_.push_back(place);
    return ok_status();
  }

  // Reads external tensors into the skeleton once all are known to fit: many may name one place in
  // a sparse file.
  Status read_pending() {
    if (pending_.empty()) return ok_status();
    OFSDP_RETURN_IF_ERROR(check_skeleton(static_cast<int64_t>(graph_.size()) + pending_bytes_));
    const std::string before = std::exchange(graph_, {});
    size_t copied = 0;
    for (const Pending& one : pending_) {
      graph_.append(before, copied, one.at - copied);
      copied = one.at;
      OFSDP_RETURN_IF_ERROR(inline_external(one).with_prefix(one.label));
    }
    graph_.append(before, copied);
    return ok_status();
  }

  struct Pending {
    std::string label, name;
    size_t at;  // in graph_
    WireField field;
    int file;
    int64_t offset, bytes;
  };

  // Finds the data, and lists the place that a copy of the file changes.
  Result<Pending> external_place(const WireField& field, const TensorRecord& tensor,
                                 std::vector<NumberedPlace> path) {
    OFSDP_ASSIGN_OR_RETURN(const int index, data_file(tensor.external->location));
    const OpenFile& file = contents_.data_files[static_cast<size_t>(index)].file;
    OFSDP_ASSIGN_OR_RETURN(const int64_t bytes,
                           external_bytes(*tensor.external, file, tensor.expected_bytes()));
    contents_.places.push_back({place_of(field), index, -1, std::move(path)});
    return Pending{tensor.label(),          tensor.name, graph_.size(), field, index,
                   tensor.external->offset, bytes};
  }

  Status inline_external(const Pending& one) {
    OFSDP_ASSIGN_OR_RETURN(const std::string body, with_data(one));
    append_bytes(graph_, graph_field::kInitializer, body);
    return ok_status();
  }

  // Returns the tensor's body with its name and data.
  Result<std::string> with_data(const Pending& one) const {
    std::string data(static_cast<size_t>(one.bytes), '\0');
    const OpenFile& file = contents_.data_files[static_cast<size_t>(one.file)].file;
    OFSDP_RETURN_IF_ERROR(read_exactly(file, one.offset, std::as_writable_bytes(std::span(data))));
    std::string body;
    bool named = one.name.empty();
    for (WireReader reader(one.field.bytes, one.field.body); !reader.done();) {
      OFSDP_ASSIGN_OR_RETURN(const WireField part, reader.next());
      if (part.number == tensor_field::kExternalData || part.number == tensor_field::kDataLocation)
        continue;
      if (part.number == tensor_field::kName) {
        append_bytes(body, tensor_field::kName, one.name);
        named = true;
      } else {
        body += as_text(part.whole);
      }
    }
    if (!named) append_bytes(body, tensor_field::kName, one.name);
    append_bytes(body, tensor_field::kRawData, data);
    return body;
  }

  Result<int> data_file(const std::string& location) {
    auto& files = contents_.data_files;
    const auto found = std::ranges::find(files, location, &DataFile::location);
    if (found != files.end()) return static_cast<int>(found - files.begin());
    OFSDP_ASSIGN_OR_RETURN(OpenFile file, open_external(path_, location));
    files.push_back({location, std::move(file)});
    return static_cast<int>(files.size()) - 1;
  }

  void list(const TensorRecord& tensor, int file, int64_t offset, int64_t bytes) {
    contents_.initializers.push_back(initializer_of(tensor, file, offset, bytes));
    contents_.initializers.back().own_type = own_type(tensor);
    const auto quantized = quantized_.find(tensor.name);
    if (quantized == quantized_.end()) return;
    contents_.initializers.back().quantization =
        std::make_shared<const Quantization>(quantized->second);
  }

  void declare(const TensorRecord& tensor) {
    if (inputs_.contains(tensor.name)) return;
    append_bytes(added_inputs_, graph_field::kInput, input_declaration(tensor, own_type(tensor)));
  }

  const std::string& path_;
  std::span<const std::byte> bytes_;
  OnnxContents contents_;
  std::string graph_;  // the skeleton's graph so far
  int training_infos_ = 0;
  std::string added_inputs_;  // appended to graph_
  std::set<std::string> inputs_;
  std::set<std::string> names_;
  std::map<std::string, Quantization> quantized_;  // integers that are weights
  std::set<std::string> own_type_;                 // names from QuantizedUses
  std::map<int64_t, WeightNode> weight_nodes_;     // Constant nodes, by place
  std::vector<BranchTensor> branch_tensors_;
  std::map<int64_t, const BranchTensor*> lifted_;  // that are weights, by place
  const std::vector<std::string>& wanted_;
  const std::set<std::string>& plain_;
  std::vector<Pending> pending_;  // external tensors that are no weights
  int64_t pending_bytes_ = 0;
  int64_t inner_bytes_ = 0;  // of external tensors in the node at hand
};

}  // namespace

Result<OnnxContents> walk_onnx(const std::string& path, std::span<const std::byte> bytes,
                               const std::vector<std::string>& weights,
                               const std::set<std::string>& plain) {
  return Walker(path, bytes, weights, plain).walk();
}

}  // namespace ofsdp::importer
