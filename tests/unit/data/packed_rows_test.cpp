// Packing puts each document into one row, no row is overfull, and rows are full.
#include "runtime/data/packed_rows.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace packed_rows_test {

std::vector<int32_t> drawn_lengths(int64_t count) {
  std::mt19937 random(11);
  std::lognormal_distribution<double> draw(std::log(128) - 0.32, 0.8);  // mean 128
  std::vector<int32_t> lengths;
  for (int64_t i = 0; i < count; ++i) {
    lengths.push_back(std::clamp(static_cast<int32_t>(draw(random)), 1, 512));
  }
  return lengths;
}

TEST(PackDocuments, PutsEachIntoOneRowAndFillsRows) {
  for (const int64_t count : {1, 2, 100, 4096, 4097, 10000}) {
    const auto lengths = drawn_lengths(count);
    const PackPlan plan = pack_documents(lengths, 512);
    std::vector<bool> seen(static_cast<size_t>(count));
    int64_t begin = 0, used = 0;
    for (const int64_t end : plan.ends) {
      int64_t row = 0;
      for (int64_t i = begin; i < end; ++i) {
        const auto document = static_cast<size_t>(plan.documents[static_cast<size_t>(i)]);
        ASSERT_FALSE(seen[document]);
        seen[document] = true;
        row += lengths[document];
      }
      ASSERT_LE(row, 512);
      ASSERT_GT(row, 0);
      used += row;
      begin = end;
    }
    EXPECT_EQ(std::ranges::count(seen, true), count);
    // Padding without packing has a row for each document.
    const double rows = static_cast<double>(plan.ends.size());
    if (count >= 4096) {
      EXPECT_GT(static_cast<double>(used) / (rows * 512), 0.98);
      EXPECT_GT(static_cast<double>(count) / rows, 2);
    }
  }
}

// Documents with document + 1 numbers.
class CountedRows : public RowSource {
 public:
  explicit CountedRows(int64_t samples) : samples_(samples) {
    columns_.push_back({"ids", "made", DType::kInt32, Shape{samples}});
  }
  int64_t samples() const override { return samples_; }
  std::span<const BoundColumn> columns() const override { return columns_; }
  Status read_rows(int, std::span<const int64_t> samples, std::byte* dst) override {
    auto* numbers = reinterpret_cast<int32_t*>(dst);
    for (const int64_t sample : samples) {
      for (int64_t i = 0; i < samples_; ++i) {
        *numbers++ = i <= sample ? static_cast<int32_t>(100 * sample + i) : -1;
      }
    }
    return {};
  }

 private:
  int64_t samples_;
  std::vector<BoundColumn> columns_;
};

TEST(PackedRows, HaveEntriesSegmentsAndPositions) {
  CountedRows rows(4);
  PackPlan plan{{0, 2, 1, 3}, {2, 3, 4}};
  std::vector<PackedColumn> columns{
      {PackedKind::kEntries, 0, -100, {"ids", "made", DType::kInt32, Shape{6}}},
      {PackedKind::kSegments, -1, 0, {"segments", "made", DType::kInt64, Shape{6}}},
      {PackedKind::kPositions, -1, 0, {"positions", "made", DType::kInt64, Shape{6}}}};
  PackedRows packed(rows, {1, 2, 3, 4}, plan, columns);
  ASSERT_EQ(packed.samples(), 3);
  const std::vector<int64_t> wanted{2, 0};
  std::vector<int32_t> ids(12);
  ASSERT_TRUE(packed.read_rows(0, wanted, reinterpret_cast<std::byte*>(ids.data())).ok());
  EXPECT_EQ(ids,
            (std::vector<int32_t>{300, 301, 302, 303, -100, -100, 0, 200, 201, 202, -100, -100}));
  std::vector<int64_t> numbers(12);
  ASSERT_TRUE(packed.read_rows(1, wanted, reinterpret_cast<std::byte*>(numbers.data())).ok());
  EXPECT_EQ(numbers, (std::vector<int64_t>{1, 1, 1, 1, 0, 0, 1, 2, 2, 2, 0, 0}));
  ASSERT_TRUE(packed.read_rows(2, wanted, reinterpret_cast<std::byte*>(numbers.data())).ok());
  EXPECT_EQ(numbers, (std::vector<int64_t>{0, 1, 2, 3, 0, 0, 0, 0, 1, 2, 0, 0}));
}

// CountedRows end in -1.
TEST(PackedRows, RefuseALabelThatCountsAfterItsDocument) {
  CountedRows rows(4);
  const PackPlan plan{{0, 1}, {2}};
  std::vector<int32_t> ids(6);
  const auto read = [&](const char* name, int64_t ignored) {
    const std::vector<PackedColumn> columns{
        {PackedKind::kEntries, 0, ignored, {name, "made", DType::kInt32, Shape{6}}, ignored}};
    PackedRows packed(rows, {1, 2}, plan, columns);
    return packed.read_rows(0, std::vector<int64_t>{0}, reinterpret_cast<std::byte*>(ids.data()));
  };
  EXPECT_TRUE(read("labels", -1).ok());
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 100, 101, -1, -1, -1}));
  EXPECT_EQ(read("labels", -100).message(),
            "made: column 'ids', sample 0: expected the ignore-index after the 1 entries that "
            "--pack counts, found -1 as entry 1: pad_value gives the ignore-index");
}

}  // namespace packed_rows_test
}  // namespace ofsdp
