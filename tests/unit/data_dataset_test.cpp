#include "runtime/data/dataset.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace data_dataset_test {

using namespace testing_data;
using Names = std::vector<std::string>;

class DatasetTest : public ::testing::Test {
 protected:
  ColumnSpec& add(const std::string& name, const std::string& file, const std::string& bytes) {
    ColumnSpec& column = set_.columns.emplace_back();
    column.name = name;
    column.path = folder_.write(file, bytes);
    return column;
  }

  Result<std::unique_ptr<Dataset>> open(const Names& names) {
    set_.origin = "data";
    return Dataset::open(set_, names, *communicator_, ledger_);
  }

  Status bind(const std::vector<WantedColumn>& wanted) {
    Names names;
    for (const WantedColumn& one : wanted) names.push_back(one.name);
    Result<std::unique_ptr<Dataset>> dataset = open(names);
    if (!dataset.ok()) return std::move(dataset).status();
    dataset_ = *std::move(dataset);
    return dataset_->bind(wanted);
  }

  template <typename T>
  std::vector<T> read(int column, const std::vector<int64_t>& samples) {
    const size_t row = dataset_->columns()[static_cast<size_t>(column)].row_bytes();
    std::vector<T> values(row * samples.size() / sizeof(T));
    const Status status =
        dataset_->read_rows(column, samples, reinterpret_cast<std::byte*>(values.data()));
    EXPECT_TRUE(status.ok()) << status.message();
    return values;
  }

  // One column "x" with one element a row, read whole as `to`.
  template <typename To, typename From>
  std::vector<To> convert(const char* descr, DType to, const std::vector<From>& values) {
    set_.columns.clear();
    add("x", "x.npy", npy(descr, format_text("({},)", values.size()), values));
    const Status status = bind({{"x", to, {}}});
    EXPECT_TRUE(status.ok()) << status.message();
    return read<To>(0, counted<int64_t>(values.size()));
  }

  Status read_status(int column, const std::vector<int64_t>& samples) {
    std::vector<std::byte> dst(1 << 16);
    return dataset_->read_rows(column, samples, dst.data());
  }

  TempFolder folder_;
  MemoryLedger ledger_;
  std::unique_ptr<Communicator> communicator_ = make_self_communicator();
  ColumnSet set_;
  std::unique_ptr<Dataset> dataset_;
};

TEST_F(DatasetTest, RowsInAnyOrder) {
  add("x", "x.npy", npy("<f4", "(5, 2)", counted<float>(10)));
  add("labels", "labels.npy", npy<int64_t>("<i8", "(5,)", {10, 11, 12, 13, 14}));
  add("unused", "unused.npy", "nobody opens this");
  ASSERT_TRUE(bind({{"labels", DType::kInt64, {}}, {"x", DType::kFloat32, {2}}}).ok());
  EXPECT_EQ(dataset_->samples(), 5);
  EXPECT_EQ(read<int64_t>(0, {4, 0, 1, 2, 2}), (std::vector<int64_t>{14, 10, 11, 12, 12}));
  EXPECT_EQ(read<float>(1, {3, 4, 0}), (std::vector<float>{6, 7, 8, 9, 0, 1}));
  EXPECT_EQ(read<float>(1, {}), std::vector<float>{});
  EXPECT_EQ(dataset_->stored("x")->dtype, DType::kFloat32);
  EXPECT_EQ(dataset_->stored("unused"), nullptr);
}

TEST_F(DatasetTest, IntegersChangeTheirWidth) {
  EXPECT_EQ((convert<int64_t, uint8_t>("|u1", DType::kInt64, {0, 255})),
            (std::vector<int64_t>{0, 255}));
  EXPECT_EQ((convert<int64_t, int32_t>("<i4", DType::kInt64, {-7, 7})),
            (std::vector<int64_t>{-7, 7}));
  EXPECT_EQ((convert<int32_t, int64_t>("<i8", DType::kInt32, {-2147483648, 2147483647})),
            (std::vector<int32_t>{-2147483647 - 1, 2147483647}));
  EXPECT_EQ((convert<int8_t, uint16_t>("<u2", DType::kInt8, {0, 127})),
            (std::vector<int8_t>{0, 127}));
  EXPECT_EQ((convert<uint64_t, int64_t>("<i8", DType::kUInt64, {5})), (std::vector<uint64_t>{5}));
}

TEST_F(DatasetTest, FloatsBecomeFloat32) {
  EXPECT_EQ((convert<float, uint16_t>("<f2", DType::kFloat32, {0x3c00, 0xc000, 0x3555})),
            (std::vector<float>{1, -2, 0.333251953125f}));
  EXPECT_EQ((convert<float, double>("<f8", DType::kFloat32, {0.1, -3})),
            (std::vector<float>{0.1f, -3}));
  EXPECT_EQ((convert<double, double>("<f8", DType::kFloat64, {0.1})), (std::vector<double>{0.1}));
  EXPECT_EQ((convert<uint16_t, uint16_t>("<f2", DType::kFloat16, {0x3555})),
            (std::vector<uint16_t>{0x3555}));
  EXPECT_EQ((convert<uint16_t, float>("<f4", DType::kFloat16, {1, -2, 65504, 0.33325f})),
            (std::vector<uint16_t>{0x3c00, 0xc000, 0x7bff, 0x3555}));
  EXPECT_EQ((convert<uint16_t, float>("<f4", DType::kBFloat16, {1, -2})),
            (std::vector<uint16_t>{0x3f80, 0xc000}));
  EXPECT_EQ((convert<double, float>("<f4", DType::kFloat64, {0.5f, -3})),
            (std::vector<double>{0.5, -3}));
  EXPECT_EQ((convert<uint8_t, uint8_t>("|b1", DType::kBool, {0, 1})), (std::vector<uint8_t>{0, 1}));
}

TEST_F(DatasetTest, PixelsAreScaledStepByStepInFloat32) {
  EXPECT_EQ((convert<float, uint8_t>("|u1", DType::kFloat32, {0, 255})),
            (std::vector<float>{0, 255}));
  set_.columns.clear();
  const Normalization by{0.00392156862745098f, 0.1307f, 0.3081f};
  add("x", "x-idx", idx(8, {256}, bytes_of(counted<uint8_t>(256)))).normalization = by;
  ASSERT_TRUE(bind({{"x", DType::kFloat32, {}}}).ok());
  const std::vector<float> values = read<float>(0, counted<int64_t>(256));
  for (int i = 0; i < 256; ++i) {
    const float scaled = static_cast<float>(double{by.scale} * i);
    const float moved = static_cast<float>(double{scaled} - double{by.mean});
    EXPECT_EQ(values[static_cast<size_t>(i)], static_cast<float>(double{moved} / double{by.std}))
        << i;
  }
}

// Channels on a row's first axis, and on the last.
TEST_F(DatasetTest, EachChannelHasItsOwnMean) {
  Normalization by;
  by.means = {10, 20, 30};
  by.std = 2;
  const auto expected = [&](size_t i, size_t channel) {
    return (static_cast<float>(i) - by.means[channel]) / by.std;
  };
  add("x", "x-idx", idx(8, {2, 3, 2, 2}, bytes_of(counted<uint8_t>(24)))).normalization = by;
  ASSERT_TRUE(bind({{"x", DType::kFloat32, {3, 2, 2}}}).ok());
  const std::vector<float> first = read<float>(0, {0, 1});
  for (size_t i = 0; i < 24; ++i) EXPECT_EQ(first[i], expected(i, i / 4 % 3)) << i;
  set_.columns.clear();
  add("x", "x-idx", idx(8, {2, 4, 3}, bytes_of(counted<uint8_t>(24)))).normalization = by;
  ASSERT_TRUE(bind({{"x", DType::kFloat32, {4, 3}}}).ok());
  const std::vector<float> last = read<float>(0, {0, 1});
  for (size_t i = 0; i < 24; ++i) EXPECT_EQ(last[i], expected(i, i % 3)) << i;
  set_.columns.clear();
  add("x", "x-idx", idx(8, {2, 4, 2}, bytes_of(counted<uint8_t>(16)))).normalization = by;
  expect_input_error(bind({{"x", DType::kFloat32, {4, 2}}}),
                     {"column 'x'", "3 numbers", "3 channels", "found [4, 2]"});
}

TEST_F(DatasetTest, BigEndianIdxIsSwapped) {
  add("x", "x", idx(0x0b, {2, 2}, std::string("\x01\x02\xff\xfe\x00\x03\x00\x04", 8)));
  ASSERT_TRUE(bind({{"x", DType::kInt64, {2}}}).ok());
  EXPECT_EQ(read<int64_t>(0, {0, 1}), (std::vector<int64_t>{258, -2, 3, 4}));
  ASSERT_TRUE(bind({{"x", DType::kInt16, {2}}}).ok());
  EXPECT_EQ(read<int16_t>(0, {1, 0}), (std::vector<int16_t>{3, 4, 258, -2}));
}

TEST_F(DatasetTest, RowsLargerThanTheScratch) {
  const std::vector<double> values = counted<double>(3 * 20000);
  add("x", "x.npy", npy("<f8", "(3, 20000)", values));
  ASSERT_TRUE(bind({{"x", DType::kFloat32, {20000}}}).ok());
  EXPECT_EQ(read<float>(0, {0, 1, 2}), std::vector<float>(values.begin(), values.end()));
}

TEST_F(DatasetTest, TokensAndTheirShiftedLabels) {
  for (const char* name : {"ids", "labels"}) {
    ColumnSpec& column = add(name, "t.bin", bytes_of(counted<uint16_t>(12, 100)));
    column.sequence_length = 3;
    column.stride = 2;
    column.dtype = DType::kUInt16;
    column.reserve_next = true;
    column.next_token = column.name == "labels";
  }
  ASSERT_TRUE(bind({{"ids", DType::kInt64, {-1}}, {"labels", DType::kInt64, {3}}}).ok());
  EXPECT_EQ(dataset_->samples(), 5);
  EXPECT_EQ(read<int64_t>(0, {0, 1, 4}),
            (std::vector<int64_t>{100, 101, 102, 102, 103, 104, 108, 109, 110}));
  EXPECT_EQ(read<int64_t>(1, {4, 0}), (std::vector<int64_t>{109, 110, 111, 101, 102, 103}));
}

TEST_F(DatasetTest, MissingColumnsNameWhatIsWantedAndWhatIsThere) {
  add("image", "image.npy", "");
  add("label", "label.npy", "");
  expect_input_error(open({"image", "labels"}),
                     {"data: no column 'labels'", "wanted: image, labels", "found: image, label",
                      "did you mean 'label'?"});
  set_.columns.clear();
  expect_input_error(open({"image"}), {"data: no column 'image'", "found: no columns"});
}

TEST_F(DatasetTest, LengthsMustAgree) {
  add("x", "x.npy", npy("<f4", "(5, 2)", counted<float>(10)));
  add("labels", "labels.npy", npy<int64_t>("<i8", "(4,)", {0, 1, 2, 3}));
  expect_input_error(open({"x", "labels"}), {"data", "'x' has 5 samples", "'labels' has 4"});
}

TEST_F(DatasetTest, FileErrorsNameTheColumn) {
  add("x", "x.npy", npy("<f4", "(5, 2)", counted<float>(9)));
  expect_input_error(open({"x"}), {"column 'x'", "x.npy", "expected 168 bytes", "found 164"});
}

TEST_F(DatasetTest, TypesThatDoNotConvert) {
  add("x", "x.npy", npy("<f4", "(5, 2)", counted<float>(10)));
  expect_input_error(bind({{"x", DType::kInt64, {2}}}),
                     {"x.npy", "column 'x'", "expected int64", "found float32"});
  EXPECT_TRUE(bind({{"x", DType::kFloat64, {2}}}).ok());
  set_.columns.clear();
  add("x", "x.npy", npy<int64_t>("<i8", "(1,)", {1}));
  set_.columns[0].normalization.emplace();
  expect_input_error(bind({{"x", DType::kFloat32, {}}}),
                     {"column 'x'", "scale", "uint8", "found int64"});
  set_.columns[0].normalization.reset();
  expect_input_error(bind({{"x", DType::kFloat32, {}}}), {"expected float32", "found int64"});
  expect_input_error(bind({{"x", DType::kFloat64, {}}}), {"expected float64", "found int64"});
  expect_input_error(bind({{"x", DType::kBool, {}}}), {"expected bool", "found int64"});
}

TEST_F(DatasetTest, ShapesThatDoNotFit) {
  add("x", "x.npy", npy("<f4", "(2, 3, 2)", counted<float>(12)));
  EXPECT_TRUE(bind({{"x", DType::kFloat32, {3, -1}}}).ok());
  expect_input_error(bind({{"x", DType::kFloat32, {-1, 4}}}),
                     {"column 'x'", "expected rows of [?, 4]", "found [3, 2]"});
  expect_input_error(bind({{"x", DType::kFloat32, {6}}}), {"expected rows of [6]", "found [3, 2]"});
  EXPECT_TRUE(bind({{"x", DType::kFloat32, {6}, true}}).ok());
  EXPECT_TRUE(bind({{"x", DType::kFloat32, {-1}, true}}).ok());
  EXPECT_TRUE(bind({{"x", DType::kFloat32, {-1, 2}, true}}).ok());
  expect_input_error(bind({{"x", DType::kFloat32, {-1, 4}, true}}), {"[?, 4]", "[3, 2]"});
  expect_input_error(bind({{"x", DType::kFloat32, {}, true}}), {"expected rows of []", "[3, 2]"});
  // Labels may merge axes, but not have other axes with as many elements.
  expect_input_error(bind({{"x", DType::kFloat32, {2, 3}, true}}),
                     {"expected rows of [2, 3]", "found [3, 2]"});
  EXPECT_TRUE(bind({{"x", DType::kFloat32, {6}, true}}).ok());
  EXPECT_TRUE(bind({{"x", DType::kFloat32, {3, 1, 2}, true}}).ok());
}

TEST_F(DatasetTest, ValuesOutOfRangeNameTheSample) {
  add("x", "x.npy", npy<int64_t>("<i8", "(3, 2)", {1, 2, 3, 4, 5, 3000000000}));
  ASSERT_TRUE(bind({{"x", DType::kInt32, {2}}}).ok());
  EXPECT_TRUE(read_status(0, {1, 0}).ok());
  expect_input_error(
      read_status(0, {0, 1, 2}),
      {"x.npy", "column 'x'", "sample 2", "value 3000000000", "int32", "-2147483648..2147483647"});
  set_.columns.clear();
  add("y", "y.npy", npy<int8_t>("|i1", "(2,)", {1, -1}));
  ASSERT_TRUE(bind({{"y", DType::kUInt64, {}}}).ok());
  expect_input_error(read_status(0, {1}), {"sample 1", "value -1", "uint64"});
}

TEST_F(DatasetTest, FileThatShrinksIsAFault) {
  ColumnSpec& column = add("x", "x.npy", npy("<f4", "(5, 2)", counted<float>(10)));
  ASSERT_TRUE(bind({{"x", DType::kFloat32, {2}}}).ok());
  std::filesystem::resize_file(column.path, 128 + 20);
  const Status status = read_status(0, {0, 1, 2, 3, 4});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.kind(), ErrorKind::kFault);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("expected 168 bytes, found 148"));
}

TEST_F(DatasetTest, LabelsAreCheckedInOnePass) {
  std::vector<int64_t> labels(40000, 9);
  labels[3] = -100;
  add("labels", "labels.npy", npy("<i8", "(20000, 2)", labels));
  ASSERT_TRUE(bind({{"labels", DType::kInt64, {2}}}).ok());
  EXPECT_TRUE(dataset_->check_labels("labels", {10, -100}).ok());
  expect_input_error(dataset_->check_labels("labels", {9, -100}),
                     {"labels.npy", "column 'labels'", "sample 0", "0..8", "found 9"});
  expect_input_error(dataset_->check_labels("labels", {10, -1}),
                     {"sample 1", "ignore-index -1", "found -100"});
  labels[39999] = 10;
  set_.columns.clear();
  add("labels", "labels.npy", npy("<i8", "(20000, 2)", labels));
  ASSERT_TRUE(bind({{"labels", DType::kInt64, {2}}}).ok());
  expect_input_error(dataset_->check_labels("labels", {10, -100}),
                     {"sample 19999", "0..9", "found 10"});
}

TEST_F(DatasetTest, LabelCheckOfOverlappingAndSpacedTokens) {
  std::vector<uint16_t> tokens(100, 1);
  tokens[50] = 7;
  struct Case {
    int64_t stride;
    const char* fact;  // the first row with 10 tokens that holds token 50, or nothing
  };
  for (const Case& c : {Case{1, "sample 41"}, Case{3, "sample 14"}, Case{10, "sample 5"},
                        Case{25, "sample 2"}, Case{30, nullptr}}) {
    set_.columns.clear();
    ColumnSpec& column = add("labels", "t.bin", bytes_of(tokens));
    column.sequence_length = 10;
    column.stride = c.stride;
    column.dtype = DType::kUInt16;
    ASSERT_TRUE(bind({{"labels", DType::kInt64, {10}}}).ok());
    const Status status = dataset_->check_labels("labels", {7, -100});
    EXPECT_EQ(status.ok(), c.fact == nullptr) << c.stride;
    if (c.fact != nullptr)
      expect_input_error(dataset_->check_labels("labels", {7, -100}), {c.fact, "found 7"});
  }
}

TEST(CountKept, LeavesOutTheIgnoreIndexAndWeighsClasses) {
  const BoundColumn column{"labels", "l.npy", DType::kInt64, Shape{2}};
  const std::vector<int64_t> labels = {0, 1, -100, 2, -100, -100}, samples = {7, 8, 9};
  const auto* bytes = reinterpret_cast<const std::byte*>(labels.data());
  EXPECT_EQ(*count_kept({0, {3, -100}, {}}, column, samples, bytes), 3);
  EXPECT_EQ(*count_kept({0, {3, -100}, {0.5f, 2, 4}}, column, samples, bytes), 6.5);
  expect_input_error(count_kept({0, {2, -100}, {}}, column, samples, bytes),
                     {"l.npy", "column 'labels'", "sample 8", "0..1", "-100", "found 2"});
  const std::vector<int32_t> narrow = {1, 5};
  const BoundColumn narrow_column{"labels", "l.npy", DType::kInt32, Shape{}};
  EXPECT_EQ(*count_kept({0, {0, 5}, {}}, narrow_column, std::span(samples).first(2),
                        reinterpret_cast<const std::byte*>(narrow.data())),
            1);
}

}  // namespace data_dataset_test
}  // namespace ofsdp
