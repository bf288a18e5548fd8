// Columns of a .parquet file against the formulas that made it (tests/oracle/make_parquet.py), and
// files with damage or other types.
#include "fsdp/comm/communicator.h"
#include "runtime/data/dataset.h"
#include "runtime/data/parquet_rows.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"
#include "tests/support/onnx_bytes.h"

namespace ofsdp {
namespace parquet_test {

using namespace testing_data;

constexpr int64_t kRows = 100;

std::string table_file() { return OFSDP_SOURCE_DIR "/tests/fixtures/parquet/table.parquet"; }

float element(int64_t i, int64_t j) { return static_cast<float>((i * 7 + j * 3) % 23) / 8 - 1; }

class ParquetTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(OFSDP_LIBRARY_DIR "/libofsdp_parquet.so")) {
      GTEST_SKIP() << "this build has no libofsdp_parquet.so";
    }
    folder_.write("t.parquet", onnx_bytes::content(table_file()));
  }

  // Opens {file: t.parquet, column: `keys`}.
  Result<std::unique_ptr<Dataset>> open(const std::string& keys, bool classes = false,
                                        const std::vector<std::string>& order = {}) {
    const std::string yaml = "train: {c: {file: t.parquet, column: " + keys + "}}";
    OFSDP_ASSIGN_OR_RETURN(DataSpec spec, parse_data_yaml(yaml, folder_.path(), "d.yaml"));
    if (classes) spec.train.take_classes("c", {order, "names.txt", /*binding=*/true});
    return Dataset::open(spec.train, {"c"}, *communicator_, ledger_);
  }

  // The rows in the form for a graph.
  template <typename T>
  std::vector<T> rows(const std::string& keys, DType dtype, const std::vector<int64_t>& dims,
                      bool classes = false, const std::vector<std::string>& order = {}) {
    auto data = open(keys, classes, order);
    EXPECT_TRUE(data.ok()) << data.error().message();
    if (!data.ok()) return {};
    const Status bound = (*data)->bind({{"c", dtype, dims, false, classes}});
    EXPECT_TRUE(bound.ok()) << bound.message();
    if (!bound.ok()) return {};
    classes_ = (*data)->classes("c");
    const std::vector<int64_t> samples = counted<int64_t>(kRows);
    std::vector<T> found(samples.size() * (*data)->columns()[0].row_bytes() / sizeof(T));
    EXPECT_TRUE((*data)->read_rows(0, samples, reinterpret_cast<std::byte*>(found.data())).ok());
    return found;
  }

  // value(i, j) for every row i and element j.
  template <typename T, typename Value>
  static std::vector<T> made(int64_t elements, Value value) {
    std::vector<T> values;
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t j = 0; j < elements; ++j) values.push_back(static_cast<T>(value(i, j)));
    }
    return values;
  }

  TempFolder folder_;
  std::unique_ptr<Communicator> communicator_ = make_self_communicator();
  MemoryLedger ledger_;
  std::vector<std::string> classes_;
};

TEST_F(ParquetTest, NumbersAreThoseOfTheirFormulas) {
  const auto vectors = made<float>(4, element);
  for (const char* keys : {"x", "fixed", "[x0, x1, x2, x3]"}) {
    EXPECT_EQ(rows<float>(keys, DType::kFloat32, {4}), vectors) << keys;
  }
  const auto labels = made<int64_t>(1, [](int64_t i, int64_t) { return i * i % 3; });
  EXPECT_EQ(rows<int64_t>("labels", DType::kInt64, {}), labels);
  EXPECT_EQ(rows<int64_t>("labels", DType::kInt64, {1}), labels);
  const auto count = [](int64_t i, int64_t) { return i * 7 % 13; };
  EXPECT_EQ(rows<int64_t>("count", DType::kInt64, {}), made<int64_t>(1, count));
  EXPECT_EQ(rows<float>("count", DType::kFloat32, {}), made<float>(1, count));
  EXPECT_EQ(rows<float>("count, scale: 0.5", DType::kFloat32, {}),
            made<float>(1, [&](int64_t i, int64_t) { return static_cast<float>(i * 7 % 13) / 2; }));
  const auto byte = [](int64_t i, int64_t) { return i * 5 % 256; };
  EXPECT_EQ(rows<float>("byte", DType::kFloat32, {}), made<float>(1, byte));
  const auto flag = [](int64_t i, int64_t) { return i % 3 == 0; };
  EXPECT_EQ(rows<uint8_t>("flag", DType::kBool, {}), made<uint8_t>(1, flag));
  EXPECT_EQ(rows<float>("flag", DType::kFloat32, {}), made<float>(1, flag));
  EXPECT_EQ(rows<float>("deep", DType::kFloat32, {2, 3}), made<float>(6, [](int64_t i, int64_t e) {
              return static_cast<float>(i + e / 3) + static_cast<float>(e % 3) / 4;
            }));
  // Several types in one row.
  EXPECT_EQ(rows<float>("[count, x1, flag]", DType::kFloat32, {3}),
            made<float>(3, [&](int64_t i, int64_t j) {
              return j == 0 ? static_cast<float>(count(i, 0)) : j == 1 ? element(i, 1) : flag(i, 0);
            }));
}

TEST_F(ParquetTest, MissingValues) {
  const auto gap = [](int64_t i, int64_t) { return i % 10 == 9 ? -100 : i; };
  EXPECT_EQ(rows<int64_t>("gap, missing: -100", DType::kInt64, {}), made<int64_t>(1, gap));
  // A number beyond int16, and a fraction.
  EXPECT_EQ(rows<int64_t>("gap, missing: 70000", DType::kInt64, {})[9], 70000);
  EXPECT_EQ(rows<float>("gap, missing: 0.5", DType::kFloat32, {})[19], 0.5f);
  // Whole floats, as pandas has integers next to a missing one.
  EXPECT_EQ(rows<int64_t>("whole, missing: -100", DType::kInt64, {}), made<int64_t>(1, gap));
  EXPECT_EQ(rows<int8_t>("whole, missing: -100", DType::kInt8, {}), made<int8_t>(1, gap));
  const auto refusal = [this](const std::string& keys, DType dtype,
                              const std::vector<int64_t>& dims = {}) {
    return (*open(keys))->bind({{"c", dtype, dims}});
  };
  expect_input_error(refusal("x1", DType::kInt64),
                     {"t.parquet: column 'c', sample 0: value -0.625 does not fit int64 (whole, "});
  expect_input_error(refusal("whole, missing: 1", DType::kBool), {"sample 2: value 2", "bool"});
  for (const char* keys : {"whole, missing: 1e39", "nan, missing: 1e39"}) {
    expect_input_error(refusal(keys, DType::kFloat32),
                       {keys[0] == 'w' ? "sample 9" : "sample 40", "value 1e+39", "float32"});
  }
  expect_input_error(refusal("x, pad_to: 5, pad_value: 1e39", DType::kFloat32, {5}),
                     {"sample 0: value 1e+39"});
  const auto nan = rows<float>("nan, missing: -1", DType::kFloat32, {});
  EXPECT_EQ(nan[40], -1);
  EXPECT_EQ(nan[41], 10.25f);
  expect_input_error(open("gap"), {"t.parquet row 9: column 'gap': expected a number, found null",
                                   "`missing: NUMBER`"});
  expect_input_error(open("nan"), {"t.parquet row 40: column 'nan'", "found NaN"});
  // Labels.
  for (const char* labels : {"gap", "unsaid"}) {
    expect_input_error(open(labels, true),
                       {"t.parquet row 9: column", "found null, a missing value",
                        "-100, the ignore-index, leaves a row out"});
  }
  EXPECT_EQ(rows<int64_t>("unsaid, missing: -100", DType::kInt64, {}, true)[9], -100);
  expect_input_error(open("hole"),
                     {"t.parquet row 50: column 'hole': expected a list, found null"});
}

TEST_F(ParquetTest, TextsAreClasses) {
  // Sorted: aster, iris, "rose, red"; the file has iris, aster, rose by i * i % 3.
  const auto sorted = made<int64_t>(1, [](int64_t i, int64_t) {
    return i * i % 3 == 0 ? 1 : i * i % 3 == 1 ? 0 : 2;
  });
  for (const char* keys : {"name", "category"}) {
    EXPECT_EQ(rows<int64_t>(keys, DType::kInt64, {}, true), sorted) << keys;
    EXPECT_EQ(classes_, (std::vector<std::string>{"aster", "iris"})) << keys;
    const auto ordered = rows<int64_t>(keys, DType::kInt64, {}, true, {"iris", "aster"});
    EXPECT_EQ(ordered[0], 0);
    EXPECT_EQ(ordered[1], 1);
    expect_input_error(
        open(keys, true, {"iris", "tulip"}),
        {"t.parquet row 1: column", "expected a class of iris, tulip, found 'aster'"});
    expect_input_error(open(keys), {"expected numbers, found", "only labels may be names"});
  }
  // Digits are numbers, as in a .csv file.
  EXPECT_EQ(rows<int64_t>("digits", DType::kInt64, {}, true),
            made<int64_t>(1, [](int64_t i, int64_t) { return i * i % 3; }));
  EXPECT_TRUE(classes_.empty());
  int64_t next = 0;
  EXPECT_TRUE(for_each_parquet_text(table_file(), "text", [&](std::string_view text, int64_t row) {
                EXPECT_EQ(text, format_text("text {}", next));
                EXPECT_EQ(row, next++);
                return Status();
              }).ok());
  EXPECT_EQ(next, kRows);
}

TEST_F(ParquetTest, ListsOfDifferentLength) {
  const auto padded = [](int64_t i, int64_t j) { return j <= i % 3 ? i + j : -7; };
  EXPECT_EQ(rows<int64_t>("ragged, pad_to: longest, pad_value: -7", DType::kInt64, {3}),
            made<int64_t>(3, padded));
  EXPECT_EQ(rows<int64_t>("ragged, pad_to: 5, pad_value: -7", DType::kInt64, {5}),
            made<int64_t>(5, padded));
  EXPECT_EQ(rows<float>("ragged, pad_to: 4, pad_value: 0.5", DType::kFloat32, {4})[3], 0.5f);
  expect_input_error(open("ragged"), {"t.parquet row 1: column 'ragged': rows differ in length (2 "
                                      "entries, 1 before): expected pad_to"});
  expect_input_error(open("ragged, pad_to: 2"), {"t.parquet row 2: column 'ragged'",
                                                 "at most the 2 entries of pad_to, found 3"});
  expect_input_error(open("count, pad_to: 2"), {"pad_to is for lists, found numbers"});
  expect_input_error(open("crooked"), {"t.parquet row 70: column 'crooked'",
                                       "lists of numbers of one "
                                       "length, 2 as the first, found 3"});
  const auto spec =
      parse_data_yaml("train: {c: {file: t.parquet, column: ragged, pad_to: 3}, m: auto}",
                      folder_.path(), "d.yaml");
  ASSERT_TRUE(spec.ok());
  auto data = Dataset::open(spec->train, {"m"}, *communicator_, ledger_);
  ASSERT_TRUE(data.ok()) << data.error().message();
  ASSERT_TRUE((*data)->bind({{"m", DType::kBool, {3}}}).ok());
  const std::vector<int64_t> samples = {0, 1, 2};
  std::vector<uint8_t> mask(9);
  ASSERT_TRUE((*data)->read_rows(0, samples, reinterpret_cast<std::byte*>(mask.data())).ok());
  EXPECT_EQ(mask, (std::vector<uint8_t>{1, 0, 0, 1, 1, 0, 1, 1, 1}));
}

TEST_F(ParquetTest, OtherTypesAreRefused) {
  expect_input_error(open("day"), {"column 'day': expected numbers, found date32", "a date"});
  expect_input_error(open("price"), {"found decimal128(3, 2): write it as float64"});
  expect_input_error(open("both"), {"found struct<a: int64>", "lists of numbers or text"});
  expect_input_error(open("words"), {"found list<element: string>"});
  expect_input_error(open("[count, x]"),
                     {"column 'x': expected a number in each of several columns"});
  expect_input_error(open("cuont"), {"t.parquet: no column 'cuont'", "did you mean 'count'"});
  expect_input_error(for_each_parquet_text(table_file(), "count", {}),
                     {"column 'count': expected text, found int32"});
}

// Every cut or changed file gives a one-line error, or has all rows.
TEST_F(ParquetTest, DamagedFiles) {
  const std::string whole = onnx_bytes::content(table_file());
  const auto vectors = made<float>(4, element);
  int refused = 0;
  const auto attempt = [&](const std::string& bytes) {
    folder_.write("t.parquet", bytes);
    auto data = open("x");
    if (!data.ok()) {
      ++refused;
      return expect_input_error(std::move(data), {"t.parquet"});
    }
  };
  for (const size_t size : {size_t{0}, size_t{3}, size_t{8}, whole.size() / 2, whole.size() - 1}) {
    const int before = refused;
    attempt(whole.substr(0, size));
    EXPECT_EQ(refused, before + 1) << size;
  }
  attempt("PAR1" + std::string(100, '\0') + std::string("\xff\xff\xff\x7f", 4) + "PAR1");
  uint64_t random = 1;
  for (int i = 0; i < 300; ++i) {
    std::string bytes = whole;
    for (int change = 0; change < 1 + i % 3; ++change) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      bytes[(random >> 20) % bytes.size()] ^= static_cast<char>(1 + (random >> 60));
    }
    attempt(bytes);
  }
  EXPECT_GT(refused, 20);
  folder_.write("t.parquet", whole);
  EXPECT_EQ(rows<float>("x", DType::kFloat32, {4}), vectors);
  expect_input_error((folder_.write("t.parquet", "PAR1 no footer"), open("x")),
                     {"t.parquet: expected a parquet file, found one that cannot be read: "});
}

}  // namespace parquet_test
}  // namespace ofsdp
