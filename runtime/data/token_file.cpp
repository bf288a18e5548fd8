// Flat token files: little-endian uint16 or uint32 and nothing else. Row s of `sequence_length` L
// is tokens [s * stride, s * stride + L), one further on with next_token.
//
// [Note: width of tokens] Nothing in such a file says how wide its tokens are. Vocabularies have
// far fewer than 2^20 entries, so in a file of uint32 every second 16-bit word is nearly zero, and
// in one of uint16 that does not happen. A `dtype` key in the specification is believed without
// looking.
#include <algorithm>
#include <vector>

#include "runtime/data/column_file.h"

namespace ofsdp::runtime {
namespace {

constexpr size_t kProbeBytes = 64 * 1024;
constexpr size_t kFewestWords = 8;      // fewer prove nothing
constexpr size_t kManyWords = 256;      // so many may prove it although they are not all zero
constexpr uint16_t kMostHighWord = 15;  // of a vocabulary below 2^20

Result<DType> guess_width(const ByteSource& source) {
  if (source.size() % 4 != 0) return DType::kUInt16;
  std::vector<uint16_t> words(std::min<uint64_t>(source.size(), kProbeBytes) / 2);
  OFSDP_RETURN_IF_ERROR(source.read(0, std::as_writable_bytes(std::span(words))));
  uint16_t low = 0, high = 0;
  for (size_t i = 0; i + 1 < words.size(); i += 2) {
    low = std::max(low, words[i]);
    high = std::max(high, words[i + 1]);
  }
  const bool zeros = high == 0 && low > 0 && words.size() >= 2 * kFewestWords;
  const bool small = high <= kMostHighWord && low > kMostHighWord && words.size() >= 2 * kManyWords;
  return zeros || small ? DType::kUInt32 : DType::kUInt16;
}

Result<DType> token_width(const ColumnSpec& spec, const ByteSource& source) {
  DType dtype = spec.dtype.value_or(DType::kUndefined);
  if (!spec.dtype) {
    OFSDP_ASSIGN_OR_RETURN(dtype, guess_width(source));
  }
  if (source.size() % dtype_size(dtype) == 0) return dtype;
  return input_error("{}: expected whole {} tokens of {} bytes, found {} bytes", spec.path,
                     dtype_name(dtype), dtype_size(dtype), source.size());
}

}  // namespace

Result<ColumnLayout> token_layout(const ColumnSpec& spec, const ByteSource& source) {
  OFSDP_ASSIGN_OR_RETURN(const DType dtype, token_width(spec, source));
  const auto size = static_cast<int64_t>(dtype_size(dtype));
  const int64_t tokens = static_cast<int64_t>(source.size()) / size;
  const int64_t length = *spec.sequence_length;
  const int64_t stride = spec.stride.value_or(length);
  const int64_t extra = spec.next_token || spec.reserve_next ? 1 : 0;
  // `tokens - length` cannot overflow, `length + extra` of a silly length could.
  if (tokens - length < extra) {
    return input_error(
        "{}: a row of sequence_length {}{} needs more tokens than the {} of the file", spec.path,
        length, extra != 0 ? " and the token behind it" : "", tokens);
  }
  ColumnLayout layout;
  layout.dtype = dtype;
  layout.row = Shape{length};
  layout.count = (tokens - length - extra) / stride + 1;
  layout.first_byte = static_cast<uint64_t>(spec.next_token ? size : 0);
  // With one row only, a stride beyond the file has no meaning and must not overflow.
  layout.row_stride = static_cast<uint64_t>(layout.count > 1 ? stride * size : length * size);
  return layout;
}

}  // namespace ofsdp::runtime
