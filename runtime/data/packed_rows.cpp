#include "runtime/data/packed_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/base/status.h"
#include "runtime/data/row_lengths.h"

namespace ofsdp::runtime {
namespace {

constexpr int64_t kPackWindow = 4096;  // documents

// Packs the documents from `begin` to `end`.
void pack_window(std::span<const int32_t> lengths, int64_t begin, int64_t end, int64_t length,
                 PackPlan& plan) {
  std::vector<int64_t> order(static_cast<size_t>(end - begin));
  std::iota(order.begin(), order.end(), begin);
  const auto length_of = [&](int64_t i) { return int64_t{lengths[static_cast<size_t>(i)]}; };
  std::ranges::stable_sort(order, std::greater(), length_of);
  std::vector<std::vector<int64_t>> rows;
  std::vector<int64_t> room;
  for (const int64_t document : order) {
    const auto fits =
        std::ranges::find_if(room, [&](int64_t left) { return left >= length_of(document); });
    const auto row = static_cast<size_t>(fits - room.begin());
    if (fits == room.end()) {
      rows.emplace_back();
      room.push_back(length);
    }
    rows[row].push_back(document);
    room[row] -= length_of(document);
  }
  for (std::vector<int64_t>& row : rows) {
    std::ranges::sort(row);
    plan.documents.insert(plan.documents.end(), row.begin(), row.end());
    plan.ends.push_back(std::ssize(plan.documents));
  }
}

void write_number(DType dtype, int64_t number, std::byte* dst) {
  const auto put = [&](auto value) { std::memcpy(dst, &value, sizeof value); };
  switch (dtype) {
    case DType::kInt64:
      return put(number);
    case DType::kInt32:
      return put(static_cast<int32_t>(number));
    case DType::kBool:
    case DType::kUInt8:
      return put(static_cast<uint8_t>(number));
    default:
      OFSDP_CHECK(dtype == DType::kFloat32, "packed {}", dtype_name(dtype));
      return put(static_cast<float>(number));
  }
}

}  // namespace

PackPlan pack_documents(std::span<const int32_t> lengths, int64_t length) {
  PackPlan plan;
  for (int64_t begin = 0; begin < std::ssize(lengths); begin += kPackWindow) {
    pack_window(lengths, begin, std::min(begin + kPackWindow, std::ssize(lengths)), length, plan);
  }
  return plan;
}

PackedRows::PackedRows(RowSource& rows, std::vector<int32_t> lengths, PackPlan plan,
                       std::vector<PackedColumn> columns)
    : rows_(rows),
      lengths_(std::move(lengths)),
      plan_(std::move(plan)),
      columns_(std::move(columns)) {
  size_t most = 0;
  for (const PackedColumn& column : columns_) {
    bound_.push_back(column.bound);
    if (column.source < 0) continue;
    most = std::max(most, rows_.columns()[static_cast<size_t>(column.source)].row_bytes());
  }
  scratch_.resize(most);
}

std::span<const int64_t> PackedRows::documents_of(int64_t row) const {
  const auto at = static_cast<size_t>(row);
  const int64_t begin = row == 0 ? 0 : plan_.ends[at - 1];
  return std::span(plan_.documents)
      .subspan(static_cast<size_t>(begin), static_cast<size_t>(plan_.ends[at] - begin));
}

Status PackedRows::read_rows(int column, std::span<const int64_t> samples, std::byte* dst) {
  const PackedColumn& packed = columns_[static_cast<size_t>(column)];
  for (const int64_t row : samples) {
    OFSDP_RETURN_IF_ERROR(read_row(packed, row, dst));
    dst += packed.bound.row_bytes();
  }
  return {};
}

Status PackedRows::read_document(const PackedColumn& column, int64_t document, std::byte* dst) {
  const BoundColumn& stored = rows_.columns()[static_cast<size_t>(column.source)];
  const int64_t entries = length(document);
  OFSDP_RETURN_IF_ERROR(rows_.read_rows(column.source, {&document, 1}, scratch_.data()));
  if (column.ignored || is_mask(stored.name)) {
    OFSDP_RETURN_IF_ERROR(check_unused(stored, document, scratch_.data(), entries, entries,
                                       column.ignored, "--pack"));
  }
  std::memcpy(dst, scratch_.data(), static_cast<size_t>(entries) * dtype_size(stored.dtype));
  return {};
}

Status PackedRows::read_row(const PackedColumn& column, int64_t row, std::byte* dst) {
  const DType dtype = column.bound.dtype;
  const size_t bytes = dtype_size(dtype);
  std::byte* const end = dst + column.bound.row_bytes();
  int64_t number = 0;
  for (const int64_t document : documents_of(row)) {
    const int64_t entries = length(document);
    ++number;
    if (column.kind == PackedKind::kEntries) {
      OFSDP_RETURN_IF_ERROR(read_document(column, document, dst));
      dst += static_cast<size_t>(entries) * bytes;
      continue;
    }
    for (int64_t i = 0; i < entries; ++i, dst += bytes) {
      write_number(dtype, column.kind == PackedKind::kSegments ? number : i, dst);
    }
  }
  for (; dst < end; dst += bytes) write_number(dtype, column.fill, dst);
  return {};
}

}  // namespace ofsdp::runtime
