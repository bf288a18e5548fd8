#include "runtime/data/column_file.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace data_column_file_test {

using namespace testing_data;

class ColumnFileTest : public ::testing::Test {
 protected:
  Result<ColumnFile> open(const std::string& name, const std::string& bytes, ColumnSpec spec = {}) {
    spec.path = folder_.write(name, bytes);
    return ColumnFile::open(spec, *communicator_, ledger_);
  }

  TempFolder folder_;
  MemoryLedger ledger_;
  std::unique_ptr<Communicator> communicator_ = make_self_communicator();
};

TEST_F(ColumnFileTest, NpyOfEveryDtypeAndVersion) {
  struct Case {
    const char* descr;
    DType dtype;
  };
  const Case cases[] = {
      {"<f4", DType::kFloat32}, {"<f8", DType::kFloat64}, {"<f2", DType::kFloat16},
      {"|i1", DType::kInt8},    {"<i2", DType::kInt16},   {"<i4", DType::kInt32},
      {"<i8", DType::kInt64},   {"|u1", DType::kUInt8},   {"<u2", DType::kUInt16},
      {"<u4", DType::kUInt32},  {"<u8", DType::kUInt64},  {"|b1", DType::kBool}};
  for (const Case& c : cases) {
    for (int version : {1, 2, 3}) {
      const std::string data = bytes_of(counted<uint8_t>(3 * 4 * dtype_size(c.dtype)));
      const std::string bytes =
          npy_header("'" + std::string(c.descr) + "'", "(3, 2, 2)", version) + data;
      Result<ColumnFile> file = open("x.npy", bytes);
      ASSERT_TRUE(file.ok()) << file.error().message();
      EXPECT_EQ(file->layout().dtype, c.dtype);
      EXPECT_EQ(file->layout().count, 3);
      EXPECT_EQ(file->layout().row, (Shape{2, 2}));
      std::string row(file->layout().row_bytes(), '\0');
      const uint64_t offset = file->layout().first_byte + 2 * file->layout().row_stride;
      ASSERT_TRUE(file->read(offset, std::as_writable_bytes(std::span(row))).ok());
      EXPECT_EQ(row, data.substr(2 * row.size())) << c.descr;
    }
  }
}

TEST_F(ColumnFileTest, NpyOfOneAxisHasScalarRows) {
  Result<ColumnFile> file = open("x.npy", npy<int64_t>("<i8", "(3,)", {1, 2, 3}));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->layout().count, 3);
  EXPECT_EQ(file->layout().row, Shape{});
  EXPECT_EQ(file->shared_bytes(), 0u);
}

TEST_F(ColumnFileTest, NpyThatIsNotReadNamesWhy) {
  const std::string eight(32, '\1');
  expect_input_error(open("x.npy", npy_header("'>f4'", "(2, 4)") + eight),
                     {"x.npy", ">f4", "big-endian"});
  expect_input_error(open("x.npy", npy_header("'|O'", "(2, 4)") + eight),
                     {"x.npy", "found descr '|O'"});
  expect_input_error(open("x.npy", npy_header("'<c8'", "(2, 2)") + eight),
                     {"x.npy", "found descr '<c8'", "astype('float32')"});
  expect_input_error(open("x.npy", npy_header("[('a', '<f4')]", "(2, 4)") + eight),
                     {"x.npy", "[('a'"});
  expect_input_error(
      open("x.npy", npy_header("'<f4'", "(2, 4)", 1, "True") + eight),
      {"x.npy", "expected C order", "found fortran_order True", "numpy.ascontiguousarray"});
  expect_input_error(open("x.npy", npy_header("'<f4'", "(2, x)") + eight), {"x.npy", "shape"});
  expect_input_error(open("x.npy", npy_header("'<f4'", "()") + "abcd"), {"x.npy", "scalar"});
  expect_input_error(open("x.npy", npy_header("'<f4'", "(0, 4)")),
                     {"x.npy", "at least 1 sample", "found 0"});
  expect_input_error(open("x.npy", npy_header("'<f4'", "(2, 0)")), {"x.npy", "[2, 0]"});
  expect_input_error(
      open("x.npy", npy_header("'<f4'", "(4611686018427387904, 4611686018427387904)")), {"x.npy"});
  expect_input_error(open("x.npy", "PK\3\4abcdefghijkl"),
                     {"x.npy", "93 4e 55", "found 50 4b 03 04"});
  expect_input_error(open("x.npy", ""), {"x.npy", "expected a .npy file"});
  expect_input_error(open("x.npy", npy_header("'<f4'", "(2, 4)", 9)),
                     {"x.npy", "version", "found 9"});
  expect_input_error(open("x.npy", npy_header("'<f4'", "(2, 4)").substr(0, 50)),
                     {"x.npy", "header of 128 bytes", "found 50"});
}

// With one axis longer than 1 both orders have the same bytes. Python also takes JSON's quotes.
TEST_F(ColumnFileTest, NpyWhoseOrderMakesNoDifference) {
  const std::string data = bytes_of(counted<float>(8));
  for (const auto& [shape, count] : {std::pair{"(8, 1)", 8}, {"(1, 8)", 1}, {"(1, 8, 1)", 1}}) {
    Result<ColumnFile> file = open("x.npy", npy_header("'<f4'", shape, 1, "True") + data);
    ASSERT_TRUE(file.ok()) << shape;
    EXPECT_EQ(file->layout().count, count);
  }
  std::string header = npy_header("'<f4'", "(2, 4)");
  std::ranges::replace(header, '\'', '"');
  Result<ColumnFile> file = open("x.npy", header + data);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->layout().row, Shape{4});
  EXPECT_EQ(file->layout().dtype, DType::kFloat32);
}

TEST_F(ColumnFileTest, WrongLengthNamesBothNumbers) {
  const std::string whole = npy("<f4", "(3, 4)", counted<float>(12));  // 128 + 48 bytes
  expect_input_error(open("x.npy", whole.substr(0, 175)),
                     {"x.npy", "expected 176 bytes", "found 175"});
  expect_input_error(open("x.npy", whole + "y"), {"x.npy", "expected 176 bytes", "found 177"});
  expect_input_error(open("i", idx(8, {2, 3}, "abcde")), {"expected 18 bytes", "found 17"});
}

TEST_F(ColumnFileTest, MissingFilesAndFolders) {
  ColumnSpec spec;
  spec.path = folder_.path() + "/none.npy";
  expect_input_error(ColumnFile::open(spec, *communicator_, ledger_), {"none.npy", "No such file"});
  spec.path = folder_.path();
  expect_input_error(ColumnFile::open(spec, *communicator_, ledger_),
                     {folder_.path(), "expected a file"});
}

TEST_F(ColumnFileTest, IdxOfEveryType) {
  struct Case {
    int type;
    DType dtype;
  };
  const Case cases[] = {{0x08, DType::kUInt8}, {0x09, DType::kInt8},    {0x0b, DType::kInt16},
                        {0x0c, DType::kInt32}, {0x0d, DType::kFloat32}, {0x0e, DType::kFloat64}};
  for (const Case& c : cases) {
    const std::string data(6 * dtype_size(c.dtype), '\1');
    for (bool gzip : {false, true}) {
      const std::string bytes = idx(c.type, {3, 2}, data);
      Result<ColumnFile> file = open("x", gzip ? gzipped(bytes) : bytes);
      ASSERT_TRUE(file.ok()) << file.error().message();
      EXPECT_EQ(file->layout().dtype, c.dtype);
      EXPECT_EQ(file->layout().count, 3);
      EXPECT_EQ(file->layout().row, Shape{2});
      EXPECT_EQ(file->layout().big_endian, dtype_size(c.dtype) > 1);
    }
  }
  expect_input_error(open("x", idx(0x0a, {1}, "a")), {"00 00 08", "found 00 00 0a"});
  expect_input_error(open("x", "\x89PNG....."), {"IDX", "found 89 50 4e"});
  expect_input_error(open("x", idx(8, {3, 2, 2}, "").substr(0, 9)),
                     {"header of 16 bytes", "found 9"});
}

TEST_F(ColumnFileTest, GzipIsInflatedOnceAndCounted) {
  const std::vector<uint8_t> pixels = counted<uint8_t>(1000 * 256);
  const std::string bytes = idx(8, {1000, 256}, bytes_of(pixels));
  {
    Result<ColumnFile> file = open("x.gz", gzipped(bytes));
    ASSERT_TRUE(file.ok()) << file.error().message();
    EXPECT_EQ(file->shared_bytes(), bytes.size());
    EXPECT_EQ(ledger_.current(), region_bytes(bytes.size()));
    std::vector<uint8_t> row(256);
    ASSERT_TRUE(file->read(12 + 999 * 256, std::as_writable_bytes(std::span(row))).ok());
    EXPECT_EQ(row, counted<uint8_t>(256));
  }
  // Two members in a row are one file, as for gunzip.
  Result<ColumnFile> two =
      open("y.gz", gzipped(bytes.substr(0, 70000)) + gzipped(bytes.substr(70000)));
  ASSERT_TRUE(two.ok()) << two.error().message();
  EXPECT_EQ(two->layout().count, 1000);
}

TEST_F(ColumnFileTest, DamagedGzipNamesBothNumbers) {
  const std::string bytes = idx(8, {1000, 256}, bytes_of(counted<uint8_t>(1000 * 256)));
  const std::string good = gzipped(bytes);
  expect_input_error(open("x.gz", good.substr(0, good.size() / 2)),
                     {"x.gz", "truncated gzip", "expected 256012 bytes", "found "});
  expect_input_error(open("x.gz", good.substr(0, good.size() - 4)),
                     {"x.gz", "truncated gzip", "expected 256012 bytes", "found 256012"});
  std::string checksum = good;
  checksum[checksum.size() - 8] ^= 1;
  expect_input_error(open("x.gz", checksum),
                     {"x.gz", "corrupted gzip", "256012", "incorrect data check"});
  expect_input_error(open("x.gz", gzipped(bytes + "ab")),
                     {"x.gz", "expected 256012 bytes", "found 256014"});
  expect_input_error(open("x.gz", gzipped(bytes.substr(0, 200000))),
                     {"x.gz", "expected 256012 bytes", "found 200000"});
  expect_input_error(open("x.gz", bytes), {"x.gz", "1f 8b", "found 00 00"});
  expect_input_error(open("x.gz", gzipped(idx(8, {4000000000u, 100000}, "a"))),
                     {"x.gz", "expected 400000000000012 bytes", "more than a file of"});
}

ColumnSpec tokens(int64_t length, std::optional<int64_t> stride, bool next, bool reserve) {
  ColumnSpec spec;
  spec.sequence_length = length;
  spec.stride = stride;
  spec.next_token = next;
  spec.reserve_next = reserve;
  spec.dtype = DType::kUInt16;
  return spec;
}

TEST_F(ColumnFileTest, TokenRows) {
  const std::string bytes = bytes_of(counted<uint16_t>(12));
  struct Case {
    ColumnSpec spec;
    int64_t count;
    uint64_t first, stride;
  };
  const Case cases[] = {
      {tokens(4, {}, false, false), 3, 0, 8},  {tokens(4, {}, false, true), 2, 0, 8},
      {tokens(4, {}, true, true), 2, 2, 8},    {tokens(4, 1, false, false), 9, 0, 2},
      {tokens(4, 1, true, true), 8, 2, 2},     {tokens(4, 5, false, false), 2, 0, 10},
      {tokens(12, {}, false, false), 1, 0, 24}};
  for (const Case& c : cases) {
    Result<ColumnFile> file = open("t.bin", bytes, c.spec);
    ASSERT_TRUE(file.ok()) << file.error().message();
    EXPECT_EQ(file->layout().count, c.count);
    EXPECT_EQ(file->layout().first_byte, c.first);
    EXPECT_EQ(file->layout().row_stride, c.stride);
    EXPECT_EQ(file->layout().row, Shape{*c.spec.sequence_length});
    EXPECT_LE(file->layout().end_byte(), bytes.size());
  }
  expect_input_error(open("t.bin", bytes, tokens(13, {}, false, false)), {"t.bin", "13", "12"});
  expect_input_error(open("t.bin", bytes, tokens(12, {}, true, true)),
                     {"t.bin", "12", "token behind"});
  expect_input_error(open("t.bin", bytes + "x", tokens(4, {}, false, false)),
                     {"t.bin", "2 bytes", "found 25"});
  expect_input_error(open("t.bin", gzipped(bytes), tokens(4, {}, false, false)), {"t.bin", "gzip"});
}

TEST_F(ColumnFileTest, WidthOfTokensIsToldFromTheBytes) {
  ColumnSpec spec = tokens(4, {}, false, false);
  spec.dtype.reset();
  auto width = [&](const std::string& bytes) { return open("t.bin", bytes, spec)->layout().dtype; };
  std::vector<uint16_t> narrow(4096);
  std::vector<uint32_t> wide(4096), large(4096);
  for (size_t i = 0; i < narrow.size(); ++i) {
    narrow[i] = static_cast<uint16_t>(i * 7919 % 50257);
    wide[i] = static_cast<uint32_t>(i * 7919 % 50257);
    large[i] = static_cast<uint32_t>(i * 7919 % 151936);
  }
  EXPECT_EQ(width(bytes_of(narrow)), DType::kUInt16);
  EXPECT_EQ(width(bytes_of(wide)), DType::kUInt32);
  EXPECT_EQ(width(bytes_of(large)), DType::kUInt32);
  EXPECT_EQ(width(bytes_of(std::vector<uint16_t>(64, 0))), DType::kUInt16);
  EXPECT_EQ(width(bytes_of(counted<uint16_t>(8))), DType::kUInt16);
  spec.dtype = DType::kUInt16;
  EXPECT_EQ(width(bytes_of(wide)), DType::kUInt16);
}

TEST_F(ColumnFileTest, ShapeMustHoldTheSameElements) {
  ColumnSpec spec;
  spec.row = Shape{1, 2, 3};
  Result<ColumnFile> file = open("x.npy", npy("<f4", "(2, 6)", counted<float>(12)), spec);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->layout().row, (Shape{1, 2, 3}));
  expect_input_error(open("x.npy", npy("<f4", "(3, 4)", counted<float>(12)), spec),
                     {"x.npy", "[1, 2, 3]", "6", "4"});
}

}  // namespace data_column_file_test
}  // namespace ofsdp
