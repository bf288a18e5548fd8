// Shards in WebDataset's layout: archives written by the test, against the bytes put into them, and
// damaged archives.
#include "fsdp/comm/communicator.h"
#include "runtime/data/dataset.h"
#include "runtime/data/tar_index.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"
#include "tests/support/png_bytes.h"
#include "tests/support/tar_bytes.h"

namespace ofsdp {
namespace tar_test {

using namespace testing_data;

std::string pax(const std::string& key, const std::string& value) {
  const std::string rest = " " + key + "=" + value + "\n";
  size_t length = rest.size() + 1;
  while (std::to_string(length).size() + rest.size() != length) ++length;
  return tar_entry("PaxHeader", std::to_string(length) + rest, 'x');
}

class TarTest : public ::testing::Test {
 protected:
  Result<std::vector<TarMember>> members(const std::string& bytes) {
    const auto source = ByteSource::open(folder_.write("x.tar", bytes));
    return tar_members(*source);
  }

  Result<std::unique_ptr<Dataset>> open(const std::string& yaml,
                                        const std::vector<std::string>& names) {
    OFSDP_ASSIGN_OR_RETURN(const DataSpec spec, parse_data_yaml(yaml, folder_.path(), "d.yaml"));
    return Dataset::open(spec.train, names, *communicator_, ledger_);
  }

  template <typename T>
  std::vector<T> rows(Dataset& data, int column) {
    std::vector<int64_t> samples(static_cast<size_t>(data.samples()));
    for (size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<int64_t>(i);
    const BoundColumn& bound = data.columns()[static_cast<size_t>(column)];
    std::vector<T> values(samples.size() * bound.row_bytes() / sizeof(T));
    const Status read =
        data.read_rows(column, samples, reinterpret_cast<std::byte*>(values.data()));
    EXPECT_TRUE(read.ok()) << read.message();
    return values;
  }

  TempFolder folder_;
  MemoryLedger ledger_;
  std::unique_ptr<Communicator> communicator_ = make_self_communicator();
};

TEST_F(TarTest, NamesAndSizesOfThreeDialects) {
  const std::string name(150, 'n');
  std::string wide(12, '\0');
  wide[0] = '\x80';
  wide[11] = 5;
  const std::string bytes = tar_entry("folder/", "", '5') + tar_entry("folder/a.txt", "alpha") +
                            pax("path", name + ".cls") + tar_entry("cut", "7") + pax("size", "3") +
                            tar_entry("sized", "xyz", '0', octal(0, 11)) +
                            tar_entry("././@LongLink", name + ".npy" + '\0', 'L') +
                            tar_entry("cut", "") + tar_entry("wide", "12345", '0', wide) +
                            pax("mtime", "1.5") + tar_entry("old", "o", '\0') + kTarEnd;
  const auto found = members(bytes);
  ASSERT_TRUE(found.ok()) << found.error().message();
  std::vector<std::string> texts;
  for (const TarMember& member : *found) {
    texts.push_back(member.name + ":" + bytes.substr(member.offset, member.bytes));
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"folder/a.txt:alpha", name + ".cls:7", "sized:xyz",
                                             name + ".npy:", "wide:12345", "old:o"}));
}

TEST_F(TarTest, DamagedArchivesAreRefused) {
  const std::string good = tar_entry("a.txt", "alpha") + tar_entry("b.txt", std::string(600, 'b'));
  EXPECT_TRUE(members(good).ok()) << "an archive may end without zeros";
  expect_input_error(members(good.substr(0, good.size() - 600)), {"x.tar", "truncated", "'b.txt'"});
  expect_input_error(members(good + "tail"), {"x.tar", "truncated"});
  expect_input_error(members(kTarEnd), {"x.tar", "found none"});
  expect_input_error(members(gzipped(good) + std::string(512, 'x')), {"gzip data: unpack it"});
  std::string bad = good;
  bad[0] = 'x';
  expect_input_error(members(bad), {"x.tar", "byte 0"});
  expect_input_error(members(tar_entry("a", "", '2')), {"'a' of type '2'", "a link"});
  expect_input_error(members(tar_entry("a", "", '0', "77777777777")), {"truncated"});
  expect_input_error(members(tar_entry("a", "", '0', "9")), {"expected a size"});
  expect_input_error(members(tar_entry("p", "99 path=x\n", 'x') + tar_entry("a", "")),
                     {"pax header"});
  expect_input_error(members(tar_entry("p", "25 GNU.sparse.major=1 xx\n", 'x')), {"sparse"});
}

// After a change to any byte: an error, or members within the file.
TEST_F(TarTest, AnyChangedByteIsHandled) {
  const std::string good =
      pax("path", "long.txt") + tar_entry("a", "alpha") + tar_entry("b.txt", "beta") + kTarEnd;
  for (size_t at = 0; at < good.size(); at += 11) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x21);
    const auto found = members(bad);
    for (size_t i = 0; found.ok() && i < found->size(); ++i) {
      EXPECT_LE((*found)[i].offset + (*found)[i].bytes, bad.size());
    }
  }
}

TEST_F(TarTest, ShardsAreColumns) {
  std::vector<uint8_t> pixels;
  std::vector<float> vectors;
  for (uint32_t shard = 0; shard < 2; ++shard) {
    std::string bytes;
    for (uint32_t i = 0; i < 3; ++i) {
      const auto image = made_pixels(12, shard * 3 + i);
      const std::vector<float> vector{static_cast<float>(shard), static_cast<float>(i)};
      const std::string key = format_text("set/{}{}", shard, i);
      bytes += tar_entry(key + ".png", png_bytes(4, 3, 1, image)) +
               tar_entry(key + ".cls", std::to_string(i) + "\n") +
               tar_entry(key + ".v.npy", npy("<f4", "(2,)", vector));
      pixels.insert(pixels.end(), image.begin(), image.end());
      vectors.insert(vectors.end(), vector.begin(), vector.end());
    }
    folder_.write(format_text("s-{:02}.tar", shard + 9), bytes + kTarEnd);
  }
  const auto data = open(
      "train:\n  x: {tar: 's-{09..10}.tar', member: png}\n"
      "  y: {tar: [s-09.tar, s-10.tar], member: cls}\n"
      "  v: {tar: 's-{09..10}.tar', member: v.npy}\n",
      {"x", "y", "v"});
  ASSERT_TRUE(data.ok()) << data.error().message();
  const Status bound = (*data)->bind(
      {{"x", DType::kUInt8, {1, 3, 4}}, {"y", DType::kInt64, {}}, {"v", DType::kFloat32, {2}}});
  ASSERT_TRUE(bound.ok()) << bound.message();
  EXPECT_EQ(rows<uint8_t>(**data, 0), pixels);
  EXPECT_EQ(rows<int64_t>(**data, 1), (std::vector<int64_t>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(rows<float>(**data, 2), vectors);
}

// Without a YAML file: each sample has one image and a class.
TEST_F(TarTest, PlainShardsNameTheirMembers) {
  const std::string image = png_bytes(1, 1, 1, {7});
  for (const char* name : {"s-08.tar", "s-09.tar", "s-10.tar"}) {
    folder_.write(
        name, tar_entry("a.jpg.txt", "x") + tar_entry("a.png", image) + tar_entry("a.cls", "1"));
  }
  const auto spec = read_data_spec(folder_.path() + "/s-{08..10}.tar");
  ASSERT_TRUE(spec.ok()) << spec.error().message();
  EXPECT_EQ(spec->train.names(), (std::vector<std::string>{"", "labels"}));
  EXPECT_EQ(spec->train.columns[0].images->member, "png");
  EXPECT_EQ(spec->train.columns[1].images->shards.back(), folder_.path() + "/s-10.tar");
  folder_.write("two.tar", tar_entry("a.png", image) + tar_entry("a.jpg", image));
  expect_input_error(read_data_spec(folder_.path() + "/two.tar"),
                     {"--data", "two.tar", "one image in each sample, found png, jpg"});
  expect_input_error(read_data_spec(folder_.path() + "/{a..b}.tar"), {"--data", "{000..009}"});
  expect_input_error(read_eval_spec(folder_.path() + "/none.tar"), {"--eval-data", "none.tar"});
}

TEST_F(TarTest, ClassesMayHaveNames) {
  folder_.write(
      "s.tar", tar_entry("0.cls", "dog") + tar_entry("1.cls", "cat\n") + tar_entry("2.cls", "dog"));
  const auto data = open("train: {y: {tar: s.tar, member: cls}}\n", {"y"});
  ASSERT_TRUE(data.ok()) << data.error().message();
  EXPECT_EQ((*data)->classes("y"), (std::vector<std::string>{"cat", "dog"}));
  WantedColumn wanted{"y", DType::kInt64, {}};
  wanted.classes = true;
  ASSERT_TRUE((*data)->bind({wanted}).ok());
  EXPECT_EQ(rows<int64_t>(**data, 0), (std::vector<int64_t>{1, 0, 1}));
}

TEST_F(TarTest, SamplesThatLackAPartAreRefused) {
  const auto refused = [&](const std::string& bytes, const std::string& keys,
                           const std::vector<std::string>& facts) {
    folder_.write("s.tar", bytes);
    expect_input_error(open("train: {x: {tar: s.tar, " + keys + "}}\n", {"x"}), facts);
  };
  const std::string image = png_bytes(1, 1, 1, {7});
  refused(tar_entry("a.png", image) + tar_entry("a.cls", "1") + tar_entry("b.png", image),
          "member: cls", {"s.tar", "sample 'b'", "expected a member 'cls', found png"});
  refused(tar_entry("a.png", image) + tar_entry("README", "x"), "member: png", {"sample 'README'"});
  refused(tar_entry("a.png", image) + tar_entry("b.png", image) + tar_entry("a.cls", "1"),
          "member: cls", {"sample 'a'", "found png"});
  refused(tar_entry("a.cls", "1") + tar_entry("b.cls", "1") + tar_entry("a.cls", "1"),
          "member: cls", {"sample 'a'", "apart"});
  refused(tar_entry("a.cls", "1") + tar_entry("a.cls", "2"), "member: cls",
          {"'a.cls' is there twice"});
  refused(tar_entry("a.cls", "  \n"), "member: cls", {"s.tar/a.cls", "expected a class"});
  refused(tar_entry("a.jpg", image), "member: jpg", {"s.tar/a.jpg", "found a PNG image"});
  refused(tar_entry("a.npy", npy("<f4", "(2,)", std::vector<float>(2))) +
              tar_entry("b.npy", npy("<f4", "(3,)", std::vector<float>(3))),
          "member: npy", {"s.tar/b.npy", "expected float32[2]", "found float32[3]"});
  refused(tar_entry("a.npy", npy("<f4", "(2,)", std::vector<float>(1))), "member: npy",
          {"s.tar/a.npy", "bytes"});
  refused(tar_entry("a.cls", "1"), "member: cls, size: [1, 1]", {"'size' is no key of classes"});
  expect_input_error(open("train: {x: {tar: s.tar}}\n", {"x"}), {"expected the key 'member'"});
  expect_input_error(open("train: {x: {tar: 's-{a..b}.tar', member: cls}}\n", {"x"}),
                     {"{000..009}"});
  expect_input_error(open("train: {x: {tar: s.tar, images: p, member: cls}}\n", {"x"}),
                     {"'images' and 'tar', found both"});
}

}  // namespace tar_test
}  // namespace ofsdp
