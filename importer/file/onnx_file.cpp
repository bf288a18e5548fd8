#include "importer/file/onnx_file.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "importer/file/file_mapping.h"
#include "importer/file/tensor_record.h"
#include "importer/file/wire.h"
#include "kernels/base/hash.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

constexpr size_t kChunkElements = 16384;
constexpr float kMostOfAZeroPoint = 65536;  // integers have at most 16 bits

}  // namespace

namespace {

// Files that people give in place of a model, by the name's end or by bytes at an offset.
struct ForeignModel {
  std::string_view extension;
  std::string_view magic;
  size_t offset;
  const char* found;
  const char* remedy;
};
constexpr const char* kModelFirst = "give MODEL.onnx first, then this file to --data";
constexpr const char* kExport = "export the model to ONNX";
constexpr ForeignModel kForeignModels[] = {
    {".yaml", "", 0, "a YAML file", "give MODEL.onnx first, then this file to --data or --config"},
    {".yml", "", 0, "a YAML file", "give MODEL.onnx first, then this file to --data or --config"},
    {".py", "", 0, "a Python script", kExport},
    {".csv", "", 0, "a table", kModelFirst},
    {".tsv", "", 0, "a table", kModelFirst},
    {".jsonl", "", 0, "data", kModelFirst},
    {".npz", "", 0, "arrays", kModelFirst},
    {"", "\x93NUMPY", 0, "a .npy array", "give MODEL.onnx first, then its folder to --data"},
    {".safetensors", "", 0, "weights without a graph", kExport},
    {"", "GGUF", 0, "weights without a graph (GGUF)", kExport},
    {"", "PK\x03\x04", 0, "a zip archive, such as .pt or .keras", kExport},
    {"", "\x89HDF", 0, "an HDF5 file, such as Keras writes", kExport},
    {"", "\x80\x02", 0, "a pickle", kExport},
    {"", "\x80\x04", 0, "a pickle", kExport},
    {"", "TFL3", 4, "a TFLite model", kExport},
    {"", "ORTM", 4, "ONNX Runtime's own format", "give the .onnx file that it was made of"},
    {"", "\x89PNG", 0, "a PNG image", kModelFirst},
};

// Says more of bytes that are no ONNX model, if they are something known.
Status refuse_foreign(const std::string& path, std::span<const std::byte> bytes, Status other) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (const ForeignModel& one : kForeignModels) {
    const bool named = !one.extension.empty() && path.ends_with(one.extension);
    const bool begins = !one.magic.empty() && text.size() > one.offset &&
                        text.substr(one.offset).starts_with(one.magic);
    if (!named && !begins) continue;
    return input_error("{}: is no ONNX model, but {}: {}", path, one.found, one.remedy);
  }
  return other;
}

}  // namespace

Result<OnnxFile> OnnxFile::open(const std::string& path, const std::vector<std::string>& weights) {
  OnnxFile onnx;
  OFSDP_ASSIGN_OR_RETURN(onnx.file_, open_for_reading(path));
  if (onnx.file_.bytes == 0) return input_error("{}: is no ONNX model: the file is empty", path);
  OFSDP_ASSIGN_OR_RETURN(const FileMapping mapping, FileMapping::make(onnx.file_));
  // Only the values of scales and zero points show which products make no weight.
  for (std::set<std::string> plain;;) {
    auto contents = walk_onnx(path, mapping.bytes(), weights, plain);
    OFSDP_FAULT_IF(mapping.was_cut(), "{}: was cut short while in use", path);
    if (!contents.ok()) return refuse_foreign(path, mapping.bytes(), std::move(contents).status());
    onnx.contents_ = *std::move(contents);
    const std::set<std::string> more = onnx.unsettled_products();
    if (more.empty()) break;
    plain.insert(more.begin(), more.end());
  }
  OFSDP_RETURN_IF_ERROR(onnx.resolve_quantizations().with_prefix(path));
  return onnx;
}

std::string initial_key(const Initializer& initializer) {
  return format_text("{} {} {}", initializer.file, initializer.offset, initializer.name);
}

OnnxFile OnnxFile::of_model(const std::string& path, std::string model) {
  OnnxFile onnx;
  onnx.file_.path = path;
  onnx.contents_.skeleton = std::move(model);
  return onnx;
}

OnnxFile OnnxFile::of_parts(OpenFile file, OnnxContents contents) {
  OnnxFile onnx;
  onnx.file_ = std::move(file);
  onnx.contents_ = std::move(contents);
  return onnx;
}

Status OnnxFile::read(const Initializer& initializer, int64_t first_element,
                      std::span<float> dst) const {
  if (initial_ != nullptr && initial_->has(initializer)) {
    return initial_->read(initializer, first_element, dst);
  }
  const auto count = static_cast<int64_t>(dst.size());
  OFSDP_CHECK(first_element >= 0 && first_element + count <= initializer.shape.numel(),
              "{}: elements {} + {} of {}", initializer.name, first_element, count,
              initializer.shape.text());
  if (initializer.values != nullptr) return initializer.values->read(first_element, dst);
  const OpenFile& file = file_of(initializer);
  Status status;
  if (initializer.quantization != nullptr) {
    status = read_quantized(file, initializer, first_element, dst);
  } else if (initializer.encoding == Initializer::Encoding::kList) {
    status = read_list(initializer, first_element, dst);
  } else if (initializer.dtype == DType::kFloat32 && initializer.stride == 4) {
    status =
        read_exactly(file, initializer.offset + first_element * 4, std::as_writable_bytes(dst));
  } else {
    status = read_converted(file, initializer, first_element, dst);
  }
  return std::move(status).with_prefix("initializer '" + printable(initializer.name) + "'");
}

bool OnnxFile::has_raw(const Initializer& initializer) const {
  if (has_initial(initializer)) return false;
  if (initializer.values != nullptr) return initializer.values->has_raw();
  return initializer.encoding == Initializer::Encoding::kDense;
}

Status OnnxFile::read_raw(const Initializer& initializer, int64_t first_byte,
                          std::span<std::byte> dst) const {
  const auto count = static_cast<int64_t>(dst.size());
  OFSDP_CHECK(first_byte >= 0 && first_byte + count <= initializer.raw_bytes(),
              "{}: bytes {} + {} of {}", initializer.name, first_byte, count,
              initializer.raw_bytes());
  if (initializer.values != nullptr) return initializer.values->read_raw(first_byte, dst);
  return read_exactly(file_of(initializer), initializer.offset + first_byte, dst)
      .with_prefix("initializer '" + printable(initializer.name) + "'");
}

Status ValueSource::read_raw(int64_t, std::span<std::byte>) const {
  OFSDP_CHECK(false, "values that are made have no bytes in a file");
  return ok_status();
}

Status ValueSource::read_stored_integers(int64_t, std::span<int64_t>) const {
  OFSDP_CHECK(false, "values that are made are no integers of a file");
  return ok_status();
}

Status OnnxFile::read_stored_integers(const Initializer& initializer, int64_t first_element,
                                      std::span<int64_t> dst) const {
  if (initializer.values != nullptr) {
    return initializer.values->read_stored_integers(first_element, dst);
  }
  return read_integers(file_of(initializer), initializer, first_element, dst);
}

const OpenFile& OnnxFile::file_of(const Initializer& initializer) const {
  if (initializer.file == 0) return file_;
  return contents_.data_files[static_cast<size_t>(initializer.file - 1)].file;
}

const Initializer* OnnxFile::find_constant(const std::string& name) const {
  for (const auto* list : {&contents_.initializers, &contents_.constants}) {
    const auto found = std::ranges::find(*list, name, &Initializer::name);
    if (found != list->end() && found->quantization == nullptr) return &*found;
  }
  return nullptr;
}

Result<std::vector<int64_t>> OnnxFile::integers(const Initializer& constant) const {
  std::vector<int64_t> values(static_cast<size_t>(constant.shape.numel()));
  OFSDP_RETURN_IF_ERROR(read_stored_integers(constant, 0, values));
  return values;
}

Result<std::vector<float>> OnnxFile::scales(const std::string& name) const {
  const Initializer* scale = find_constant(name);
  if (scale == nullptr || !is_floating(scale->dtype)) {
    return input_error("expected a scale that is a constant, found '{}'", printable(name));
  }
  std::vector<float> values(static_cast<size_t>(scale->shape.numel()));
  OFSDP_RETURN_IF_ERROR(read(*scale, 0, values));
  const auto bad =
      std::ranges::find_if(values, [](float v) { return v == 0 || !std::isfinite(v); });
  if (bad == values.end()) return values;
  return input_error("scale '{}': expected finite numbers other than 0, found {}", printable(name),
                     *bad);
}

Result<std::vector<int64_t>> OnnxFile::zero_points(const std::string& name, int onnx_type,
                                                   size_t count) const {
  const Initializer* zero = find_constant(name);
  OFSDP_REJECT_IF(zero == nullptr, "expected a zero point that is a constant, found '{}'",
                  printable(name));
  const DType carrier = integer_carrier(onnx_type);
  const int bits = half_bytes(static_cast<uint64_t>(onnx_type)) ? 4 : 0;
  OFSDP_REJECT_IF(zero->dtype != carrier || zero->bits != bits,
                  "zero point '{}': expected {}, found {}{}", printable(name),
                  integer_name(onnx_type), dtype_name(zero->dtype),
                  zero->bits == 4 ? " of 4 bits" : "");
  OFSDP_REJECT_IF(static_cast<size_t>(zero->shape.numel()) != count,
                  "zero point '{}': expected as many as scales ({}), found {}", printable(name),
                  count, zero->shape.numel());
  return integers(*zero);
}

namespace {

// Returns a bias's scale: the product of the scales that the layer multiplies.
std::vector<float> product_of(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> product(std::max(a.size(), b.size()));
  for (size_t i = 0; i < product.size(); ++i) {
    product[i] = a[a.size() == 1 ? 0 : i] * b[b.size() == 1 ? 0 : i];
  }
  return product;
}

bool nearly_equal(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(
      a, b, [](float x, float y) { return std::abs(x - y) <= 1e-5f * std::abs(y); });
}

}  // namespace

Result<std::vector<float>> OnnxFile::factor_product(const Quantization& q,
                                                    const NamedScales& changed) const {
  std::vector<float> product{1.0f};
  for (const std::string& name : q.factors) {
    const auto found = changed.find(name);
    OFSDP_ASSIGN_OR_RETURN(const std::vector<float> scale,
                           found == changed.end() ? scales(name) : Result(found->second));
    product = product_of(product, scale);
  }
  return product;
}

Result<std::map<int, std::vector<float>>> OnnxFile::rescaled(const NamedScales& changed) const {
  std::map<int, std::vector<float>> scales;
  for (size_t i = 0; i < contents_.initializers.size(); ++i) {
    const auto& q = contents_.initializers[i].quantization;
    if (q == nullptr) continue;
    const auto is_changed = [&](const std::string& name) { return changed.contains(name); };
    if (is_changed(q->scale)) {
      scales[static_cast<int>(i)] = changed.at(q->scale);
    } else if (std::ranges::any_of(q->factors, is_changed)) {
      OFSDP_ASSIGN_OR_RETURN(scales[static_cast<int>(i)], factor_product(*q, changed));
    }
  }
  return scales;
}

namespace {

// Finds the axis along which a Mul's scales lie, and the size of blocks. Errors: kInput if they lie
// along several.
Status place_scales(const Shape& weight, const Shape& scales, Quantization& q) {
  const int lead = weight.rank() - scales.rank();
  std::vector<int> along, across;
  bool fits = lead >= 0;
  for (int i = 0; i < weight.rank() && fits; ++i) {
    const int64_t size = i < lead ? 1 : scales[i - lead];
    fits = size == weight[i] || size == 1;
    if (size != 1) along.push_back(i);
    if (size == 1 && weight[i] != 1) across.push_back(i);
  }
  if (along.size() == 1) q.axis = along[0];
  if (fits && along.size() <= 1) return ok_status();
  OFSDP_REJECT_IF(!fits || lead != 0 || across.size() != 1,
                  "expected scales along one axis, found {}", scales.text());
  q.axis = across[0];
  q.block_size = weight[across[0]];
  return ok_status();
}

}  // namespace

Result<Quantization> OnnxFile::settled_product(const Initializer& weight, Quantization q) const {
  OFSDP_ASSIGN_OR_RETURN(q.scales, scales(q.scale));
  const Shape shape = find_constant(q.scale)->shape;
  OFSDP_RETURN_IF_ERROR(place_scales(weight.shape, shape, q));
  OFSDP_ASSIGN_OR_RETURN(q.map, ScaleMap::make(weight.shape, shape, q.axis, q.block_size));
  if (q.zero_point.empty()) return q;
  const Initializer* zero = find_constant(q.zero_point);
  OFSDP_REJECT_IF(zero == nullptr || (zero->shape.numel() != 1 && zero->shape != shape),
                  "expected a zero point of the scale's shape");
  std::vector<float> numbers(static_cast<size_t>(zero->shape.numel()));
  if (is_floating(zero->dtype)) {
    OFSDP_RETURN_IF_ERROR(read(*zero, 0, numbers));
  } else {
    OFSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> whole, integers(*zero));
    numbers.assign(whole.begin(), whole.end());
  }
  numbers.resize(q.scales.size(), numbers[0]);
  const bool whole = std::ranges::all_of(
      numbers, [](float v) { return v == std::rint(v) && std::abs(v) <= kMostOfAZeroPoint; });
  OFSDP_REJECT_IF(!whole, "expected a zero point of whole numbers");
  const bool none = std::ranges::all_of(numbers, [](float v) { return v == 0; });
  if (!none) q.zero_points.assign(numbers.begin(), numbers.end());
  return q;
}

std::set<std::string> OnnxFile::unsettled_products() const {
  std::set<std::string> names;
  for (const Initializer& weight : contents_.initializers) {
    const auto& q = weight.quantization;
    if (q != nullptr && q->multiplied && !settled(weight, *q).ok()) names.insert(weight.name);
  }
  return names;
}

Result<Quantization> OnnxFile::settled(const Initializer& weight, Quantization q) const {
  if (q.multiplied) return settled_product(weight, std::move(q));
  if (!q.factors.empty()) {
    Result<std::vector<float>> product = factor_product(q, {});
    if (q.scale.empty()) {
      OFSDP_ASSIGN_OR_RETURN(q.scales, std::move(product));
    } else {
      OFSDP_ASSIGN_OR_RETURN(q.scales, scales(q.scale));
      if (!product.ok() || !nearly_equal(q.scales, *product)) q.factors.clear();
    }
  } else {
    OFSDP_ASSIGN_OR_RETURN(q.scales, scales(q.scale));
  }
  if (!q.zero_point.empty()) {
    OFSDP_ASSIGN_OR_RETURN(q.zero_points, zero_points(q.zero_point, q.onnx_type, q.scales.size()));
    const bool zero = std::ranges::all_of(q.zero_points, [](int64_t z) { return z == 0; });
    if (zero) q.zero_points.clear();
  }
  const Initializer* named = q.scale.empty() ? nullptr : find_constant(q.scale);
  const Shape shape =
      named != nullptr ? named->shape : Shape{static_cast<int64_t>(q.scales.size())};
  if (q.per_gate) {
    const bool by_gate = weight.shape.rank() == 3 && shape.rank() == 2;
    q.axis = by_gate ? 1 : 0;
    q.block_size = by_gate ? weight.shape[1] : 0;
  }
  OFSDP_ASSIGN_OR_RETURN(q.map, ScaleMap::make(weight.shape, shape, q.axis, q.block_size));
  return q;
}

Status OnnxFile::resolve_quantizations() {
  for (Initializer& weight : contents_.initializers) {
    if (weight.quantization == nullptr) continue;
    OFSDP_ASSIGN_OR_RETURN(Quantization q,
                           prefixed(format_text("initializer '{}'", printable(weight.name)),
                                    settled(weight, *weight.quantization)));
    weight.quantization = std::make_shared<const Quantization>(std::move(q));
  }
  return ok_status();
}

Status OnnxFile::read_quantized(const OpenFile& file, const Initializer& weight, int64_t first,
                                std::span<float> dst) const {
  std::vector<int64_t> integers(std::min(dst.size(), kChunkElements));
  const bool list = weight.encoding == Initializer::Encoding::kList;
  if (list) integers.resize(dst.size());  // each call reads the whole list
  while (!dst.empty()) {
    const auto part = dst.first(std::min(dst.size(), integers.size()));
    const auto whole = std::span(integers).first(part.size());
    OFSDP_RETURN_IF_ERROR(read_integers(file, weight, first, whole));
    dequantize(*weight.quantization, first, whole, part);
    first += static_cast<int64_t>(part.size());
    dst = dst.subspan(part.size());
  }
  return ok_status();
}

Status OnnxFile::read_converted(const OpenFile& file, const Initializer& initializer,
                                int64_t first_element, std::span<float> dst) const {
  const int64_t stride = initializer.stride;
  const auto element = static_cast<int64_t>(dtype_size(initializer.dtype));
  std::vector<std::byte> buffer(std::min(dst.size(), kChunkElements) * static_cast<size_t>(stride));
  while (!dst.empty()) {
    const auto part = dst.first(std::min(dst.size(), kChunkElements));
    const int64_t bytes = (static_cast<int64_t>(part.size()) - 1) * stride + element;
    OFSDP_RETURN_IF_ERROR(read_exactly(file, initializer.offset + first_element * stride,
                                       std::span(buffer).first(static_cast<size_t>(bytes))));
    decode_floats(initializer.dtype, buffer.data(), stride, part);
    first_element += static_cast<int64_t>(part.size());
    dst = dst.subspan(part.size());
  }
  return ok_status();
}

Status OnnxFile::read_list(const Initializer& initializer, int64_t first_element,
                           std::span<float> dst) const {
  std::vector<std::byte> body(static_cast<size_t>(initializer.bytes));
  OFSDP_RETURN_IF_ERROR(read_exactly(file_, initializer.offset, body));
  return decode_list(body, initializer.dtype, first_element, dst);
}

namespace {

class SkeletonHash {
 public:
  explicit SkeletonHash(const OnnxFile& file) : file_(file) {
    for (const Initializer& weight : file.initializers()) weights_.insert(weight.name);
  }

  std::string hash() {
    walk(std::as_bytes(std::span(file_.skeleton())), model_field::kGraph);
    for (const Initializer& weight : file_.initializers()) {
      add(weight.name);
      add(format_text("{} {}", onnx_number(weight.dtype), weight.shape.text()));
    }
    return format_text("{:016x}", hash_.value());
  }

 private:
  void add(std::string_view text) { hash_.add(text).add(uint64_t{0xff}); }  // 0xff ends a text

  // Hashes every field, message fields recursively. The importer has read these bytes before, so
  // they are whole; a broken rest is left out.
  void walk(std::span<const std::byte> message, uint32_t inside) {
    for (WireReader reader(message); !reader.done();) {
      const Result<WireField> field = reader.next();
      if (!field.ok()) return;
      // Training does not change the model's identity.
      if (field->number == model_field::kTrainingInfo && inside == model_field::kGraph) continue;
      if (field->number == inside && inside == model_field::kGraph) {
        walk(field->bytes, graph_field::kInitializer);
      } else if (field->number == inside && is_weight(field->bytes)) {
        continue;  // name, type and shape follow
      } else {
        add(format_text("{}", field->number));
        add(as_text(field->bytes));
      }
    }
  }

  bool is_weight(std::span<const std::byte> tensor) const {
    return weights_.contains(string_field(tensor, tensor_field::kName));
  }

  const OnnxFile& file_;
  std::set<std::string> weights_;
  Fnv1a hash_;
};

}  // namespace

std::string graph_hash(const OnnxFile& file) { return SkeletonHash(file).hash(); }

}  // namespace ofsdp::importer
