// Every training option on every device (tests/support/device_options.txt): it runs there with the
// CPU's bits, or is refused in one line from the table. And docs/internals/devices.md, which comes
// from that table and from the registry of operators:
//
//   OFSDP_WRITE_PAGE=1 build/release/tests/test_procs --file=device_options
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "kernels/core/device_operators.h"
#include "runtime/cli/options/option_table.h"
#include "tests/support/device_runs.h"
#include "tests/support/namespaces.h"
#include "tests/support/operator_names.h"

namespace ofsdp {
namespace device_options_test {

struct OptionRow {
  std::string option, words, on_cuda, more;
  int line = 0;
};

std::vector<OptionRow> all_rows() {
  std::ifstream file(OFSDP_SOURCE_DIR "/tests/support/device_options.txt");
  std::vector<OptionRow> rows;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.empty() || line.starts_with('#')) continue;
    std::vector<std::string> cells;
    std::string cell;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (word == "|") {
        cells.push_back(std::exchange(cell, {}));
      } else {
        cell += (cell.empty() ? "" : " ") + word;
      }
    }
    cells.push_back(cell);
    cells.resize(4);
    rows.push_back({cells[0], cells[1], cells[2], cells[3], number});
  }
  return rows;
}

bool has_run(const OptionRow& row) {
  return row.on_cuda == "same" || row.on_cuda == "runs" || row.on_cuda == "refused";
}

std::vector<OptionRow> rows_with_runs() {
  std::vector<OptionRow> rows = all_rows();
  std::erase_if(rows, [](const OptionRow& row) { return !has_run(row); });
  return rows;
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size()) {
    text.replace(at, what.size(), by);
  }
  return text;
}

// The row's words after the base words, without the base flags that the row repeats.
Words command_of(const OptionRow& row, const std::string& folder) {
  std::string text = replaced(row.words, "{fixtures}", fixture(""));
  text = replaced(replaced(text, "{folder}", folder), "{plugins}", OFSDP_EXAMPLE_PLUGINS);
  std::istringstream words(text);
  Words given{std::istream_iterator<std::string>(words), {}};
  Words base = {
      "--loss", "cross_entropy", "--min-params",     "1000", "--batch-size", "7", "--epochs",
      "1",      "--eval-data",   fixture("mlp/data")};
  if (given.front() == "@bare") {
    base = {"--steps", "5"};
    given.erase(given.begin());
  }
  Words command = fsdp_run({fixture("mlp/model.onnx")});
  for (size_t i = 0; i < base.size(); i += 2) {
    if (std::ranges::find(given, base[i]) == given.end()) {
      command.insert(command.end(), {base[i], base[i + 1]});
    }
  }
  return command + given;
}

class DeviceOptionsTest : public testing::TestWithParam<OptionRow> {};

INSTANTIATE_TEST_SUITE_P(Rows, DeviceOptionsTest, testing::ValuesIn(rows_with_runs()),
                         [](const testing::TestParamInfo<OptionRow>& info) {
                           return replaced(info.param.option.substr(2), "-", "_") + "_line_" +
                                  std::to_string(info.param.line);
                         });

TEST_P(DeviceOptionsTest, RunsOrIsRefusedInOneLine) {
  const OptionRow& row = GetParam();
  const auto run = [&](const char* library) {
    const testing_data::TempFolder folder;
    const Words command = command_of(row, folder.path());
    return library == nullptr ? on_cpu(command) : run_on_device(library, command);
  };
  const Trained cpu = run(nullptr);
  EXPECT_EQ(cpu.run.status, 0) << cpu.run.err;
  const Trained counted = run(OFSDP_COUNTING_DEVICE), emulated = run(OFSDP_EMULATED_DEVICE);
  if (row.on_cuda == "refused") {
    for (const Trained* refused : {&counted, &emulated}) {
      EXPECT_EQ(refused->run.status, 2);
      EXPECT_NE(refused->run.err.find(row.more), std::string::npos) << refused->run.err;
      EXPECT_EQ(std::ranges::count(refused->run.err, '\n'), 1) << refused->run.err;
    }
    return;
  }
  if (row.on_cuda == "same") {
    expect_same_bits(cpu, counted);
  } else {
    expect_both_ran(cpu, counted);
  }
  // An optimizer may take a difference in the last place to another sign of a small step.
  expect_near_losses(cpu, emulated, 2e-2);
}

TEST(DeviceOptions, TheTableHasEveryOptionAndNoOther) {
  std::set<std::string> expected, found;
  for (const cli::OptionEntry& entry : cli::option_table()) expected.insert("--" + entry.name);
  for (const OptionRow& row : all_rows()) {
    found.insert(row.option);
    EXPECT_TRUE(has_run(row) || row.on_cuda == "elsewhere" || row.on_cuda == "host") << row.line;
    EXPECT_TRUE(has_run(row) || !row.more.empty()) << row.line << ": without a test";
  }
  EXPECT_EQ(found, expected);
}

// --- the page ---

// "procs.losses, unit.options": each is a file of tests.
void expect_tests(const OptionRow& row) {
  if (row.on_cuda == "refused" || row.on_cuda == "runs") return;
  std::istringstream names(replaced(row.more, ",", " "));
  for (std::string name; names >> name;) {
    const size_t dot = name.find('.');
    ASSERT_NE(dot, std::string::npos) << row.line << ": " << name;
    const std::string file = name.substr(dot + 1) + "_test.cpp";
    bool there = false;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(
             OFSDP_SOURCE_DIR "/tests/" + name.substr(0, dot))) {
      there = there || entry.path().filename() == file;
    }
    EXPECT_TRUE(there) << row.line << ": " << name;
  }
}

TEST(DeviceOptions, NamedTestsExist) {
  for (const OptionRow& row : all_rows()) expect_tests(row);
}

// Operators without a kernel on devices, and the reason.
struct Missing {
  std::string_view name, reason;
};
constexpr Missing kMissing[] = {
    {"Constant", "known while planning"},
    {"EyeLike", "known while planning"},
    {"NonMaxSuppression", "known while planning"},
    {"NonZero", "known while planning, or ofsdp.FoundIndices"},
    {"Range", "known while planning"},
    {"Shape", "known while planning"},
    {"Size", "known while planning"},
    {"Unique", "known while planning, or ofsdp.FoundUnique"},
    {"DequantizeLinear", "refused, where it is not known while planning or part of a pair"},
    {"QuantizeLinear", "refused, where it is not part of a pair"},
    {"TfIdfVectorizer", "refused: n-grams are counted on the CPU"},
    {"ofsdp.KeptRows", "the CPU alone leaves rows out; devices compute all"},
    {"ofsdp.KeptRowsGemm", "the CPU alone leaves rows out; devices compute all"},
    {"ofsdp.PutKeptRows", "the CPU alone leaves rows out; devices compute all"},
    {"ofsdp.TakeKeptRows", "the CPU alone leaves rows out; devices compute all"}};

std::string on_cuda(const OpDef& op) {
  if (op.view) return "a view";
  if (kernels::has_device_kernel(op.full_name())) return "kernel";
  for (const Missing& row : kMissing) {
    if (row.name == op.full_name()) return std::string(row.reason);
  }
  if (op.body != nullptr) return "its standard operators";
  ADD_FAILURE() << op.full_name() << " has neither a kernel for devices nor a reason in kMissing";
  return "";
}

std::string on_cpu_of(const OpDef& op) {
  if (op.view) return "a view";
  return op.cpu.empty() ? "its standard operators" : "kernel";
}

TEST(DeviceOperatorsPage, OperatorsWithAReasonHaveNoKernel) {
  const Registry registry = make_registry();
  for (const Missing& row : kMissing) {
    EXPECT_FALSE(kernels::has_device_kernel(std::string(row.name))) << row.name;
    EXPECT_FALSE(registry.get(std::string(row.name)).view) << row.name;
  }
}

std::string words_of(const OptionRow& row) {
  return has_run(row) ? "`" + replaced(row.words, "@bare ", "") + "`" : row.words;
}

std::string result_of(const OptionRow& row) {
  if (row.on_cuda == "same") return "the CPU's bits";
  if (row.on_cuda == "runs") return "runs; " + row.more;
  if (row.on_cuda == "refused") return "refused: " + row.more;
  return row.on_cuda == "host" ? "no part of a device" : "yes";
}

std::string tests_of(const OptionRow& row) {
  if (!has_run(row)) return row.more;
  const bool more = row.on_cuda == "same" && !row.more.empty();
  return "procs.device_options" + (more ? ", " + row.more : "");
}

std::string page() {
  std::ostringstream text;
  text
      << "# Options and operators by device\n\n"
         "`OFSDP_WRITE_PAGE=1 build/release/tests/test_procs --file=device_options` writes this "
         "page from\n`tests/support/device_options.txt` and from the registry of operators; the "
         "same test fails where it is old.\n\n## Options\n\n"
         "All of them work with `--device cpu`. \"The CPU's bits\": on the device that counts; the "
         "emulated CUDA kernels give\nthe CPU's losses. Nothing here says what a card did "
         "([cuda-checks.md](cuda-checks.md#seen-on-a-gpu) does).\n\n"
         "| option | as | with --device cuda | tests |\n| --- | --- | --- | --- |\n";
  for (const OptionRow& row : all_rows()) {
    text << "| `" << row.option << "` | " << words_of(row) << " | " << result_of(row) << " | "
         << tests_of(row) << " |\n";
  }
  text << "\n## Operators\n\n"
          "ops.conformance holds the CPU's kernels, unit.cuda_operators those of devices: every "
          "sample case against the\nreference in double. `ofsdp.` are gradients and operators of "
          "our own. A kernel may refuse some types; then the run is\nrefused with the node's "
          "name.\n\n| operator | CPU | CUDA |\n| --- | --- | --- |\n";
  const Registry registry = make_registry();
  for (const std::string& name : operator_names([](const OpDef&) { return true; })) {
    const OpDef& op = registry.get(name);
    text << "| " << op.full_name() << " | " << on_cpu_of(op) << " | " << on_cuda(op) << " |\n";
  }
  return text.str();
}

TEST(DeviceOperatorsPage, IsCurrent) {
  const std::string path = OFSDP_SOURCE_DIR "/docs/internals/devices.md";
  if (std::getenv("OFSDP_WRITE_PAGE") != nullptr) std::ofstream(path) << page();
  std::ostringstream found;
  found << std::ifstream(path).rdbuf();
  EXPECT_TRUE(found.str() == page()) << "OFSDP_WRITE_PAGE=1 writes docs/internals/devices.md anew";
}

}  // namespace device_options_test
}  // namespace ofsdp
