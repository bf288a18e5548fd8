// Names of classes: a run numbers text labels as the model does, even if the data have only some
// classes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/metrics_rows.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace classes_test {

using namespace onnx_bytes;  // NOLINT: the words of this test
using testing::HasSubstr;
using testing::Not;

constexpr int kRows = 12;

// linear_model() with three classes. Row i has class i % 3; a file has only the rows in `kept`.
class NamedClasses : public ModelFolder {
 public:
  NamedClasses() {
    for (const char* name : {"ant", "bee", "cow"}) names_.emplace_back(name);
    write_data("all", {0, 1, 2});
    write_data("some", {1, 2});
  }

  void write_data(const std::string& name, const std::set<int>& kept,
                  const std::vector<std::string>& names = {}) {
    std::string text = "a,b,c,d,kind,number\n";
    for (int i = 0; i < kRows; ++i) {
      const int label = i % 3;
      if (!kept.contains(label)) continue;
      const auto& of = names.empty() ? names_ : names;
      for (int k = 0; k < 4; ++k) text += std::to_string((i * 4 + k) * 7 % 11) + ",";
      text += of[static_cast<size_t>(label)] + "," + std::to_string(label) + "\n";
    }
    write(name + ".csv", text);
    for (const std::string column : {"kind", "number"}) {
      write(name + "_" + column + ".yaml", "train:\n  x: {file: " + name +
                                               ".csv, column: [a, b, c, d]}\n  labels: {file: " +
                                               name + ".csv, column: " + column + "}\n");
    }
  }
  std::string data(const std::string& name, const std::string& column = "kind") const {
    return *this / (name + "_" + column + ".yaml");
  }

  // Trains `from` for six updates, and returns the losses.
  std::vector<double> losses(const std::string& from, const std::string& data,
                             const Words& more = {}) {
    const std::string metrics = *this / "metrics.jsonl";
    last_ = Program::run(
        fsdp_run({from, "--data", data, "--loss", "cross_entropy", "--lr", "0.1", "--batch-size",
                  "4", "--steps", "6", "--threads", "1", "--metrics", metrics}) +
        more);
    EXPECT_EQ(last_.status, 0) << last_.err;
    return losses_of(metrics);
  }
  const Finished& last() const { return last_; }

 private:
  std::vector<std::string> names_;
  Finished last_;
};

TEST(ClassNames, ATrainedFileKeepsItsNumbers) {
  NamedClasses folder;
  const std::string first = folder / "first.onnx";
  folder.losses(folder.model(), folder.data("all"), {"--output", first});
  EXPECT_EQ(content(folder / "first.classes.txt"), "ant\nbee\ncow\n");
  EXPECT_EQ(content(folder / "classes.txt"), "ant\nbee\ncow\n");
  const std::vector<double> numbered = folder.losses(first, folder.data("some", "number"));
  EXPECT_EQ(folder.losses(first, folder.data("some")), numbered);
  EXPECT_EQ(folder.losses(first, folder.data("some"), ranks(2)).size(), 6u);
  // Another model in the folder has other names; each keeps its names.
  folder.write_data("other", {0, 1, 2}, {"red", "blue", "green"});
  folder.losses(folder.model(), folder.data("other"), {"--output", folder / "second.onnx"});
  EXPECT_EQ(content(folder / "classes.txt"), "blue\ngreen\nred\n");
  EXPECT_EQ(folder.losses(first, folder.data("some")), numbered);
  const Finished run = Program::run(
      fsdp_run({"predict", first, "--data", folder.data("some"), "-o", folder / "p.csv"}));
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(content(folder / "p.csv"), HasSubstr("ant"));
}

TEST(ClassNames, AModelMayNameThem) {
  NamedClasses folder;
  SmallModel model = linear_model();
  model.nodes.push_back(node("Softmax", {"logits"}, {"p"}, "end"));
  const std::string names = message(1, "classlabels_strings") + message(9, "ant") +
                            message(9, "bee") + message(9, "cow") + number(20, 8);
  model.nodes.push_back(node("ZipMap", {"p"}, {"map"}, "labels", "ai.onnx.ml") + message(5, names));
  model.domains = {"ai.onnx.ml"};
  model.outputs = {declared("p", {-1, 3})};
  folder.write("named.onnx", model.bytes());
  const std::vector<double> numbered =
      folder.losses(folder / "named.onnx", folder.data("some", "number"));
  EXPECT_EQ(folder.losses(folder / "named.onnx", folder.data("some")), numbered);
}

TEST(ClassNames, DataWithFewerNamesThanThePredictionHasClassesAreSaid) {
  NamedClasses folder;
  folder.losses(folder.model(), folder.data("some"));
  EXPECT_THAT(folder.last().out, HasSubstr("'labels' have 2 names, the prediction has 3 classes"));
  folder.write("model.classes.txt", "ant\r\nbee\r\ncow\r\n\r\n");  // as Windows ends lines
  const std::vector<double> numbered = folder.losses(folder.model(), folder.data("some", "number"));
  EXPECT_EQ(folder.losses(folder.model(), folder.data("some")), numbered);
  EXPECT_THAT(folder.last().out, Not(HasSubstr("warning")));
  folder.write("model.classes.txt", "ant\nbee\nant\n");
  const Words words = fsdp_run(
      {folder.model(), "--data", folder.data("some"), "--loss", "cross_entropy", "--steps", "1"});
  expect_refused(folder, words, {"model.classes.txt line 3", "'ant' again"});
  folder.write("model.classes.txt", "ant\nbee\n");
  expect_refused(folder, words, {"expected a class of ant, bee", "model.classes.txt", "'cow'"});
}

TEST(ClassNames, ACheckpointKeepsThem) {
  NamedClasses folder;
  const Words saving{"--checkpoint-dir", folder / "ck"};
  folder.losses(folder.model(), folder.data("all"), saving);
  const Finished eval = Program::run(
      fsdp_run({"eval", folder.model(), "--resume", folder / "ck/step-00000006", "--data",
                folder.data("some"), "--loss", "cross_entropy", "--metrics", folder / "e.jsonl"}));
  ASSERT_EQ(eval.status, 0) << eval.err;
  const Finished numbered = Program::run(fsdp_run(
      {"eval", folder.model(), "--resume", folder / "ck/step-00000006", "--data",
       folder.data("some", "number"), "--loss", "cross_entropy", "--metrics", folder / "n.jsonl"}));
  ASSERT_EQ(numbered.status, 0) << numbered.err;
  EXPECT_EQ(losses_of(folder / "e.jsonl", "eval"), losses_of(folder / "n.jsonl", "eval"));
  const Finished resumed = Program::run(
      fsdp_run({folder.model(), "--data", folder.data("some"), "--loss", "cross_entropy",
                "--batch-size", "4", "--steps", "9", "--resume", "latest"}) +
      saving);
  EXPECT_EQ(resumed.status, 2);
  EXPECT_THAT(resumed.err, HasSubstr("numbered ant, bee, cow, this run's bee, cow"));
  const Finished exported =
      Program::run(fsdp_run({"export", folder / "ck", "-o", folder / "exported.onnx"}));
  ASSERT_EQ(exported.status, 0) << exported.err;
  EXPECT_EQ(content(folder / "exported.classes.txt"), "ant\nbee\ncow\n");
}

// A prediction names the classes of the checkpoint or trained file that has the weights.
TEST(ClassNames, APredictionHasThoseOfItsWeights) {
  NamedClasses folder;
  folder.losses(folder.model(), folder.data("all"),
                {"--checkpoint-dir", folder / "ck", "--output", folder / "first.onnx"});
  std::vector<std::string> predicted;
  for (const Words& from : {Words{folder / "first.onnx"},
                            Words{folder.model(), "--resume", folder / "ck/step-00000006"},
                            Words{folder.model(), "--resume", folder / "first.onnx"}}) {
    const Finished run = Program::run(fsdp_run({"predict"}) + from +
                                      Words{"--data", folder.data("all"), "-o", folder / "p.csv"});
    ASSERT_EQ(run.status, 0) << run.err;
    predicted.push_back(content(folder / "p.csv"));
    EXPECT_THAT(predicted.back(), testing::ContainsRegex("class\n[^\n]*,(ant|bee|cow)\n"));
    EXPECT_EQ(predicted.back(), predicted.front());
  }
  const std::vector<double> numbered =
      folder.losses(folder / "first.onnx", folder.data("some", "number"));
  EXPECT_EQ(folder.losses(folder.model(), folder.data("some"), {"--resume", folder / "first.onnx"}),
            numbered);
}

// If the evaluation part lacks a class, an evaluation numbers the others as training does.
TEST(ClassNames, TheTrainingPartNumbersAnEvaluation) {
  NamedClasses folder;
  const auto both = [&](const std::string& column) {
    const auto part = [&](const std::string& name, const std::string& of) {
      return "  x: {file: " + name + ".csv, column: [a, b, c, d]}\n  labels: {file: " + name +
             ".csv, column: " + of + "}\n";
    };
    folder.write(column + ".yaml",
                 "train:\n" + part("all", column) + "eval:\n" + part("some", column));
    return folder / (column + ".yaml");
  };
  const auto loss = [&](const Words& data) {
    std::filesystem::remove(folder / "e.jsonl");
    const Finished run =
        Program::run(fsdp_run({"eval", folder.model(), "--loss", "cross_entropy", "--threads", "1",
                               "--metrics", folder / "e.jsonl"}) +
                     data);
    EXPECT_EQ(run.status, 0) << run.err;
    return losses_of(folder / "e.jsonl", "eval");
  };
  const std::vector<double> numbered = loss({"--data", folder.data("some", "number")});
  for (const int count : {1, 2}) {
    for (const Words& data :
         {Words{"--data", both("kind")},
          Words{"--data", folder.data("all"), "--eval-data", folder.data("some")}}) {
      EXPECT_THAT(loss(data + ranks(count)), testing::Pointwise(testing::FloatEq(), numbered));
    }
  }
  EXPECT_NE(loss({"--data", folder.data("some")}), numbered)
      << "nothing but these rows numbers them";
}

// A file with names has one a line.
TEST(ClassNames, ALineBreakIsRefused) {
  NamedClasses folder;
  folder.write_data("broken", {0, 1, 2}, {"ant", "\"bee\nwasp\"", "cow"});
  expect_refused(folder,
                 fsdp_run({folder.model(), "--data", folder.data("broken"), "--loss",
                           "cross_entropy", "--steps", "1"}),
                 {"broken.csv: column 'labels'", "'bee\\x0awasp'", "write it in one line"});
}

// A model that names its classes 7, -1, 30: labels of every format are these numbers.
TEST(ClassNumbers, OfAModelAreReadFromArraysToo) {
  NamedClasses folder;
  const std::vector<double> plain = folder.losses(folder.model(), folder / "data");
  const auto labels_of = [&](const std::vector<int64_t>& numbers) {
    std::vector<int64_t> labels;
    for (size_t i = 0; i < kRows; ++i) labels.push_back(numbers[i * i % 3]);
    return labels;
  };
  folder.write("model.classes.txt", "7\n-1\n30\n");
  folder.write("named/x.npy", linear_inputs());
  folder.write("named/labels.npy", testing_data::npy("<i8", "(12,)", labels_of({7, -1, 30})));
  EXPECT_EQ(folder.losses(folder.model(), folder / "named"), plain);
  EXPECT_THAT(folder.last().out + folder.last().err, HasSubstr("classes: 0 7, 1 -1, 2 30"));
  const std::vector<int64_t> named = labels_of({7, -1, 30});
  folder.write("named/labels.npy",
               testing_data::npy("<f4", "(12,)", std::vector<float>(named.begin(), named.end())));
  EXPECT_EQ(folder.losses(folder.model(), folder / "named"), plain);
  folder.write("named/labels.npy", testing_data::npy("<i8", "(12,)", labels_of({7, 2, 30})));
  expect_refused(folder,
                 fsdp_run({folder.model(), "--loss", "cross_entropy", "--data", folder / "named"}),
                 {"'labels', sample 1", "expected a class of 7, -1, 30", "found 2"});
}

// Inputs in 16 bits or float64 of a graph that casts them take what a float32 input takes.
TEST(WideInputs, TakeTables) {
  constexpr int kTypes[] = {10, 16, 11};
  NamedClasses folder;
  const std::vector<double> plain = folder.losses(folder.model(), folder.data("all", "number"));
  for (const int type : kTypes) {
    SmallModel model = linear_model();
    const std::string to = message(5, message(1, "to") + number(3, 1) + number(20, 2));
    model.nodes.insert(model.nodes.begin(), node("Cast", {"given"}, {"x"}, "cast") + to);
    model.inputs = {declared("given", {-1, 4}, type)};
    folder.write("cast.onnx", model.bytes());
    folder.write("cast.yaml",
                 "train:\n  given: {file: all.csv, column: [a, b, c, d]}\n  labels: {file: "
                 "all.csv, column: number}\n");
    EXPECT_EQ(folder.losses(folder / "cast.onnx", folder / "cast.yaml"), plain) << type;
  }
}

}  // namespace classes_test
}  // namespace ofsdp
