#include "runtime/data/cut_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/status.h"

namespace ofsdp::runtime {
namespace {

using Offsets = std::vector<int64_t>;

// Returns the offsets, which begin at 0 and do not fall.
Result<Offsets> read_offsets(const ColumnSpec& spec, Communicator& communicator,
                             MemoryLedger& ledger) {
  ColumnSpec own;
  own.name = spec.name;
  own.path = spec.offsets;
  OFSDP_ASSIGN_OR_RETURN(const ColumnFile file, ColumnFile::open(own, communicator, ledger));
  const ColumnLayout& layout = file.layout();
  OFSDP_REJECT_IF(is_floating(layout.dtype) || layout.row.rank() != 0 || layout.count < 2,
                  "{}: expected at least 2 whole numbers on one axis, found {} {}{}", spec.offsets,
                  layout.count, dtype_name(layout.dtype), layout.row.text());
  std::vector<std::byte> bytes(static_cast<size_t>(layout.count) * dtype_size(layout.dtype));
  OFSDP_RETURN_IF_ERROR(file.read(layout.first_byte, bytes));
  Offsets offsets;
  for (const double value : to_doubles({layout.dtype, {layout.count}}, bytes.data())) {
    const int64_t before = offsets.empty() ? 0 : offsets.back();
    const bool fits = offsets.empty() ? value == 0 : value >= static_cast<double>(before);
    OFSDP_REJECT_IF(!fits || value > 0x1p53,
                    "{}: expected offsets that begin at 0 and do not fall, found {} after {}",
                    spec.offsets, value, before);
    offsets.push_back(static_cast<int64_t>(value));
  }
  return offsets;
}

// Returns the axis that is as long as the offsets say.
Result<size_t> cut_axis(const ColumnSpec& spec, const std::vector<int64_t>& dims, int64_t end) {
  const auto fits = std::ranges::count(dims, end);
  OFSDP_REJECT_IF(fits != 1,
                  "{}: the last offset is {}: expected one axis of that length in {}, found {}",
                  spec.offsets, end, spec.path + Shape(dims).text(), fits);
  return static_cast<size_t>(std::ranges::find(dims, end) - dims.begin());
}

Result<int64_t> row_length(const ColumnSpec& spec, const Offsets& offsets) {
  int64_t longest = 0, shortest = std::numeric_limits<int64_t>::max();
  for (size_t i = 1; i < offsets.size(); ++i) {
    longest = std::max(longest, offsets[i] - offsets[i - 1]);
    shortest = std::min(shortest, offsets[i] - offsets[i - 1]);
  }
  const int64_t to = spec.padding ? spec.padding->to.value_or(longest) : longest;
  OFSDP_REJECT_IF(longest > to, "{}: expected at most the {} entries of pad_to, found {}",
                  spec.offsets, to, longest);
  OFSDP_REJECT_IF(!spec.padding && shortest != longest,
                  "{}: rows differ in length ({} to {} entries): expected pad_to", spec.offsets,
                  shortest, longest);
  return to;
}

// The number that fills short rows, as the file's type stores it.
Result<std::vector<std::byte>> filling(const ColumnSpec& spec, DType dtype) {
  const double value = spec.padding ? spec.padding->value.value_or(0) : 0;
  std::vector<std::byte> bytes(dtype_size(dtype));
  if (!is_floating(dtype)) {
    const bool whole = value == std::trunc(value) && std::abs(value) < 0x1p31;
    OFSDP_REJECT_IF(!whole, "{}: expected a pad_value of {}, found {}", spec.path,
                    dtype_name(dtype), value);
  }
  from_doubles(std::span(&value, 1), {dtype, {}}, bytes.data());
  const double stored = to_doubles({dtype, {}}, bytes.data())[0];
  OFSDP_REJECT_IF(is_floating(dtype) ? !std::isfinite(stored) : stored != value,
                  "{}: expected a pad_value of {}, found {}", spec.path, dtype_name(dtype), value);
  return bytes;
}

// Writes rows [sample][outer][length][inner] from a file of [outer][end][inner].
struct Cut {
  const ByteSource& source;
  uint64_t first_byte;
  const Offsets& offsets;
  size_t outer, inner;  // inner: bytes
  size_t length;        // of a row
  std::vector<std::byte> fill;

  Status write(std::span<std::byte> dst) const {
    const size_t row = length * inner;
    const auto end = static_cast<size_t>(offsets.back());
    for (size_t s = 0; s + 1 < offsets.size(); ++s) {
      const auto begin = static_cast<size_t>(offsets[s]);
      const size_t bytes = (static_cast<size_t>(offsets[s + 1]) - begin) * inner;
      for (size_t o = 0; o < outer; ++o) {
        const auto part = dst.subspan((s * outer + o) * row, row);
        const uint64_t at = first_byte + (o * end + begin) * inner;
        if (bytes > 0) OFSDP_RETURN_IF_ERROR(source.read(at, part.first(bytes)));
        for (size_t i = bytes; i < row; i += fill.size()) {
          std::ranges::copy(fill, part.subspan(i).begin());
        }
      }
    }
    return ok_status();
  }

  // 1 for each entry, 0 for each padding.
  Status write_mask(std::span<std::byte> dst) const {
    const TensorDesc one{DType::kInt64, {}};
    for (size_t s = 0; s + 1 < offsets.size(); ++s) {
      for (size_t i = 0; i < length; ++i) {
        const double value = static_cast<int64_t>(i) < offsets[s + 1] - offsets[s] ? 1 : 0;
        from_doubles(std::span(&value, 1), one, &dst[(s * length + i) * one.bytes()]);
      }
    }
    return ok_status();
  }
};

}  // namespace

Result<OpenedColumn> cut_rows(const ColumnSpec& spec, const ByteSource& source,
                              const ColumnLayout& whole, Communicator& communicator,
                              MemoryLedger& ledger) {
  OFSDP_ASSIGN_OR_RETURN(const Offsets offsets, read_offsets(spec, communicator, ledger));
  std::vector<int64_t> dims{whole.count};
  dims.insert(dims.end(), whole.row.axes().begin(), whole.row.axes().end());
  OFSDP_ASSIGN_OR_RETURN(const size_t axis, cut_axis(spec, dims, offsets.back()));
  OFSDP_ASSIGN_OR_RETURN(const int64_t length, row_length(spec, offsets));
  OFSDP_ASSIGN_OR_RETURN(std::vector<std::byte> fill, filling(spec, whole.dtype));
  const Shape shape(dims);
  const int at = static_cast<int>(axis);
  const Cut cut{.source = source,
                .first_byte = whole.first_byte,
                .offsets = offsets,
                .outer = static_cast<size_t>(shape.numel(0, at)),
                .inner = static_cast<size_t>(shape.numel(at + 1, shape.rank())) * fill.size(),
                .length = static_cast<size_t>(length),
                .fill = std::move(fill)};
  const bool mask = spec.padding && spec.padding->mask;
  dims[axis] = length;
  if (mask) dims = {length};
  dims.insert(dims.begin(), std::ssize(offsets) - 1);
  OpenedColumn made;
  OFSDP_ASSIGN_OR_RETURN(made.layout,
                         dense_layout(spec.path, mask ? DType::kInt64 : whole.dtype, dims, 0));
  made.shared_bytes = made.layout.end_byte();
  const auto write = [&](std::span<std::byte> dst) {
    return mask ? cut.write_mask(dst) : cut.write(dst);
  };
  OFSDP_ASSIGN_OR_RETURN(made.source,
                         share_made(spec.path, made.shared_bytes, write, communicator, ledger));
  return made;
}

}  // namespace ofsdp::runtime
