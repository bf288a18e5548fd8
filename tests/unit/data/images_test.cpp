// Folders of images as columns. Pixels are compared with the bytes that Pillow made from the same
// files (tests/fixtures/images/make.py) and with the column as .npy.
#include "fsdp/comm/communicator.h"
#include "runtime/data/dataset.h"
#include "runtime/data/images/resize.h"
#include "tests/support/data_files.h"
#include "tests/support/namespaces.h"
#include "tests/support/onnx_bytes.h"
#include "tests/support/png_bytes.h"

namespace ofsdp {
namespace images_test {

using namespace testing_data;

const std::string kFixtures = OFSDP_SOURCE_DIR "/tests/fixtures/images/";

class ImagesTest : public ::testing::Test {
 protected:
  static ColumnSpec images(const std::string& folder) {
    ColumnSpec spec;
    spec.name = "x";
    spec.path = folder;
    spec.images.emplace();
    spec.images->folders = {folder};
    return spec;
  }

  Result<std::unique_ptr<Dataset>> open(const ColumnSpec& spec) {
    return Dataset::open({"data", {spec}}, {spec.name}, *communicator_, ledger_);
  }

  // All rows, in the form for the graph.
  std::string rows(const ColumnSpec& spec, DType dtype) {
    auto data = open(spec);
    EXPECT_TRUE(data.ok()) << data.error().message();
    if (!data.ok()) return "";
    const std::vector<int64_t> row = (*data)->stored(spec.name)->row.axes();
    const Status bound = (*data)->bind({{spec.name, dtype, row}});
    EXPECT_TRUE(bound.ok()) << bound.message();
    std::vector<int64_t> samples(static_cast<size_t>((*data)->samples()));
    for (size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<int64_t>(i);
    std::string bytes((*data)->columns()[0].row_bytes() * samples.size(), '\0');
    const Status read = (*data)->read_rows(0, samples, reinterpret_cast<std::byte*>(bytes.data()));
    EXPECT_TRUE(read.ok()) << read.message();
    return bytes;
  }

  // The error when sample 0 is read.
  Status failure(const ColumnSpec& spec) {
    auto data = open(spec);
    if (!data.ok()) return std::move(data).status();
    const std::vector<int64_t> row = (*data)->stored("x")->row.axes();
    OFSDP_RETURN_IF_ERROR((*data)->bind({{"x", DType::kUInt8, row}}));
    std::vector<std::byte> bytes((*data)->columns()[0].row_bytes());
    const int64_t sample = 0;
    return (*data)->read_rows(0, std::span(&sample, 1), bytes.data());
  }

  std::string png(const std::string& name, uint32_t width, uint32_t height, int channels,
                  uint32_t number) {
    const size_t count = size_t{width} * height * static_cast<size_t>(channels);
    return folder_.write(name, png_bytes(width, height, channels, made_pixels(count, number)));
  }

  TempFolder folder_;
  MemoryLedger ledger_;
  std::unique_ptr<Communicator> communicator_ = make_self_communicator();
};

std::vector<std::string> fixture_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFixtures + "files")) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

struct Reference {
  const char* file;
  int64_t channels;
};

class PillowTest : public ImagesTest, public testing::WithParamInterface<Reference> {};

INSTANTIATE_TEST_SUITE_P(Depths, PillowTest,
                         testing::Values(Reference{"rgb.npy", 3}, Reference{"grey.npy", 1}));

TEST_P(PillowTest, EachFileHasItsBytes) {
  ColumnSpec spec = images(kFixtures + "files");
  spec.images->height = 20;
  spec.images->width = 24;
  spec.images->channels = GetParam().channels;
  spec.images->layout = ImageLayout::kHwc;
  const std::string found = rows(spec, DType::kUInt8);
  const std::string file = onnx_bytes::content(kFixtures + GetParam().file);
  ASSERT_LT(found.size(), file.size());
  const std::string expected = file.substr(file.size() - found.size());
  const auto names = fixture_names();
  const size_t row = found.size() / names.size();
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_TRUE(found.substr(i * row, row) == expected.substr(i * row, row)) << names[i];
  }
}

// [samples, 3, 5, 7] with mean and std: as the same bytes in .npy, on any threads.
TEST_F(ImagesTest, PixelsHaveTheBitsOfTheirArray) {
  constexpr size_t kCount = 23, kRow = 3 * 5 * 7;
  std::vector<uint8_t> planes;
  for (uint32_t i = 0; i < kCount; ++i) {
    png(format_text("pictures/{:03}.png", i), 7, 5, 3, i);
    const auto pixels = made_pixels(kRow, i);
    for (size_t c = 0; c < 3; ++c) {
      for (size_t p = 0; p < kRow / 3; ++p) planes.push_back(pixels[p * 3 + c]);
    }
  }
  ColumnSpec array;
  array.name = "x";
  array.path = folder_.write("x.npy", npy("|u1", "(23, 3, 5, 7)", planes));
  array.normalization = {.scale = 1.0f / 255, .means = {0.1f, 0.2f, 0.3f}, .stds = {1, 2, 3}};
  ColumnSpec spec = images(folder_.path() + "/pictures");
  spec.normalization = array.normalization;
  const std::string expected = rows(array, DType::kFloat32);
  for (const int threads : {1, 4}) {
    spec.images->threads = threads;
    EXPECT_TRUE(rows(spec, DType::kFloat32) == expected) << threads << " threads";
  }
  // Without keys: between 0 and 1.
  array.normalization = {.scale = 1.0f / 255};
  spec.normalization.reset();
  EXPECT_TRUE(rows(spec, DType::kFloat32) == rows(array, DType::kFloat32));
}

TEST_F(ImagesTest, SubfoldersAreClassesInTheOrderOfTheirBytes) {
  for (const char* name :
       {"b/1.png", "10/0.png", "a/deep/7.png", "b/0.png", "B/2.png", "2/9.png"}) {
    png(std::string("pictures/") + name, 2, 2, 1, 1);
  }
  folder_.write("pictures/b/notes.txt", "not an image");
  folder_.write("pictures/.cache/x.png", "hidden");
  ColumnSpec spec = images(folder_.path() + "/pictures");
  spec.name = "labels";
  spec.images->classes = true;
  auto data = open(spec);
  ASSERT_TRUE(data.ok()) << data.error().message();
  EXPECT_EQ((*data)->classes("labels"), (std::vector<std::string>{"10", "2", "B", "a", "b"}));
}

// A folder without a YAML file: the names of subfolders tell the parts.
TEST_F(ImagesTest, APlainFolderHasItsParts) {
  png("a/cat/0.png", 2, 2, 1, 1);
  const auto one = read_data_spec(folder_.path() + "/a");
  ASSERT_TRUE(one.ok()) << one.error().message();
  EXPECT_EQ(one->train.columns[0].name, "");
  EXPECT_EQ(one->train.columns[0].path, folder_.path() + "/a");
  EXPECT_FALSE(one->eval);
  png("a/eval/cat/0.png", 2, 2, 1, 1);
  const auto two = read_data_spec(folder_.path() + "/a");
  EXPECT_EQ(two->train.columns[0].images->left_out, "eval");
  EXPECT_EQ(two->eval->columns[0].path, folder_.path() + "/a/eval");
  png("b/train/cat/0.png", 2, 2, 1, 1);
  png("b/val/cat/0.png", 2, 2, 1, 1);
  const auto three = read_data_spec(folder_.path() + "/b");
  EXPECT_EQ(three->train.columns[0].path, folder_.path() + "/b/train");
  EXPECT_EQ(three->eval->columns[0].path, folder_.path() + "/b/val");
}

// Other names for the parts, in any case; a class may have such a name too.
TEST_F(ImagesTest, PartsHaveUsualNames) {
  for (const auto& [train, eval] : std::vector<std::pair<std::string, std::string>>{
           {"Train", "Val"}, {"training", "test"}, {"train", "validation"}, {"TRAIN", "dev"}}) {
    const std::string root = train + eval + "/";
    png(root + train + "/cat/0.png", 2, 2, 1, 1);
    png(root + eval + "/cat/0.png", 2, 2, 1, 1);
    const auto spec = read_data_spec(folder_.path() + "/" + root);
    ASSERT_TRUE(spec.ok()) << spec.error().message();
    EXPECT_EQ(spec->train.columns[0].path, folder_.path() + "/" + root + train);
    ASSERT_TRUE(spec->eval);
    EXPECT_EQ(spec->eval->columns[0].path, folder_.path() + "/" + root + eval);
  }
  for (const char* name : {"train", "plane", "test"}) {
    png(std::string("vehicles/") + name + "/0.png", 2, 2, 1, 1);
  }
  const auto classes = read_data_spec(folder_.path() + "/vehicles");
  EXPECT_EQ(classes->train.columns[0].path, folder_.path() + "/vehicles");
  EXPECT_FALSE(classes->eval);
  png("lost/val/cat/0.png", 2, 2, 1, 1);
  png("lost/test/cat/0.png", 2, 2, 1, 1);
  const auto lost = read_data_spec(folder_.path() + "/lost");
  ASSERT_FALSE(lost.ok());
  EXPECT_THAT(lost.error().message(), testing::HasSubstr("'train' for training next to 'val'"));
}

TEST_F(ImagesTest, LabelsFollowTheClassesOfATraining) {
  for (const char* name : {"cat/0.png", "dog/0.png"}) {
    png(std::string("pictures/") + name, 2, 2, 1, 1);
  }
  ColumnSpec spec = images(folder_.path() + "/pictures");
  spec.name = "labels";
  spec.images->classes = true;
  spec.known = {{"dog", "bird", "cat"}, "names.txt", /*binding=*/true};
  auto data = open(spec);
  ASSERT_TRUE(data.ok()) << data.error().message();
  ASSERT_TRUE((*data)
                  ->bind({{.name = "labels", .dtype = DType::kInt64, .dims = {}, .classes = true}})
                  .ok());
  std::vector<int64_t> labels(2);
  const std::vector<int64_t> samples{0, 1};
  ASSERT_TRUE((*data)->read_rows(0, samples, reinterpret_cast<std::byte*>(labels.data())).ok());
  EXPECT_EQ(labels, (std::vector<int64_t>{2, 0}));
  spec.known.names = {"dog", "bird"};
  expect_input_error(open(spec),
                     {"/pictures", "expected a class of dog, bird (names.txt), found 'cat'"});
  spec.known.binding = false;  // another model's
  EXPECT_TRUE(open(spec).ok());
}

TEST_F(ImagesTest, FoldersThatAreNoDataAreRefused) {
  const std::string pictures = folder_.path() + "/pictures";
  std::filesystem::create_directories(pictures + "/empty");
  expect_input_error(open(images(pictures)), {pictures, "expected PNG or JPEG images, found none"});
  png("pictures/cat/0.png", 2, 2, 1, 1);
  expect_input_error(open(images(pictures)), {"/pictures/empty", "images of a class, found none"});
  std::filesystem::remove(pictures + "/empty");
  png("pictures/0.png", 2, 2, 1, 1);
  expect_input_error(open(images(pictures)), {"'0.png' beside 'cat/0.png'"});
  std::filesystem::remove_all(pictures + "/cat");
  ColumnSpec classes = images(pictures);
  classes.images->classes = true;
  expect_input_error(open(classes), {"expected a subfolder for each class"});
  folder_.write("pictures/1.webp", "RIFF");
  expect_input_error(open(images(pictures)), {"1.webp", "expected PNG or JPEG images"});
  expect_input_error(open(images(pictures + "/0.png")),
                     {"/0.png: expected a folder of images, found a file", "a list of folders"});
}

TEST_F(ImagesTest, FilesThatDifferAreRefusedWithTheKeyThatHelps) {
  const std::string pictures = folder_.path() + "/pictures";
  png("pictures/0.png", 4, 3, 3, 1);
  png("pictures/1.png", 4, 5, 3, 1);
  expect_input_error(open(images(pictures)), {"1.png", "0.png", "found 5 and 4", "size: [height"});
  png("pictures/1.png", 4, 3, 1, 1);
  expect_input_error(open(images(pictures)), {"1.png", "found a grey one", "channels: 3"});
  ColumnSpec spec = images(pictures);
  spec.images->wanted_channels = 1;
  expect_input_error(open(spec), {"0.png", "the graph's input has 1 channels", "channels: 1"});
  spec.images->channels = 3;
  EXPECT_TRUE(open(spec).ok());
}

TEST_F(ImagesTest, HeadersThatLieAreRefusedBeforeTheFirstStep) {
  const std::string pictures = folder_.path() + "/pictures";
  const std::string good = png_bytes(4, 3, 1, made_pixels(12, 1));
  const auto refused = [&](const char* name, const std::string& bytes,
                           const std::vector<std::string>& facts) {
    std::filesystem::remove_all(pictures);
    folder_.write(std::string("pictures/") + name, bytes);
    expect_input_error(open(images(pictures)), facts);
  };
  refused("a.jpg", good, {"a.jpg", "expected a JPEG image, found a PNG image", "rename"});
  refused("a.png", "hello, world", {"a.png", "expected a PNG image", "68 65 6c 6c"});
  refused("a.png", "", {"a.png", "an empty file"});
  refused("a.png", good.substr(0, 20), {"a.png", "truncated", "20 bytes"});
  refused("a.png", png_bytes(4, 3, 1, made_pixels(12, 1), 70000, 70000),
          {"a.png", "at most 89478485 pixels, found 70000x70000"});
  refused("a.png", png_bytes(4, 3, 1, made_pixels(12, 1), 0xffffffff, 0xffffffff), {"a.png"});
  refused("a.jpg", std::string("\xff\xd8\xff\xe0\x00\x10", 6), {"a.jpg", "truncated"});
  refused("a.jpg", std::string("\xff\xd8\xff\xc3\x00\x0b\x08\x00\x10\x00\x10\x01\x01\x11", 14),
          {"a.jpg", "SOF3"});
}

// Every prefix of a file, and every file with one byte changed: an error, or a row of right size.
TEST_F(ImagesTest, DamageIsAnErrorOfTheRun) {
  const std::string pictures = folder_.path() + "/pictures";
  for (const char* name : {"rgb_interlaced.png", "palette.png", "progressive.jpg", "grey.jpg"}) {
    const std::string good = onnx_bytes::content(kFixtures + "files/" + name);
    std::filesystem::remove_all(pictures);
    const std::string path = folder_.write(std::string("pictures/") + name, good);
    EXPECT_TRUE(failure(images(pictures)).ok()) << name;
    int refused = 0;
    for (size_t size = good.size() / 2; size < good.size(); size += 41, ++refused) {
      folder_.write(std::string("pictures/") + name, good.substr(0, size));
      const Status status = failure(images(pictures));
      ASSERT_FALSE(status.ok()) << name << " of " << size << " bytes";
      EXPECT_THAT(status.message(), testing::HasSubstr(path));
      EXPECT_EQ(status.kind(), ErrorKind::kFault) << status.message();
    }
    EXPECT_GT(refused, 0);
    for (size_t at = 0; at < good.size(); at += 7) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 0x55);
      folder_.write(std::string("pictures/") + name, bad);
      const Status status = failure(images(pictures));
      if (status.ok()) continue;
      EXPECT_THAT(status.message(), testing::HasSubstr(path));
    }
  }
}

TEST_F(ImagesTest, AFileThatChangesDuringTheRunIsAnError) {
  const std::string path = png("pictures/0.png", 4, 3, 1, 1);
  auto data = *open(images(folder_.path() + "/pictures"));
  ASSERT_TRUE(data->bind({{"x", DType::kUInt8, {1, 3, 4}}}).ok());
  std::vector<std::byte> row(12);
  const int64_t sample = 0;
  ASSERT_TRUE(data->read_rows(0, std::span(&sample, 1), row.data()).ok());
  folder_.write("pictures/0.png", "short");
  const Status status = data->read_rows(0, std::span(&sample, 1), row.data());
  EXPECT_EQ(status.kind(), ErrorKind::kFault);
  EXPECT_THAT(status.message(), testing::HasSubstr("0.png: expected"));
  EXPECT_THAT(status.message(), testing::HasSubstr("found 5"));
}

TEST_F(ImagesTest, ARowCanBeReadByItself) {
  png("pictures/0.png", 4, 3, 1, 1);
  png("pictures/1.png", 4, 3, 1, 2);
  const auto file = ColumnFile::open(images(folder_.path() + "/pictures"), *communicator_, ledger_);
  ASSERT_TRUE(file.ok()) << file.error().message();
  std::vector<uint8_t> row(12);
  ASSERT_TRUE(file->read_row(1, std::as_writable_bytes(std::span(row))).ok());
  EXPECT_EQ(row, made_pixels(12, 2));
}

// Memory is counted while the data live, in the reported amount.
TEST_F(ImagesTest, DecodingIsCounted) {
  png("pictures/0.png", 64, 48, 3, 1);
  ColumnSpec spec = images(folder_.path() + "/pictures");
  spec.images->threads = 3;
  const size_t before = ledger_.current();
  auto data = *open(spec);
  EXPECT_EQ(ledger_.current() - before, data->shared_bytes() + data->decoding_bytes());
  EXPECT_GT(data->decoding_bytes(), 3u * 64 * 48 * 3);
  const size_t shared = data->shared_bytes();
  data.reset();
  EXPECT_EQ(ledger_.current() - before, shared);
}

TEST(Resize, AFlatImageStaysFlat) {
  for (const int64_t width : {1, 2, 7, 100}) {
    for (const int64_t to : {1, 3, 8, 250}) {
      const std::vector<std::byte> pixels(static_cast<size_t>(width * 5 * 3), std::byte{173});
      std::vector<std::byte> made(static_cast<size_t>(to * 4 * 3));
      std::vector<std::byte> scratch(resize_bytes(width, 5, to, 4, 3));
      resize_image({pixels.data(), width, 5, width * 3}, 3, to, 4, made.data(), scratch);
      for (const std::byte one : made) ASSERT_EQ(one, std::byte{173}) << width << " to " << to;
    }
  }
}

}  // namespace images_test
}  // namespace ofsdp
