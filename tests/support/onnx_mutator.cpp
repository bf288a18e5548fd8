#include "tests/support/onnx_mutator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace ofsdp::testing {
namespace {

// Field numbers in onnx.proto.
enum : uint32_t { kGraphNode = 1 };
enum : uint32_t {
  kNodeInput = 1,
  kNodeOutput = 2,
  kNodeOp = 4,
  kNodeAttribute = 5,
  kNodeDomain = 7
};
enum : uint32_t { kTensorType = 2, kTensorRaw = 9 };

constexpr std::array<int64_t, 19> kNumbers = {0,
                                              1,
                                              -1,
                                              2,
                                              -2,
                                              3,
                                              7,
                                              64,
                                              100,
                                              -100,
                                              1 << 20,
                                              1LL << 31,
                                              -(1LL << 31),
                                              (1LL << 31) - 1,
                                              1LL << 40,
                                              1LL << 58,
                                              1LL << 62,
                                              INT64_MAX,
                                              INT64_MIN};

constexpr std::array<float, 8> kFloats = {0.f, 1.f, -1.f, 1e-30f, 1e30f, HUGE_VALF, NAN, 0.5f};

}  // namespace

OnnxMutator::Kind OnnxMutator::kind_inside(Kind outer, uint32_t number) {
  struct Row {
    Kind outer;
    uint32_t number;
    Kind inner;
  };
  constexpr Row kRows[] = {
      {Kind::kModel, 7, Kind::kGraph},      {Kind::kModel, 8, Kind::kOpset},
      {Kind::kModel, 25, Kind::kFunction},  {Kind::kFunction, 7, Kind::kNode},
      {Kind::kGraph, 1, Kind::kNode},       {Kind::kGraph, 5, Kind::kTensor},
      {Kind::kGraph, 11, Kind::kInfo},      {Kind::kGraph, 12, Kind::kInfo},
      {Kind::kGraph, 13, Kind::kInfo},      {Kind::kNode, 5, Kind::kAttribute},
      {Kind::kAttribute, 5, Kind::kTensor}, {Kind::kAttribute, 6, Kind::kGraph},
      {Kind::kInfo, 2, Kind::kType},        {Kind::kType, 1, Kind::kTensorType},
      {Kind::kTensorType, 2, Kind::kShape}, {Kind::kShape, 1, Kind::kDim}};
  for (const Row& row : kRows) {
    if (row.outer == outer && row.number == number) return row.inner;
  }
  return Kind::kBytes;
}

bool OnnxMutator::parse(std::string_view bytes, Kind kind, Fields& fields) {
  const auto span = std::as_bytes(std::span(bytes));
  for (importer::WireReader reader(span); !reader.done();) {
    const auto read = reader.next();
    if (!read.ok()) return false;
    Field field{read->number, read->type, read->value, {}, Kind::kBytes, {}};
    field.bytes = importer::as_text(read->bytes);
    if (field.type == importer::WireType::kBytes) {
      field.kind = kind_inside(kind, field.number);
      if (field.kind != Kind::kBytes && !parse(field.bytes, field.kind, field.inside)) return false;
    }
    fields.push_back(std::move(field));
  }
  return true;
}

std::string OnnxMutator::encoded(const Fields& fields) {
  std::string out;
  for (const Field& field : fields) {
    if (field.type == importer::WireType::kVarint) {
      importer::append_int(out, field.number, static_cast<int64_t>(field.value));
    } else if (field.type == importer::WireType::kBytes) {
      importer::append_bytes(out, field.number,
                             field.kind == Kind::kBytes ? field.bytes : encoded(field.inside));
    } else {
      importer::append_tag(out, field.number, field.type);
      out += field.bytes;
    }
  }
  return out;
}

std::string OnnxMutator::mutated(const std::string& model, std::mt19937& random) {
  Fields fields;
  if (!parse(model, Kind::kModel, fields)) return model;
  random_ = &random;
  const size_t changes = std::max<size_t>(below(6), 3) - 2;  // mostly one, three at most
  for (size_t i = 0; i < changes; ++i) {
    numbers_.clear();
    tensors_.clear();
    graphs_.clear();
    names_.clear();
    collect(fields);
    change_once();
  }
  return encoded(fields);
}

void OnnxMutator::collect(Fields& fields) {
  for (Field& field : fields) {
    const bool number = field.type != importer::WireType::kBytes;
    if (number) numbers_.push_back(&field);
    if (field.kind == Kind::kTensor) tensors_.push_back(&field);
    if (field.kind == Kind::kGraph) graphs_.push_back(&field.inside);
    if (field.kind == Kind::kNode) {
      for (const Field& part : field.inside) {
        if (part.number == kNodeInput || part.number == kNodeOutput) names_.push_back(part.bytes);
      }
    }
    collect(field.inside);
  }
}

uint64_t OnnxMutator::number() { return static_cast<uint64_t>(kNumbers[below(kNumbers.size())]); }

void OnnxMutator::change_once() {
  const size_t what = below(8);
  if (what < 3) return change_number();
  if (what == 3 && !tensors_.empty()) return change_values(*tensors_[below(tensors_.size())]);
  change_node();
}

void OnnxMutator::change_number() {
  if (numbers_.empty()) return;
  Field& field = *numbers_[below(numbers_.size())];
  if (field.type == importer::WireType::kVarint) {
    field.value = below(2) == 0 ? number() : below(30);
  } else if (field.bytes.size() == sizeof(float)) {
    std::memcpy(field.bytes.data(), &kFloats[below(kFloats.size())], sizeof(float));
  }
}

// Another number in 8-byte elements, otherwise another float.
void OnnxMutator::change_values(Field& tensor) {
  Field* raw = any(tensor.inside, kTensorRaw);
  const Field* type = any(tensor.inside, kTensorType);
  if (raw == nullptr || type == nullptr || raw->bytes.size() < sizeof(int64_t)) return;
  if (type->value == 7) {
    const uint64_t value = number();
    std::memcpy(&raw->bytes[8 * below(raw->bytes.size() / 8)], &value, sizeof(value));
  } else {
    const float value = kFloats[below(kFloats.size())];
    std::memcpy(&raw->bytes[4 * below(raw->bytes.size() / 4)], &value, sizeof(value));
  }
}

OnnxMutator::Field* OnnxMutator::any(Fields& fields, uint32_t number) {
  std::vector<Field*> found;
  for (Field& field : fields) {
    if (field.number == number) found.push_back(&field);
  }
  return found.empty() ? nullptr : found[below(found.size())];
}

void OnnxMutator::change_node() {
  if (graphs_.empty()) return;
  Fields& graph = *graphs_[below(graphs_.size())];
  Field* node = any(graph, kGraphNode);
  if (node == nullptr) return;
  switch (below(7)) {
    case 0:
      if (Field* op = any(node->inside, kNodeOp); op != nullptr)
        op->bytes = operators_[below(operators_.size())];
      return;
    case 1:
      if (Field* one = any(node->inside, kNodeAttribute); one != nullptr)
        node->inside.erase(node->inside.begin() + (one - node->inside.data()));
      return;
    case 2: {
      Field copy = *node;
      graph.push_back(std::move(copy));
      return;
    }
    case 3: {
      Field* other = any(graph, kGraphNode);
      std::swap(*node, *other);
      return;
    }
    case 4: {
      constexpr const char* kDomains[] = {"", "ai.onnx", "com.microsoft", "ofsdp", "x"};
      if (Field* domain = any(node->inside, kNodeDomain); domain != nullptr) {
        domain->bytes = kDomains[below(std::size(kDomains))];
      } else {
        node->inside.push_back({kNodeDomain,
                                importer::WireType::kBytes,
                                0,
                                kDomains[below(std::size(kDomains))],
                                Kind::kBytes,
                                {}});
      }
      return;
    }
    default:
      change_operand(node->inside);
  }
}

void OnnxMutator::change_operand(Fields& node) {
  const uint32_t side = below(4) == 0 ? kNodeOutput : kNodeInput;
  Field* operand = any(node, side);
  if (operand == nullptr) return;
  switch (below(4)) {
    case 0:
      node.erase(node.begin() + (operand - node.data()));
      return;
    case 1:
      std::swap(operand->bytes, any(node, side)->bytes);
      return;
    case 2: {
      Field copy = *operand;
      copy.bytes = names_[below(names_.size())];
      node.insert(node.begin() + (operand - node.data()), std::move(copy));
      return;
    }
    default:
      operand->bytes = below(8) == 0 ? "" : names_[below(names_.size())];
  }
}

}  // namespace ofsdp::testing
