#include "tests/support/op_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/support/namespaces.h"

namespace ofsdp::testing {
namespace {

constexpr size_t kGuard = 256;
constexpr auto kGuardByte = std::byte{0xA5};

void fill_default(const TensorDesc& desc, std::vector<double>& values) {
  if (is_floating(desc.dtype)) return;
  const bool is_unsigned = desc.dtype >= DType::kUInt8 && desc.dtype <= DType::kUInt64;
  for (double& v : values) {
    if (desc.dtype == DType::kBool) {
      v = v > 0 ? 1 : 0;
    } else {
      v = std::clamp(std::round(2 * v), -3.0, 3.0);
      if (is_unsigned) v = std::abs(v);
    }
  }
}

// Each logical element's position, in elements, in row-major order.
std::vector<size_t> positions(const TensorDesc& desc) {
  std::vector<size_t> at(static_cast<size_t>(desc.numel()));
  const Shape& s = desc.shape;
  const int64_t channels = s.rank() > 1 ? s[1] : 1;
  const int64_t inner = s.rank() > 1 ? s.numel(2, s.rank()) : 1;
  for (size_t i = 0; i < at.size(); ++i) {
    const auto flat = static_cast<int64_t>(i);
    const int64_t n = flat / (channels * inner), c = flat / inner % channels, k = flat % inner;
    const bool last = desc.layout == Layout::kChannelsLast;
    const int64_t plain =
        desc.pitch == 0 ? flat : flat / desc.row() * desc.pitch + flat % desc.row();
    at[i] = static_cast<size_t>(last ? (n * inner + k) * channels + c : plain);
  }
  return at;
}

}  // namespace

std::vector<float> normal_floats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> values(count);
  for (float& value : values) value = draw(random);
  return values;
}

std::vector<double> normals(size_t count, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  std::vector<double> values(count);
  for (double& v : values) v = normal(random);
  return values;
}

CaseValues make_values(const SampleCase& sample, uint64_t seed) {
  std::mt19937_64 random(seed);
  CaseValues made;
  for (size_t i = 0; i < sample.inputs.size(); ++i) {
    const TensorDesc& desc = sample.inputs[i];
    RefTensor input{desc, {}};
    std::vector<std::byte> bytes(desc.present() ? desc.bytes() : 0);
    if (desc.present()) {
      input.values = normals(static_cast<size_t>(desc.numel()), random);
      fill_default(desc, input.values);
      if (sample.fill) sample.fill(i, input.values);
      TensorDesc plain{desc.dtype, desc.shape};
      from_doubles(input.values, plain, bytes.data());
      input.values = to_doubles(plain, bytes.data());
    }
    const bool known = desc.present() &&
                       std::ranges::find(sample.constant_inputs, i) != sample.constant_inputs.end();
    made.constants.push_back(
        known ? std::make_shared<const Constant>(Constant{desc, std::move(bytes)}) : nullptr);
    made.inputs.push_back(std::move(input));
  }
  return made;
}

GuardedBytes::GuardedBytes(size_t bytes, uint8_t garbage)
    : bytes_(bytes), storage_(bytes + 2 * kGuard + 64, kGuardByte) {
  const auto address = reinterpret_cast<uintptr_t>(storage_.data()) + kGuard;
  begin_ = kGuard + (64 - address % 64) % 64;
  std::fill_n(storage_.begin() + static_cast<std::ptrdiff_t>(begin_), bytes, std::byte{garbage});
}

bool GuardedBytes::intact() const {
  const auto guard = [](std::byte b) { return b == kGuardByte; };
  const auto begin = storage_.begin() + static_cast<std::ptrdiff_t>(begin_);
  return std::all_of(storage_.begin(), begin, guard) &&
         std::all_of(begin + static_cast<std::ptrdiff_t>(bytes_), storage_.end(), guard);
}

bool GuardedBytes::operator==(const GuardedBytes& other) const {
  return bytes_ == other.bytes_ && (bytes_ == 0 || std::memcmp(data(), other.data(), bytes_) == 0);
}

void encode(const std::vector<double>& values, const TensorDesc& desc, std::byte* data) {
  const auto at = positions(desc);
  // Between rows with a pitch lie NaNs, which spoil every result that reads them.
  const double between = is_floating(desc.dtype) ? std::nan("") : 0;
  std::vector<double> placed(static_cast<size_t>(desc.extent()), between);
  for (size_t i = 0; i < values.size(); ++i) placed[at[i]] = values[i];
  from_doubles(placed, {desc.dtype, {desc.extent()}}, data);
}

std::vector<double> decode(const TensorDesc& desc, const std::byte* data) {
  const auto at = positions(desc);
  const auto placed = to_doubles({desc.dtype, {desc.extent()}}, data);
  std::vector<double> values(at.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = placed[at[i]];
  return values;
}

}  // namespace ofsdp::testing
