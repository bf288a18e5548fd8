#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "kernels/core/tensor.h"
#include "runtime/data/dataset.h"

namespace ofsdp::runtime {
namespace {

using Function = size_t (*)(const std::byte*, size_t, std::byte*);

template <typename T>
T load(const std::byte* src, size_t i) {
  T value;
  std::memcpy(&value, src + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void store(std::byte* dst, size_t i, T value) {
  std::memcpy(dst + i * sizeof(T), &value, sizeof(T));
}

template <typename From, typename To>
size_t convert_integers(const std::byte* src, size_t count, std::byte* dst) {
  for (size_t i = 0; i < count; ++i) {
    const From value = load<From>(src, i);
    if (!std::in_range<To>(value)) return i;
    store(dst, i, static_cast<To>(value));
  }
  return count;
}

size_t halves_to_floats(const std::byte* src, size_t count, std::byte* dst) {
  for (size_t i = 0; i < count; ++i) store(dst, i, half_to_float(load<uint16_t>(src, i)));
  return count;
}

// A finite number that float32 would make infinite.
bool is_above_floats(double value) {
  constexpr double kLeast = 0x1.ffffffp127;  // rounds up
  return std::abs(value) >= kLeast && !std::isinf(value);
}

template <DType kTo>
void store_float(std::byte* dst, size_t i, float value) {
  if constexpr (kTo == DType::kFloat64) {
    store(dst, i, static_cast<double>(value));
  } else {
    store(dst, i, kTo == DType::kFloat16 ? float_to_half(value) : float_to_bfloat16(value));
  }
}

// From float32. A finite number must stay finite.
template <DType kTo>
size_t floats_to(const std::byte* src, size_t count, std::byte* dst) {
  constexpr float kLeast = kTo == DType::kFloat16 ? 65520.0f : 0x1.ffp127f;  // rounds up
  for (size_t i = 0; i < count; ++i) {
    const auto value = load<float>(src, i);
    const bool above = std::abs(value) >= kLeast && !std::isinf(value);
    if (kTo != DType::kFloat64 && above) return i;
    store_float<kTo>(dst, i, value);
  }
  return count;
}

// Returns the function from float32 to a type that only graphs with casts feed; else null.
Function float_function(DType to) {
  if (to == DType::kFloat16) return &floats_to<DType::kFloat16>;
  if (to == DType::kBFloat16) return &floats_to<DType::kBFloat16>;
  return to == DType::kFloat64 ? &floats_to<DType::kFloat64> : nullptr;
}

// One flag for all elements: a loop that may end early has no vector form.
size_t doubles_to_floats(const std::byte* src, size_t count, std::byte* dst) {
  bool above = false;
  for (size_t i = 0; i < count; ++i) {
    const auto value = load<double>(src, i);
    above |= is_above_floats(value);
    store(dst, i, static_cast<float>(value));
  }
  size_t good = above ? 0 : count;
  while (good < count && !is_above_floats(load<double>(src, good))) ++good;
  return good;
}

template <typename From, typename To>
size_t whole_to_floats(const std::byte* src, size_t count, std::byte* dst) {
  for (size_t i = 0; i < count; ++i) store(dst, i, static_cast<To>(load<From>(src, i)));
  return count;
}

// `From`: uint16_t for float16.
template <typename From>
double load_real(const std::byte* src, size_t i) {
  if constexpr (std::is_same_v<From, uint16_t>) {
    return static_cast<double>(half_to_float(load<uint16_t>(src, i)));
  } else {
    return static_cast<double>(load<From>(src, i));
  }
}

// Labels saved as 1.0, and whole numbers of a table that has missing ones.
template <typename From, typename To>
size_t floats_to_integers(const std::byte* src, size_t count, std::byte* dst) {
  constexpr double kExact = 0x1p53;  // a whole number of this size may have been rounded
  for (size_t i = 0; i < count; ++i) {
    const double value = load_real<From>(src, i);
    if (!(std::abs(value) < kExact) || value != std::floor(value)) return i;
    const auto whole = static_cast<int64_t>(value);
    if (!std::in_range<To>(whole)) return i;
    store(dst, i, static_cast<To>(whole));
  }
  return count;
}

template <typename From>
size_t floats_to_bools(const std::byte* src, size_t count, std::byte* dst) {
  for (size_t i = 0; i < count; ++i) {
    const double value = load_real<From>(src, i);
    if (value != 0 && value != 1) return i;
    store(dst, i, static_cast<uint8_t>(value));
  }
  return count;
}

template <typename From>
size_t whole_to_bools(const std::byte* src, size_t count, std::byte* dst) {
  for (size_t i = 0; i < count; ++i) {
    const auto value = load<From>(src, i);
    if (value != 0 && value != 1) return i;
    store(dst, i, static_cast<uint8_t>(value));
  }
  return count;
}

// Calls `visit` with a zero of the C++ type for an integer dtype.
template <typename Visit>
auto with_integer(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::kInt8:
      return visit(int8_t{});
    case DType::kInt16:
      return visit(int16_t{});
    case DType::kInt32:
      return visit(int32_t{});
    case DType::kInt64:
      return visit(int64_t{});
    case DType::kUInt8:
      return visit(uint8_t{});
    case DType::kUInt16:
      return visit(uint16_t{});
    case DType::kUInt32:
      return visit(uint32_t{});
    case DType::kUInt64:
      return visit(uint64_t{});
    default:
      OFSDP_CHECK(false, "{} is no integer", dtype_name(dtype));
  }
}

bool is_ieee(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kFloat32 || dtype == DType::kFloat64;
}

Function integer_function(DType from, DType to) {
  return with_integer(from, [to](auto source) {
    return with_integer(to, [](auto target) -> Function {
      return &convert_integers<decltype(source), decltype(target)>;
    });
  });
}

Function whole_function(DType from, DType to) {
  if (to == DType::kBool) {
    if (from == DType::kFloat16) return &floats_to_bools<uint16_t>;
    return from == DType::kFloat32 ? &floats_to_bools<float> : &floats_to_bools<double>;
  }
  return with_integer(to, [from](auto target) -> Function {
    using To = decltype(target);
    if (from == DType::kFloat16) return &floats_to_integers<uint16_t, To>;
    return from == DType::kFloat32 ? &floats_to_integers<float, To>
                                   : &floats_to_integers<double, To>;
  });
}

// Integers of a table.
Function table_function(DType from, DType to) {
  return with_integer(from, [to](auto source) -> Function {
    using From = decltype(source);
    if (to == DType::kBool) return &whole_to_bools<From>;
    return to == DType::kFloat32 ? &whole_to_floats<From, float> : &whole_to_floats<From, double>;
  });
}

constexpr size_t kPixelValues = 256;

// volatile: each operation must round to float32 and not be fused, to equal torchvision's bits.
float normalized(float x, const Normalization& by, size_t channel) {
  const float mean = by.means.empty() ? by.mean : by.means[channel];
  const float std = by.stds.empty() ? by.std : by.stds[channel];
  volatile float value = x * by.scale;
  value = value - mean;
  return value / std;
}

std::vector<float> normalization_table(const Normalization& by) {
  std::vector<float> table;
  for (size_t channel = 0; channel < by.channels(); ++channel) {
    for (size_t i = 0; i < kPixelValues; ++i) {
      table.push_back(normalized(static_cast<float>(i), by, channel));
    }
  }
  return table;
}

}  // namespace

std::optional<Converter> Converter::between(DType from, DType to,
                                            const std::optional<Normalization>& normalization,
                                            bool of_text, bool classes, int64_t channel_elements) {
  Converter converter;
  converter.channel_elements_ = static_cast<size_t>(channel_elements);
  converter.element_bytes_ = dtype_size(from);
  const bool pixels = from == DType::kUInt8 && to == DType::kFloat32;
  const bool numbers = is_ieee(from) || (of_text && is_integer(from));
  const bool whole = is_integer(to) || (of_text && to == DType::kBool);
  if (normalization && !pixels && (!numbers || to != DType::kFloat32)) return std::nullopt;
  if (!pixels) converter.normalization_ = normalization;
  if (from == to) return converter;
  if (pixels) {
    converter.table_ = normalization_table(normalization.value_or(Normalization{}));
  } else if (is_integer(from) && is_integer(to)) {
    converter.function_ = integer_function(from, to);
  } else if ((classes || of_text) && is_ieee(from) && whole) {
    converter.function_ = whole_function(from, to);
  } else if (from == DType::kFloat16 && to == DType::kFloat32) {
    converter.function_ = &halves_to_floats;
  } else if (from == DType::kFloat64 && to == DType::kFloat32) {
    converter.function_ = &doubles_to_floats;
  } else if (of_text && is_integer(from) &&
             (to == DType::kFloat32 || to == DType::kFloat64 || to == DType::kBool)) {
    converter.function_ = table_function(from, to);
  } else if (const Function last = float_function(to); last != nullptr && from != to) {
    std::optional<Converter> floats = between(from, DType::kFloat32, {}, of_text);
    if (!floats || from == DType::kUInt8) return std::nullopt;
    converter.function_ = floats->function_;
    converter.from_floats_ = last;
    converter.last_bytes_ = dtype_size(to);
  } else {
    return std::nullopt;
  }
  return converter;
}

void Converter::name_classes(std::span<const int64_t> labels, DType to) {
  OFSDP_CHECK(to == DType::kInt64 || to == DType::kInt32, "labels of {}", dtype_name(to));
  for (size_t i = 0; i < labels.size(); ++i) {
    classes_.push_back({labels[i], static_cast<int64_t>(i)});
  }
  std::ranges::sort(classes_);
  wide_classes_ = to == DType::kInt64;
}

template <typename Label>
size_t Converter::number_classes(std::byte* labels, size_t count) const {
  for (size_t i = 0; i < count; ++i) {
    const int64_t label = load<Label>(labels, i);
    const auto found =
        std::ranges::lower_bound(classes_, label, {}, [](const auto& one) { return one.first; });
    const bool named = found != classes_.end() && found->first == label;
    if (!named && label >= 0) return i;
    if (named) store(labels, i, static_cast<Label>(found->second));
  }
  return count;
}

size_t Converter::run(const std::byte* src, size_t count, std::byte* dst, size_t first) const {
  if (!table_.empty()) return look_up(src, count, dst, first);
  if (from_floats_ != nullptr) return run_through_floats(src, count, dst);
  size_t good = count;
  if (function_ != nullptr) {
    good = function_(src, count, dst);
  } else {
    std::memcpy(dst, src, count * element_bytes_);
  }
  if (normalization_) normalize(dst, good, first);
  if (classes_.empty()) return good;
  return wide_classes_ ? number_classes<int64_t>(dst, good) : number_classes<int32_t>(dst, good);
}

size_t Converter::run_through_floats(const std::byte* src, size_t count, std::byte* dst) const {
  if (function_ == nullptr) return from_floats_(src, count, dst);
  std::array<std::byte, 256 * sizeof(float)> floats;
  for (size_t done = 0; done < count;) {
    const size_t block = std::min<size_t>(256, count - done);
    const size_t made = function_(src + done * element_bytes_, block, floats.data());
    const size_t good = from_floats_(floats.data(), made, dst + done * last_bytes_);
    done += good;
    if (good < block) return done;
  }
  return count;
}

void Converter::normalize(std::byte* floats, size_t count, size_t first) const {
  const size_t channels = normalization_->channels();
  for (size_t i = 0; i < count; ++i) {
    const size_t channel = (first + i) / channel_elements_ % channels;
    store(floats, i, normalized(load<float>(floats, i), *normalization_, channel));
  }
}

size_t Converter::look_up(const std::byte* src, size_t count, std::byte* dst, size_t first) const {
  const size_t channels = table_.size() / kPixelValues;
  for (size_t i = 0; i < count;) {
    const size_t at = first + i, left = channel_elements_ - at % channel_elements_;
    const float* values = table_.data() + at / channel_elements_ % channels * kPixelValues;
    const size_t end = channels == 1 ? count : std::min(count, i + left);
    for (; i < end; ++i) store(dst, i, values[static_cast<size_t>(src[i])]);
  }
  return count;
}

void swap_bytes(std::byte* data, size_t count, size_t element_bytes) {
  for (size_t i = 0; i < count; ++i, data += element_bytes)
    std::reverse(data, data + element_bytes);
}

std::string element_text(DType dtype, const std::byte* element) {
  if (dtype == DType::kFloat16) return format_text("{}", half_to_float(load<uint16_t>(element, 0)));
  if (dtype == DType::kFloat32) return format_text("{}", load<float>(element, 0));
  if (dtype == DType::kFloat64) return format_text("{}", load<double>(element, 0));
  return with_integer(
      dtype, [element](auto zero) { return std::to_string(load<decltype(zero)>(element, 0)); });
}

std::string range_text(DType dtype) {
  if (dtype == DType::kBool) return "0..1";
  if (dtype == DType::kFloat32) {
    constexpr float kMost = std::numeric_limits<float>::max();
    return format_text("{}..{}", -kMost, kMost);
  }
  return with_integer(dtype, [](auto zero) {
    using Limits = std::numeric_limits<decltype(zero)>;
    return std::to_string(Limits::min()) + ".." + std::to_string(Limits::max());
  });
}

}  // namespace ofsdp::runtime
