#include "runtime/cli/manual_page.h"

#include "runtime/cli/command_table.h"
#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {
namespace {

// Text that roff takes as it stands: no requests, no escapes, hyphens that can be copied.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out;
}

std::string item(std::string_view bold, std::string_view rest, std::string_view text) {
  std::string entry = ".TP\n\\fB" + roff(bold) + "\\fR";
  if (!rest.empty()) entry += " " + roff(rest);
  return entry + "\n" + roff(text) + "\n";
}

std::string section_of_commands() {
  std::string text = ".SH COMMANDS\n";
  for (const CommandEntry& entry : command_table()) {
    if (!entry.text.empty()) text += item("fsdp-run", entry.synopsis, entry.text);
  }
  return text + item("fsdp-run", "completion bash|zsh|fish", "completions for the shell to load") +
         item("fsdp-run", "man", "this page");
}

std::string section_of_options(std::string_view title, bool of_a_run) {
  std::string text = format_text(".SH {}\n", title);
  for (const OptionEntry& entry : option_table()) {
    if (is_of_a_run(entry) == of_a_run) text += item("--" + entry.name, entry.values, entry.help);
  }
  return text;
}

}  // namespace

std::string manual_page() {
  return std::string(
             ".TH FSDP\\-RUN 1 \"\" \"onnx\\-fsdp\" \"User Commands\"\n"
             ".SH NAME\n"
             "fsdp\\-run \\- train ONNX models, sharded over ranks on CPUs and GPUs\n"
             ".SH SYNOPSIS\n"
             ".B fsdp\\-run\n"
             "[\\fICOMMAND\\fR] \\fIMODEL.onnx\\fR [\\fIoptions\\fR]\n"
             ".SH DESCRIPTION\n"
             "Trains an ONNX model with Fully Sharded Data Parallel and writes the trained weights "
             "back into\nthe same ONNX file.\n") +
         section_of_commands() +
         ".SH OPTIONS\n"
         "Flags beat\n"
         ".B \\-\\-config\n"
         "(YAML: the same names with _ for \\-), which beats \\fIMODEL.yaml\\fR next to "
         "\\fIMODEL.onnx\\fR,\nwhich beats the defaults. The default value comes first.\n"
         ".B \\-o\n"
         "is\n"
         ".BR \\-\\-output .\n" +
         section_of_options("OPTIONS OF A RUN", true) +
         section_of_options("OPTIONS OF SINGLE COMMANDS", false) + ".SH EXIT STATUS\n" +
         item("0", "", "done") + item("1", "", "the run failed") +
         item("2", "", "the command or its input is wrong") + ".SH ENVIRONMENT\n" +
         item("OMP_NUM_THREADS", "", "compute threads of a rank, without --threads") +
         item("RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT", "",
              "make the process a rank, as torchrun does") +
         item("OFSDP_SECRET_FILE, OFSDP_SECRET", "", "the secret of a run on several hosts");
}

}  // namespace ofsdp::cli
