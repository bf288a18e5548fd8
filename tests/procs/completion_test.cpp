// fsdp-run completion, man, help and version: bash completes with the printed function; zsh, fish,
// groff and mandoc check theirs where they are installed.
#include <unistd.h>

#include <iterator>
#include <sstream>

#include "runtime/cli/command_line.h"
#include "runtime/cli/options/option_table.h"
#include "tests/support/namespaces.h"
#include "tests/support/refused_run.h"

namespace ofsdp {
namespace completion_test {

using testing_data::TempFolder;

bool is_installed(const std::string& program) {
  return access(("/usr/bin/" + program).c_str(), X_OK) == 0 ||
         access(("/bin/" + program).c_str(), X_OK) == 0;
}

std::string printed_by(const Words& words) {
  const Finished run = Program::run(fsdp_run(words));
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(run.err, "");
  return run.out;
}

// Bash's offers when the cursor stands at the end of these words.
std::vector<std::string> bash_offers(const Words& words, const std::string& folder) {
  const std::string script =
      "source /dev/stdin <<<\"$SCRIPT\"; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _fsdp_run; "
      "((${#COMPREPLY[@]})) && printf '%s\\n' \"${COMPREPLY[@]}\"; exit 0";
  const Finished run = Program::run(
      Words{"/bin/bash", "-c", script, "bash", "fsdp-run"} + words,
      {.environment = {"SCRIPT=" + printed_by({"completion", "bash"})}, .folder = folder});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(run.err, "");
  return lines_of(run.out);
}

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::Not;

TEST(CompletionTest, BashOffersCommandsOptionsValuesAndFiles) {
  const TempFolder folder;
  folder.write("a model.onnx", "");
  const auto offers = [&](const Words& words) { return bash_offers(words, folder.path()); };
  EXPECT_THAT(offers({""}), IsSupersetOf({"plan", "demo", "completion", "a model.onnx"}));
  EXPECT_THAT(offers({"pl"}), ElementsAre("plan"));
  EXPECT_THAT(offers({"plan", "a"}), ElementsAre("a model.onnx"));
  EXPECT_THAT(offers({"m.onnx", "--strat"}), ElementsAre("--strategy"));
  EXPECT_THAT(offers({"m.onnx", "--no-shu"}), ElementsAre("--no-shuffle"));
  EXPECT_THAT(offers({"m.onnx", "--strategy", ""}),
              ElementsAre("full_shard", "shard_grad_op", "no_shard", "hybrid_shard",
                          "hybrid_shard_zero2", "zero1", "auto"));
  EXPECT_THAT(offers({"m.onnx", "--strategy", "sh"}), ElementsAre("shard_grad_op"));
  EXPECT_THAT(offers({"m.onnx", "--strategy", "="}), Contains("zero1"));  // --strategy=
  EXPECT_THAT(offers({"m.onnx", "--strategy", "=", "z"}), ElementsAre("zero1"));
  EXPECT_THAT(offers({"m.onnx", "--data", "a"}), ElementsAre("a model.onnx"));
  EXPECT_THAT(offers({"m.onnx", "-o", "a"}), ElementsAre("a model.onnx"));
  EXPECT_THAT(offers({"m.onnx", "--lr", ""}), IsEmpty());
  EXPECT_THAT(offers({"m.onnx", "--nesterov", ""}), ElementsAre("on", "off"));
  EXPECT_THAT(offers({"m.onnx", "--nesterov", "--mom"}), ElementsAre("--momentum"));
}

// A command offers exactly the flags that it takes.
TEST(CompletionTest, BashOffersTheFlagsOfTheCommand) {
  const TempFolder folder;
  for (const cli::CommandEntry& command : cli::command_table()) {
    if (command.text.empty()) continue;
    Words expected;
    for (const cli::OptionEntry& entry : cli::option_table()) {
      const bool taken = entry.commands == cli::kEveryCommand
                             ? entry.name == "help" || entry.name == "version" ||
                                   cli::takes_options_of_a_run(command.command)
                             : cli::contains(entry.commands, command.command);
      if (taken) expected.push_back("--" + entry.name);
      if (taken && entry.name == "shuffle") expected.emplace_back("--no-shuffle");
    }
    const std::string name(name_of(command.command));
    EXPECT_EQ(bash_offers({name, "--"}, folder.path()), expected) << name;
  }
}

TEST(CompletionTest, EveryShellAndThePageKnowEveryOption) {
  const std::string bash = printed_by({"completion", "bash"});
  const std::string zsh = printed_by({"completion", "zsh"});
  const std::string fish = printed_by({"completion", "fish"});
  const std::string page = printed_by({"man"});
  for (const cli::OptionEntry& entry : cli::option_table()) {
    EXPECT_FALSE(entry.help.empty()) << entry.name;
    EXPECT_THAT(bash, testing::ContainsRegex("--" + entry.name + "[ |)']")) << entry.name;
    EXPECT_THAT(zsh, testing::ContainsRegex("--" + entry.name + "(=|=-)?[[]")) << entry.name;
    EXPECT_THAT(fish, testing::HasSubstr(" -l " + entry.name + " ")) << entry.name;
    std::string dashes = "--" + entry.name;
    for (size_t at = 0; (at = dashes.find('-', at)) != std::string::npos; at += 2) {
      dashes.insert(at, "\\");
    }
    EXPECT_THAT(page, testing::HasSubstr("\\fB" + dashes + "\\fR")) << entry.name;
  }
}

TEST(HelpTest, WithoutWordsTellsWhatToTypeFirst) {
  const std::string overview = printed_by({});
  EXPECT_LE(lines_of(overview).size(), 12u);
  for (const char* word : {"fsdp-run demo", "fsdp-run plan", "--help"}) {
    EXPECT_THAT(overview, testing::HasSubstr(word));
  }
}

TEST(HelpTest, HasSixGroupsOfTheOptionsThatPeopleNeed) {
  const std::string help = printed_by({"--help"});
  EXPECT_EQ(help, printed_by({"help"}));
  EXPECT_LE(lines_of(help).size(), 60u) << help;
  for (const std::string& line : lines_of(help)) EXPECT_LE(line.size(), 100u) << line;
  int options = 0, groups = 0;
  for (const std::string& line : lines_of(help)) {
    options += line.starts_with("  --") ? 1 : 0;
    groups += !line.starts_with(" ") && line.ends_with(":") ? 1 : 0;
  }
  EXPECT_EQ(options, 25);
  EXPECT_EQ(groups, 2 + 6);
  for (const cli::CommandEntry& command : cli::command_table()) {
    EXPECT_THAT(help, testing::HasSubstr("  fsdp-run " + std::string(command.synopsis)));
  }
}

TEST(HelpTest, KnowsEveryCommandAndOption) {
  for (const cli::CommandEntry& command : cli::command_table()) {
    const std::string name(name_of(command.command));
    const std::string page =
        printed_by(name == "help" ? Words{"help", name} : Words{name, "--help"});
    EXPECT_THAT(page, testing::StartsWith("fsdp-run " + std::string(command.synopsis))) << name;
    EXPECT_LE(lines_of(page).size(), 60u) << page;
    EXPECT_EQ(page, printed_by({"help", name}).substr(0, page.size())) << name;
  }
  EXPECT_THAT(printed_by({"plan", "--help"}), testing::HasSubstr("--world"));
  EXPECT_THAT(printed_by({"demo", "--help"}), Not(testing::HasSubstr("--lr ")));
  const std::string all = printed_by({"help", "all"});
  for (const cli::OptionEntry& entry : cli::option_table()) {
    const std::string page = printed_by({"help", "--" + entry.name});
    EXPECT_THAT(page, testing::StartsWith("--" + entry.name + "\n")) << entry.name;
    EXPECT_THAT(page, testing::HasSubstr(entry.values)) << entry.name;
    if (entry.group != cli::OptionGroup::kCommands) {
      EXPECT_THAT(all, testing::ContainsRegex("  --" + entry.name + "[ \n]")) << entry.name;
    }
  }
  const std::string rate = printed_by({"help", "learning_rate"});
  for (const char* fact : {"--lr\n", "default      0.001", "YAML key     lr", "--learning-rate",
                           "train, resume, plan", "group        Optimizer and learning rate"}) {
    EXPECT_THAT(rate, testing::HasSubstr(fact));
  }
  const Finished unknown = Program::run(fsdp_run({"help", "sheduler"}));
  EXPECT_EQ(unknown.status, 2);
  expect_one_line(unknown.err, {"fsdp-run help: expected all, a command or an option"});
}

TEST(HelpTest, TheVersionTellsTheBuildAndTheMachine) {
  const std::string text = printed_by({"version"});
  EXPECT_EQ(text, printed_by({"--version"}));
  EXPECT_THAT(lines_of(text).at(0), testing::MatchesRegex("fsdp-run [0-9]+\\.[0-9]+\\.[0-9]+"));
  for (const char* fact : {"\n  CUDA         ", "\n  oneDNN       ", "\n  processor    "}) {
    EXPECT_THAT(text, testing::HasSubstr(fact));
  }
}

// `fsdp-run man markdown > docs/reference/options.md` updates the page.
TEST(HelpTest, TheReferenceIsWhatTheTableSays) {
  EXPECT_EQ(printed_by({"man", "markdown"}),
            onnx_bytes::content(OFSDP_SOURCE_DIR "/docs/reference/options.md"));
  EXPECT_EQ(Program::run(fsdp_run({"man", "html"})).status, 2);
}

TEST(HelpTest, ThePageHasExamplesThatParse) {
  const std::string page = printed_by({"man"});
  const size_t begin = page.find(".SH EXAMPLES");
  ASSERT_NE(begin, std::string::npos);
  int examples = 0;
  for (std::string line : lines_of(page.substr(begin))) {
    if (!line.starts_with("fsdp\\-run ")) continue;
    std::erase(line, '\\');
    std::istringstream in(line.substr(std::string("fsdp-run ").size()));
    const Words words{std::istream_iterator<std::string>(in), {}};
    const auto parsed = cli::parse_command(words, std::nullopt);
    // data.yaml and similar files need not exist
    EXPECT_TRUE(parsed.ok()) << line << ": " << (parsed.ok() ? "" : parsed.error().message());
    ++examples;
  }
  EXPECT_GE(examples, 4);
}

TEST(CompletionTest, AShellThatIsNone) {
  const Finished run = Program::run(fsdp_run({"completion", "csh"}));
  EXPECT_EQ(run.status, 2);
  expect_one_line(run.err, {"completion", "bash, zsh or fish", "csh"});
  EXPECT_EQ(Program::run(fsdp_run({"completion"})).status, 2);
  EXPECT_EQ(Program::run(fsdp_run({"man", "--lr", "1"})).status, 2);
}

TEST(CompletionTest, OtherShellsAndFormattersTakeThem) {
  const TempFolder folder;
  const std::string zsh = folder.write("zsh", printed_by({"completion", "zsh"}));
  const std::string fish = folder.write("fish", printed_by({"completion", "fish"}));
  const std::string page = folder.write("fsdp-run.1", printed_by({"man"}));
  const std::vector<std::pair<Words, const char*>> checks = {
      {{"zsh", "-n", zsh}, ""},
      {{"fish", "--no-config", "-c", "source " + fish + "; complete -C 'fsdp-run --strategy z'"},
       "zero1"},
      {{"groff", "-man", "-Tutf8", "-ww", page}, "how ranks share the model"},
      {{"mandoc", "-T", "lint", "-W", "error", page}, ""},
  };
  int found = 0;
  for (auto [words, shown] : checks) {
    if (!is_installed(words[0])) continue;
    SCOPED_TRACE(words[0]);
    words[0] = "/usr/bin/" + words[0];
    const Finished run = Program::run(words);
    EXPECT_EQ(run.status, 0);
    EXPECT_EQ(run.err, "");
    EXPECT_THAT(run.out, testing::HasSubstr(shown));
    ++found;
  }
  if (found == 0) GTEST_SKIP() << "none of zsh, fish, groff, mandoc is installed";
}

}  // namespace completion_test
}  // namespace ofsdp
