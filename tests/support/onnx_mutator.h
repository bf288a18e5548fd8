// OnnxMutator: changes a serialized ONNX model in a few places as a careless or hostile writer
// could: numbers, types, names, operators, operands, the order of nodes. The bytes stay a
// well-formed message, so the code after the parser is reached. Works on the wire format: it knows
// which fields are messages, and nothing else about ONNX.
//
// Deterministic: the same random source makes the same changes on every machine. Ownership: values.
// Threads: one each. Errors: none; bytes that are no message come back as they are.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "importer/file/wire.h"
#include "tests/support/namespaces.h"

namespace ofsdp::testing {

class OnnxMutator {
 public:
  // `operators`: names that a node may get.
  explicit OnnxMutator(std::vector<std::string> operators) : operators_(std::move(operators)) {}

  std::string mutated(const std::string& model, std::mt19937& random);

 private:
  enum class Kind {
    kBytes,
    kModel,
    kGraph,
    kNode,
    kAttribute,
    kTensor,
    kInfo,
    kType,
    kTensorType,
    kShape,
    kDim,
    kOpset,
    kFunction
  };

  struct Field {
    uint32_t number = 0;
    importer::WireType type = importer::WireType::kVarint;
    uint64_t value = 0;  // for a number
    std::string bytes;   // for data that is no message
    Kind kind = Kind::kBytes;
    std::vector<Field> inside;  // for a message
  };
  using Fields = std::vector<Field>;

  static Kind kind_inside(Kind outer, uint32_t number);
  static bool parse(std::string_view bytes, Kind kind, Fields& fields);
  static std::string encoded(const Fields& fields);

  void collect(Fields& fields);
  void change_once();
  void change_number();
  void change_node();
  void change_operand(Fields& node);
  void change_values(Field& tensor);
  Field* any(Fields& fields, uint32_t number);
  uint64_t number();
  size_t below(size_t count) { return count == 0 ? 0 : (*random_)() % count; }

  std::vector<std::string> operators_;
  std::mt19937* random_ = nullptr;
  // Parts of the changing model; found again before each change.
  std::vector<Field*> numbers_, tensors_;
  std::vector<Fields*> graphs_;
  std::vector<std::string> names_;  // names of values
};

}  // namespace ofsdp::testing
