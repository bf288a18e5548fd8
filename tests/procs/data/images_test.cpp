// Runs of the real program on folders of images: the same trained file as from .npy, on any ranks
// and threads; classes next to it; parts of a split; one line for files that are no images.
#include "tests/support/checkpoint_runs.h"
#include "tests/support/namespaces.h"
#include "tests/support/png_bytes.h"
#include "tests/support/tar_bytes.h"

namespace ofsdp {
namespace images_test {

using namespace testing_data;

constexpr uint32_t kImages = 45, kWidth = 5, kHeight = 4;  // 20 features
constexpr const char* kClasses[] = {"cat", "dog", "emu"};

// The name of image i in path order: kImages / 3 in each class.
std::string image_name(uint32_t i) {
  return format_text("{}/{:02}.png", kClasses[i / (kImages / 3)], i);
}

class ImageRunsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::vector<uint8_t> all;
    std::vector<int64_t> labels;
    std::string shards[3];
    for (uint32_t i = 0; i < kImages; ++i) {
      const auto pixels = made_pixels(kWidth * kHeight, i);
      folder_.write("pictures/" + image_name(i), png_bytes(kWidth, kHeight, 1, pixels));
      const std::string name = format_text("{:02}", i), label = std::to_string(i / 15);
      shards[i / 15] += tar_entry(name + ".png", png_bytes(kWidth, kHeight, 1, pixels)) +
                        tar_entry(name + ".cls", label);
      all.insert(all.end(), pixels.begin(), pixels.end());
      labels.push_back(i / (kImages / 3));
    }
    for (int i = 0; i < 3; ++i) folder_.write(format_text("s{}.tar", i), shards[i] + kTarEnd);
    folder_.write("x.npy", npy("|u1", format_text("({}, 20)", kImages), all));
    folder_.write("labels.npy", npy("<i8", format_text("({},)", kImages), labels));
  }

  std::string yaml(const std::string& name, const std::string& text) const {
    return folder_.write(name + ".yaml", text);
  }
  std::string arrays() const {
    return yaml("arrays",
                "train:\n  x: {file: x.npy, scale: 0.00392156862745098, mean: 0.4, std: 0.3}\n"
                "  labels: {file: labels.npy}\n");
  }
  std::string pictures() const {
    return yaml("pictures", "train:\n  x: {images: pictures, mean: 0.4, std: 0.3}\n");
  }
  std::string shards() const {
    return yaml("shards",
                "train:\n  x: {tar: 's{0..2}.tar', member: png, mean: 0.4, std: 0.3}\n"
                "  labels: {tar: 's{0..2}.tar', member: cls}\n");
  }
  Words train(const std::string& data) const {
    return checkpointed_model() +
           Words{"--data", data, "--batch-size", "4", "--steps", "20", "--seed", "3"};
  }

  TempFolder folder_;
  CheckpointRuns runs_;
};

TEST_F(ImageRunsTest, FoldersAndShardsTrainAsTheirArrays) {
  for (const int count : {1, 2, 3, 4}) {
    const std::string expected = runs_.trained(train(arrays()) + ranks(count));
    ASSERT_NE(expected, onnx_bytes::content(fixture("mlp/model.onnx")));
    for (const char* threads : {"1", "4"}) {
      for (const std::string& data : {shards(), pictures()}) {
        const Words words = train(data) + ranks(count) + Words{"--loader-threads", threads};
        EXPECT_TRUE(runs_.trained(words) == expected)
            << onnx_bytes::content(data) << count << " ranks, " << threads << " threads";
      }
    }
  }
  EXPECT_THAT(runs_.last().out, testing::HasSubstr("classes: 0 cat, 1 dog, 2 emu"));
  EXPECT_EQ(onnx_bytes::content(runs_ / "classes.txt"), "cat\ndog\nemu\n");
}

// Without a YAML file the graph tells its inputs.
TEST_F(ImageRunsTest, APlainFolderOrShardsAreEnough) {
  const std::string expected =
      runs_.trained(train(yaml("plain", "train:\n  x: {images: pictures}\n")));
  EXPECT_TRUE(runs_.trained(train(folder_.path() + "/pictures")) == expected);
  EXPECT_TRUE(runs_.trained(train(folder_.path() + "/s{0..2}.tar")) == expected);
  const Finished eval =
      Program::run(fsdp_run({"eval", runs_ / "trained.onnx", "--data", folder_.path() + "/pictures",
                             "--loss", "cross_entropy"}));
  EXPECT_EQ(eval.status, 0) << eval.err;
}

TEST_F(ImageRunsTest, APreparedDescriptionTrainsAsTheFolder) {
  const std::string pictures = folder_.path() + "/pictures", made = folder_.path() + "/made.yaml";
  const Finished prepared =
      Program::run(fsdp_run({"prepare", pictures, fixture("mlp/model.onnx"), "-o", made}));
  ASSERT_EQ(prepared.status, 0) << prepared.err;
  const std::string text = onnx_bytes::content(made);
  EXPECT_EQ(text, "train:\n  x: {images: pictures}\nsplit: 0.1\n");
  folder_.write("made.yaml", text.substr(0, text.find("split")));
  EXPECT_TRUE(runs_.trained(train(made)) == runs_.trained(train(pictures)));
}

// A page with the bytes and the class of each picture.
TEST_F(ImageRunsTest, AContactSheetShowsRowsWithTheirClasses) {
  const std::string page = folder_.path() + "/sheet.html";
  const Finished run =
      Program::run(fsdp_run({"data", pictures(), fixture("mlp/model.onnx"), "--html", page}));
  ASSERT_EQ(run.status, 0) << run.err;
  const std::string html = onnx_bytes::content(page);
  size_t count = 0;
  for (size_t at = 0; (at = html.find("data:image/bmp;base64,Qk", at)) != std::string::npos; ++at) {
    ++count;
  }
  EXPECT_EQ(count, kImages);
  for (const char* name : kClasses) {
    EXPECT_THAT(html, testing::HasSubstr(format_text("<figcaption>{}<", name)));
  }
  const Finished none = Program::run(
      fsdp_run({"data", fixture("mlp/data"), fixture("mlp/model.onnx"), "--html", page + "2"}));
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.err, testing::HasSubstr("expected a column of images, found none"));
  EXPECT_FALSE(std::filesystem::exists(page + "2"));
}

TEST_F(ImageRunsTest, PlannedMemoryIsTheMemoryOfTheRun) {
  runs_.trained(train(pictures()) + Words{"--metrics", runs_ / "metrics.jsonl"});
  const auto end = rows_of(runs_ / "metrics.jsonl", "end").at(0);
  EXPECT_EQ(end.at("peak_bytes"), end.at("planned_peak_bytes"));
}

// A run interrupted in mid-epoch goes on with the next sample.
TEST_F(ImageRunsTest, AResumedRunHasTheSameBits) {
  const std::string whole = runs_.trained(train(pictures()));
  const Words saving = train(pictures()) + runs_.saving();
  runs_.trained(saving + Words{"--steps", "7", "--checkpoint-interval", "7step"});
  EXPECT_TRUE(runs_.trained(train(pictures()) + runs_.resuming()) == whole);
}

// Both parts of a split, drawn from each class.
TEST_F(ImageRunsTest, SplitsTrainAndEvaluateAsTheirArrays) {
  const std::string split = "split: 0.2\nsplit_seed: 5\nstratify: labels\n";
  std::vector<std::string> trained;
  std::vector<nlohmann::json> evaluations;
  for (const std::string& data : {arrays(), pictures(), shards()}) {
    std::ofstream(data, std::ios::app) << split;
    trained.push_back(
        runs_.trained(train(data) + ranks(2) + Words{"--metrics", runs_ / "metrics.jsonl"}));
    evaluations.push_back(rows_of(runs_ / "metrics.jsonl", "eval").back().at("loss"));
    EXPECT_THAT(runs_.last().out, testing::HasSubstr("36 rows"));
  }
  EXPECT_TRUE(trained[0] == trained[1] && trained[0] == trained[2]);
  EXPECT_EQ(evaluations[0], evaluations[1]);
  EXPECT_EQ(evaluations[0], evaluations[2]);
}

// Random changes to images: the same on any threads, and after a stop in mid-epoch.
TEST_F(ImageRunsTest, AugmentedRunsHaveTheSameBits) {
  const std::string data = yaml("augmented",
                                "train:\n"
                                "  x: {images: pictures, size: [4, 5], crop: [0.3, 1], flip: 0.5, "
                                "mixup: 0.4, cutmix: 1}\n"
                                "  labels: {images: pictures, member: cls, one_hot: 5}\n"
                                "split: 0.1\n");
  const Words words = fsdp_run({fixture("mlp/model.onnx"), "--loss", "bce_with_logits", "--data",
                                data, "--batch-size", "4", "--steps", "20"});
  const std::string whole = runs_.trained(words);
  EXPECT_TRUE(runs_.trained(words + Words{"--loader-threads", "1"}) == whole);
  EXPECT_FALSE(runs_.trained(words + Words{"--seed", "1"}) == whole);
  runs_.trained(words + runs_.saving() + Words{"--steps", "7", "--checkpoint-interval", "7step"});
  EXPECT_TRUE(runs_.trained(words + runs_.resuming()) == whole);
}

TEST_F(ImageRunsTest, DamageIsOneLine) {
  const auto refused = [&](const std::string& bytes, int status, const char* fact) {
    folder_.write("pictures/dog/20.png", bytes);
    const Finished run = Program::run(train(pictures()) + Words{"--output", runs_ / "none.onnx"});
    EXPECT_EQ(run.status, status) << run.err;
    EXPECT_THAT(run.err, testing::HasSubstr("dog/20.png"));
    EXPECT_THAT(run.err, testing::HasSubstr(fact));
    EXPECT_EQ(std::ranges::count(run.err, '\n'), 1) << run.err;
    EXPECT_FALSE(std::filesystem::exists(runs_ / "none.onnx"));
  };
  const std::string good = png_bytes(kWidth, kHeight, 1, made_pixels(20, 1));
  refused("no image", 2, "expected a PNG image");
  refused(png_bytes(9, 9, 1, made_pixels(81, 1)), 2, "size: [height, width]");
  refused(good.substr(0, good.size() - 20), 1, "damaged");
}

}  // namespace images_test
}  // namespace ofsdp
