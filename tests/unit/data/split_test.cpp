// `split`: two parts of one source's rows, for files and images, against rows read without it.
#include <algorithm>
#include <map>
#include <set>

#include "fsdp/comm/communicator.h"
#include "runtime/data/dataset.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"
#include "tests/support/png_bytes.h"

namespace ofsdp {
namespace split_test {

using namespace testing_data;

std::vector<int64_t> part(const RowSplit& split, bool evaluation) {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < split.size(evaluation); ++i) rows.push_back(split.row(evaluation, i));
  return rows;
}

std::shared_ptr<const RowSplit> split_of(int64_t rows, double share, uint64_t seed = 0,
                                         const std::vector<int64_t>& classes = {}) {
  auto made = RowSplit::make("data", rows, share, seed, classes);
  EXPECT_TRUE(made.ok());
  return *std::move(made);
}

TEST(RowSplit, EachRowIsInOnePartInOrder) {
  for (const int64_t rows : {2, 3, 10, 97, 1000}) {
    for (const double share : {0.001, 0.1, 0.5, 0.999}) {
      const auto split = split_of(rows, share);
      const auto train = part(*split, false), eval = part(*split, true);
      EXPECT_TRUE(std::ranges::is_sorted(train));
      EXPECT_TRUE(std::ranges::is_sorted(eval));
      std::set<int64_t> all(train.begin(), train.end());
      all.insert(eval.begin(), eval.end());
      EXPECT_EQ(std::ssize(all), rows);
      EXPECT_EQ(std::ssize(train) + std::ssize(eval), rows);
      const auto wanted =
          std::clamp<int64_t>(std::llround(share * static_cast<double>(rows)), 1, rows - 1);
      EXPECT_EQ(std::ssize(eval), wanted) << rows << " rows, " << share;
    }
  }
}

TEST(RowSplit, TheSeedAloneDecides) {
  EXPECT_EQ(part(*split_of(500, 0.1, 7), true), part(*split_of(500, 0.1, 7), true));
  EXPECT_NE(part(*split_of(500, 0.1, 7), true), part(*split_of(500, 0.1, 8), true));
}

TEST(RowSplit, ClassesKeepTheirShares) {
  std::vector<int64_t> classes;
  for (int64_t i = 0; i < 300; ++i) classes.push_back(i % 10 == 0 ? 5 : i % 3 == 0 ? -1 : 9);
  const auto split = split_of(300, 0.2, 1, classes);
  std::map<int64_t, double> all, eval;
  for (const int64_t one : classes) ++all[one];
  for (const int64_t row : part(*split, true)) ++eval[classes[static_cast<size_t>(row)]];
  EXPECT_EQ(split->size(true), 60);
  for (const auto& [label, count] : all) {
    EXPECT_LT(std::abs(eval[label] - 0.2 * count), 1) << "class " << label;
  }
  expect_input_error(RowSplit::make("data.yaml", 1, 0.5, 0, {}), {"data.yaml", "at least 2"});
}

class SplitTest : public ::testing::Test {
 protected:
  Result<DataSpec> spec(const std::string& text) {
    return parse_data_yaml(text, folder_.path(), "d.yaml");
  }

  // The rows in both parts of column x.
  std::vector<std::vector<uint8_t>> parts(const std::string& text) {
    std::vector<std::vector<uint8_t>> rows;
    const auto both = spec(text);
    EXPECT_TRUE(both.ok()) << both.error().message();
    auto train = *Dataset::open(both->train, {"x"}, *communicator_, ledger_);
    auto eval = *Dataset::open_part(*both->eval, *train, ledger_);
    for (Dataset* const data : {train.get(), eval.get()}) {
      EXPECT_TRUE(data->bind({{"x", DType::kUInt8, train->stored("x")->row.axes()}}).ok());
      std::vector<int64_t> samples(static_cast<size_t>(data->samples()));
      for (size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<int64_t>(i);
      auto& bytes = rows.emplace_back(samples.size() * data->columns()[0].row_bytes());
      EXPECT_TRUE(data->read_rows(0, samples, reinterpret_cast<std::byte*>(bytes.data())).ok());
    }
    EXPECT_EQ(eval->shared_bytes(), 0u) << "its columns are those of the other part";
    return rows;
  }

  TempFolder folder_;
  MemoryLedger ledger_;
  std::unique_ptr<Communicator> communicator_ = make_self_communicator();
};

TEST_F(SplitTest, ImagesAndArraysHaveTheSameParts) {
  std::vector<uint8_t> all;
  for (uint8_t i = 0; i < 40; ++i) {
    folder_.write(format_text("p/{}/{:02}.png", i < 30 ? "a" : "b", i), png_bytes(1, 1, 1, {i}));
    all.push_back(i);
  }
  folder_.write("x.npy", npy("|u1", "(40, 1, 1, 1)", all));
  folder_.write("l.npy", npy("<i8", "(40,)", std::vector<int64_t>(40, 0)));
  const auto images = parts("train: {x: {images: p}}\nsplit: 0.2\nsplit_seed: 3\n");
  EXPECT_EQ(images, parts("train: {x: {file: x.npy}}\nsplit: 0.2\nsplit_seed: 3\n"));
  ASSERT_EQ(images[1].size(), 8u);
  EXPECT_NE(images[1], parts("train: {x: {images: p}}\nsplit: 0.2\n")[1]);
  const auto labelled =
      parts("train: {x: {images: p}, y: {images: p, member: cls}}\nsplit: 0.2\nstratify: y\n");
  EXPECT_EQ(std::ranges::count_if(labelled[1], [](uint8_t i) { return i >= 30; }), 2);
}

TEST_F(SplitTest, WrongKeysAreRefused) {
  const std::string train = "train: {x: {file: x.npy}}\n";
  expect_input_error(spec(train + "split: 1.5\n"), {"d.yaml:2", "above 0 and below 1", "'1.5'"});
  expect_input_error(spec(train + "split: 0\n"), {"d.yaml:2", "above 0"});
  expect_input_error(spec(train + "stratify: x\n"), {"need the key 'split'"});
  expect_input_error(spec(train + "eval: {x: {file: x.npy}}\nsplit: 0.1\n"),
                     {"'split' or 'eval', found both"});
  expect_input_error(spec("split: 0.1\n"), {"expected columns under 'train'"});
  folder_.write("x.npy", npy("<f4", "(4, 2)", std::vector<float>(8)));
  const auto both = spec(train + "split: 0.5\nstratify: x\n");
  expect_input_error(Dataset::open(both->train, {"x"}, *communicator_, ledger_),
                     {"stratify: expected one class a sample in column 'x', found float32[2]"});
  const auto none = spec(train + "split: 0.5\nstratify: y\n");
  expect_input_error(Dataset::open(none->train, {"x"}, *communicator_, ledger_), {"no column 'y'"});
}

TEST_F(SplitTest, KeysOfImagesAreChecked) {
  const auto refused = [&](const std::string& keys, const std::vector<std::string>& facts) {
    expect_input_error(spec("train: {x: {" + keys + "}}\n"), facts);
  };
  refused("images: p, size: 3", {"[height, width]", "'3'"});
  refused("images: p, size: [0, 4]", {"[height, width]", "[0, 4]"});
  refused("images: p, layout: nchw", {"chw or hwc", "'nchw'"});
  refused("images: p, channels: 2", {"1 or 3", "'2'"});
  refused("images: p, file: x.npy", {"'file' is no key of images"});
  refused("images: p, member: jpg", {"cls", "'jpg'"});
  refused("images: p, member: cls, size: [1, 1]", {"'size' is no key of classes"});
  refused("file: x.npy, size: [1, 1]", {"expected", "'images'", "found none"});
  const auto made = spec("train: {x: {images: [p, q], mean: [1, 2, 3], std: 2}}\n");
  ASSERT_TRUE(made.ok()) << made.error().message();
  const ColumnSpec& column = made->train.columns[0];
  EXPECT_EQ(column.images->folders,
            (std::vector<std::string>{folder_.path() + "/p", folder_.path() + "/q"}));
  EXPECT_EQ(column.normalization->scale, 1.0f / 255);
}

}  // namespace split_test
}  // namespace ofsdp
