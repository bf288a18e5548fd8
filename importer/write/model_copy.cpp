#include "importer/write/model_copy.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <vector>

#include "importer/file/tensor_record.h"
#include "importer/file/wire.h"

namespace ofsdp::importer {
namespace {

// Replaces the TensorProto at `place`: tag, length and fields, then a hole. Also replaces the tag
// and length of a message around one.
struct NewTensor {
  FieldPlace place;
  std::string head;
  int64_t hole = 0;
  int initializer = -1;
  std::vector<NumberedPlace> path = {};  // TensorPlace::path
};

int64_t length_of(const std::string& text) { return static_cast<int64_t>(text.size()); }

// Replaces bytes [begin, end) in the input.
struct Splice {
  int64_t begin = 0;
  int64_t end = 0;
  std::string text;
  int tensor = -1;    // index in OnnxContents::algorithm_tensors
  int64_t value = 0;  // where the elements begin in `text`
};

bool is_varint_scalar(const Initializer& tensor) {
  return tensor.encoding == Initializer::Encoding::kList && tensor.shape.numel() == 1 &&
         (tensor.dtype == DType::kInt64 || tensor.dtype == DType::kInt32);
}

// Returns a list's single value, packed or not.
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

// Returns tag and length for a message with a grown body.
Splice new_header(uint32_t number, const FieldPlace& place, int64_t growth) {
  Splice splice{place.begin, place.body, {}, -1, 0};
  append_tag(splice.text, number, WireType::kBytes);
  append_varint(splice.text, static_cast<uint64_t>(place.end - place.body + growth));
  return splice;
}

int64_t growth_of(const Splice& splice) {
  return length_of(splice.text) - (splice.end - splice.begin);
}

int64_t growth_of(const NewTensor& tensor) {
  return length_of(tensor.head) + tensor.hole - (tensor.place.end - tensor.place.begin);
}

// Integer scalars in a training_info that the file has as varints (mostly the update count) become
// raw_data, because their next values may need more bytes. The lengths of messages around them are
// encoded again. Returns the splices in file order.
Result<std::vector<Splice>> splice_training_info(const OnnxFile& input) {
  std::vector<Splice> splices;
  std::map<int, int64_t> growths;  // each training_info's algorithm
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

// Returns the entry with another value if the key is "location".
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
    std::vector<NewTensor> tensors;
    for (const TensorPlace& place : input_.contents().places) {
      if (place.data_file >= 0 && !moves(place.data_file)) continue;
      OFSDP_ASSIGN_OR_RETURN(NewTensor tensor, new_tensor(place));
      tensors.push_back(std::move(tensor));
    }
    add_headers(tensors);
    int64_t growth = 0;
    for (const NewTensor& tensor : tensors) growth += growth_of(tensor);
    OFSDP_ASSIGN_OR_RETURN(const std::vector<Splice> splices, splice_training_info(input_));
    add_graph(tensors, growth, splices);
    add_copies(source_, input_.file().bytes, splices);
    layout_.bytes = target_;
    place_initializers();
    place_algorithm_tensors();
    return std::move(layout_);
  }

 private:
  // Adds new lengths of the messages around tensors in nodes, from the inside out, in file order.
  static void add_headers(std::vector<NewTensor>& tensors) {
    struct Header {
      std::vector<NumberedPlace> path;  // ends with the message
      int64_t growth = 0;
    };
    std::map<std::pair<size_t, int64_t>, Header, std::greater<>> headers;  // by depth and place
    const auto grow = [&](std::vector<NumberedPlace> path, int64_t growth) {
      path.pop_back();
      if (path.empty()) return;
      const std::pair key{path.size(), path.back().place.begin};
      headers.try_emplace(key, Header{std::move(path)}).first->second.growth += growth;
    };
    for (const NewTensor& tensor : tensors) {
      if (!tensor.path.empty()) grow(tensor.path, growth_of(tensor));
    }
    for (const auto& [key, header] : headers) {
      const NumberedPlace& field = header.path.back();
      Splice made = new_header(field.number, field.place, header.growth);
      grow(header.path, header.growth + growth_of(made));
      tensors.push_back({{made.begin, made.end, made.end}, std::move(made.text)});
    }
    std::ranges::sort(tensors, {}, [](const NewTensor& tensor) { return tensor.place.begin; });
  }

  bool moves(int data_file) const {
    const auto i = static_cast<size_t>(data_file);
    return locations_[i] != input_.contents().data_files[i].location;
  }

  Result<NewTensor> new_tensor(const TensorPlace& place) const {
    NewTensor tensor{place.field, "", 0, place.initializer, place.path};
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
    const uint32_t number =
        place.path.empty() ? uint32_t{graph_field::kInitializer} : place.path.back().number;
    append_tag(tensor.head, number, WireType::kBytes);
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

  // Adds pieces up to the last tensor that changes.
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

  // Initializers and pieces are both in file order, so one pass over both is enough.
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
  int64_t source_ = 0;  // where the laid out part ends
  int64_t target_ = 0;
  std::map<int, int64_t> spliced_;  // re-encoded algorithm tensors -> position
};

}  // namespace

Result<ModelLayout> lay_out_model(const OnnxFile& input,
                                  const std::vector<std::string>& locations) {
  return Layouter(input, locations).lay_out();
}

namespace {

constexpr size_t kChunkElements = 16384;

// Returns the tag before each unpacked element: float_data or double_data.
std::byte tag_of(DType dtype) {
  return dtype == DType::kFloat32 ? std::byte{4 << 3 | 5} : std::byte{10 << 3 | 1};
}

Status write_quantized(const OpenFile& file, const Initializer& place, int64_t first,
                       std::span<const float> src) {
  std::vector<int64_t> integers(std::min(src.size(), kChunkElements));
  while (!src.empty()) {
    const auto part = src.first(std::min(src.size(), kChunkElements));
    const auto whole = std::span(integers).first(part.size());
    requantize(*place.quantization, first, part, whole);
    OFSDP_RETURN_IF_ERROR(write_integers(file, place, first, whole));
    first += static_cast<int64_t>(part.size());
    src = src.subspan(part.size());
  }
  return ok_status();
}

}  // namespace

Status write_integers(const OpenFile& file, const Initializer& place, int64_t first,
                      std::span<const int64_t> integers) {
  const int64_t per_byte = place.bits == 4 ? 2 : 1;
  OFSDP_CHECK(first % per_byte == 0, "{}: element {} begins within a byte", place.name, first);
  const int64_t size = static_cast<int64_t>(dtype_size(place.dtype));
  return write_exactly(file, place.offset + first / per_byte * size,
                       integer_bytes(place, integers));
}

Status write_values(const OpenFile& file, const Initializer& place, int64_t first_element,
                    std::span<const float> src) {
  const int64_t numel = place.shape.numel();
  const auto count = static_cast<int64_t>(src.size());
  OFSDP_CHECK(first_element >= 0 && first_element + count <= numel, "{}: elements {} + {} of {}",
              place.name, first_element, count, numel);
  if (place.quantization != nullptr) return write_quantized(file, place, first_element, src);
  const int64_t stride = place.stride;
  const int64_t tag = stride - static_cast<int64_t>(dtype_size(place.dtype));
  std::vector<std::byte> buffer(std::min(src.size(), kChunkElements) * static_cast<size_t>(stride),
                                tag_of(place.dtype));
  while (!src.empty()) {
    const auto part = src.first(std::min(src.size(), kChunkElements));
    encode_floats(place.dtype, part, stride, buffer.data() + tag);
    OFSDP_RETURN_IF_ERROR(
        write_exactly(file, place.offset - tag + first_element * stride,
                      std::span(buffer).first(part.size() * static_cast<size_t>(stride))));
    first_element += static_cast<int64_t>(part.size());
    src = src.subspan(part.size());
  }
  return ok_status();
}

namespace {

constexpr int64_t kCopyStep = int64_t{64} << 20;  // bytes between two `cancelled` checks

Result<OpenFile> open_or_make(const std::string& path) {
  OpenFile file{path,
                UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666))};
  if (file.fd.get() < 0) return fault("{}: cannot be created: {}", path, std::strerror(errno));
  return file;
}

}  // namespace

Result<ModelCopy> ModelCopy::plan(const OnnxFile& input, const std::string& name,
                                  const std::vector<int>& changing,
                                  const std::vector<std::string>& taken) {
  std::vector<std::string> locations;
  const auto& data_files = input.contents().data_files;
  auto keeps = [&](const DataFile& data) {
    const std::string& l = data.location;
    return l.find('/') == std::string::npos && !l.starts_with('.') && l != name &&
           std::ranges::find(taken, l) == taken.end();
  };
  const bool keep = std::ranges::all_of(data_files, keeps);
  for (size_t i = 0; i < data_files.size(); ++i) {
    locations.push_back(keep     ? data_files[i].location
                        : i == 0 ? name + ".data"
                                 : format_text("{}.{}.data", name, i));
  }
  std::vector<std::string> names{name};
  names.insert(names.end(), locations.begin(), locations.end());
  return make(input, names, locations, changing, true);
}

Result<ModelCopy> ModelCopy::make(const OnnxFile& input, const std::vector<std::string>& names,
                                  const std::vector<std::string>& locations,
                                  const std::vector<int>& changing, bool creates) {
  ModelCopy copy;
  copy.input_ = &input;
  copy.creates_ = creates;
  copy.changing_ = changing;
  std::ranges::sort(copy.changing_);
  OFSDP_ASSIGN_OR_RETURN(copy.layout_, lay_out_model(input, locations));
  copy.files_.push_back({names[0], copy.layout_.bytes});
  for (size_t i = 1; i < names.size(); ++i) {
    copy.files_.push_back({names[i], input.contents().data_files[i - 1].file.bytes});
  }
  return copy;
}

bool ModelCopy::is_plain(int index) const {
  const Initializer& weight = initializer(index);
  return weight.encoding == Initializer::Encoding::kDense && weight.dtype == DType::kFloat32;
}

void ModelCopy::rescale(int initializer, std::vector<float> scales) {
  auto& place = layout_.initializers[static_cast<size_t>(initializer)];
  Quantization changed = *place.quantization;
  changed.scales = std::move(scales);
  place.quantization = std::make_shared<const Quantization>(std::move(changed));
}

Status ModelCopy::write(const std::string& folder, int initializer, int64_t first_element,
                        std::span<const float> src) const {
  return write(folder, this->initializer(initializer), first_element, src);
}

Status ModelCopy::write(const std::string& folder, const Initializer& place, int64_t first_element,
                        std::span<const float> src) const {
  if (src.empty()) return ok_status();
  OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open(folder, static_cast<size_t>(place.file)));
  return write_values(file, place, first_element, src);
}

Status ModelCopy::write_rest(const std::string& folder, const std::atomic<bool>& cancelled) const {
  OFSDP_ASSIGN_OR_RETURN(const OpenFile model, open(folder, 0));
  const auto skip = changing_ranges(input_->initializers(), 0);
  for (const Piece& piece : layout_.pieces) {
    if (piece.kind == Piece::Kind::kCopy) {
      OFSDP_RETURN_IF_ERROR(copy_around(input_->file(), piece.source, piece.source + piece.bytes,
                                        model, piece.target, skip, cancelled));
    } else if (piece.kind == Piece::Kind::kLiteral) {
      OFSDP_RETURN_IF_ERROR(
          write_exactly(model, piece.target, std::as_bytes(std::span(piece.literal))));
    } else if (!changes(piece.initializer)) {
      OFSDP_RETURN_IF_ERROR(fill_hole(piece.initializer, model));
    }
  }
  for (size_t i = 1; i < files_.size(); ++i) {
    const OpenFile& source = input_->contents().data_files[i - 1].file;
    OFSDP_ASSIGN_OR_RETURN(const OpenFile data, open(folder, i));
    OFSDP_RETURN_IF_ERROR(copy_around(source, 0, source.bytes, data, 0,
                                      changing_ranges(input_->initializers(), static_cast<int>(i)),
                                      cancelled));
  }
  return ok_status();
}

Status ModelCopy::sync(const std::string& folder) const {
  for (size_t i = 0; i < files_.size(); ++i) {
    OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open(folder, i));
    OFSDP_RETURN_IF_ERROR(sync_file(file));
  }
  return ok_status();
}

Result<OpenFile> ModelCopy::open(const std::string& folder, size_t file) const {
  const std::string path = join_path(folder, files_[file].name);
  return creates_ ? open_or_make(path) : open_for_writing(path);
}

std::vector<ModelCopy::Range> ModelCopy::changing_ranges(const std::vector<Initializer>& list,
                                                         int file) const {
  std::vector<Range> ranges;
  for (const int index : changing_) {
    const Initializer& w = list[static_cast<size_t>(index)];
    if (w.file != file || w.encoding == Initializer::Encoding::kList) continue;
    const int64_t tag = w.stride - static_cast<int64_t>(dtype_size(w.dtype));
    const int64_t bytes = w.bits == 4 ? w.raw_bytes() : w.shape.numel() * w.stride;
    ranges.push_back({w.offset - tag, w.offset - tag + bytes});
  }
  std::ranges::sort(ranges, {}, &Range::begin);
  return ranges;
}

Status ModelCopy::copy_around(const OpenFile& src, int64_t begin, int64_t end, const OpenFile& dst,
                              int64_t target, const std::vector<Range>& skip,
                              const std::atomic<bool>& cancelled) const {
  const int64_t shift = target - begin;
  auto copy = [&](int64_t from, int64_t to) -> Status {
    for (; from < to; from += kCopyStep) {
      if (cancelled) return fault("{}: not written: the run ends", dst.path);
      OFSDP_RETURN_IF_ERROR(
          copy_bytes(src, from, dst, from + shift, std::min(kCopyStep, to - from)));
    }
    return ok_status();
  };
  for (const Range& range : skip) {
    if (range.end <= begin || range.begin >= end) continue;
    OFSDP_RETURN_IF_ERROR(copy(begin, range.begin));
    begin = std::max(begin, range.end);
  }
  return copy(begin, end);
}

Status ModelCopy::fill_hole(int index, const OpenFile& file) const {
  const Initializer& from = input_->initializers()[static_cast<size_t>(index)];
  const Initializer& to = initializer(index);
  if (input_->has_raw(from)) return copy_raw(from, to, file);
  const auto count = static_cast<size_t>(from.shape.numel());
  if (from.quantization != nullptr) {
    std::vector<int64_t> integers(count);
    OFSDP_RETURN_IF_ERROR(input_->read_stored_integers(from, 0, integers));
    return write_integers(file, to, 0, integers);
  }
  std::vector<float> values(count);
  OFSDP_RETURN_IF_ERROR(input_->read(from, 0, values));
  return write_values(file, to, 0, values);
}

Status ModelCopy::copy_raw(const Initializer& from, const Initializer& to,
                           const OpenFile& file) const {
  const int64_t all = from.raw_bytes();
  std::vector<std::byte> bytes(static_cast<size_t>(std::min(all, kCopyStep)));
  for (int64_t at = 0; at < all; at += kCopyStep) {
    const auto part = std::span(bytes).first(static_cast<size_t>(std::min(kCopyStep, all - at)));
    OFSDP_RETURN_IF_ERROR(input_->read_raw(from, at, part));
    OFSDP_RETURN_IF_ERROR(write_exactly(file, to.offset + at, part));
  }
  return ok_status();
}

bool ModelCopy::changes(int initializer) const {
  return std::ranges::binary_search(changing_, initializer);
}

}  // namespace ofsdp::importer
