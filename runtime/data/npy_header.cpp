#include "runtime/data/npy_header.h"

#include "kernels/base/status.h"

namespace ofsdp::runtime {
namespace {

struct DescrName {
  std::string_view descr;
  DType dtype;
};
// The first of two names for a type is the one written.
constexpr DescrName kDescrs[] = {
    {"<f4", DType::kFloat32}, {"<f8", DType::kFloat64}, {"<f2", DType::kFloat16},
    {"|i1", DType::kInt8},    {"<i2", DType::kInt16},   {"<i4", DType::kInt32},
    {"<i8", DType::kInt64},   {"|u1", DType::kUInt8},   {"<u2", DType::kUInt16},
    {"<u4", DType::kUInt32},  {"<u8", DType::kUInt64},  {"|b1", DType::kBool},
    {"<i1", DType::kInt8},    {"<u1", DType::kUInt8}};

}  // namespace

std::optional<DType> npy_dtype(std::string_view descr) {
  for (const DescrName& entry : kDescrs) {
    if (entry.descr == descr) return entry.dtype;
  }
  return std::nullopt;
}

std::optional<std::string_view> npy_descr(DType dtype) {
  for (const DescrName& entry : kDescrs) {
    if (entry.dtype == dtype) return entry.descr;
  }
  return std::nullopt;
}

// The whole is a multiple of 64 bytes.
std::string npy_header(DType dtype, const std::vector<int64_t>& dims) {
  constexpr size_t kPrefix = 10, kAlign = 64;
  const auto descr = npy_descr(dtype);
  OFSDP_CHECK(descr.has_value(), "{} is no type of .npy", dtype_name(dtype));
  const char* comma = dims.size() == 1 ? "," : "";
  std::string text = format_text("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}",
                                 *descr, joined(dims, ", "), comma);
  text.resize((kPrefix + text.size() + kAlign) / kAlign * kAlign - kPrefix - 1, ' ');
  text += '\n';
  std::string bytes(kNpyMagic);
  bytes += '\x01';
  bytes += '\0';
  bytes += static_cast<char>(text.size() & 0xff);
  bytes += static_cast<char>(text.size() >> 8);
  return bytes + text;
}

}  // namespace ofsdp::runtime
