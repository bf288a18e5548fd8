#include <chrono>

#include "runtime/data/dataset.h"
#include "runtime/data/loader.h"
#include "tests/support/allocations.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace data_loader_test {

using namespace testing_data;

constexpr int64_t kSamples = 53;

class LoaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    write(kSamples, -1);
    options_.samples = kSamples;
    options_.seed = 3;
    options_.batch_size = 4;
    options_.grad_accum = 3;
  }

  // Labels are sample mod 10, every seventh is ignored; `wrong` gets the label 99.
  void write(int64_t samples, int64_t wrong) {
    std::vector<int64_t> labels;
    for (int64_t i = 0; i < samples; ++i)
      labels.push_back(i == wrong ? 99 : i % 7 == 0 ? -100 : i % 10);
    ColumnSet set{"data", {}};
    set.columns.resize(2);
    set.columns[0].name = "x";
    set.columns[0].path =
        folder_.write("x.npy", npy("<f8", format_text("({}, 3)", samples),
                                   counted<double>(static_cast<size_t>(samples) * 3)));
    set.columns[1].name = "labels";
    set.columns[1].path = folder_.write("l.npy", npy("<i8", format_text("({},)", samples), labels));
    dataset_ = *Dataset::open(set, {"x", "labels"}, *communicator_, ledger_);
    ASSERT_TRUE(dataset_->bind({{"x", DType::kFloat32, {3}}, {"labels", DType::kInt64, {}}}).ok());
  }

  Loader& make(LabelRule rule = {1, {10, -100}, {}}) {
    sampler_.emplace(*Sampler::make(options_));
    const size_t bytes = Loader::staging_bytes(*dataset_, options_.batch_size);
    staging_ = *Region::map(ledger_, bytes, Region::Sharing::kPrivate, "staging");
    // Exactly the planned bytes.
    return loader_.emplace(*dataset_, *sampler_, std::vector{std::move(rule)},
                           std::span(staging_.data(), bytes));
  }

  // Compares the batch with rows read directly.
  void expect_batch(const Batch& batch, int64_t update, int64_t micro) {
    std::vector<int64_t> samples(4);
    samples.resize(static_cast<size_t>(sampler_->micro_batch(update, micro, samples)));
    EXPECT_EQ(batch.update, update);
    EXPECT_EQ(batch.micro, micro);
    EXPECT_EQ(batch.epoch, sampler_->epoch_of(update));
    ASSERT_EQ(std::vector<int64_t>(batch.sample_index.begin(), batch.sample_index.end()), samples);
    ASSERT_EQ(batch.size, static_cast<int64_t>(samples.size()));
    const auto* x = reinterpret_cast<const float*>(batch.columns[0]);
    const auto* labels = reinterpret_cast<const int64_t*>(batch.columns[1]);
    double kept = 0;
    for (size_t i = 0; i < samples.size(); ++i) {
      for (size_t j = 0; j < 3; ++j)
        EXPECT_EQ(x[i * 3 + j], static_cast<float>(samples[i] * 3) + static_cast<float>(j));
      EXPECT_EQ(labels[i], samples[i] % 7 == 0 ? -100 : samples[i] % 10);
      kept += samples[i] % 7 == 0 ? 0 : 1;
    }
    EXPECT_EQ(batch.kept[0], kept);
    for (std::byte* column : batch.columns) EXPECT_EQ(reinterpret_cast<uintptr_t>(column) % 64, 0u);
  }

  TempFolder folder_;
  MemoryLedger ledger_;
  std::unique_ptr<Communicator> communicator_ = make_self_communicator();
  std::unique_ptr<Dataset> dataset_;
  SamplerOptions options_;
  std::optional<Sampler> sampler_;
  Region staging_;
  std::optional<Loader> loader_;
};

TEST_F(LoaderTest, GivesThreeShuffledEpochsAsTheyAreRead) {
  for (int rank : {0, 1}) {
    loader_.reset();
    options_.ranks = 2;
    options_.rank = rank;
    Loader& loader = make();
    const int64_t end = 3 * sampler_->updates_per_epoch();
    EXPECT_EQ(end, 9);
    loader.start(0, end);
    for (int64_t update = 0; update < end; ++update) {
      double kept = 0, announced = 0;
      for (int64_t micro = 0; micro < 3; ++micro) {
        Result<const Batch*> batch = loader.next();
        ASSERT_TRUE(batch.ok() && *batch != nullptr);
        expect_batch(**batch, update, micro);
        kept += (*batch)->kept[0];
        announced = (*batch)->kept_in_update[0];
        loader.release();
      }
      EXPECT_EQ(announced, kept) << update;
    }
    EXPECT_EQ(*loader.next(), nullptr);
    EXPECT_EQ(*loader.next(), nullptr);
  }
}

TEST_F(LoaderTest, KeptOfTheUpdateIsKnownWithItsFirstMicroBatch) {
  Loader& loader = make();
  loader.start(0, 1);
  const double announced = (*loader.next())->kept_in_update[0];
  double kept = 0;
  for (int64_t micro = 0; micro < 3; ++micro) {
    std::vector<int64_t> samples(4);
    sampler_->micro_batch(0, micro, samples);
    for (int64_t sample : samples) kept += sample % 7 == 0 ? 0 : 1;
  }
  EXPECT_EQ(announced, kept);
}

TEST_F(LoaderTest, WithoutLabelsSamplesCount) {
  options_.grad_accum = 1;
  Loader& loader = make({});
  loader.start(13, 14);  // the epoch's last batch: one sample
  const Batch& batch = **loader.next();
  EXPECT_EQ(batch.kept[0], 1);
  EXPECT_EQ(batch.kept_in_update[0], 1);
  EXPECT_EQ(batch.size, 1);
}

TEST_F(LoaderTest, StartsAgainAnywhereAndDropsWhatWasNotTaken) {
  Loader& loader = make();
  for (int64_t begin : {0, 5, 2, 7, 2}) {
    loader.start(begin, begin + 2);
    ASSERT_NO_FATAL_FAILURE(expect_batch(**loader.next(), begin, 0));
    loader.release();
    ASSERT_NO_FATAL_FAILURE(expect_batch(**loader.next(), begin, 1));
  }
  loader.start(4, 4);
  EXPECT_EQ(*loader.next(), nullptr);
}

TEST_F(LoaderTest, EndsWhileItWorksOrSleeps) {
  for (int i = 0; i < 20; ++i) {
    make().start(0, 1000);
    if (i % 2 == 0) {
      ASSERT_TRUE(loader_->next().ok());
    }
    loader_.reset();
  }
  make();
  loader_.reset();  // never started
}

TEST_F(LoaderTest, ErrorsComeBackInTheirPlace) {
  write(kSamples, 9);
  options_.shuffle = false;
  options_.grad_accum = 1;
  Loader& loader = make();
  loader.start(0, 10);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(loader.next().ok());
    loader.release();
  }
  for (int i = 0; i < 2; ++i) {  // again and again the same
    expect_input_error(loader.next(), {"l.npy", "column 'labels'", "sample 9", "0..9", "found 99"});
  }
  loader.start(0, 1);
  EXPECT_TRUE(loader.next().ok());
}

TEST_F(LoaderTest, NothingAllocatesAndTheHelperSleeps) {
  Loader& loader = make();
  auto run = [&](int64_t updates) {
    loader.start(0, updates);
    int64_t batches = 0;
    while (*loader.next() != nullptr) {
      loader.release();
      ++batches;
    }
    return batches;
  };
  run(3);
  const long before = testing::allocations;
  const int64_t batches = run(50);
  const long after = testing::allocations;
  EXPECT_EQ(batches, 150);
  EXPECT_EQ(after - before, 0);

  loader.start(0, 1000000);
  ASSERT_TRUE(loader.next().ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::clock_t cpu = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC, 0.01);  // a twentieth
}

}  // namespace data_loader_test
}  // namespace ofsdp
