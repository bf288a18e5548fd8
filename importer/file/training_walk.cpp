#include "importer/file/training_walk.h"

#include "importer/file/onnx_walk.h"
#include "importer/file/tensor_data.h"
#include "importer/file/tensor_record.h"

namespace ofsdp::importer {
namespace {

enum : uint32_t { kTrainingInfo = 20, kAlgorithm = 2, kGraphInitializer = 5, kGraphSparse = 15 };

FieldPlace place_of(const WireField& field) { return {field.begin, field.body, field.end}; }

class TrainingWalker {
 public:
  TrainingWalker(int index, std::span<const std::byte> file, std::vector<AlgorithmTensor>& tensors)
      : index_(index), file_(file), tensors_(tensors) {}

  Result<std::string> walk(const WireField& info) {
    info_ = place_of(info);
    std::string body;
    for (WireReader reader(info.bytes, info.body); !reader.done();) {
      OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
      if (field.number == kAlgorithm && field.type == WireType::kBytes) {
        OFSDP_ASSIGN_OR_RETURN(const std::string graph, walk_algorithm(field));
        append_bytes(body, kAlgorithm, graph);
      } else {
        body += raw(field);
      }
    }
    std::string text;
    append_bytes(text, kTrainingInfo, body);
    return text;
  }

 private:
  std::string_view raw(const WireField& field) const {
    return as_text(file_.subspan(static_cast<size_t>(field.begin),
                                 static_cast<size_t>(field.end - field.begin)));
  }

  Result<std::string> walk_algorithm(const WireField& graph) {
    algorithm_ = place_of(graph);
    std::string body;
    for (WireReader reader(graph.bytes, graph.body); !reader.done();) {
      OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
      if (field.number == kGraphSparse) {
        return input_error("algorithm: a sparse initializer: expected a dense one");
      }
      if (field.number != kGraphInitializer || field.type != WireType::kBytes) {
        body += raw(field);
        continue;
      }
      OFSDP_ASSIGN_OR_RETURN(const std::string tensor, walk_tensor(field));
      append_bytes(body, kGraphInitializer, tensor);
    }
    return body;
  }

  Result<std::string> walk_tensor(const WireField& field) {
    OFSDP_ASSIGN_OR_RETURN(const TensorRecord tensor, parse_tensor(field.bytes, field.body));
    if (tensor.external) {
      return input_error("{} of an algorithm: expected its data in the file, found external data",
                         tensor.label());
    }
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
      if (!is_data_field(part.number)) body += raw(part);
    }
    return body;
  }

  int index_;
  std::span<const std::byte> file_;
  std::vector<AlgorithmTensor>& tensors_;
  FieldPlace info_, algorithm_;
};

}  // namespace

Result<std::string> walk_training_info(const WireField& info, int index,
                                       std::span<const std::byte> file,
                                       std::vector<AlgorithmTensor>& tensors) {
  auto text = TrainingWalker(index, file, tensors).walk(info);
  if (text.ok()) return text;
  return std::move(text).status().with_prefix(format_text("training_info[{}]", index));
}

}  // namespace ofsdp::importer
