// PackedRows: several documents in one row (--pack N).
//
// pack_documents cuts the documents into windows, in the order of the data. In a window the longest
// document comes first, and each goes into the first row that has room (first-fit decreasing). In a
// row, documents have the order of the data. Lengths alone decide, so a row is a sample: epochs
// permute rows, and nothing here depends on ranks or threads.
//
// A packed column has the entries of the row's documents one after the other, then its fill: labels
// the ignore-index. A document's labels are those of its own row, so none crosses a border. Two
// columns are made up: `kSegments`, the documents of a row from 1, and 0 for padding; `kPositions`,
// the place in the document.
//
// The rows must outlive it. Errors, with the document's number: those of reading; kInput if a label
// after the document's entries counts, or a mask lets something pass there (check_unused).
#pragma once

#include <optional>
#include <vector>

#include "runtime/data/row_source.h"

namespace ofsdp::runtime {

// Row i has the documents from ends[i - 1] on, up to ends[i].
struct PackPlan {
  std::vector<int64_t> documents;
  std::vector<int64_t> ends;
};

// REQUIRES: each length is at most `length`.
PackPlan pack_documents(std::span<const int32_t> lengths, int64_t length);

enum class PackedKind { kEntries, kSegments, kPositions };

struct PackedColumn {
  PackedKind kind = PackedKind::kEntries;
  int source = -1;   // kEntries: the column of the rows
  int64_t fill = 0;  // after the documents
  BoundColumn bound;
  std::optional<int64_t> ignored = {};  // labels: the ignore-index
};

class PackedRows : public RowSource {
 public:
  PackedRows(RowSource& rows, std::vector<int32_t> lengths, PackPlan plan,
             std::vector<PackedColumn> columns);

  int64_t samples() const override { return std::ssize(plan_.ends); }
  std::span<const BoundColumn> columns() const override { return bound_; }
  void begin_epoch(int64_t epoch) override { rows_.begin_epoch(epoch); }
  Status read_rows(int column, std::span<const int64_t> samples, std::byte* dst) override;

  std::span<const int64_t> documents_of(int64_t row) const;
  int64_t length(int64_t document) const { return lengths_[static_cast<size_t>(document)]; }

 private:
  Status read_row(const PackedColumn& column, int64_t row, std::byte* dst);
  Status read_document(const PackedColumn& column, int64_t document, std::byte* dst);

  RowSource& rows_;
  const std::vector<int32_t> lengths_;
  const PackPlan plan_;
  const std::vector<PackedColumn> columns_;
  std::vector<BoundColumn> bound_;
  std::vector<std::byte> scratch_;  // a document
};

}  // namespace ofsdp::runtime
