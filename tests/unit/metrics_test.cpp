#include "runtime/log/metrics.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "runtime/log/log_parts.h"
#include "runtime/log/run_curves.h"
#include "runtime/log/screen.h"
#include "runtime/log/terminal_plot.h"
#include "runtime/report/run_report.h"
#include "tests/support/allocations.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace metrics_test {

class Metrics : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / format_text("ofsdp-metrics-{}", getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const char* name = "m.jsonl") const { return (folder_ / name).string(); }
  std::string text(const char* name = "m.jsonl") const {
    std::stringstream all;
    all << std::ifstream(path(name)).rdbuf();
    return all.str();
  }
  MetricsWriter open(MetricsWriter::Mode mode = MetricsWriter::Mode::kTruncate) const {
    Result<MetricsWriter> writer = MetricsWriter::open(path(), mode);
    EXPECT_TRUE(writer.ok());
    return *std::move(writer);
  }

  std::filesystem::path folder_;
};

TEST_F(Metrics, WritesAStepAsTheContractSays) {
  MetricsWriter writer = open();
  ASSERT_TRUE(writer.step({1, 0, 2.25, 1.5, 0.001, 12.5, 640, 4096}).ok());
  EXPECT_EQ(text(),
            "{\"kind\":\"step\",\"step\":1,\"epoch\":0,\"loss\":2.25,\"grad_norm\":1.5,"
            "\"lr\":0.001,\"step_ms\":12.5,\"samples_per_s\":640,\"peak_bytes\":4096}\n");
}

TEST_F(Metrics, LossHasAllDigitsOfAFloat) {
  MetricsWriter writer = open();
  const float loss = std::nextafter(2.3f, 3.0f);
  const float norm = std::nextafter(1e-30f, 1.0f);
  ASSERT_TRUE(writer.step({1, 0, loss, norm, 0.1 + 0.2, 1, 1, 1}).ok());
  const auto row = nlohmann::json::parse(text());
  EXPECT_EQ(row["loss"].get<float>(), loss);
  EXPECT_EQ(row["grad_norm"].get<float>(), norm);
  EXPECT_EQ(row["lr"].get<double>(), 0.1 + 0.2);
}

TEST_F(Metrics, NanAndInfinityAreNull) {
  MetricsWriter writer = open();
  const double nan = std::nan("");
  const double infinite = std::numeric_limits<double>::infinity();
  ASSERT_TRUE(writer.step({7, 2, nan, infinite, 0.5, 1, 1, 1}).ok());
  const auto row = nlohmann::json::parse(text());
  EXPECT_TRUE(row["loss"].is_null());
  EXPECT_TRUE(row["grad_norm"].is_null());
  EXPECT_EQ(row["step"], 7);
}

TEST_F(Metrics, WritesEvaluationsAndTheEnd) {
  MetricsWriter writer = open();
  const uint64_t peak[] = {100, 200};
  const uint64_t planned[] = {100, 201};
  const MetricValue known[] = {{"accuracy", 0.9871}};
  const MetricValue unknown[] = {{"accuracy"}, {"f1@a\"b", 0.5}};
  ASSERT_TRUE(writer.eval({938, 0, 0.0412, known}).ok());
  ASSERT_TRUE(writer.eval({939, 1, 0.5, unknown}).ok());
  ASSERT_TRUE(writer.end({938, 12.5, 3.25, peak, planned}).ok());
  EXPECT_EQ(text(),
            "{\"kind\":\"eval\",\"step\":938,\"epoch\":0,\"loss\":0.0412,\"accuracy\":0.9871}\n"
            "{\"kind\":\"eval\",\"step\":939,\"epoch\":1,\"loss\":0.5,\"accuracy\":null,"
            "\"f1@a\\\"b\":0.5}\n"
            "{\"kind\":\"end\",\"steps\":938,\"seconds\":12.5,\"median_step_ms\":3.25,"
            "\"peak_bytes\":[100,200],\"planned_peak_bytes\":[100,201]}\n");
}

TEST_F(Metrics, WidestStepFits) {
  MetricsWriter writer = open();
  const double wide = -std::numeric_limits<double>::max() / 3;
  const int64_t number = std::numeric_limits<int64_t>::min();
  ASSERT_TRUE(writer.step({number, number, wide, wide, wide, wide, wide, UINT64_MAX}).ok());
  EXPECT_EQ(nlohmann::json::parse(text())["step"], number);
}

// A model with more units than a short line has room for.
std::vector<WatchedUnit> many_units() {
  std::vector<WatchedUnit> units;
  for (int u = 0; u < 100; ++u) {
    const auto x = static_cast<float>(u);
    units.push_back({u, format_text("layers.{}/\"a\"", u), {x, 2 * x, 3 * x, 4 * x}});
  }
  units[3].norms.grad_norm = std::nanf("");
  return units;
}

StepRow row_with(const std::vector<WatchedUnit>& units) {
  StepRow row{7, 0, 2.25, 1.5, 0.001, 12.5, 640, 4096};
  row.watch = units;
  return row;
}

TEST_F(Metrics, WatchedNormsAreAFieldOfTheirOwn) {
  MetricsWriter writer = open();
  const auto units = many_units();
  ASSERT_TRUE(writer.step(row_with(units)).ok());
  const auto watch = nlohmann::json::parse(text()).at("watch");
  EXPECT_EQ(watch.size(), 4u);
  EXPECT_EQ(watch.at("grad_norm").size(), 100u);
  EXPECT_TRUE(watch.at("grad_norm").at("layers.3/\"a\"").is_null());
  EXPECT_EQ(watch.at("grad_norm").at("layers.99/\"a\""), 99);
  EXPECT_EQ(watch.at("grad_max").at("layers.2/\"a\""), 4);
  EXPECT_EQ(watch.at("weight_norm").at("layers.2/\"a\""), 6);
  EXPECT_EQ(watch.at("weight_max").at("layers.2/\"a\""), 8);
  const long before = testing::allocations;
  const Status again = writer.step(row_with(units));
  EXPECT_EQ(testing::allocations - before, 0);
  EXPECT_TRUE(again.ok());
}

TEST_F(Metrics, SkippedUpdatesAndLossesOfNoLabel) {
  MetricsWriter writer = open();
  StepRow row{7, 0, std::nan(""), 1.5, 0.001, 12.5, 640, 4096};
  row.skipped = true;
  ASSERT_TRUE(
      writer.add_log("csv:" + path("m.csv"), {"skipped"}, MetricsWriter::Mode::kTruncate).ok());
  ASSERT_TRUE(writer.step(row).ok());
  ASSERT_TRUE(writer.eval({7, 0, std::nan("")}).ok());
  const std::string rows = text();
  const size_t end = rows.find('\n');
  const auto step = nlohmann::json::parse(rows.substr(0, end));
  EXPECT_EQ(step.at("skipped"), true);
  EXPECT_TRUE(step.at("loss").is_null());
  EXPECT_TRUE(nlohmann::json::parse(rows.substr(end)).at("loss").is_null());
  EXPECT_THAT(text("m.csv"), ::testing::HasSubstr("step,7,0,,1.5,0.001,12.5,640,4096,,,,,,true\n"));
}

TEST_F(Metrics, LogsHaveAColumnForEachNormOfEachUnit) {
  MetricsWriter writer = open();
  const std::vector<WatchedUnit> units{{0, "a/b", {1, 2, 3, 4}}, {2, "root", {5, 6, 7, 8}}};
  ASSERT_TRUE(
      writer.add_log("csv:" + path("m.csv"), watched_columns(units), MetricsWriter::Mode::kTruncate)
          .ok());
  ASSERT_TRUE(
      writer.add_log("tensorboard:" + path("events"), {}, MetricsWriter::Mode::kTruncate).ok());
  ASSERT_TRUE(writer.step(row_with(units)).ok());
  ASSERT_TRUE(writer.step({8, 0, 2.25, 1.5, 0.001, 12.5, 640, 4096}).ok());
  EXPECT_EQ(text("m.csv"),
            "kind,step,epoch,loss,grad_norm,lr,step_ms,samples_per_s,peak_bytes,steps,seconds,"
            "median_step_ms,planned_peak_bytes,stopped,watch/grad_norm/a/b,watch/grad_norm/root,"
            "watch/grad_max/a/b,watch/grad_max/root,watch/weight_norm/a/b,watch/weight_norm/root,"
            "watch/weight_max/a/b,watch/weight_max/root\n"
            "step,7,0,2.25,1.5,0.001,12.5,640,4096,,,,,,1,5,2,6,3,7,4,8\n"
            "step,8,0,2.25,1.5,0.001,12.5,640,4096,,,,,,,,,,,,,\n");
  std::string events;
  for (const auto& entry : std::filesystem::directory_iterator(path("events"))) {
    events += text(("events/" + entry.path().filename().string()).c_str());
  }
  EXPECT_NE(events.find("step/watch/weight_max/root"), std::string::npos);
  EXPECT_NE(events.find("step/watch/grad_norm/a/b"), std::string::npos);
}

RunCurves curves_of(int64_t steps) {
  RunCurves curves;
  for (int64_t s = 1; s <= steps; ++s) {
    curves.step({s, 0, 4 / static_cast<double>(s), 1, 0.1, 2, 100, 4096});
  }
  return curves;
}

TEST(RunCurves, AreBoundedAndKeepExtremesAndSums) {
  RunCurves curves;
  const long before = testing::allocations;
  for (int64_t s = 1; s <= 100000; ++s) {
    curves.step({s, 0, s == 777 ? 50.0 : 1.0, 1, 0.1, 2, 100, 4096});
  }
  EXPECT_EQ(testing::allocations - before, 0);
  const auto buckets = curves.loss.buckets();
  EXPECT_LE(buckets.size(), Curve::kMaxBuckets);
  EXPECT_GE(buckets.size(), Curve::kMaxBuckets / 2);
  EXPECT_EQ(buckets.front().first, 1);
  EXPECT_EQ(buckets.back().last, 100000);
  EXPECT_EQ(curves.loss.largest(), 50);
  EXPECT_EQ(curves.loss.sum(), 100049);
  int64_t count = 0;
  for (const CurveBucket& bucket : buckets) count += bucket.count;
  EXPECT_EQ(count, 100000);
}

TEST_F(Metrics, CurvesOfAFileWithResumedRowsAndNulls) {
  std::ofstream(path())
      << R"({"kind":"step","step":1,"epoch":0,"loss":4,"lr":0.1,"step_ms":2})"
         "\n"
         R"({"kind":"step","step":2,"epoch":0,"loss":null,"skipped":true})"
         "\n"
         R"({"kind":"eval","step":2,"epoch":0,"loss":3,"accuracy":null})"
         "\n"
         R"({"kind":"step","step":3,"epoch":0,"loss":9})"
         "\n"
         R"({"kind":"step","step":3,"epoch":0,"loss":2})"
         "\n"
         R"({"kind":"end","steps":3,"seconds":1,"median_step_ms":2,"peak_bytes":[5,7]})"
         "\n[1]\n{\"kind\":\"st";
  const auto read = read_curves(path());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->loss.buckets().size(), 2u);
  EXPECT_EQ(read->loss.largest(), 4) << "the 9 was made again";
  EXPECT_EQ(read->resumed_at, std::vector<int64_t>{3});
  EXPECT_EQ(read->skipped_at, std::vector<int64_t>{2});
  EXPECT_EQ(read->undefined, 1);
  EXPECT_EQ(read->evaluations.at(1).name, "accuracy");
  EXPECT_TRUE(read->evaluations.at(1).curve.empty());
  EXPECT_EQ(read->rank_peaks, (std::vector<uint64_t>{5, 7}));
  EXPECT_TRUE(read->ended);
  EXPECT_FALSE(read_curves(path("none")).ok());
  auto writer = MetricsWriter::open(path(), MetricsWriter::Mode::kAppend);
  writer->keep_curves();
  EXPECT_EQ(writer->curves()->steps, 3) << "rows of the runs before";
}

TEST(LossPlot, InAscii) {
  RunCurves curves = curves_of(9);
  curves.eval({5, 0, 2});
  EXPECT_EQ(loss_plot(curves, {.width = 32, .height = 9, .braille = false}),
            R"(loss by update; o evaluation
    4 |*
      | *
      |  *
      |   **       o
      |     ******
0.444 |           *************
      +------------------------
       1           5          9
)");
  EXPECT_EQ(loss_plot({}, {}), "");
}

TEST(LossPlot, InBrailleWithALogarithmicAxis) {
  RunCurves curves;
  for (int64_t s = 1; s <= 60; ++s) {
    curves.step({s, 0, std::exp(-0.1 * static_cast<double>(s)), 1, 0.1, 2, 100, 4096});
  }
  EXPECT_EQ(loss_plot(curves, {.width = 32, .height = 9, .braille = true}),
            R"(loss by update, logarithmic
  0.905 |⠑⠢⢄⡀
        |   ⠈⠑⠢⢄⡀
        |       ⠈⠒⠤⣀
        |           ⠉⠒⠤⡀
        |              ⠈⠑⠢⢄⡀
0.00248 |                  ⠈⠑⠢⢄
        +----------------------
         1         30        60
)");
}

TEST(LossPlot, OfOneValue) {
  EXPECT_EQ(loss_plot(curves_of(1), {.width = 24, .height = 6, .braille = false}), R"(loss by update
4.4 |
    |*
3.6 |
    +------------------
     1
)");
}

TEST(RunPage, HasItsTextsEscapedAndNoNetwork) {
  RunCurves curves = curves_of(3000);
  const MetricValue metrics[] = {{"f1@<b>", 0.5}, {"auc"}};
  curves.eval({3000, 0, 0.25, metrics});
  StepRow lost{3001, 0, std::nan(""), std::nan(""), 0.1, 2, 100, 4096};
  lost.skipped = true;
  curves.step(lost);
  const std::string page = run_page({.title = "a <script> & \"b\"",
                                     .model = "@TABLES@",
                                     .command = "fsdp-run 'x'",
                                     .configuration = "lr: 1\nname: </pre>\x1b\n",
                                     .warnings = {"5 < 6"},
                                     .files = {{"o.onnx", ""}}},
                                    curves);
  EXPECT_LT(page.size(), 250000u);
  for (const char* part :
       {"<h1>a &lt;script&gt; &amp; &quot;b&quot;</h1>", "@TABLES@: not finished", "fsdp-run 'x'",
        "name: &lt;/pre&gt;\\x1b", "<li>5 &lt; 6</li>", "o.onnx", "f1@&lt;b&gt;",
        "skipped update 3001", "Gradient norm", "Learning rate", "Peak memory of rank 0, KiB"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  for (const char* part : {"http://www.w3.org/2000/svg"}) {
    EXPECT_EQ(page.find("http"), page.find(part)) << "only a name space";
  }
  EXPECT_EQ(page.find("nan"), std::string::npos);
  EXPECT_EQ(page.find("@TITLE@"), std::string::npos);
}

TEST(RunPage, OfOneRowAndOfNone) {
  const std::string one = run_page({}, curves_of(1));
  EXPECT_NE(one.find("<circle"), std::string::npos);
  EXPECT_EQ(one.find("nan"), std::string::npos);
  EXPECT_EQ(one.find("inf"), std::string::npos);
  EXPECT_EQ(run_page({}, {}).find("<figure"), std::string::npos);
}

TEST_F(Metrics, AReportOfAFolder) {
  std::ofstream(path("metrics.jsonl")) << R"({"kind":"step","step":1,"epoch":0,"loss":4})"
                                          "\n";
  std::ofstream(path("config.yaml")) << "lr: 0.25\n";
  std::ofstream(path("command.txt")) << "fsdp-run a.onnx\n";
  std::ofstream(path("log.txt")) << "fsdp-run: warning: odd\nstopped at update 1 of 9; to "
                                    "continue: x\n";
  ASSERT_TRUE(write_run_report(folder_.string()).ok());
  const std::string page = text("report.html");
  for (const char* part : {"lr: 0.25", "fsdp-run a.onnx", "<li>odd</li>",
                           "stopped at update 1 of 9<", "metrics.jsonl"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
}

TEST_F(Metrics, ANewRunTruncatesAndAResumedOneAppends) {
  ASSERT_TRUE(open().eval({1, 0, 1}).ok());
  ASSERT_TRUE(open(MetricsWriter::Mode::kAppend).eval({2, 0, 1}).ok());
  const std::string both = text();
  EXPECT_EQ(std::count(both.begin(), both.end(), '\n'), 2);
  ASSERT_TRUE(open().eval({3, 0, 1}).ok());
  EXPECT_EQ(nlohmann::json::parse(text())["step"], 3);
}

TEST_F(Metrics, AStepAllocatesNothing) {
  MetricsWriter writer = open();
  ASSERT_TRUE(writer.step({1, 0, 2.3, 1.2, 1e-3, 1, 1, 1}).ok());
  const long before = testing::allocations;
  for (int64_t i = 2; i < 50; ++i) {
    const Status status = writer.step({i, 0, 2.3 / double(i), 1.2e-7 * double(i), 1e-3, 1, 1, 1});
    if (!status.ok()) FAIL();
  }
  EXPECT_EQ(testing::allocations - before, 0);
}

TEST_F(Metrics, ASpoiltPathIsAnInputError) {
  const auto refused = MetricsWriter::open(path("no/m.jsonl"), MetricsWriter::Mode::kTruncate);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind(), ErrorKind::kInput);
  EXPECT_EQ(refused.error().message(), "--metrics " + path("no/m.jsonl") +
                                           ": cannot write the file: No such file or directory");
}

TEST_F(Metrics, AFullDiskIsAFault) {
  auto full = MetricsWriter::open("/dev/full", MetricsWriter::Mode::kTruncate);
  ASSERT_TRUE(full.ok());
  const Status status = full->step({});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.kind(), ErrorKind::kFault);
  EXPECT_EQ(status.message(), "--metrics /dev/full: writing failed: No space left on device");
}

TEST_F(Metrics, WithoutAPathNothingIsWritten) {
  auto none = MetricsWriter::open("", MetricsWriter::Mode::kTruncate);
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->step({}).ok());
}

TEST(StepTimes, MedianOfFewStepsTakesAll) {
  StepTimes times;
  EXPECT_TRUE(std::isnan(times.median()));
  for (const double ms : {9.0, 8.0, 7.0, 1.0, 2.0, 3.0}) times.add(ms);
  EXPECT_EQ(times.median(), 5.0);  // (3 + 7) / 2
}

TEST(StepTimes, MedianOfMoreThanSixLeavesOutTheFirstThree) {
  StepTimes times;
  for (const double ms : {9.0, 8.0, 7.0, 1.0, 2.0, 3.0, 4.0}) times.add(ms);
  EXPECT_EQ(times.median(), 2.5);  // for 1 2 3 4
  EXPECT_EQ(times.count(), 7);
}

TEST(StepTimes, ALongRunNeitherGrowsNorAllocates) {
  StepTimes times;
  const long before = testing::allocations;
  for (int i = 0; i < 300000; ++i) times.add(i);
  EXPECT_EQ(testing::allocations - before, 0);
  EXPECT_NEAR(times.median(), 150000, 10);
}

// Runs `use` with a Progress that writes into a file, and returns the text.
template <typename Use>
std::string written(ProgressOptions options, Use use) {
  std::FILE* file = std::tmpfile();
  options.fd = fileno(file);
  {
    Progress progress(options);
    use(progress);
  }
  std::string text(4096, '\0');
  std::rewind(file);
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

TEST(Progress, PipedLinesComeAtTheInterval) {
  const std::string text = written({1, false, 10, 0, 25}, [](Progress& progress) {
    for (int64_t s = 1; s <= 25; ++s) progress.step({s, s / 20, 0.5, 1, 0.001, 1, 1, 1}, 8);
  });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);  // 1, 10, 20, 25
  EXPECT_NE(text.find("epoch 1  step 10/25  loss 0.5000  lr 0.001  "), std::string::npos) << text;
  EXPECT_NE(text.find("epoch 2  step 25/25"), std::string::npos) << text;
  EXPECT_NE(text.find("eta 0:00"), std::string::npos) << text;
  EXPECT_EQ(text.find('\r'), std::string::npos);
}

TEST(Progress, LinesByTimeAlwaysHaveTheFirstAndTheLastUpdate) {
  const std::string text = written({1, false, 0, 0, 25}, [](Progress& progress) {
    for (int64_t s = 1; s <= 25; ++s) progress.step({s, 0, 0.5, 1, 0.001, 1, 1, 1}, 8);
    progress.end();
  });
  EXPECT_TRUE(text.starts_with("epoch 1  step 1/25  loss 0.5000  ")) << text;
  EXPECT_NE(text.find("\nepoch 1  step 25/25  loss 0.5000  "), std::string::npos) << text;
  EXPECT_EQ(log_gap(0), 2);
  EXPECT_EQ(log_gap(40), 10);
  EXPECT_EQ(log_gap(1e6), 30);
}

// A signal or --early-stop ends the run before the last planned update: the last one has a line.
TEST(Progress, AStoppedRunHasALineOfItsLastUpdate) {
  for (const int64_t interval : {0, 1000}) {
    const std::string text = written({1, false, interval, 0, 25}, [](Progress& progress) {
      for (int64_t s = 1; s <= 7; ++s) progress.step({s, 0, 0.5, 1, 0.001, 1, 1, 1}, 8);
      progress.end();
    });
    EXPECT_NE(text.find("\nepoch 1  step 7/25  loss 0.5000"), std::string::npos) << text;
  }
}

TEST(Progress, AnUpdateHasALineBeforeItsEvaluation) {
  const std::string text = written({1, false, 0, 0, 25}, [](Progress& progress) {
    for (int64_t s = 1; s <= 7; ++s) progress.step({s, 0, 0.5, 1, 0.001, 1, 1, 1}, 8);
    progress.evaluating(0, 3);
    progress.evaluating(3, 3);
    progress.eval({7, 0, 0.25, {}});
  });
  const size_t update = text.find("\nepoch 1  step 7/25  "), eval = text.find("\neval  step 7  ");
  ASSERT_NE(update, std::string::npos) << text;
  EXPECT_EQ(text.find('\n', update + 1), eval) << text;
}

TEST(Progress, AnEvaluationIsShownAndItsTimeCountsInTheEta) {
  ProgressOptions options{1, true, 0, 0, 1000};
  options.evaluations_left = [](int64_t) { return 50; };
  const std::string text = written(options, [](Progress& progress) {
    progress.step({1, 0, 0.5, 1, 0.001, 1, 1, 1}, 8);
    progress.evaluating(0, 40);
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
    progress.evaluating(12, 40);
    progress.eval({1, 0, 0.25, {}});
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
    progress.step({2, 0, 0.5, 1, 0.001, 1, 1, 1}, 8);
  });
  const size_t shown = text.find("[======>             ] eval 12/40  eta 0:0");
  ASSERT_NE(shown, std::string::npos) << text;
  const size_t eta = text.find("eta ", shown + 44);
  ASSERT_NE(eta, std::string::npos) << text;
  // 50 evaluations at 0.12 s and 998 updates at 0.06 s
  const int minutes = std::stoi(text.substr(eta + 4)), seconds = std::stoi(text.substr(eta + 6));
  EXPECT_GE(60 * minutes + seconds, 65) << text;
}

TEST(Progress, EvaluationIsALineOfItsOwn) {
  const MetricValue known[] = {{"accuracy", 0.9871}};
  const MetricValue unknown[] = {{"accuracy"}};
  const std::string text = written({1, true, 10, 0, 2}, [&](Progress& progress) {
    progress.step({1, 0, 0.5, 1, 0.001, 1, 1, 1}, 8);
    progress.eval({938, 0, 0.0412, known});
    progress.eval({939, 0, 0.25, unknown});
  });
  EXPECT_NE(text.find("[=====>    ] 1/2"), std::string::npos) << text;
  EXPECT_NE(text.find("\neval  step 938  loss 0.0412  accuracy 0.9871\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("\neval  step 939  loss 0.2500\n"), std::string::npos) << text;
}

TEST(Progress, ABarIsRedrawnOnOneLineAndEnded) {
  const std::string text = written({1, true, 1, 0, 1000}, [](Progress& progress) {
    for (int64_t s = 1; s <= 500; ++s) progress.step({s, 0, 0.5, 1, 0.001, 1, 1, 1}, 8);
  });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_TRUE(
      text.starts_with("\r\x1b[K"
                       "epoch 1  ["))
      << text;
  EXPECT_LT(std::count(text.begin(), text.end(), '\r'), 20);  // ten a second, not 500
}

TEST(Progress, WithoutADescriptorNothingIsWritten) {
  for (const bool terminal : {false, true}) {
    errno = 0;  // a system call with such a descriptor would set it
    {
      Progress progress({-1, terminal, 1, 0, 100});
      progress.step({1, 0, 0.5, 1, 0.001, 1, 1, 1}, 8);
      progress.eval({1, 0, 0.25, {}});
      progress.line("a line");
    }
    EXPECT_EQ(errno, 0);
  }
}

TEST(Progress, AStepAllocatesNothing) {
  std::FILE* null = std::fopen("/dev/null", "w");
  Progress progress({fileno(null), false, 1, 0, 100});
  const long before = testing::allocations;
  for (int64_t s = 1; s <= 100; ++s) progress.step({s, 0, 0.5 / double(s), 1, 1e-3, 1, 1, 1}, 8);
  EXPECT_EQ(testing::allocations - before, 0);
  std::fclose(null);
}

}  // namespace metrics_test
}  // namespace ofsdp
