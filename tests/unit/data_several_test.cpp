// Files with several columns: arrays in .npz, tensors in .safetensors, columns in .csv and .tsv and
// fields in .jsonl; rows of different length, and damaged files.
#include <cmath>
#include <limits>

#include "fsdp/comm/communicator.h"
#include "runtime/data/column_file.h"
#include "runtime/data/dataset.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace data_several_test {

using namespace testing_data;

std::string little(uint64_t value, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i, value >>= 8) text += static_cast<char>(value & 0xff);
  return text;
}

std::string raw_deflated(const std::string& bytes) {
  const std::string whole = gzipped(bytes);  // without the header, 10 bytes, and the trailer, 8
  return whole.substr(10, whole.size() - 18);
}

struct Member {
  std::string name, bytes;
  bool deflated = false;
};

// As NumPy writes it: local headers with an extra field for 64-bit sizes.
std::string zip(const std::vector<Member>& members) {
  std::string text, directory;
  for (const Member& member : members) {
    const std::string packed = member.deflated ? raw_deflated(member.bytes) : member.bytes;
    const auto crc = crc32(0, reinterpret_cast<const Bytef*>(member.bytes.data()),
                           static_cast<uInt>(member.bytes.size()));
    const std::string method = little(member.deflated ? 8 : 0, 2);
    const std::string sizes = little(packed.size(), 4) + little(member.bytes.size(), 4);
    directory += little(0x02014b50, 4) + little(45, 2) + little(45, 2) + little(0, 2) + method +
                 little(0, 4) + little(crc, 4) + sizes + little(member.name.size(), 2) +
                 little(0, 12) + little(text.size(), 4) + member.name;
    text += little(0x04034b50, 4) + little(45, 2) + little(0, 2) + method + little(0, 4) +
            little(crc, 4) + little(0xffffffff, 4) + little(0xffffffff, 4) +
            little(member.name.size(), 2) + little(20, 2) + member.name + little(1, 2) +
            little(16, 2) + little(member.bytes.size(), 8) + little(packed.size(), 8) + packed;
  }
  const std::string end = little(0x06054b50, 4) + little(0, 4) + little(members.size(), 2) +
                          little(members.size(), 2) + little(directory.size(), 4) +
                          little(text.size(), 4) + little(0, 2);
  return text + directory + end;
}

std::string safetensors(const std::string& header, const std::string& data) {
  return little(header.size(), 8) + header + data;
}

class SeveralTest : public ::testing::Test {
 protected:
  Result<ColumnFile> open(const std::string& name, const std::string& bytes,
                          std::vector<std::string> parts, std::optional<Padding> padding = {}) {
    ColumnSpec spec;
    spec.path = folder_.write(name, bytes);
    spec.parts = std::move(parts);
    spec.padding = padding;
    return ColumnFile::open(spec, *communicator_, ledger_);
  }

  // The rows for the graph from a YAML mapping.
  template <typename T>
  std::vector<T> rows(const std::string& yaml, const WantedColumn& wanted) {
    const auto spec = parse_data_yaml(yaml, folder_.path(), "d.yaml");
    EXPECT_TRUE(spec.ok()) << spec.error().message();
    auto data = Dataset::open(spec->train, {wanted.name}, *communicator_, ledger_);
    EXPECT_TRUE(data.ok()) << data.error().message();
    const Status bound = (*data)->bind({wanted});
    EXPECT_TRUE(bound.ok()) << bound.message();
    std::vector<int64_t> samples = counted<int64_t>(static_cast<size_t>((*data)->samples()));
    std::vector<T> found(samples.size() * (*data)->columns()[0].row_bytes() / sizeof(T));
    EXPECT_TRUE((*data)->read_rows(0, samples, reinterpret_cast<std::byte*>(found.data())).ok());
    return found;
  }

  Status refusal(const std::string& yaml, const WantedColumn& wanted) {
    auto spec = parse_data_yaml(yaml, folder_.path(), "d.yaml");
    if (!spec.ok()) return std::move(spec).status();
    auto data = Dataset::open(spec->train, {wanted.name}, *communicator_, ledger_);
    return data.ok() ? (*data)->bind({wanted}) : std::move(data).status();
  }

  TempFolder folder_;
  MemoryLedger ledger_;
  std::unique_ptr<Communicator> communicator_ = make_self_communicator();
};

TEST_F(SeveralTest, ArraysOfNpzStoredAndDeflated) {
  const std::string x = npy<float>("<f4", "(3, 2)", {1, 2, 3, 4, 5, 6});
  const std::string y = npy<int64_t>("<i8", "(3,)", {7, 8, 9});
  for (const bool deflated : {false, true}) {
    folder_.write("d.npz", zip({{"x.npy", x, deflated}, {"y.npy", y, deflated}}));
    EXPECT_EQ(rows<float>("train: {a: {file: d.npz, array: x}}", {"a", DType::kFloat32, {2}}),
              (std::vector<float>{1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(rows<int64_t>("train: {y: {file: d.npz}}", {"y", DType::kInt64, {}}),
              (std::vector<int64_t>{7, 8, 9}));
  }
  expect_input_error(open("d.npz", zip({{"x.npy", x}}), {"z"}), {"no array 'z'", "found: x"});
}

TEST_F(SeveralTest, TensorsOfSafetensors) {
  const std::string header = R"({"x":{"dtype":"F32","shape":[2,2],"data_offsets":[8,24]},)"
                             R"("y":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}})";
  folder_.write("d.safetensors",
                safetensors(header, bytes_of<int32_t>({5, 6}) + bytes_of<float>({1, 2, 3, 4})));
  EXPECT_EQ(
      rows<float>("train: {a: {file: d.safetensors, tensor: x}}", {"a", DType::kFloat32, {2}}),
      (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(rows<int64_t>("train: {y: {file: d.safetensors}}", {"y", DType::kInt64, {}}),
            (std::vector<int64_t>{5, 6}));
  expect_input_error(open("d.safetensors", safetensors(header, ""), {"x"}), {"data_offsets"});
}

TEST_F(SeveralTest, ColumnsOfCsv) {
  folder_.write("d.csv",
                "\xef\xbb\xbf"
                "age,\"the, \"\"name\"\"\",height,label\r\n"
                "30,\"a\nb\",1.5,0\r\n"
                "-4, 7 ,2e1,True\r\n");
  EXPECT_EQ(rows<float>("train: {x: {file: d.csv, column: age}}", {"x", DType::kFloat32, {1}}),
            (std::vector<float>{30, -4}));
  EXPECT_EQ(
      rows<float>("train: {x: {file: d.csv, column: [height, age]}}", {"x", DType::kFloat32, {2}}),
      (std::vector<float>{1.5, 30, 20, -4}));
  EXPECT_EQ(rows<int64_t>("train: {label: {file: d.csv}}", {"label", DType::kInt64, {}}),
            (std::vector<int64_t>{0, 1}));
  folder_.write("d.tsv", "a\tb\n1\t2\n");
  EXPECT_EQ(rows<int32_t>("train: {b: {file: d.tsv}}", {"b", DType::kInt32, {}}),
            (std::vector<int32_t>{2}));
  const WantedColumn x{"x", DType::kFloat32, {}};
  expect_input_error(refusal("train: {x: {file: d.csv, column: 'the, \"name\"'}}", x),
                     {"d.csv line 2", "expected a number, found 'a"});
  expect_input_error(refusal("train: {x: {file: d.csv, column: hight}}", x),
                     {"no column 'hight'", "did you mean 'height'?"});
  expect_input_error(refusal("train: {x: {file: d.csv, field: age}}", x), {"expected 'column'"});
  for (const auto& [text, why] :
       {std::pair("a\n1,2\n", "line 2: expected 1 fields as in the header, found 2"),
        std::pair("a\n\"1\n", "line 2: expected the end of a quoted field"),
        std::pair("a\nnan\n", "line 2: column 'a': expected a number, found 'nan'"),
        std::pair("a\n", "expected at least 1 row, found none"),
        std::pair("", "expected a header")}) {
    expect_input_error(open("bad.csv", text, {"a"}), {why});
  }
}

TEST_F(SeveralTest, FieldsOfJsonLinesAndPadding) {
  folder_.write("d.jsonl",
                "{\"text\": {\"tokens\": [1, 2, 3]}, \"y\": 2}\n\n"
                "{\"text\": {\"tokens\": []}, \"y\": 0.5}\n"
                "{\"y\": 1, \"text\": {\"tokens\": [4]}}\n");
  const WantedColumn tokens{"x", DType::kInt64, {-1}}, mask{"attention_mask", DType::kInt64, {-1}};
  const std::string file = "x: {file: d.jsonl, field: text.tokens";
  EXPECT_EQ(rows<int64_t>("train: {" + file + ", pad_to: longest, pad_value: 9}}", tokens),
            (std::vector<int64_t>{1, 2, 3, 9, 9, 9, 4, 9, 9}));
  const std::string padded = "train: {" + file + ", pad_to: 4}, attention_mask: auto}";
  EXPECT_EQ(rows<int64_t>(padded, tokens),
            (std::vector<int64_t>{1, 2, 3, 0, 0, 0, 0, 0, 4, 0, 0, 0}));
  EXPECT_EQ(rows<int64_t>(padded, mask),
            (std::vector<int64_t>{1, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0}));
  EXPECT_EQ(rows<float>(padded, {"attention_mask", DType::kFloat32, {4}})[2], 1.0f);
  EXPECT_EQ(rows<float>("train: {y: {file: d.jsonl}}", {"y", DType::kFloat32, {}}),
            (std::vector<float>{2, 0.5, 1}));
  expect_input_error(refusal("train: {" + file + "}}", tokens),
                     {"line 3: rows differ in length (0 entries, 3 before): expected pad_to"});
  expect_input_error(refusal("train: {" + file + ", pad_to: 2}}", tokens),
                     {"line 1: expected at most the 2 entries of pad_to, found 3"});
  expect_input_error(refusal("train: {" + file + "}, attention_mask: auto}", mask),
                     {"d.yaml:1", "auto needs a column with pad_to"});
  expect_input_error(
      refusal("train: {y: {file: d.jsonl}}", {"y", DType::kInt64, {}}),
      {"d.jsonl: column 'y', sample 1: value 0.5 does not fit int64 (whole, -922337203"});
  for (const auto& [text, why] :
       {std::pair("{\"a\": 1}\n[1]\n", "line 2: expected a JSON object, found '[1]'"),
        std::pair("{\"a\": 1}\n{\"b\": 1}\n", "line 2: no field 'a'"),
        std::pair("{\"a\": [[1, 2], [3]]}\n", "line 1: field 'a': expected lists of numbers"),
        std::pair("{\"a\": [1]}\n{\"a\": 1}\n", "line 2: field 'a': expected a list"),
        std::pair("{\"a\": \"1\"}\n", "line 1: field 'a': expected numbers, found")}) {
    expect_input_error(open("bad.jsonl", text, {"a"}), {why});
  }
  const std::string deep(100000, '[');
  expect_input_error(open("bad.jsonl", "{\"a\": " + deep + "}\n", {"a"}), {"line 1"});
}

// Three graphs, with 1, 0 and 2 nodes; their edges lie on the second axis.
TEST_F(SeveralTest, RowsBetweenOffsets) {
  folder_.write("x.npy", npy<float>("<f4", "(3, 2)", {1, 2, 3, 4, 5, 6}));
  folder_.write("at.npy", npy<int32_t>("<i4", "(4,)", {0, 1, 1, 3}));
  folder_.write("edges.npy", npy<int64_t>("<i8", "(2, 4)", {0, 1, 2, 3, 4, 5, 6, 7}));
  folder_.write("edges_at.npy", npy<int64_t>("<i8", "(3,)", {0, 3, 4}));
  const std::string x = "train: {x: {file: x.npy, offsets: at.npy";
  const std::string edges = "train: {e: {file: edges.npy, offsets: edges_at.npy";
  const WantedColumn nodes{"x", DType::kFloat32, {-1, 2}}, pairs{"e", DType::kInt64, {2, -1}};
  EXPECT_EQ(rows<float>(x + ", pad_to: longest}}", nodes),
            (std::vector<float>{1, 2, 0, 0, 0, 0, 0, 0, 3, 4, 5, 6}));
  EXPECT_EQ(rows<int64_t>(edges + ", pad_to: 4, pad_value: -1}}", pairs),
            (std::vector<int64_t>{0, 1, 2, -1, 4, 5, 6, -1, 3, -1, -1, -1, 7, -1, -1, -1}));
  EXPECT_EQ(rows<int64_t>(x + ", pad_to: longest}, attention_mask: auto}",
                          {"attention_mask", DType::kInt64, {-1}}),
            (std::vector<int64_t>{1, 0, 0, 0, 1, 1}));
  folder_.write("at.npy", npy<uint8_t>("|u1", "(4,)", {0, 1, 2, 3}));
  EXPECT_EQ(rows<float>(x + "}}", nodes), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  expect_input_error(refusal(edges + "}}", pairs),
                     {"edges_at.npy", "differ in length (1 to 3 entries)", "pad_to"});
  expect_input_error(refusal(edges + ", pad_to: 2}}", pairs), {"at most the 2", "found 3"});
  expect_input_error(refusal(edges + ", pad_to: 3, pad_value: 0.5}}", pairs),
                     {"pad_value of int64"});
  expect_input_error(refusal(x + ", pad_to: 3, pad_value: 1e39}}", nodes),
                     {"x.npy: expected a pad_value of float32, found 1e+39"});
  for (const auto& [offsets, why] : {std::pair(std::vector<int64_t>{1, 3}, "begin at 0"),
                                     {{0, 2, 1, 3}, "found 1 after 2"},
                                     {{0, 7}, "the last offset is 7"},
                                     {{0}, "at least 2"}}) {
    folder_.write("at.npy", npy<int64_t>("<i8", format_text("({},)", offsets.size()), offsets));
    expect_input_error(refusal(x + "}}", nodes), {"at.npy", why});
  }
  expect_input_error(refusal("train: {x: {file: x.npy, offsets: at.csv}}", nodes),
                     {"d.yaml:1", "a .npy file of offsets"});
  expect_input_error(refusal("train: {x: {file: x.csv, offsets: at.npy}}", nodes),
                     {"d.yaml:1", "offsets are for .npy"});
}

// A missing value is refused with the place, or replaced by `missing`.
TEST_F(SeveralTest, MissingValues) {
  folder_.write("d.csv", "age,size,y\r\n1,NA,\r\n,2.5,b\r\n3,?,a\r\n");
  const WantedColumn x{"x", DType::kFloat32, {2}}, y{"y", DType::kInt64, {}, false, true};
  const std::string both = "train: {x: {file: d.csv, column: [age, size]";
  EXPECT_EQ(rows<float>(both + ", missing: -1.5}}", x),
            (std::vector<float>{1, -1.5, -1.5, 2.5, 3, -1.5}));
  expect_input_error(refusal(both + "}}", x),
                     {"d.csv line 2: column 'size': expected a number, found 'NA', a missing value",
                      "`missing: NUMBER`"});
  expect_input_error(refusal("train: {x: {file: d.npy, missing: 0}}", x),
                     {"d.yaml:1", "missing is for tables and .jsonl files, found 'd.npy'"});
  expect_input_error(refusal("train: {x: {file: d.csv, missing: none}}", x),
                     {"expected a number, found 'none'"});

  const auto classes = [&](const std::string& yaml) {
    auto spec = parse_data_yaml(yaml, folder_.path(), "d.yaml");
    EXPECT_TRUE(spec.ok());
    spec->train.take_classes("y", {});
    return Dataset::open(spec->train, {"y"}, *communicator_, ledger_);
  };
  auto named = classes("train: {y: {file: d.csv, missing: -100}}");
  ASSERT_TRUE(named.ok()) << named.error().message();
  EXPECT_EQ((*named)->classes("y"), (std::vector<std::string>{"a", "b"}));
  ASSERT_TRUE((*named)->bind({y}).ok());
  std::vector<int64_t> found(3);
  ASSERT_TRUE(
      (*named)
          ->read_rows(0, std::vector<int64_t>{0, 1, 2}, reinterpret_cast<std::byte*>(found.data()))
          .ok());
  EXPECT_EQ(found, (std::vector<int64_t>{-100, 1, 0}));
  expect_input_error(classes("train: {y: {file: d.csv}}"),
                     {"line 2: column 'y': expected a class, found ''", "-100, the ignore-index"});
  folder_.write("d.csv", "y\nNA\nnone\nb\n");  // words are classes if other values are
  EXPECT_EQ((*classes("train: {y: {file: d.csv}}"))->classes("y"),
            (std::vector<std::string>{"NA", "b", "none"}));
  // But not if `missing` is given.
  EXPECT_EQ((*classes("train: {y: {file: d.csv, missing: -100}}"))->classes("y"),
            (std::vector<std::string>{"b"}));

  folder_.write("d.jsonl", "{\"a\": null, \"b\": 1}\n{\"a\": 2, \"b\": 3}\n{\"b\": 5}\n");
  EXPECT_EQ(rows<float>("train: {x: {file: d.jsonl, field: [b, a], missing: 9}}", x),
            (std::vector<float>{1, 9, 3, 2, 5, 9}));
  EXPECT_EQ(
      rows<float>("train: {x: {file: d.jsonl, field: a, missing: 9}}", {"x", DType::kFloat32, {}}),
      (std::vector<float>{9, 2, 9}));
  expect_input_error(refusal("train: {x: {file: d.jsonl, field: [b, a]}}", x),
                     {"d.jsonl line 1: field 'a': expected a number, found null"});
  folder_.write("d.jsonl", "{\"y\": null}\n{\"y\": \"b\"}\n{}\n");
  expect_input_error(classes("train: {y: {file: d.jsonl}}"),
                     {"line 1: field 'y': expected a number, found null, a missing value: -100"});
  named = classes("train: {y: {file: d.jsonl, missing: -100}}");
  ASSERT_TRUE(named.ok()) << named.error().message();
  ASSERT_TRUE((*named)->bind({y}).ok());
  ASSERT_TRUE(
      (*named)
          ->read_rows(0, std::vector<int64_t>{0, 1, 2}, reinterpret_cast<std::byte*>(found.data()))
          .ok());
  EXPECT_EQ(found, (std::vector<int64_t>{-100, 0, -100}));
}

TEST_F(SeveralTest, CellsThatAreNoNumbers) {
  const WantedColumn x{"x", DType::kFloat32, {}};
  for (const auto& [cell, why] :
       {std::pair("2024-01-31", "a date: write it as numbers"),
        std::pair("31.1.2024 10:30", "a date"), std::pair("\"1,5\"", "expected a decimal point"),
        std::pair("red", "only labels may be names")}) {
    folder_.write("d.csv", format_text("x,z\n1,1\n{},2\n", cell));
    expect_input_error(refusal("train: {x: {file: d.csv}}", x),
                       {"d.csv line 3: column 'x': expected a number, found '", why});
  }
  folder_.write("d.csv", "x;z\n1.5;2\n");  // as spreadsheets write it
  EXPECT_EQ(rows<float>("train: {x: {file: d.csv}}", x), (std::vector<float>{1.5}));
}

// (value * scale - mean) / std, each operation rounded to float32, for each column.
TEST_F(SeveralTest, ColumnsOfATableAreNormalized) {
  folder_.write("d.csv", "a,b\n1,10\n0.1,30\n");
  const std::vector<float> found =
      rows<float>("train: {x: {file: d.csv, column: [a, b], scale: 0.3, mean: [0.1, 2], std: 3}}",
                  {"x", DType::kFloat32, {2}});
  std::vector<float> expected;
  for (const auto& [value, mean] : {std::pair(1.0f, 0.1f), std::pair(10.0f, 2.0f),
                                    std::pair(0.1f, 0.1f), std::pair(30.0f, 2.0f)}) {
    volatile float one = value * 0.3f;
    one = one - mean;
    expected.push_back(one / 3.0f);
  }
  EXPECT_EQ(found, expected);
  folder_.write("x.npy", npy<double>("<f8", "(2, 2)", {1, 10, 0.1, 30}));
  EXPECT_EQ(rows<float>("train: {x: {file: x.npy, scale: 0.3, mean: [0.1, 2], std: [3, 3]}}",
                        {"x", DType::kFloat32, {2}}),
            expected);
  expect_input_error(refusal("train: {x: {file: d.csv, column: [a, b], mean: [1, 2, 3]}}",
                             {"x", DType::kFloat32, {2}}),
                     {"mean and std have 3 numbers, one a channel"});
}

// Two columns with one name: the key could mean either.
TEST_F(SeveralTest, AKeyThatStandsTwiceIsRefused) {
  expect_input_error(open("d.csv", "a,labels,labels\n1,0,1\n", {"a"}),
                     {"d.csv line 1", "column 'labels' stands twice"});
  expect_input_error(open("d.tsv", "a\tb\ta\n1\t0\t1\n", {"b"}), {"d.tsv line 1", "column 'a'"});
  EXPECT_TRUE(open("d.csv", "a,,\n1,0,1\n", {"a"}).ok()) << "columns without names";
  expect_input_error(open("d.jsonl", "{\"a\": 1}\n{\"a\": 0, \"a\": 1}\n", {"a"}),
                     {"d.jsonl line 2", "'a' stands twice"});
  expect_input_error(open("d.jsonl", "{\"b\": {\"c\": 1, \"c\": 2}, \"a\": 1}\n", {"a"}),
                     {"d.jsonl line 1", "'c' stands twice"});
  EXPECT_TRUE(open("d.jsonl", "{\"b\": {\"c\": 1}, \"a\": [{\"c\": 1}], \"c\": 1}\n", {"c"}).ok());
  const std::string twice =
      "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
      "\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}";
  expect_input_error(open("d.safetensors", safetensors(twice, std::string(8, '\0')), {"x"}),
                     {"d.safetensors", "header", "'x' stands twice"});
  const std::string x = npy<float>("<f4", "(1,)", {1});
  expect_input_error(open("d.npz", zip({{"x.npy", x}, {"x.npy", x}}), {"x"}),
                     {"d.npz", "'x.npy' stands twice"});
  folder_.write("two.csv", "x,x\n1,2\n");
  expect_input_error(read_data_spec(folder_.path() + "/two.csv"), {"two.csv", "'x' stands twice"});
}

// 2^63 is a whole number, at least 0, but too large.
TEST_F(SeveralTest, ANumberThatIsTooLargeIsSaidToBe) {
  expect_input_error(open("d.safetensors",
                          safetensors("{\"x\":{\"dtype\":\"F32\",\"shape\":[9223372036854775808],"
                                      "\"data_offsets\":[0,4]}}",
                                      std::string(4, '\0')),
                          {"x"}),
                     {"from 0 to 9223372036854775807", "found 9223372036854775808"});
}

TEST_F(SeveralTest, AFileIsItsColumns) {
  folder_.write("d.csv", "x,y\n1,2\n");
  const auto spec = read_data_spec(folder_.path() + "/d.csv");
  ASSERT_TRUE(spec.ok()) << spec.error().message();
  EXPECT_EQ(spec->train.names(), (std::vector<std::string>{"x", "y"}));
  folder_.write("d.npz", zip({{"b.npy", npy<float>("<f4", "(1,)", {1})}}));
  EXPECT_EQ(read_data_spec(folder_.path() + "/d.npz")->train.names(),
            (std::vector<std::string>{"b"}));
}

// pandas writes an integer column with a missing value as floats.
TEST_F(SeveralTest, WholeFloatsOfATableFeedIntegersAndBools) {
  folder_.write("d.csv", "a,b,c\n3.0,1.0,-0.0\n-4.0,0.0,1\n,5e1,1.0\n");
  folder_.write("d.tsv", "a\n3.0\n-4.0\nnull\n");
  folder_.write("d.jsonl", "{\"a\": 3.0}\n{\"a\": -4.0}\n{\"a\": null}\n");
  for (const char* file : {"d.csv", "d.tsv", "d.jsonl"}) {
    const std::string yaml = format_text("train: {{a: {{file: {}, missing: 7}}}}", file);
    EXPECT_EQ(rows<int64_t>(yaml, {"a", DType::kInt64, {}}), (std::vector<int64_t>{3, -4, 7}));
    EXPECT_EQ(rows<int8_t>(yaml, {"a", DType::kInt8, {1}}), (std::vector<int8_t>{3, -4, 7}));
    expect_input_error(refusal(yaml, {"a", DType::kUInt16, {}}),
                       {file, "column 'a', sample 1: value -4 does not fit uint16", "0..65535"});
  }
  const std::string pair = "train: {x: {file: d.csv, column: [b, c]}}";
  EXPECT_EQ(rows<int32_t>(pair, {"x", DType::kInt32, {2}}),
            (std::vector<int32_t>{1, 0, 0, 1, 50, 1}));
  EXPECT_EQ(rows<uint8_t>("train: {c: {file: d.csv}}", {"c", DType::kBool, {}}),
            (std::vector<uint8_t>{0, 1, 1}));
  expect_input_error(refusal(pair, {"x", DType::kBool, {2}}),
                     {"column 'x' ('b'), sample 2: value 50 does not fit bool (whole, 0..1)",
                      "change it or leave the row out"});
  // From 2^53 on a float may have been another number; rows after the first are checked, too.
  std::string table = "x\n0.0\n";
  for (int i = 0; i < 20000; ++i) table += "1\n";
  folder_.write("d.csv", table + "9007199254740991\n");
  EXPECT_EQ(rows<int64_t>("train: {x: {file: d.csv}}", {"x", DType::kInt64, {}}).back(),
            9007199254740991);
  folder_.write("d.csv", table + "9007199254740993\n");
  expect_input_error(refusal("train: {x: {file: d.csv}}", {"x", DType::kInt64, {}}),
                     {"sample 20001: value 9007199254740992 does not fit int64"});
}

TEST_F(SeveralTest, WholeNumbersOfATableFeedFloat64) {
  folder_.write("d.csv", "x\n1\n-9007199254740991\n");
  EXPECT_EQ(rows<double>("train: {x: {file: d.csv}}", {"x", DType::kFloat64, {}}),
            (std::vector<double>{1, -9007199254740991}));
}

// The least number that rounds to infinity is half a step above the largest float32.
TEST_F(SeveralTest, ANumberThatFloat32WouldMakeInfiniteIsRefused) {
  const WantedColumn x{"x", DType::kFloat32, {}};
  const double least = 0x1.ffffffp127, below = std::nextafter(least, 0);
  const auto write = [&](double value) {
    folder_.write("d.csv", format_text("x\n1\n{}\n", value));
    folder_.write("d.tsv", format_text("x\n1\n{}\n", value));
    folder_.write("d.jsonl", format_text("{{\"x\": 1}}\n{{\"x\": {}}}\n", value));
    const std::string array = npy<double>("<f8", "(2,)", {1, value});
    folder_.write("x.npy", array);
    folder_.write("d.npz", zip({{"x.npy", array, true}}));
    folder_.write("d.safetensors",
                  safetensors("{\"x\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[0,16]}}",
                              bytes_of<double>({1, value})));
  };
  const char* const files[] = {"d.csv", "d.tsv", "d.jsonl", "x.npy", "d.npz", "d.safetensors"};
  for (const double value : {below, -below}) {
    write(value);
    for (const char* file : files) {
      EXPECT_EQ(rows<float>(format_text("train: {{x: {{file: {}}}}}", file), x)[1],
                std::copysign(std::numeric_limits<float>::max(), static_cast<float>(value)))
          << file;
    }
  }
  for (const double value : {least, -least, 1e39, -1e308}) {
    write(value);
    for (const char* file : files) {
      const std::string yaml = format_text("train: {{x: {{file: {}}}}}", file);
      const auto spec = parse_data_yaml(yaml, folder_.path(), "d.yaml");
      auto data = Dataset::open(spec->train, {"x"}, *communicator_, ledger_);
      ASSERT_TRUE(data.ok()) << data.error().message();
      Status status = (*data)->bind({x});
      EXPECT_EQ(status.ok(), file[0] == 'x' || file[2] == 'n' || file[2] == 's') << file;
      float found[2];
      if (status.ok()) {
        status =
            (*data)->read_rows(0, std::vector<int64_t>{0, 1}, reinterpret_cast<std::byte*>(found));
      }
      expect_input_error(
          status, {file, format_text("column 'x', sample 1: value {} does not fit float32", value),
                   "-3.4028235e+38..3.4028235e+38", "change it or leave the row out"});
    }
  }
  // An infinite number of an array stays what it is.
  folder_.write("x.npy", npy<double>("<f8", "(2,)", {1, -HUGE_VAL}));
  EXPECT_EQ(rows<float>("train: {x: {file: x.npy}}", x)[1], -HUGE_VALF);
  // `missing` and `pad_value` are numbers of the column.
  folder_.write("d.csv", "x\n1\n-\n");
  expect_input_error(refusal("train: {x: {file: d.csv, missing: 1e39}}", x), {"value 1e+39"});
  folder_.write("d.jsonl", "{\"x\": [1]}\n{\"x\": []}\n");
  const std::string padded = "train: {x: {file: d.jsonl, pad_to: 2, pad_value: 1e39}}";
  expect_input_error(refusal(padded, {"x", DType::kFloat32, {2}}), {"sample 0: value 1e+39"});
  expect_input_error(refusal(padded, {"x", DType::kInt64, {2}}), {"sample 0: value 1e+39"});
}

TEST_F(SeveralTest, WholeNumbersAboveInt64FeedUint64) {
  const WantedColumn x{"x", DType::kUInt64, {2}};
  const std::vector<uint64_t> numbers{14681741932053397504u, 1, UINT64_MAX, 9223372036854775808u};
  folder_.write("d.jsonl",
                "{\"x\": [14681741932053397504, 1]}\n"
                "{\"x\": [18446744073709551615, 9223372036854775808]}\n");
  folder_.write("d.csv", "a,b\n14681741932053397504,1\n18446744073709551615,9223372036854775808\n");
  for (const char* column : {"{file: d.jsonl}", "{file: d.csv, column: [a, b]}"}) {
    const std::string yaml = format_text("train: {{x: {}}}", column);
    EXPECT_EQ(rows<uint64_t>(yaml, x), numbers);
    EXPECT_EQ(rows<float>(yaml, {"x", DType::kFloat32, {2}})[3], 0x1p63f);
    expect_input_error(refusal(yaml, {"x", DType::kInt64, {2}}),
                       {"sample 0: value 14681741932053397504 does not fit int64"});
  }
  // With a negative number no type has all.
  for (const char* rows : {"x\n-1\n9223372036854775808\n", "x\n9223372036854775808\n-1\n"}) {
    folder_.write("d.csv", rows);
    EXPECT_EQ(
        this->rows<float>("train: {x: {file: d.csv}}", {"x", DType::kFloat32, {}}),
        rows[2] == '-' ? (std::vector<float>{-1, 0x1p63f}) : (std::vector<float>{0x1p63f, -1}));
    expect_input_error(refusal("train: {x: {file: d.csv}}", {"x", DType::kUInt64, {}}),
                       {"does not fit uint64"});
  }
  folder_.write("d.jsonl", "{\"x\": [9223372036854775808]}\n{\"x\": []}\n");
  EXPECT_EQ(rows<uint64_t>("train: {x: {file: d.jsonl, pad_to: 1, pad_value: 3}}",
                           {"x", DType::kUInt64, {1}}),
            (std::vector<uint64_t>{9223372036854775808u, 3}));
  EXPECT_EQ(rows<float>("train: {x: {file: d.jsonl, pad_to: 1, pad_value: -1}}",
                        {"x", DType::kFloat32, {1}}),
            (std::vector<float>{0x1p63f, -1}));
}

// Blanks are part of a field (RFC 4180); around a name without quotes they are for the eye.
TEST_F(SeveralTest, ANameInQuotesKeepsItsBlanks) {
  folder_.write("d.csv", "a , b,\" d\",\"d \",\"e\"\n1,2,3,4,5\n");
  const auto spec = read_data_spec(folder_.path() + "/d.csv");
  EXPECT_EQ(spec->train.names(), (std::vector<std::string>{"a", "b", " d", "d ", "e"}));
  EXPECT_EQ(rows<float>("train: {x: {file: d.csv, column: [' d', 'd ', b]}}",
                        {"x", DType::kFloat32, {3}}),
            (std::vector<float>{3, 4, 2}));
}

TEST_F(SeveralTest, EndingsInAnyCaseAndGzippedText) {
  const std::string csv = "x,y\n1,2\n3,4\n", tsv = "x\ty\n1\t2\n3\t4\n";
  const std::string lines = "{\"x\": 1, \"y\": 2}\n{\"x\": 3, \"y\": 4}\n";
  const std::pair<const char*, std::string> files[] = {
      {"T.CSV", csv},
      {"t.csv.gz", gzipped(csv)},
      {"T.CSV.GZ", gzipped(csv)},
      {"T.TSV", tsv},
      {"t.tsv.gz", gzipped(tsv)},
      {"D.JSONL", lines},
      {"zip.csv", gzipped(csv)},
      {"d.jsonl.gz", gzipped(lines)},
      {"t.gz/T.Csv", csv},
      {"two.csv.gz", gzipped("x,y\n1,") + gzipped("2\n3,4\n")}};
  const WantedColumn x{"x", DType::kFloat32, {}};
  for (const auto& [name, bytes] : files) {
    const auto spec = read_data_spec(folder_.write(name, bytes));
    ASSERT_TRUE(spec.ok()) << name << spec.error().message();
    EXPECT_EQ(spec->train.names(), (std::vector<std::string>{"x", "y"})) << name;
    const char* key = find_format(name)->part;
    EXPECT_EQ(rows<float>(format_text("train: {{x: {{file: {}, {}: y}}}}", name, key), x),
              (std::vector<float>{2, 4}))
        << name;
  }
  folder_.write("X.NPY", npy<float>("<f4", "(2,)", {5, 6}));
  EXPECT_EQ(rows<float>("train: {x: {file: X.NPY}}", x), (std::vector<float>{5, 6}));
  EXPECT_EQ(read_data_spec(folder_.path())->train.names(), (std::vector<std::string>{"X"}));
  folder_.write("A.NPZ", zip({{"x.npy", npy<float>("<f4", "(1,)", {7})}}));
  EXPECT_EQ(rows<float>("train: {x: {file: A.NPZ}}", x), (std::vector<float>{7}));
  folder_.write("T.BIN", bytes_of<uint16_t>({1, 2, 3, 4}));
  EXPECT_EQ(rows<int32_t>("train: {x: {file: T.BIN, sequence_length: 2, dtype: uint16}}",
                          {"x", DType::kInt32, {2}}),
            (std::vector<int32_t>{1, 2, 3, 4}));
  // More than a block, of which each byte counts.
  std::string many = "x\n";
  for (int i = 0; i < 50000; ++i) many += format_text("{}\n", i);
  folder_.write("many.csv.gz", gzipped(many));
  EXPECT_EQ(rows<int64_t>("train: {x: {file: many.csv.gz}}", {"x", DType::kInt64, {}}),
            counted<int64_t>(50000));
  const std::string packed = gzipped(many);
  expect_input_error(open("cut.csv.gz", packed.substr(0, packed.size() - 5), {"x"}),
                     {"cut.csv.gz: truncated gzip data: expected its end"});
  expect_input_error(open("no.csv.gz", csv, {"x"}), {"no.csv.gz: expected gzip data"});
  expect_input_error(open("no.npz.gz", gzipped("PK"), {"x"}), {"no.npz.gz", "found gzip data"});
  for (const char* column : {"{file: t.dat, column: a}", "{file: T.CSX}"}) {
    folder_.write("T.CSX", csv);
    expect_input_error(refusal(format_text("train: {{x: {}}}", column), x),
                       {": the ending .",
                        "is of no known kind (.npy, .bin, .npz, .safetensors, "
                        ".csv, .tsv, .jsonl, .parquet)"});
  }
}

// Cut off anywhere or with any byte changed, a file is refused or read, and nothing else happens.
TEST_F(SeveralTest, DamagedFilesAreRefusedOrRead) {
  const std::string x = npy<float>("<f4", "(3, 2)", {1, 2, 3, 4, 5, 6});
  const std::string header = R"({"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})";
  const std::vector<std::pair<std::string, std::string>> files = {
      {"d.npz", zip({{"x.npy", x, false}})},
      {"d.npz", zip({{"x.npy", x, true}})},
      {"d.safetensors", safetensors(header, bytes_of<float>({1, 2, 3, 4}))},
      {"d.csv", "x,y\n1,\"2\"\n3,4\n"},
      {"d.jsonl", "{\"x\": [1, 2]}\n{\"x\": [3, 4]}\n"}};
  const auto look = [&](const std::string& name, const std::string& bytes) {
    const auto file = open(name, bytes, {"x"});
    if (!file.ok()) {
      EXPECT_EQ(file.error().kind(), ErrorKind::kInput);
      return;
    }
    std::vector<std::byte> row(file->layout().row_bytes());
    EXPECT_TRUE(file->read(file->layout().end_byte() - row.size(), row).ok());
  };
  for (const auto& [name, bytes] : files) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      look(name, bytes.substr(0, i));
      for (const char change : {'\x01', '\x80', '\xff'}) {
        std::string changed = bytes;
        changed[i] = static_cast<char>(changed[i] ^ change);
        look(name, changed);
      }
    }
  }
}

}  // namespace data_several_test
}  // namespace ofsdp
