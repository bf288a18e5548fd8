// Random changes to images: statistics of the draws against the distributions', and rows against
// plain ones. Draws depend only on seed, epoch and sample.
#include "runtime/data/augment.h"

#include <cmath>

#include "fsdp/comm/communicator.h"
#include "runtime/data/dataset.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"
#include "tests/support/png_bytes.h"

namespace ofsdp {
namespace augment_test {

using namespace testing_data;

TEST(Augment, CropsHaveTheirAreasAndRatios) {
  Augmentation by;
  by.crop = {0.1, 0.5};
  constexpr int kDraws = 4000;
  double area = 0, ratio = 0;
  for (int64_t i = 0; i < kDraws; ++i) {
    const PixelBox box = random_crop(row_key(1, 0, i), 400, 400, by);
    ASSERT_GE(box.x, 0);
    ASSERT_GE(box.y, 0);
    ASSERT_LE(box.x + box.width, 400);
    ASSERT_LE(box.y + box.height, 400);
    const auto width = static_cast<double>(box.width), height = static_cast<double>(box.height);
    ASSERT_GT(width / height, 0.73);
    ASSERT_LT(width / height, 1.37);
    area += width * height / 160000 / kDraws;
    ratio += std::log(width / height) / kDraws;
  }
  EXPECT_NEAR(area, 0.3, 0.006);  // uniform
  EXPECT_NEAR(ratio, 0, 0.01);    // log-uniform
}

// No box with an allowed ratio fits into a strip: the largest in the middle is taken.
TEST(Augment, ACropThatCannotFitIsInTheMiddle) {
  Augmentation by;
  by.crop = {1, 1};
  const PixelBox wide = random_crop(7, 300, 30, by), high = random_crop(7, 30, 300, by);
  EXPECT_EQ(wide.height, 30);
  EXPECT_EQ(wide.width, 40);
  EXPECT_EQ(wide.x, 130);
  EXPECT_EQ(high.width, 30);
  EXPECT_EQ(high.height, 40);
  EXPECT_EQ(high.y, 130);
}

TEST(Augment, FlipsAndWeightsHaveTheirDistributions) {
  constexpr int kDraws = 4000;
  Augmentation by;
  by.flip = 0.3;
  double flipped = 0;
  for (int64_t i = 0; i < kDraws; ++i) flipped += flips(row_key(5, 2, i), by) ? 1.0 / kDraws : 0;
  EXPECT_NEAR(flipped, 0.3, 0.03);
  for (const double alpha : {0.2, 1.0, 4.0}) {
    by.mixup = alpha;
    double mean = 0, square = 0;
    for (int64_t i = 0; i < kDraws; ++i) {
      const RowMix mix = draw_mix(row_key(5, 2, i), 100, 8, 8, by);
      ASSERT_GE(mix.partner, 0);
      ASSERT_LT(mix.partner, 100);
      mean += static_cast<double>(mix.kept) / kDraws;
      square += static_cast<double>(mix.kept * mix.kept) / kDraws;
    }
    EXPECT_NEAR(mean, 0.5, 0.03);
    EXPECT_NEAR(square - mean * mean, 1 / (4 * (2 * alpha + 1)), 0.01) << "alpha " << alpha;
  }
}

class AugmentedTest : public ::testing::Test {
 protected:
  static constexpr int64_t kCount = 12, kHeight = 6, kWidth = 9, kRow = kHeight * kWidth * 3;

  void write(bool flat) {
    for (uint32_t i = 0; i < kCount; ++i) {
      auto pixels = made_pixels(kRow, i);
      if (flat) pixels.assign(kRow, static_cast<uint8_t>(10 * i + 5));
      folder_.write(format_text("p/{}/{:02}.png", i % 3, i), png_bytes(kWidth, kHeight, 3, pixels));
    }
  }

  std::unique_ptr<Dataset> open(const std::string& keys, int threads = 1) {
    auto spec = parse_data_yaml("train:\n  x: {images: p, scale: 1" + keys +
                                    "}\n  y: {images: p, member: cls, one_hot: 3}\n",
                                folder_.path(), "d.yaml");
    EXPECT_TRUE(spec.ok()) << spec.error().message();
    for (ColumnSpec& column : spec->train.columns) column.images->threads = threads;
    auto data = *Dataset::open(spec->train, {"x", "y"}, *communicator_, ledger_);
    const Status bound =
        data->bind({{"x", DType::kFloat32, {-1, -1, -1}}, {"y", DType::kFloat32, {3}}});
    EXPECT_TRUE(bound.ok()) << bound.message();
    return data;
  }

  static std::vector<float> rows(Dataset& data, int column, std::vector<int64_t> samples) {
    std::vector<float> values(samples.size() *
                              data.columns()[static_cast<size_t>(column)].row_bytes() / 4);
    const Status read =
        data.read_rows(column, samples, reinterpret_cast<std::byte*>(values.data()));
    EXPECT_TRUE(read.ok()) << read.message();
    return values;
  }

  static std::vector<int64_t> all() {
    std::vector<int64_t> samples(kCount);
    for (int64_t i = 0; i < kCount; ++i) samples[static_cast<size_t>(i)] = i;
    return samples;
  }

  TempFolder folder_;
  MemoryLedger ledger_;
  std::unique_ptr<Communicator> communicator_ = make_self_communicator();
};

const std::string kAll = ", size: [5, 5], crop: [0.2, 0.9], flip: 0.5, mixup: 0.4, cutmix: 1.0";

TEST_F(AugmentedTest, RowsDependOnSeedEpochAndSampleAlone) {
  write(false);
  const auto one = open(kAll), four = open(kAll, 4);
  const auto plain = rows(*one, 0, all());
  ASSERT_TRUE(one->augment(3).ok());
  ASSERT_TRUE(four->augment(3).ok());
  for (const int64_t epoch : {2, 0, 2}) {
    one->begin_epoch(epoch);
    four->begin_epoch(epoch);
    for (int column : {0, 1}) {
      const auto together = rows(*one, column, all());
      EXPECT_EQ(together, rows(*four, column, all()));
      std::vector<float> alone;
      for (int64_t i = 0; i < kCount; ++i) {
        const auto row = rows(*four, column, {i});
        alone.insert(alone.end(), row.begin(), row.end());
      }
      EXPECT_EQ(together, alone);
    }
    EXPECT_NE(rows(*one, 0, all()), plain);
  }
  const auto second = rows(*one, 0, all());
  one->begin_epoch(3);
  EXPECT_NE(rows(*one, 0, all()), second);
  one->begin_epoch(2);
  ASSERT_TRUE(one->augment(4).ok());
  EXPECT_NE(rows(*one, 0, all()), second);
}

TEST_F(AugmentedTest, AFlipMirrorsEachRow) {
  write(false);
  for (const bool planes : {true, false}) {
    const std::string layout = planes ? "" : ", layout: hwc";
    const auto data = open(", flip: 1" + layout);
    const auto plain = rows(*data, 0, {4});
    ASSERT_TRUE(data->augment(3).ok());
    const auto found = rows(*data, 0, {4});
    for (int64_t y = 0; y < kHeight; ++y) {
      for (int64_t x = 0; x < kWidth; ++x) {
        for (int64_t c = 0; c < 3; ++c) {
          const auto at = [&](int64_t column) {
            return static_cast<size_t>(planes ? (c * kHeight + y) * kWidth + column
                                              : (y * kWidth + column) * 3 + c);
          };
          ASSERT_EQ(found[at(x)], plain[at(kWidth - 1 - x)]);
        }
      }
    }
  }
}

// Each image has one value, so a mixed row shows its partner and the share.
TEST_F(AugmentedTest, MixupWeighsImagesAndLabelsAlike) {
  write(true);
  const auto data = open(", mixup: 1");
  const auto plain = rows(*data, 0, all());
  const auto labels = rows(*data, 1, all());
  ASSERT_TRUE(data->augment(3).ok());
  const auto mixed = rows(*data, 0, all()), weights = rows(*data, 1, all());
  int changed = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const RowMix mix = draw_mix(row_key(3, 0, i), kCount, kWidth, kHeight,
                                {.crop = {}, .flip = 0, .mixup = 1, .cutmix = 0});
    const double kept = mix.kept, other = 1 - kept;
    const auto own_at = static_cast<size_t>(i), partner_at = static_cast<size_t>(mix.partner);
    for (size_t j = 0; j < kRow; ++j) {
      ASSERT_NEAR(mixed[own_at * kRow + j],
                  kept * plain[own_at * kRow + j] + other * plain[partner_at * kRow + j], 1e-4);
    }
    for (size_t k = 0; k < 3; ++k) {
      ASSERT_NEAR(weights[own_at * 3 + k],
                  kept * labels[own_at * 3 + k] + other * labels[partner_at * 3 + k], 1e-6);
    }
    changed += mix.partner != i;
  }
  EXPECT_GT(changed, 6);
}

TEST_F(AugmentedTest, CutmixWeighsLabelsByPixels) {
  write(true);
  for (const char* layout : {"chw", "hwc"}) {
    const auto data = open(std::string(", cutmix: 1, layout: ") + layout);
    const auto labels = rows(*data, 1, all());
    ASSERT_TRUE(data->augment(3).ok());
    const auto mixed = rows(*data, 0, all()), weights = rows(*data, 1, all());
    int pasted = 0;
    for (size_t i = 0; i < kCount; ++i) {
      std::map<float, int> values;
      for (size_t j = 0; j < kRow; ++j) ++values[mixed[i * kRow + j]];
      ASSERT_LE(values.size(), 2u);
      std::vector<double> expected(3);
      for (const auto& [value, count] : values) {
        const auto from = static_cast<size_t>((value - 5) / 10);
        // Files are in class order: image n is row n / 3 of class n % 3.
        expected[from % 3] += static_cast<double>(count) / kRow;
      }
      for (size_t k = 0; k < 3; ++k) ASSERT_NEAR(weights[i * 3 + k], expected[k], 1e-6);
      pasted += values.size() == 2;
    }
    EXPECT_GT(pasted, 4);
  }
}

TEST_F(AugmentedTest, LabelsThatCannotMixAreRefused) {
  write(true);
  const auto spec = parse_data_yaml(
      "train:\n  x: {images: p, mixup: 0.2}\n  y: {images: p, member: cls}\n", folder_.path(), "d");
  auto data = *Dataset::open(spec->train, {"x", "y"}, *communicator_, ledger_);
  WantedColumn labels{"y", DType::kInt64, {}};
  labels.classes = true;
  ASSERT_TRUE(data->bind({{"x", DType::kFloat32, {3, 6, 9}}, labels}).ok());
  expect_input_error(data->augment(0), {"column 'y'", "mixup", "one_hot: CLASSES"});
  const auto refused = [&](const std::string& keys, const std::vector<std::string>& facts) {
    expect_input_error(
        parse_data_yaml("train: {x: {images: p, " + keys + "}}\n", folder_.path(), "d"), facts);
  };
  refused("crop: [0, 1]", {"two parts of the area", "[0, 1]"});
  refused("crop: [0.5, 1.5]", {"two parts of the area"});
  refused("crop: 0.5", {"two parts of the area", "'0.5'"});
  refused("crop_ratio: [2, 1]", {"two ratios"});
  refused("flip: 2", {"from 0 to 1", "'2'"});
  refused("mixup: -1", {"from 0 to 4", "'-1'"});
  refused("one_hot: 3", {"'one_hot' is no key of images"});
}

TEST_F(AugmentedTest, ClassesBeyondOneHotAreRefused) {
  write(true);
  const auto spec =
      parse_data_yaml("train:\n  y: {images: p, member: cls, one_hot: 2}\n", folder_.path(), "d");
  auto data = *Dataset::open(spec->train, {"y"}, *communicator_, ledger_);
  ASSERT_TRUE(data->bind({{"y", DType::kFloat32, {2}}}).ok());
  std::vector<float> row(2);
  const int64_t last = kCount - 1;
  expect_input_error(
      data->read_rows(0, std::span(&last, 1), reinterpret_cast<std::byte*>(row.data())),
      {"column 'y', sample 11: expected a class of 0..1, found 2"});
  expect_input_error(data->bind({{"y", DType::kFloat32, {3}}}), {"one_hot makes float32 of [2]"});
}

}  // namespace augment_test
}  // namespace ofsdp
