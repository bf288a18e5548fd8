// The order of --bucket-by is a permutation; its batches have rows of like length, and rows are cut
// as plain loops cut them.
#include <cmath>
#include <numeric>
#include <random>

#include "runtime/data/dataset.h"
#include "runtime/data/loader.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace row_lengths_test {

using namespace testing_data;

std::vector<int32_t> drawn_lengths(int64_t samples) {
  std::mt19937 random(7);
  std::lognormal_distribution<double> draw(std::log(128) - 0.32, 0.8);  // mean 128
  std::vector<int32_t> lengths;
  for (int64_t i = 0; i < samples; ++i) {
    lengths.push_back(std::clamp(static_cast<int32_t>(draw(random)), 1, 512));
  }
  return lengths;
}

std::vector<int64_t> epoch_of(const LengthOrder& order, int64_t epoch) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < order.samples(); ++i) all.push_back(order.at(epoch, i));
  return all;
}

TEST(LengthOrder, IsAPermutationOfEveryEpoch) {
  for (const int64_t samples : {1, 2, 3, 5, 255, 256, 257, 1000, 4097, 10000}) {
    for (const bool shuffle : {true, false}) {
      const LengthOrder order(drawn_lengths(samples), shuffle, 3);
      for (const int64_t epoch : {0, 1, 7}) {
        std::vector<int64_t> all = epoch_of(order, epoch);
        std::ranges::sort(all);
        std::vector<int64_t> expected(static_cast<size_t>(samples));
        std::iota(expected.begin(), expected.end(), 0);
        ASSERT_EQ(all, expected) << samples;
      }
    }
  }
}

TEST(LengthOrder, DependsOnSeedAndEpochAndNotOnTheReads) {
  const auto lengths = drawn_lengths(9000);
  const LengthOrder order(lengths, true, 3), same(lengths, true, 3), other(lengths, true, 4);
  EXPECT_NE(epoch_of(order, 0), epoch_of(order, 1));
  EXPECT_NE(epoch_of(order, 0), epoch_of(other, 0));
  const std::vector<int64_t> expected = epoch_of(same, 1);
  for (const int64_t position : {8999, 0, 5000, 1023, 1024, 1, 8191}) {
    EXPECT_EQ(order.at(1, position), expected[static_cast<size_t>(position)]);
    order.at(0, position);
  }
}

// Returns the share of padded batches that is no padding.
double used_part(const LengthOrder& order, int64_t batch) {
  double used = 0, all = 0;
  for (int64_t begin = 0; begin + batch <= order.samples(); begin += batch) {
    int64_t longest = 0;
    for (int64_t i = begin; i < begin + batch; ++i) {
      const int64_t length = order.length(order.at(0, i));
      longest = std::max(longest, length);
      used += static_cast<double>(length);
    }
    all += static_cast<double>(longest * batch);
  }
  return used / all;
}

TEST(LengthOrder, BatchesOfAnySizeHaveRowsOfLikeLength) {
  const LengthOrder order(drawn_lengths(20000), true, 1);
  for (const int64_t batch : {2, 8, 32, 64}) EXPECT_GT(used_part(order, batch), 0.85) << batch;
  for (const int64_t batch : {7, 24, 48}) EXPECT_GT(used_part(order, batch), 0.65) << batch;
  EXPECT_GT(used_part(LengthOrder(drawn_lengths(500), true, 1), 8), 0.8);
}

// No tenth of an epoch has only long rows or only short ones.
TEST(LengthOrder, BatchesComeInARandomOrder) {
  const LengthOrder order(drawn_lengths(20000), true, 1);
  for (int64_t tenth = 0; tenth < 10; ++tenth) {
    double sum = 0;
    for (int64_t i = tenth * 2000; i < (tenth + 1) * 2000; ++i) {
      sum += static_cast<double>(order.length(order.at(0, i)));
    }
    EXPECT_NEAR(sum / 2000, 126, 45) << tenth;
  }
}

TEST(CutRows, KeepsTheFirstElementsOfEachAxis) {
  const Shape from({3, 4, 5}), to({2, 4, 3});
  constexpr int64_t kRows = 3;
  std::vector<int32_t> rows(static_cast<size_t>(kRows * from.numel())), expected;
  std::iota(rows.begin(), rows.end(), 0);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < to[0]; ++i) {
      for (int64_t j = 0; j < to[1]; ++j) {
        for (int64_t k = 0; k < to[2]; ++k) {
          expected.push_back(rows[static_cast<size_t>(((r * 3 + i) * 4 + j) * 5 + k)]);
        }
      }
    }
  }
  cut_rows(reinterpret_cast<std::byte*>(rows.data()), kRows, from, to, sizeof(int32_t));
  rows.resize(expected.size());
  EXPECT_EQ(rows, expected);
}

// Rows with sample + 1 numbers, padded with zeros.
TEST(RowCuts, ALoaderCutsWholeBatchesToTheirLongestRow) {
  constexpr int64_t kSamples = 22, kLength = 24, kBatch = 4;
  TempFolder folder;
  std::vector<int64_t> values(kSamples * kLength);
  for (int64_t s = 0; s < kSamples; ++s) {
    for (int64_t i = 0; i <= s; ++i) values[static_cast<size_t>(s * kLength + i)] = 100 * s + i + 1;
  }
  ColumnSet set{"data", {}};
  set.columns.resize(1);
  set.columns[0].name = "ids";
  set.columns[0].path = folder.write("ids.npy", npy("<i8", "(22, 24)", values));
  MemoryLedger ledger;
  const auto communicator = make_self_communicator();
  const auto data = *Dataset::open(set, {"ids"}, *communicator, ledger);
  ASSERT_TRUE(data->bind({{"ids", DType::kInt64, {-1}}}).ok());
  const std::vector<int32_t> lengths = *data->read_lengths("ids");
  for (int32_t s = 0; s < kSamples; ++s) ASSERT_EQ(lengths[static_cast<size_t>(s)], s + 1);

  RowCuts cuts;
  cuts.order = std::make_shared<const LengthOrder>(lengths, true, 5);
  cuts.cuts = {{8, {Shape{8}}}, {16, {Shape{16}}}};
  cuts.batch_size = kBatch;
  SamplerOptions options;
  options.samples = kSamples;
  options.batch_size = kBatch;
  options.order = cuts.order;
  const Sampler sampler = *Sampler::make(options);
  std::vector<std::byte> staging(Loader::staging_bytes(*data, kBatch) + 64);
  void* at = staging.data();
  size_t room = staging.size();
  std::align(64, staging.size() - 64, at, room);
  Loader loader(*data, sampler, {LabelRule{}}, {static_cast<std::byte*>(at), staging.size() - 64},
                &cuts);
  loader.start(0, sampler.updates_per_epoch());
  std::vector<bool> seen(kSamples);
  std::set<int64_t> found;
  for (int64_t update = 0; update < sampler.updates_per_epoch(); ++update) {
    const Batch& batch = **loader.next();
    const int64_t longest = *std::ranges::max_element(batch.sample_index) + 1;
    const int64_t length = batch.size < kBatch || longest > 16 ? kLength : longest > 8 ? 16 : 8;
    EXPECT_EQ(batch.length, length == kLength ? 0 : length);
    found.insert(batch.length);
    for (size_t i = 0; i < batch.sample_index.size(); ++i) {
      const int64_t s = batch.sample_index[i];
      ASSERT_FALSE(seen[static_cast<size_t>(s)]);
      seen[static_cast<size_t>(s)] = true;
      const auto* row =
          reinterpret_cast<const int64_t*>(batch.columns[0]) + static_cast<int64_t>(i) * length;
      for (int64_t j = 0; j < length; ++j) {
        ASSERT_EQ(row[j], values[static_cast<size_t>(s * kLength + j)]) << s << " " << j;
      }
    }
    loader.release();
  }
  EXPECT_EQ(std::ranges::count(seen, true), kSamples);
  EXPECT_GE(found.size(), 2u);
}

}  // namespace row_lengths_test
}  // namespace ofsdp
