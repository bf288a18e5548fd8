// --log mlflow: and wandb: the files as both tools expect them, read by a second reader, and a
// resumed run. tests/oracle/tracked_runs.py reads them with the tools themselves.
#include "runtime/log/row_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "runtime/log/metrics.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace row_log_test {

class RowLogs : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / format_text("ofsdp-row-log-{}", getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const char* name) const { return (folder_ / name).string(); }

  std::filesystem::path folder_;
};

// A run with two updates and evaluations; a resumed run may go on with it.
Status write_run(const std::string& log, const LoggedRun& run, int64_t first, int64_t last,
                 bool ends) {
  MetricsWriter writer;
  OFSDP_RETURN_IF_ERROR(writer.add_log(
      log, {}, run.resumed.empty() ? MetricsWriter::Mode::kTruncate : MetricsWriter::Mode::kAppend,
      run));
  const MetricValue metrics[] = {{"f1@a/b", 0.5}, {"accuracy"}};
  for (int64_t step = first; step <= last; ++step) {
    StepRow row{step, 0, 1 / static_cast<double>(step), std::nan(""), 0.1, 12.5, 640, 4096};
    row.skipped = step == 2;
    OFSDP_RETURN_IF_ERROR(writer.step(row));
  }
  OFSDP_RETURN_IF_ERROR(writer.eval({last, 0, 0.25, metrics}));
  const uint64_t peak[] = {100, 200};
  return ends ? writer.end({last, 1.5, 12, peak, peak}) : ok_status();
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string content(const std::filesystem::path& path) {
  std::stringstream all;
  all << std::ifstream(path).rdbuf();
  return all.str();
}

// Without the time at the start of each line.
std::string metric_lines(const std::filesystem::path& path) {
  std::stringstream all(content(path));
  std::string lines;
  for (std::string line; std::getline(all, line);) lines += line.substr(line.find(' ') + 1) + "\n";
  return lines;
}

// A resumed run may measure other values: each stands below its name.
TEST_F(RowLogs, AResumedCsvFileGetsTheColumnsThatItLacks) {
  const std::string file = path("l.csv");
  const auto evaluate = [&](MetricsWriter::Mode mode, const std::vector<std::string>& names,
                            double value) {
    MetricsWriter writer;
    Status status = writer.add_log("csv:" + file, names, mode, {});
    ASSERT_TRUE(status.ok()) << status.message();
    std::vector<MetricValue> metrics;
    for (const std::string& name : names) metrics.push_back({name, value});
    ASSERT_TRUE(writer.eval({1, 0, 0.25, metrics}).ok());
  };
  evaluate(MetricsWriter::Mode::kTruncate, {"accuracy", "top\"5,"}, 0.5);
  evaluate(MetricsWriter::Mode::kAppend, {"f1"}, 0.75);
  evaluate(MetricsWriter::Mode::kAppend, {"f1", "accuracy"}, 0.875);
  std::stringstream all(content(file));
  std::vector<std::string> lines;
  for (std::string line; std::getline(all, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_TRUE(lines[0].ends_with(",accuracy,\"top\"\"5,\",f1")) << lines[0];
  EXPECT_TRUE(lines[1].ends_with(",0.5,0.5,")) << lines[1];
  EXPECT_TRUE(lines[2].ends_with(",,,0.75")) << lines[2];
  EXPECT_TRUE(lines[3].ends_with(",0.875,,0.875")) << lines[3];
  EXPECT_EQ(names_in(folder_), std::vector<std::string>{"l.csv"});
}

TEST_F(RowLogs, MlflowsFilesAreARunThatAResumedOneGoesOnWith) {
  LoggedRun run{.name = "it's",
                .settings = {{"lr", "0.1"}, {"data.x/..", "a\nb"}},
                .checkpoints = path("ck")};
  ASSERT_TRUE(write_run("mlflow:" + path("ml runs"), run, 1, 2, false).ok());
  const std::filesystem::path store = path("ml runs");
  const auto experiments = names_in(store);
  ASSERT_EQ(experiments.size(), 2u);
  EXPECT_EQ(experiments[0], "0");
  EXPECT_THAT(content(store / "0/meta.yaml"), ::testing::HasSubstr("name: Default\n"));
  const auto experiment = store / experiments[1];
  EXPECT_THAT(content(experiment / "meta.yaml"), ::testing::HasSubstr("name: onnx-fsdp\n"));
  const auto folder = experiment / names_in(experiment)[0];
  const std::string id = folder.filename().string();
  EXPECT_EQ(id.size(), 32u);
  const std::string meta = content(folder / "meta.yaml");
  for (const std::string& line :
       {format_text("run_id: '{}'", id), format_text("experiment_id: '{}'", experiments[1]),
        std::string("run_name: 'it''s'"), std::string("status: 5"),
        format_text("artifact_uri: file://{}",
                    (folder.parent_path().parent_path().parent_path() / "ml%20runs").string())}) {
    EXPECT_THAT(meta, ::testing::HasSubstr(line));
  }
  EXPECT_EQ(metric_lines(folder / "metrics/step/loss"), "1 1\n0.5 2\n");
  EXPECT_EQ(metric_lines(folder / "metrics/step/skipped"), "1 2\n");
  EXPECT_EQ(metric_lines(folder / "metrics/eval/f1_a.b"), "0.5 2\n");
  EXPECT_FALSE(std::filesystem::exists(folder / "metrics/step/grad_norm")) << "NaN";
  EXPECT_FALSE(std::filesystem::exists(folder / "metrics/eval/accuracy")) << "null";
  EXPECT_EQ(content(folder / "params/lr"), "0.1");
  EXPECT_EQ(content(folder / "params/data.x..."), "a\\x0ab");
  EXPECT_EQ(content(folder / "tags/mlflow.runName"), "it's");
  run.resumed = path("ck");
  ASSERT_TRUE(write_run("mlflow:" + path("ml runs"), run, 2, 3, true).ok());
  EXPECT_EQ(metric_lines(folder / "metrics/step/loss"), "1 1\n0.5 2\n0.5 2\n0.333333333 3\n");
  EXPECT_EQ(metric_lines(folder / "metrics/end/peak_bytes/1"), "200 3\n");
  EXPECT_THAT(content(folder / "meta.yaml"), ::testing::HasSubstr("status: 3\n"));
  EXPECT_THAT(content(folder / "meta.yaml"), ::testing::HasSubstr("run_name: 'it''s'\n"));
  run.resumed = path("other");  // checkpoints from a run that is not in the store
  ASSERT_TRUE(write_run("mlflow:" + path("ml runs"), run, 2, 3, true).ok());
  EXPECT_EQ(names_in(experiment).size(), 3u) << "two runs and meta.yaml";
}

// A second reader of the file: records between block boundaries, checked bit by bit.
uint32_t slow_crc32(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}

std::vector<std::string> wandb_records(const std::string& file) {
  std::vector<std::string> records;
  EXPECT_EQ(file.substr(0, 7), std::string(":W&B\xe1\xbe\0", 7));
  std::string record;
  for (size_t at = 7; at < file.size();) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(file[at + i]); };
    if (32768 - at % 32768 < 7) {
      at += 32768 - at % 32768;
      continue;
    }
    const size_t size = byte(4) + 256u * byte(5);
    const uint32_t crc = byte(0) | byte(1) << 8 | byte(2) << 16 | uint32_t{byte(3)} << 24;
    EXPECT_EQ(crc, slow_crc32(file.substr(at + 6, size + 1)));
    EXPECT_LE(at % 32768 + 7 + size, 32768u);
    record += file.substr(at + 7, size);
    const int type = byte(6);
    if (type == 1 || type == 4) records.push_back(std::exchange(record, ""));
    at += 7 + size;
  }
  EXPECT_EQ(record, "");
  return records;
}

using Fields = std::multimap<int, std::string>;  // a varint as a number

Fields fields_of(std::string_view message) {
  Fields fields;
  const auto varint = [&message] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(0));
      message.remove_prefix(1);
      value |= uint64_t{byte & 127u} << shift;
      if (byte < 128) return value;
    }
  };
  while (!message.empty()) {
    const uint64_t key = varint(), value = varint();
    const bool is_varint = (key & 7) == 0;
    fields.emplace(key >> 3, is_varint ? std::to_string(value) : message.substr(0, value));
    message.remove_prefix(is_varint ? 0 : value);
  }
  return fields;
}

std::string field(const Fields& fields, int number) {
  const auto found = fields.find(number);
  return found == fields.end() ? "" : found->second;
}

// "key=json", sorted, for a record's field.
std::map<std::string, std::string> wandb_items(const std::string& message) {
  std::map<std::string, std::string> items;
  for (const auto& [number, bytes] : fields_of(message)) {
    const Fields item = fields_of(number == 1 ? bytes : "");
    if (number == 1) items[field(item, 1)] = field(item, 16);
  }
  return items;
}

TEST_F(RowLogs, WandbsFileIsARunThatAResumedOneGoesOnWith) {
  LoggedRun run{.name = "mlp",
                .settings = {{"lr", "0.1"}, {"loss", "mse"}, {"big", std::string(70000, 'x')}},
                .checkpoints = path("ck")};
  ASSERT_TRUE(write_run("wandb:" + path("w"), run, 1, 2, true).ok());
  const std::filesystem::path root = path("w/wandb");
  ASSERT_EQ(names_in(root).size(), 2u);
  EXPECT_EQ(names_in(root)[0], "latest-run");
  const std::string folder = names_in(root)[1];
  const std::string file = (root / folder / ("run-" + folder.substr(28) + ".wandb")).string();
  const auto whole = wandb_records(content(file));
  ASSERT_EQ(whole.size(), 7u);  // header, run, 2 history rows, summary, summary, exit
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(field(fields_of(whole[i]), 1), std::to_string(i + 1));
  }
  const Fields made = fields_of(field(fields_of(whole[1]), 17));
  EXPECT_EQ(field(made, 1), folder.substr(28));
  EXPECT_EQ(field(made, 8), "mlp");
  EXPECT_EQ(wandb_items(field(made, 4)).at("lr"), "0.1");
  EXPECT_EQ(wandb_items(field(made, 4)).at("loss"), "\"mse\"");
  EXPECT_EQ(wandb_items(field(made, 4)).at("big").size(), 70002u);
  const std::string second = field(fields_of(whole[3]), 2);
  EXPECT_EQ(field(fields_of(field(fields_of(second), 2)), 1), "2");
  const auto items = wandb_items(second);
  EXPECT_EQ(items.at("step/loss"), "0.5");
  EXPECT_EQ(items.at("eval/loss"), "0.25");
  EXPECT_EQ(items.at("_step"), "2");
  EXPECT_FALSE(items.contains("step/grad_norm")) << "NaN";
  EXPECT_EQ(fields_of(whole[6]).count(18), 1u);
  // As after a kill: the last record is cut off, and the next run replaces it.
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  run.resumed = path("ck");
  ASSERT_TRUE(write_run("wandb:" + path("w"), run, 2, 4, true).ok());
  const auto longer = wandb_records(content(file));
  ASSERT_EQ(longer.size(), 11u);
  EXPECT_TRUE(std::equal(whole.begin(), whole.end() - 1, longer.begin()));
  EXPECT_EQ(wandb_items(field(fields_of(longer[6]), 2)).at("_step"), "3") << "2 is there already";
  EXPECT_EQ(fields_of(longer[10]).count(18), 1u);
  EXPECT_EQ(names_in(root).size(), 2u);
}

TEST(FlatSettings, OfAConfiguration) {
  const auto flat = flat_settings("lr: 0.1\nresume: ~\ndata:\n  train: {x: a.npy}\nlog: [a, b]\n");
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"lr", "0.1"}, {"data.train.x", "a.npy"}, {"log", "[a, b]"}};
  EXPECT_EQ(flat, expected);
  EXPECT_TRUE(flat_settings("a: [").empty());
}

}  // namespace row_log_test
}  // namespace ofsdp
