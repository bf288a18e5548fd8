#include "importer/write/model_layout.h"

#include <algorithm>
#include <map>

#include "importer/file/model_field.h"
#include "importer/file/tensor_record.h"
#include "importer/file/wire.h"

namespace ofsdp::importer {
namespace {

// A TensorProto that replaces the one at `place`: tag, length and fields, then a hole.
struct NewTensor {
  FieldPlace place;
  std::string head;
  int64_t hole = 0;
  int initializer = -1;
};

int64_t length_of(const std::string& text) { return static_cast<int64_t>(text.size()); }

// Bytes in place of [begin, end) of the input.
struct Splice {
  int64_t begin = 0;
  int64_t end = 0;
  std::string text;
  int tensor = -1;    // index in OnnxContents::algorithm_tensors
  int64_t value = 0;  // where in `text` its elements are
};

bool is_varint_scalar(const Initializer& tensor) {
  return tensor.encoding == Initializer::Encoding::kList && tensor.shape.numel() == 1 &&
         (tensor.dtype == DType::kInt64 || tensor.dtype == DType::kInt32);
}

// Returns the one value of a list, packed or not.
Result<uint64_t> only_value(const WireField& field) {
  if (field.type == WireType::kVarint) return field.value;
  WireReader reader(field.bytes);
  return reader.varint();
}

Result<Splice> new_scalar(const OnnxFile& input, const AlgorithmTensor& tensor, int index) {
  std::vector<std::byte> body(static_cast<size_t>(tensor.field.end - tensor.field.body));
  OFSDP_RETURN_IF_ERROR(read_exactly(input.file(), tensor.field.body, body));
  std::string fields;
  uint64_t value = 0;
  for (WireReader reader(body); !reader.done();) {
    OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
    if (is_data_field(field.number)) {
      OFSDP_ASSIGN_OR_RETURN(value, only_value(field));
      continue;
    }
    fields += as_text(field.whole);
  }
  const size_t bytes = dtype_size(tensor.initializer.dtype);
  std::string raw;
  for (size_t i = 0; i < bytes; ++i) raw += static_cast<char>((value >> (8 * i)) & 0xff);
  append_bytes(fields, tensor_field::kRawData, raw);
  Splice splice{tensor.field.begin, tensor.field.end,
                bytes_field(graph_field::kInitializer, fields), index, 0};
  splice.value = length_of(splice.text) - static_cast<int64_t>(bytes);
  return splice;
}

// Returns the tag and length of a message whose body grows.
Splice new_header(uint32_t number, const FieldPlace& place, int64_t growth) {
  Splice splice{place.begin, place.body, {}, -1, 0};
  append_tag(splice.text, number, WireType::kBytes);
  append_varint(splice.text, static_cast<uint64_t>(place.end - place.body + growth));
  return splice;
}

int64_t growth_of(const Splice& splice) {
  return length_of(splice.text) - (splice.end - splice.begin);
}

// Integer scalars of a training_info that the file has as varints (the count of updates, mostly)
// become raw_data, because their next values may need more bytes; the lengths of the messages
// around them are encoded anew. Returns the splices in the order of the file.
Result<std::vector<Splice>> splice_training_info(const OnnxFile& input) {
  std::vector<Splice> splices;
  std::map<int, int64_t> growths;  // of the algorithm of each training_info
  std::map<int, const AlgorithmTensor*> any;
  const auto& tensors = input.contents().algorithm_tensors;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!is_varint_scalar(tensors[i].initializer)) continue;
    OFSDP_ASSIGN_OR_RETURN(Splice splice, new_scalar(input, tensors[i], static_cast<int>(i)));
    growths[tensors[i].training_info] += growth_of(splice);
    any[tensors[i].training_info] = &tensors[i];
    splices.push_back(std::move(splice));
  }
  for (const auto& [index, growth] : growths) {
    Splice algorithm =
        new_header(training_info_field::kAlgorithm, any.at(index)->algorithm, growth);
    splices.push_back(
        new_header(model_field::kTrainingInfo, any.at(index)->info, growth + growth_of(algorithm)));
    splices.push_back(std::move(algorithm));
  }
  std::ranges::sort(splices, {}, &Splice::begin);
  return splices;
}

// Returns the entry with another value when its key is "location".
Result<std::string> relocated_entry(const WireField& entry, const std::string& location) {
  std::string key;
  for (WireReader reader(entry.bytes); !reader.done();) {
    OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
    if (field.number == entry_field::kKey) key = as_text(field.bytes);
  }
  if (key != "location") return std::string(as_text(entry.bytes));
  return bytes_field(entry_field::kKey, key) + bytes_field(entry_field::kValue, location);
}

class Layouter {
 public:
  Layouter(const OnnxFile& input, const std::vector<std::string>& locations)
      : input_(input), locations_(locations) {}

  Result<ModelLayout> lay_out() {
    int64_t growth = 0;
    std::vector<NewTensor> tensors;
    for (const TensorPlace& place : input_.contents().places) {
      if (place.data_file >= 0 && !moves(place.data_file)) continue;
      OFSDP_ASSIGN_OR_RETURN(NewTensor tensor, new_tensor(place));
      growth += length_of(tensor.head) + tensor.hole - (tensor.place.end - tensor.place.begin);
      tensors.push_back(std::move(tensor));
    }
    OFSDP_ASSIGN_OR_RETURN(const std::vector<Splice> splices, splice_training_info(input_));
    add_graph(tensors, growth, splices);
    add_copies(source_, input_.file().bytes, splices);
    layout_.bytes = target_;
    place_initializers();
    place_algorithm_tensors();
    return std::move(layout_);
  }

 private:
  bool moves(int data_file) const {
    const auto i = static_cast<size_t>(data_file);
    return locations_[i] != input_.contents().data_files[i].location;
  }

  Result<NewTensor> new_tensor(const TensorPlace& place) const {
    NewTensor tensor{place.field, "", 0, place.initializer};
    std::vector<std::byte> body(static_cast<size_t>(place.field.end - place.field.body));
    OFSDP_RETURN_IF_ERROR(read_exactly(input_.file(), place.field.body, body));
    std::string fields;
    for (WireReader reader(body); !reader.done();) {
      OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
      if (place.initializer >= 0 && is_data_field(field.number)) continue;
      if (place.data_file >= 0 && field.number == tensor_field::kExternalData) {
        OFSDP_ASSIGN_OR_RETURN(
            const std::string entry,
            relocated_entry(field, locations_[static_cast<size_t>(place.data_file)]));
        append_bytes(fields, tensor_field::kExternalData, entry);
        continue;
      }
      fields += as_text(field.whole);
    }
    if (place.initializer >= 0) {
      const Initializer& weight = input_.initializers()[static_cast<size_t>(place.initializer)];
      tensor.hole = weight.raw_bytes();
      append_tag(fields, tensor_field::kRawData, WireType::kBytes);
      append_varint(fields, static_cast<uint64_t>(tensor.hole));
    }
    append_tag(tensor.head, graph_field::kInitializer, WireType::kBytes);
    append_varint(tensor.head, static_cast<uint64_t>(length_of(fields) + tensor.hole));
    tensor.head += fields;
    return tensor;
  }

  void add(Piece piece) {
    if (piece.bytes == 0) return;
    piece.target = target_;
    target_ += piece.bytes;
    layout_.pieces.push_back(std::move(piece));
  }

  void add_copy(int64_t source, int64_t end) {
    add({.kind = Piece::Kind::kCopy, .bytes = end - source, .source = source});
  }

  void add_literal(std::string text) {
    const int64_t bytes = length_of(text);
    add({.kind = Piece::Kind::kLiteral, .bytes = bytes, .literal = std::move(text)});
  }

  // Copies [source, end) with the splices in it.
  void add_copies(int64_t source, int64_t end, const std::vector<Splice>& splices) {
    for (const Splice& splice : splices) {
      if (splice.begin < source || splice.end > end) continue;
      add_copy(source, splice.begin);
      if (splice.tensor >= 0) spliced_[splice.tensor] = target_ + splice.value;
      add_literal(splice.text);
      source = splice.end;
    }
    add_copy(source, end);
  }

  // Up to the last of the tensors that change.
  void add_graph(std::vector<NewTensor>& tensors, int64_t growth,
                 const std::vector<Splice>& splices) {
    int64_t& source = source_;
    if (!tensors.empty()) {
      const FieldPlace& graph = input_.contents().graph;
      std::string header;
      append_tag(header, model_field::kGraph, WireType::kBytes);
      append_varint(header, static_cast<uint64_t>(graph.end - graph.body + growth));
      add_copies(0, graph.begin, splices);
      add_literal(std::move(header));
      source = graph.body;
    }
    for (NewTensor& tensor : tensors) {
      add_copy(source, tensor.place.begin);
      add_literal(std::move(tensor.head));
      add({.kind = Piece::Kind::kHole, .bytes = tensor.hole, .initializer = tensor.initializer});
      source = tensor.place.end;
    }
  }

  // Initializers and pieces are both in the order of the file, so one pass over both will do.
  void place_initializers() {
    layout_.initializers = input_.initializers();
    size_t at = 0;
    for (Initializer& weight : layout_.initializers) {
      if (weight.file != 0 || weight.bytes == 0) continue;  // no elements: no place
      if (weight.encoding == Initializer::Encoding::kList) continue;
      while (at < layout_.pieces.size() && !holds(layout_.pieces[at], weight.offset)) ++at;
      OFSDP_CHECK(at < layout_.pieces.size(), "{} lies in no piece", weight.name);
      weight.offset += layout_.pieces[at].target - layout_.pieces[at].source;
    }
    for (const Piece& piece : layout_.pieces) {
      if (piece.kind != Piece::Kind::kHole) continue;
      Initializer& weight = layout_.initializers[static_cast<size_t>(piece.initializer)];
      weight.encoding = Initializer::Encoding::kDense;
      weight.values = nullptr;
      weight.offset = piece.target;
      weight.bytes = piece.bytes;
      weight.stride = static_cast<int64_t>(dtype_size(weight.dtype));
    }
  }

  void place_algorithm_tensors() {
    const auto& tensors = input_.contents().algorithm_tensors;
    for (size_t i = 0; i < tensors.size(); ++i) {
      Initializer tensor = tensors[i].initializer;
      if (const auto moved = spliced_.find(static_cast<int>(i)); moved != spliced_.end()) {
        tensor.encoding = Initializer::Encoding::kDense;
        tensor.bytes = tensor.stride = static_cast<int64_t>(dtype_size(tensor.dtype));
        tensor.offset = moved->second;
      } else if (tensor.bytes > 0) {
        const auto piece = std::ranges::find_if(
            layout_.pieces, [&](const Piece& p) { return holds(p, tensor.offset); });
        if (piece != layout_.pieces.end()) tensor.offset += piece->target - piece->source;
      }
      layout_.algorithm_tensors.push_back(std::move(tensor));
    }
  }

  static bool holds(const Piece& piece, int64_t source) {
    return piece.kind == Piece::Kind::kCopy && source >= piece.source &&
           source < piece.source + piece.bytes;
  }

  const OnnxFile& input_;
  const std::vector<std::string>& locations_;
  ModelLayout layout_;
  int64_t source_ = 0;  // what is laid out so far
  int64_t target_ = 0;
  std::map<int, int64_t> spliced_;  // algorithm tensors that are encoded anew -> where
};

}  // namespace

Result<ModelLayout> lay_out_model(const OnnxFile& input,
                                  const std::vector<std::string>& locations) {
  return Layouter(input, locations).lay_out();
}

}  // namespace ofsdp::importer
