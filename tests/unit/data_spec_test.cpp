#include "runtime/data/data_spec.h"

#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace data_spec_test {

using namespace testing_data;

Result<DataSpec> parse(const std::string& text) { return parse_data_yaml(text, "base", "d.yaml"); }

TEST(DataSpec, FolderGivesItsNpyFilesSortedAndItsEvalFolder) {
  TempFolder folder;
  folder.write("labels.npy", "");
  folder.write("image.npy", "");
  folder.write("readme.txt", "");
  folder.write("eval/image.npy", "");
  Result<DataSpec> spec = read_data_spec(folder.path());
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec->train.names(), (std::vector<std::string>{"image", "labels"}));
  EXPECT_EQ(spec->train.find("image")->path, folder.path() + "/image.npy");
  ASSERT_TRUE(spec->eval.has_value());
  EXPECT_EQ(spec->eval->find("image")->path, folder.path() + "/eval/image.npy");
  EXPECT_EQ(spec->eval->find("labels"), nullptr);
}

TEST(DataSpec, ReadsTheContractsExample) {
  Result<DataSpec> spec = parse(R"(
train:
  input:  {file: train-images-idx3-ubyte.gz, scale: 0.00392156862745098, mean: 0.1307, std: 0.3081, shape: [1, 28, 28]}
  labels: {file: /abs/train-labels-idx1-ubyte.gz}
eval:
  input: {file: t.npy}
)");
  ASSERT_TRUE(spec.ok()) << spec.error().message();
  const ColumnSpec& input = *spec->train.find("input");
  EXPECT_EQ(input.path, "base/train-images-idx3-ubyte.gz");
  EXPECT_EQ(input.normalization->scale, 0.00392156862745098f);
  EXPECT_EQ(input.normalization->mean, 0.1307f);
  EXPECT_EQ(input.normalization->std, 0.3081f);
  EXPECT_EQ(*input.row, (Shape{1, 28, 28}));
  EXPECT_EQ(spec->train.find("labels")->path, "/abs/train-labels-idx1-ubyte.gz");
  EXPECT_FALSE(spec->train.find("labels")->normalization.has_value());
  EXPECT_EQ(spec->eval->find("input")->path, "base/t.npy");
  EXPECT_FALSE(spec->synthetic);
}

TEST(DataSpec, TokenColumnsOfASetReserveTheNextToken) {
  Result<DataSpec> spec = parse(
      "train:\n"
      "  input_ids: {file: t.bin, sequence_length: 8, stride: 2, dtype: uint32}\n"
      "  labels: {file: t.bin, sequence_length: 8, stride: 2, next_token: true}\n"
      "eval:\n"
      "  input_ids: {file: t.bin, sequence_length: 8}\n");
  ASSERT_TRUE(spec.ok()) << spec.error().message();
  const ColumnSpec& ids = *spec->train.find("input_ids");
  EXPECT_EQ(ids.sequence_length, 8);
  EXPECT_EQ(ids.stride, 2);
  EXPECT_EQ(ids.dtype, DType::kUInt32);
  EXPECT_TRUE(ids.reserve_next);
  EXPECT_FALSE(ids.next_token);
  EXPECT_TRUE(spec->train.find("labels")->next_token);
  EXPECT_FALSE(spec->eval->find("input_ids")->reserve_next);
}

TEST(DataSpec, SyntheticIsAWord) {
  Result<DataSpec> spec = read_data_spec("synthetic");
  ASSERT_TRUE(spec.ok());
  EXPECT_TRUE(spec->synthetic);
  expect_input_error(read_eval_spec("synthetic"), {"--eval-data", "synthetic", "no end"});
}

TEST(DataSpec, PathsAreRelativeToTheYamlFile) {
  TempFolder folder;
  const std::string path = folder.write("sub/data.yaml", "train:\n  x: {file: x.npy}\n");
  Result<DataSpec> spec = read_data_spec(path);
  ASSERT_TRUE(spec.ok()) << spec.error().message();
  EXPECT_EQ(spec->train.find("x")->path, folder.path() + "/sub/x.npy");
  EXPECT_FALSE(spec->eval.has_value());
}

TEST(DataSpec, EvalDataTakesTheEvalPartElseTheTrainPart) {
  TempFolder folder;
  const std::string both =
      folder.write("both.yaml", "train:\n  x: {file: a.npy}\neval:\n  x: {file: b.npy}\n");
  const std::string one = folder.write("one.yaml", "train:\n  x: {file: a.npy}\n");
  EXPECT_EQ(read_eval_spec(both)->find("x")->path, folder.path() + "/b.npy");
  EXPECT_EQ(read_eval_spec(one)->find("x")->path, folder.path() + "/a.npy");
  folder.write("f/x.npy", "");
  folder.write("f/eval/x.npy", "");
  folder.write("g/eval/x.npy", "");
  EXPECT_EQ(read_eval_spec(folder.path() + "/f")->find("x")->path, folder.path() + "/f/x.npy");
  EXPECT_EQ(read_eval_spec(folder.path() + "/g")->find("x")->path, folder.path() + "/g/eval/x.npy");
}

TEST(DataSpec, NamesWhatIsNeitherFolderNorYaml) {
  TempFolder folder;
  expect_input_error(read_data_spec(folder.path() + "/none"),
                     {"--data", "expected a folder", "found no file", "/none"});
  expect_input_error(read_eval_spec(folder.path() + "/none"), {"--eval-data", "/none"});
  expect_input_error(read_data_spec(folder.write("x.npy", "")), {"--data", "x.npy", ".yaml"});
}

TEST(DataSpec, UnknownKeysNameTheNearest) {
  expect_input_error(parse("trian:\n  x: {file: a}\n"),
                     {"d.yaml:1", "unknown key 'trian'", "did you mean 'train'?"});
  expect_input_error(parse("train:\n  x:\n    file: a.npy\n    scael: 2\n"),
                     {"d.yaml:4", "train.x", "unknown key 'scael'", "did you mean 'scale'?"});
}

TEST(DataSpec, WrongValuesNameLineKeyExpectedAndFound) {
  expect_input_error(parse("train:\n  x: {file: a.npy, scale: 1/255}\n"),
                     {"d.yaml:2", "train.x.scale", "expected a number", "found '1/255'"});
  expect_input_error(parse("train:\n  x: {file: a.npy, std: 0}\n"), {"train.x.std", "0"});
  expect_input_error(parse("train:\n  x: {file: a.npy, mean: .inf}\n"), {"train.x.mean", "finite"});
  expect_input_error(parse("train:\n  x: {file: a.npy, shape: 28}\n"),
                     {"train.x.shape", "a list of axes", "found '28'"});
  expect_input_error(parse("train:\n  x: {file: a.npy, shape: [1, 0]}\n"),
                     {"train.x.shape", "at least 1", "found '0'"});
  expect_input_error(parse("train:\n  x: {file: a.bin, sequence_length: 2.5}\n"),
                     {"train.x.sequence_length", "found '2.5'"});
  expect_input_error(parse("train:\n  x: {file: a.bin, sequence_length: 2, dtype: int8}\n"),
                     {"uint16 or uint32", "found 'int8'"});
  expect_input_error(parse("train:\n  x: {file: a.npy}\n  x: {file: b.npy}\n"),
                     {"d.yaml:3", "'x' is given twice"});
  expect_input_error(parse("train: [1]\n"), {"train", "a mapping of columns", "found a list"});
  expect_input_error(parse("train:\n  x: a.npy\n"), {"train.x", "a mapping", "found 'a.npy'"});
  expect_input_error(parse(""), {"d.yaml", "a mapping with 'train:'", "found nothing"});
}

TEST(DataSpec, KeysMustFitTheKindOfFile) {
  expect_input_error(parse("train:\n  x: {scale: 1}\n"), {"train.x", "'file'", "found none"});
  expect_input_error(parse("train:\n  x: {file: a.bin}\n"),
                     {"train.x", "a.bin", "sequence_length"});
  expect_input_error(parse("train:\n  x: {file: a.npy, stride: 1}\n"),
                     {"train.x", "stride", ".bin", "a.npy"});
}

TEST(DataSpec, BrokenYamlIsOneLine) {
  expect_input_error(parse("train: {x: [1, 2\n"), {"d.yaml:", "expected YAML"});
}

}  // namespace data_spec_test
}  // namespace ofsdp
