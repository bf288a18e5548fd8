#include "importer/file/onnx_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <random>

#include "importer/file/wire.h"
#include "tests/support/namespaces.h"
#include "tests/support/onnx_bytes.h"
#include "tests/support/small_model.h"

namespace ofsdp {
namespace onnx_file_test {

using namespace onnx_bytes;  // NOLINT: the words of this test
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<float> read_all(const OnnxFile& file, size_t i) {
  const Initializer& weight = file.initializers()[i];
  std::vector<float> values(static_cast<size_t>(weight.shape.numel()));
  const Status status = file.read(weight, 0, values);
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.message());
  return values;
}

// Two elements from the second on: a rank with a shard that begins inside the weight.
std::vector<float> read_part(const OnnxFile& file, size_t i) {
  std::vector<float> values(2);
  EXPECT_TRUE(file.read(file.initializers()[i], 1, values).ok());
  return values;
}

// The names in a field of the skeleton's graph: 5 initializers, 11 inputs.
std::vector<std::string> skeleton_names(const std::string& skeleton, uint32_t field) {
  std::vector<std::string> names;
  const uint32_t name_field = field == 5 ? 8 : 1;
  for (WireReader model(std::as_bytes(std::span(skeleton))); !model.done();) {
    const Result<WireField> graph = model.next();
    if (graph->number != 7) continue;
    for (WireReader reader(graph->bytes); !reader.done();) {
      const Result<WireField> value = reader.next();
      if (value->number != field) continue;
      for (WireReader parts(value->bytes); !parts.done();) {
        const Result<WireField> part = parts.next();
        if (part->number == name_field) names.emplace_back(as_text(part->bytes));
      }
    }
  }
  return names;
}

class OnnxFileTest : public testing::Test {
 protected:
  Result<OnnxFile> open(const std::string& bytes) {
    return OnnxFile::open(folder_.write("m.onnx", bytes));
  }
  OnnxFile opened(const std::string& bytes) {
    Result<OnnxFile> file = open(bytes);
    OFSDP_CHECK(file.ok(), "{}", file.error().message());
    return *std::move(file);
  }
  // The message from a failed open: one line, kInput, with the path in front.
  std::string error(const std::string& bytes) { return error_at(folder_.write("m.onnx", bytes)); }
  static std::string error_at(const std::string& path) {
    const Result<OnnxFile> file = OnnxFile::open(path);
    if (file.ok()) return "opened";
    EXPECT_EQ(file.error().kind(), ErrorKind::kInput);
    EXPECT_EQ(file.error().message().find('\n'), std::string::npos);
    EXPECT_TRUE(file.error().message().starts_with(path + ": ")) << file.error().message();
    return file.error().message();
  }
  std::string external_error(const std::string& location, const std::string& offset,
                             const std::string& length) {
    return error(model({tensor("w", kFloat, {20}, external(location, offset, length))}));
  }

  Folder folder_;
};

const std::vector<float> kThree = {1.5f, -2.0f, 0.25f};

TEST_F(OnnxFileTest, ReadsEveryEncoding) {
  const std::vector<uint16_t> halves = {0x3e00, 0xc000, 0x3400};   // kThree as float16
  const std::vector<uint16_t> bfloats = {0x3fc0, 0xc000, 0x3e80};  // and as bfloat16
  const std::vector<uint64_t> half_numbers(halves.begin(), halves.end());
  const std::vector<double> doubles = {1.5, -2.0, 0.25};
  const OnnxFile file = opened(model({
      tensor("raw", kFloat, {3}, raw(kThree)),
      tensor("packed", kFloat, {3}, packed_floats(kThree)),
      tensor("unpacked", kFloat, {3}, unpacked_floats(kThree)),
      tensor("half", kHalf, {3}, raw(halves)),
      tensor("half_list", kHalf, {3}, packed_numbers(5, half_numbers)),
      tensor("bfloat16", kBfloat16, {3}, raw(bfloats)),
      tensor("double", kDouble, {3}, raw(doubles)),
      tensor("double_list", kDouble, {3}, message(10, bytes_of(doubles))),
      tensor("pieces", kFloat, {3}, packed_floats({1.5f, -2.0f}) + packed_floats({0.25f})),
  }));
  ASSERT_EQ(file.initializers().size(), 9u);
  for (size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(read_all(file, i), kThree) << file.initializers()[i].name;
    EXPECT_THAT(read_part(file, i), ElementsAre(-2.0f, 0.25f)) << file.initializers()[i].name;
  }
  EXPECT_EQ(file.initializers()[2].stride, 5);
  EXPECT_EQ(file.initializers()[4].encoding, Initializer::Encoding::kList);
  EXPECT_EQ(file.initializers()[7].dtype, DType::kFloat64);
  EXPECT_EQ(file.initializers()[8].encoding, Initializer::Encoding::kList);
}

TEST_F(OnnxFileTest, ReadsMoreThanOneChunk) {
  const std::vector<float> many = count_up(40000);
  std::vector<double> doubles(many.begin(), many.end());
  const OnnxFile file = opened(model({tensor("d", kDouble, {200, 200}, raw(doubles)),
                                      tensor("u", kFloat, {40000}, unpacked_floats(many))}));
  EXPECT_EQ(read_all(file, 0), many);
  EXPECT_EQ(read_all(file, 1), many);
  EXPECT_EQ(file.initializers()[0].shape, Shape({200, 200}));
}

TEST_F(OnnxFileTest, SkeletonDeclaresWeightsAsInputs) {
  const std::string big = tensor("big", kFloat, {4, 5}, raw(count_up(20)));
  const std::string small = tensor("small", kFloat, {2}, raw(count_up(2)));
  const std::string ints = tensor("ints", kInt64, {3}, raw<int64_t>({1, 2, 3}));
  const std::string old = tensor("old", kFloat, {20}, raw(count_up(20)));
  const OnnxFile file = opened(
      model({big, small, ints, old}, message(11, value_info("old", {20})) + message(10, "doc")));
  EXPECT_THAT(skeleton_names(file.skeleton(), 5), ElementsAre("small", "ints"));
  EXPECT_THAT(skeleton_names(file.skeleton(), 11), ElementsAre("x", "old", "big"));
  ASSERT_EQ(file.initializers().size(), 3u);
  EXPECT_EQ(file.initializers()[1].name, "small");
  // Otherwise the model equals one that has the weights as inputs from the start.
  EXPECT_EQ(file.skeleton(),
            model({small, ints}, message(11, value_info("old", {20})) + message(10, "doc") +
                                     message(11, value_info("big", {4, 5}))));
}

TEST_F(OnnxFileTest, KeepsSixteenElementsAndDeclaresSeventeen) {
  const OnnxFile file = opened(
      model({tensor("a", kFloat, {16}, raw(count_up(16))),
             tensor("b", kFloat, {17}, raw(count_up(17))), tensor("none", kFloat, {0}, "")}));
  EXPECT_THAT(skeleton_names(file.skeleton(), 5), ElementsAre("a", "none"));
  EXPECT_THAT(skeleton_names(file.skeleton(), 11), ElementsAre("x", "b"));
}

TEST_F(OnnxFileTest, TakesConstantNodesForWeightsWhereThereAreNoOthers) {
  const OnnxFile file = opened(linear_model_of_constants().bytes());
  ASSERT_EQ(file.initializers().size(), 2u);
  EXPECT_EQ(file.initializers()[0].name, "w");
  EXPECT_THAT(read_all(file, 0), testing::ElementsAreArray(linear_weights()));
  EXPECT_THAT(read_all(file, 1), ElementsAre(0.5f, 0.f, -0.5f));
  EXPECT_THAT(skeleton_names(file.skeleton(), 5), ElementsAre("w", "b"));
}

// `s` is one number, `i` are integers, no operator reads `u` as a weight, and `c` meets another
// constant.
TEST_F(OnnxFileTest, LeavesOtherConstantNodes) {
  SmallModel one = linear_model_of_constants();
  const std::vector<float> number{2};
  one.nodes.insert(one.nodes.begin(), {constant_node("s", kFloat, {1}, raw(number)),
                                       constant_node("i", kInt64, {2}, raw<int64_t>({1, 2})),
                                       constant_node("u", kFloat, {2}, raw(count_up(2))),
                                       constant_node("c", kFloat, {2}, raw(count_up(2)))});
  one.nodes.push_back(node("Mul", {"c", "u"}, {"scales"}, "of_constants"));
  one.nodes.push_back(node("Mul", {"logits", "s"}, {"scaled"}, "scale"));
  one.nodes.push_back(node("Exp", {"u"}, {"exp"}, "exp"));
  const OnnxFile file = opened(one.bytes());
  ASSERT_EQ(file.initializers().size(), 2u);
  EXPECT_TRUE(file.contents().other_weights.empty());
}

TEST_F(OnnxFileTest, TakesConstantNodesByNameBesideOtherWeights) {
  SmallModel mixed = linear_model_of_constants();
  mixed.initializers = {tensor("w2", kFloat, {3, 2}, raw(count_up(6)))};
  mixed.nodes.push_back(node("MatMul", {"logits", "w2"}, {"y"}, "second"));
  const std::string path = folder_.write("mixed.onnx", mixed.bytes());
  const Result<OnnxFile> plain = OnnxFile::open(path), named = OnnxFile::open(path, {"w*"});
  ASSERT_TRUE(plain.ok() && named.ok());
  ASSERT_EQ(plain->initializers().size(), 1u);
  EXPECT_THAT(plain->contents().other_weights, ElementsAre("w", "b"));
  ASSERT_EQ(named->initializers().size(), 2u);
  EXPECT_EQ(named->initializers()[0].name, "w");
  EXPECT_THAT(named->contents().other_weights, ElementsAre("b"));
}

TEST_F(OnnxFileTest, ReadsExternalData) {
  folder_.write("w.bin", std::string(8, '\0') + bytes_of(count_up(20)) +
                             bytes_of<int64_t>({7, 8, 9}) + bytes_of(kThree));
  const OnnxFile file = opened(model({tensor("w", kFloat, {20}, external("w.bin", "8", "80")),
                                      tensor("i", kInt64, {3}, external("w.bin", "88", "24")),
                                      tensor("s", kFloat, {3}, external("w.bin", "112", ""))}));
  ASSERT_EQ(file.initializers().size(), 2u);
  EXPECT_EQ(file.contents().data_files.size(), 1u);
  EXPECT_EQ(read_all(file, 0), count_up(20));
  EXPECT_EQ(read_all(file, 1), kThree);
  EXPECT_EQ(file.skeleton(), model({tensor("i", kInt64, {3}, raw<int64_t>({7, 8, 9})),
                                    tensor("s", kFloat, {3}, raw(kThree))},
                                   message(11, value_info("w", {20}))));
}

TEST_F(OnnxFileTest, FollowsLinksInsideOfTheFolder) {
  folder_.write("sub/real.bin", bytes_of(count_up(20)));
  std::filesystem::create_symlink("sub/real.bin", folder_ / "link.bin");
  EXPECT_EQ(external_error("link.bin", "", "80"), "opened");
  EXPECT_EQ(external_error("sub/real.bin", "", "80"), "opened");
}

// Hugging Face's cache: snapshots/x/onnx/model.onnx and the data are links to ../../../blobs/HASH.
TEST_F(OnnxFileTest, FollowsLinksToFilesBesideTheRealModel) {
  const std::string location = "model.onnx_data";
  folder_.write("hub/blobs/aaa", model({tensor("w", kFloat, {20}, external(location, "", "80"))}));
  folder_.write("hub/blobs/bbb", bytes_of(count_up(20)));
  const std::string secret = folder_.write("hub/secret", bytes_of(count_up(20)));
  const std::string snapshot = folder_ / "hub/snapshots/x/onnx/";
  std::filesystem::create_directories(snapshot);
  const auto link = [&](const std::string& name, const std::string& to) {
    std::filesystem::remove(snapshot + name);
    std::filesystem::create_symlink(to, snapshot + name);
  };
  link("model.onnx", "../../../blobs/aaa");
  link(location, "../../../blobs/bbb");
  Result<OnnxFile> file = OnnxFile::open(snapshot + "model.onnx");
  ASSERT_TRUE(file.ok()) << file.error().message();
  EXPECT_EQ(read_all(*file, 0), count_up(20));
  for (const std::string& elsewhere : {std::string("../../../secret"), secret}) {
    link(location, elsewhere);
    EXPECT_THAT(error_at(snapshot + "model.onnx"), HasSubstr("found a symbolic link to"));
  }
  // A model that is no link has no second folder.
  std::filesystem::remove(snapshot + "model.onnx");
  std::filesystem::copy_file(folder_ / "hub/blobs/aaa", snapshot + "model.onnx");
  link(location, "../../../blobs/bbb");
  EXPECT_THAT(error_at(snapshot + "model.onnx"), HasSubstr("found a symbolic link to"));
}

TEST_F(OnnxFileTest, RefusesLocationsOutsideOfTheFolder) {
  Folder other;
  other.write("secret", bytes_of(count_up(20)));
  std::filesystem::create_symlink(other / "secret", folder_ / "link.bin");
  std::filesystem::create_symlink(other.path(), folder_ / "sub");
  EXPECT_THAT(external_error(other / "secret", "", ""), HasSubstr("found the absolute path '/"));
  EXPECT_THAT(external_error("../x/secret", "", ""), HasSubstr("found '..' in '../x/secret'"));
  EXPECT_THAT(external_error("sub/..", "", ""), HasSubstr("found '..' in 'sub/..'"));
  EXPECT_THAT(external_error("link.bin", "", ""),
              HasSubstr("link.bin: expected a file inside of the model's folder, found a symbolic "
                        "link to " +
                        std::filesystem::canonical(other / "secret").string()));
  EXPECT_THAT(external_error("sub/secret", "", ""), HasSubstr("found a symbolic link to"));
  EXPECT_THAT(external_error("", "", ""), HasSubstr("location is missing"));
}

TEST_F(OnnxFileTest, RefusesExternalDataThatDoNotFit) {
  const std::string path =
      std::filesystem::canonical(folder_.write("w.bin", std::string(100, 'x')));
  mkfifo((folder_ / "pipe").c_str(), 0600);
  const std::string where = "initializer 'w': external data in " + path;
  EXPECT_THAT(external_error("w.bin", "21", "80"),
              HasSubstr(where + ": expected 80 bytes at offset 21, found 79"));
  EXPECT_THAT(external_error("w.bin", "21", ""), HasSubstr("expected 80 bytes at offset 21"));
  EXPECT_THAT(external_error("w.bin", "200", "80"),
              HasSubstr("expected 80 bytes at offset 200, found 0"));
  EXPECT_THAT(external_error("w.bin", "0", "76"),
              HasSubstr("expected 80 bytes for its type and shape, found 76"));
  EXPECT_THAT(external_error("w.bin", "-4", "80"), HasSubstr("as offset, found '-4'"));
  EXPECT_THAT(external_error("w.bin", "99999999999999999999", ""), HasSubstr("as offset, found"));
  EXPECT_THAT(external_error("w.bin", "4x", "80"), HasSubstr("as offset, found '4x'"));
  EXPECT_THAT(external_error("gone.bin", "", "80"), HasSubstr("gone.bin: no such file"));
  EXPECT_THAT(external_error("pipe", "", "80"), HasSubstr("expected a regular file"));
  EXPECT_THAT(external_error(".", "", "80"), HasSubstr("external data file"));
}

TEST_F(OnnxFileTest, RefusesWhatIsNoModel) {
  EXPECT_THAT(error(""), HasSubstr("is no ONNX model: the file is empty"));
  EXPECT_THAT(error("hello, world\n"), HasSubstr("is no ONNX model"));
  EXPECT_THAT(error("version https://git-lfs.github.com/spec/v1\n"), HasSubstr("is no ONNX model"));
  EXPECT_THAT(error("{\"a\": 1}"), HasSubstr("is no ONNX model"));
  EXPECT_THAT(error(std::string("PK\x03\x04", 4) + std::string(50, '\0')),
              HasSubstr("is no ONNX model"));
  EXPECT_THAT(error(std::string(100, '\0')), HasSubstr("is no ONNX model"));
  EXPECT_THAT(error(number(1, 8) + message(2, "test")),
              HasSubstr("is no ONNX model: it has no graph"));
  EXPECT_THAT(error_at(folder_ / "gone.onnx"), HasSubstr("no such file"));
  EXPECT_THAT(error_at(folder_.path()), HasSubstr("expected a file, found a folder"));
  mkfifo((folder_ / "pipe").c_str(), 0600);
  EXPECT_THAT(error_at(folder_ / "pipe"), HasSubstr("expected a regular file"));
}

TEST_F(OnnxFileTest, RefusesDataThatDoNotMatchTheShape) {
  auto of = [&](const std::string& t) { return error(model({t})); };
  EXPECT_THAT(of(tensor("w", kFloat, {4}, raw(kThree))),
              HasSubstr("initializer 'w': expected 16 bytes for float32[4], found 12"));
  EXPECT_THAT(of(tensor("w", kFloat, {2}, packed_floats(kThree))),
              HasSubstr("expected 2 values for float32[2], found 3"));
  EXPECT_THAT(of(tensor("w", kFloat, {2}, unpacked_floats(kThree))),
              HasSubstr("expected 2 values for float32[2], found 3"));
  EXPECT_THAT(of(tensor("w", kFloat, {3}, "")),
              HasSubstr("expected 12 bytes for float32[3], found 0"));
  EXPECT_THAT(of(tensor("i", kInt64, {3}, packed_numbers(7, {1, 2}))),
              HasSubstr("initializer 'i': expected 3 values for int64[3], found 2"));
  EXPECT_THAT(of(tensor("w", kFloat, {3}, message(4, "12345"))),
              HasSubstr("expected elements of 4 bytes in field 4, found 5 bytes"));
  EXPECT_THAT(of(tensor("w", kFloat, {3}, raw(kThree) + packed_floats(kThree))),
              HasSubstr("expected its data in one field, found fields 9 and 4"));
  EXPECT_THAT(of(tensor("w", kHalf, {3}, packed_floats(kThree))),
              HasSubstr("expected the data of float16[3] in field 5, found it in field 4"));
  EXPECT_THAT(of(tensor("w", kFloat, {-3}, raw(kThree))), HasSubstr("axis -3 of [-3] is negative"));
  const int64_t huge = int64_t{1} << 40;
  EXPECT_THAT(of(tensor("w", kFloat, {huge, huge}, raw(kThree))),
              HasSubstr("dimensions [1099511627776, 1099511627776] overflow"));
}

TEST_F(OnnxFileTest, RefusesGraphsThatCannotBeTrained) {
  const std::string w = tensor("w", kFloat, {3}, raw(kThree));
  EXPECT_THAT(error(model({w, w})), HasSubstr("initializer 'w': expected once, found a second"));
  EXPECT_THAT(error(model({tensor("", kFloat, {3}, raw(kThree))})), HasSubstr("expected a name"));
  EXPECT_THAT(error(model({}, message(15, message(1, w)))),
              HasSubstr("sparse initializer 'w': expected a dense one"));
  EXPECT_THAT(error(model({}) + model({})), HasSubstr("expected one graph, found a second"));
  EXPECT_THAT(error(model({tensor("a\nb", kFloat, {4}, raw(kThree))})),
              HasSubstr("initializer 'a\\x0ab'"));
}

TEST_F(OnnxFileTest, NamesBothNumbersOfATruncatedFile) {
  const std::string bytes = model({tensor("w", kFloat, {20}, raw(count_up(20)))});
  EXPECT_THAT(error(bytes.substr(0, 30)),
              HasSubstr("is truncated: field 7 at byte 8: expected 145 bytes, found 19"));
}

TEST_F(OnnxFileTest, EveryTruncationIsAnErrorOrAModel) {
  folder_.write("w.bin", bytes_of(count_up(20)));
  const std::string bytes = model({tensor("w", kFloat, {20}, raw(count_up(20))),
                                   tensor("h", kHalf, {3}, packed_numbers(5, {1, 2, 0xffff})),
                                   tensor("e", kFloat, {20}, external("w.bin", "0", "80"))});
  const size_t graph_end = bytes.find(message(8, number(2, 17)));
  for (size_t n = 0; n < bytes.size(); ++n) {
    const Result<OnnxFile> file = open(bytes.substr(0, n));
    if (n < graph_end) {
      EXPECT_FALSE(file.ok()) << n;
    }
    if (!file.ok()) {
      EXPECT_EQ(file.error().kind(), ErrorKind::kInput) << n;
    }
  }
  EXPECT_TRUE(open(bytes).ok());
}

TEST_F(OnnxFileTest, FlippedBytesNeverCrash) {
  folder_.write("w.bin", bytes_of(count_up(20)));
  const std::string bytes = model({tensor("w", kFloat, {20}, raw(count_up(20))),
                                   tensor("u", kFloat, {3}, unpacked_floats(kThree)),
                                   tensor("h", kHalf, {3}, packed_numbers(5, {1, 2, 0xffff})),
                                   tensor("e", kFloat, {20}, external("w.bin", "0", "80"))});
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = bytes;
    for (int flips = 0; flips <= i % 3; ++flips) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    const Result<OnnxFile> file = open(damaged);
    if (!file.ok()) continue;
    for (size_t w = 0; w < file->initializers().size(); ++w) read_all(*file, w);
  }
}

TEST_F(OnnxFileTest, RandomBytesAreNoModel) {
  std::mt19937 random(2);
  for (int i = 0; i < 200; ++i) {
    std::string bytes(300, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    EXPECT_FALSE(open(bytes).ok()) << i;
  }
}

TEST_F(OnnxFileTest, AFileCutShortAfterOpeningIsAnErrorOfRead) {
  const OnnxFile file = opened(model({tensor("w", kFloat, {20}, raw(count_up(20)))}));
  std::filesystem::resize_file(file.path(), 100);
  std::vector<float> values(20);
  const Status status = file.read(file.initializers()[0], 0, values);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.kind(), ErrorKind::kFault);
  EXPECT_THAT(status.message(), HasSubstr("was cut short while in use: expected 80 bytes"));
}

TEST_F(OnnxFileTest, AFileReplacedByNameIsStillRead) {
  const OnnxFile file = opened(model({tensor("w", kFloat, {20}, raw(count_up(20)))}));
  folder_.write("new", "something else");
  std::filesystem::rename(folder_ / "new", file.path());
  EXPECT_EQ(read_all(file, 0), count_up(20));
}

}  // namespace onnx_file_test
}  // namespace ofsdp
