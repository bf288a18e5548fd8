#include "importer/edit/model_editor.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "importer/file/model_field.h"
#include "importer/file/stored_values.h"
#include "importer/file/tensor_record.h"
#include "importer/file/wire.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

constexpr int kOptionalInputs = 4;  // the first IR version whose initializers need not be inputs

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

// A weight without its values; where they are for external ones.
onnx::TensorProto head_of(const Initializer& weight, const std::vector<DataFile>& data_files) {
  onnx::TensorProto tensor;
  tensor.set_name(weight.name);
  tensor.set_data_type(number_of_dtype(weight.dtype));
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

// `like`: the file whose place it takes for messages and comparisons.
Result<OpenFile> in_memory(const std::string& bytes, const OpenFile& like) {
  OpenFile file{like.path, UniqueFd(memory_file("ofsdp-model")), static_cast<int64_t>(bytes.size()),
                like.device, like.inode};
  OFSDP_FAULT_IF(!file.fd.valid(), "{}: no memory for its graph: {}", like.path,
                 std::strerror(errno));
  OFSDP_RETURN_IF_ERROR(write_exactly(file, 0, std::as_bytes(std::span(bytes))));
  return file;
}

// Finds the graph and the places of weights in the bytes of a model.
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
    editor.weights_.push_back(weight);
    Initializer& mine = editor.weights_.back();
    if (weight.file != 0) continue;
    mine.values = std::make_shared<WeightOfFile>(editor.file_, weight);
    mine.encoding = Initializer::Encoding::kList;
    mine.offset = 0;
  }
  for (const auto& tensor : graph.initializer()) editor.names_.insert(tensor.name());
  for (const auto& value : graph.input()) editor.names_.insert(value.name());
  for (const Initializer& weight : editor.weights_) editor.names_.insert(weight.name);
  for (const auto& node : graph.node()) {
    editor.names_.insert(node.output().begin(), node.output().end());
  }
  return editor;
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
  std::shared_ptr<const ValueSource> values = of.values;
  if (values == nullptr) values = std::make_shared<WeightOfFile>(file_, of);
  add_weight(name, of.dtype, of.shape, std::move(values));
}

void ModelEditor::replace_weight(const std::string& name, Shape shape,
                                 std::shared_ptr<const ValueSource> values) {
  const auto found = std::ranges::find(weights_, name, &Initializer::name);
  OFSDP_CHECK(found != weights_.end(), "no weight '{}'", name);
  const DType dtype = found->dtype;
  remove_named(*graph().mutable_initializer(), name);
  remove_named(*graph().mutable_input(), name);  // declared anew
  weights_.erase(found);
  add_weight(name, dtype, std::move(shape), std::move(values));
}

std::string ModelEditor::free_name(const std::string& wanted) {
  std::string name = wanted;
  for (int i = 1; !names_.insert(name).second; ++i) name = format_text("{}.{}", wanted, i);
  return name;
}

void ModelEditor::declare(onnx::GraphProto& graph, const Initializer& weight) const {
  if (has_named(graph.input(), weight.name)) return;
  *graph.add_input() = value_info(weight.name, {weight.dtype, weight.shape});
}

// As OnnxFile::skeleton: small weights of the file with their values, others declared as inputs.
std::string ModelEditor::skeleton() const {
  onnx::ModelProto model = model_;
  for (const Initializer& weight : weights_) {
    if (has_named(model_.graph().initializer(), weight.name)) continue;
    declare(*model.mutable_graph(), weight);
  }
  return model.SerializeAsString();
}

// The model as a file has it, but for the values of weights.
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
  for (const DataFile& data : file_->contents().data_files) {
    OFSDP_ASSIGN_OR_RETURN(OpenFile file, second_descriptor(data.file));
    contents.data_files.push_back({data.location, std::move(file)});
  }
  const std::string bytes = whole().SerializeAsString();
  OFSDP_RETURN_IF_ERROR(find_places(bytes, contents));
  OFSDP_ASSIGN_OR_RETURN(OpenFile file, in_memory(bytes, file_->file()));
  return OnnxFile::of_parts(std::move(file), std::move(contents));
}

}  // namespace ofsdp::importer
