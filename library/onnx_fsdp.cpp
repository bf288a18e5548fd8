// onnx_fsdp.h's functions but for trainers.
#include "library/onnx_fsdp.h"

#include <cstdlib>
#include <cstring>

#include "fsdp/checkpoint/disk.h"
#include "kernels/base/status.h"
#include "library/run.h"
#include "library/settings.h"
#include "runtime/cli/command_line.h"
#include "runtime/cli/options/option_table.h"

struct onnx_fsdp_run {
  std::unique_ptr<ofsdp::library::Run> run;
};

namespace ofsdp::library {
namespace {

constexpr int64_t kMaxPageBytes = int64_t{1} << 30;

thread_local std::string last_error;

Result<Run::Request> request_of(const std::string& command, const onnx_fsdp_settings* given,
                                const std::vector<std::string>& more = {}) {
  OFSDP_ASSIGN_OR_RETURN(const onnx_fsdp_settings settings, known_settings(given));
  Run::Request request;
  request.prints = settings.prints != 0;
  OFSDP_ASSIGN_OR_RETURN(request.words, command_words(command, settings));
  OFSDP_ASSIGN_OR_RETURN(const auto train, column_arrays(settings.data, settings.data_count));
  OFSDP_ASSIGN_OR_RETURN(const auto eval,
                         column_arrays(settings.eval_data, settings.eval_data_count));
  OFSDP_ASSIGN_OR_RETURN(request.arrays, ArrayFiles::make(train, eval, command != "eval"));
  std::vector<std::string> words = more;
  if (!request.arrays.data().empty()) words.push_back("--data=" + request.arrays.data());
  request.words.insert(request.words.begin() + 1, words.begin(), words.end());
  return request;
}

// Runs a command to completion.
Status run_through(Run& run) {
  for (;;) {
    OFSDP_ASSIGN_OR_RETURN(const Run::Next next, run.next(-1));
    if (next == Run::Next::kEnded) return {};
  }
}

Status copy_out(const std::string& text, char** out) {
  *out = static_cast<char*>(std::malloc(text.size() + 1));
  OFSDP_FAULT_IF(*out == nullptr, "out of memory: expected room for {} bytes", text.size() + 1);
  std::memcpy(*out, text.c_str(), text.size() + 1);
  return {};
}

// Returns the text that `fsdp-run plan` prints with one more word.
Result<std::string> plan_printed(const onnx_fsdp_settings* settings, const std::string& word) {
  OFSDP_ASSIGN_OR_RETURN(Run::Request request, request_of("plan", settings, {word}));
  request.keeps = true;
  OFSDP_ASSIGN_OR_RETURN(const auto run, Run::start(std::move(request)));
  OFSDP_RETURN_IF_ERROR(run_through(*run));
  return run->printed();
}

Status plan_page(const onnx_fsdp_settings* settings, char** out) {
  OFSDP_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::make());
  const std::string path = join_path(folder.path(), "plan.html");
  OFSDP_RETURN_IF_ERROR(plan_printed(settings, "--html=" + path).status());
  OFSDP_ASSIGN_OR_RETURN(const std::string text, read_whole_file(path, kMaxPageBytes));
  return copy_out(text, out);
}

// Returns the text that `fsdp-run check --json` prints, also if the two runs differ.
Result<std::string> check_printed(const onnx_fsdp_settings* settings) {
  OFSDP_ASSIGN_OR_RETURN(Run::Request request, request_of("check", settings, {"--json"}));
  request.keeps = true;
  OFSDP_ASSIGN_OR_RETURN(const auto run, Run::start(std::move(request)));
  const Status status = run_through(*run);
  if (run->printed().empty()) OFSDP_RETURN_IF_ERROR(Status(status.kind(), status.message()));
  return run->printed();
}

}  // namespace

onnx_fsdp_status told(const Status& status) {
  if (status.ok()) return ONNX_FSDP_OK;
  last_error = status.message();
  return status.kind() == ErrorKind::kInput ? ONNX_FSDP_INPUT_ERROR : ONNX_FSDP_RUN_ERROR;
}

}  // namespace ofsdp::library

using namespace ofsdp;
using namespace ofsdp::library;

extern "C" {

#define OFSDP_TEXT_OF(x) #x
#define OFSDP_VERSION(major, minor, patch) \
  OFSDP_TEXT_OF(major) "." OFSDP_TEXT_OF(minor) "." OFSDP_TEXT_OF(patch)

const char* onnx_fsdp_version(void) {
  return OFSDP_VERSION(ONNX_FSDP_VERSION_MAJOR, ONNX_FSDP_VERSION_MINOR, ONNX_FSDP_VERSION_PATCH);
}

const char* onnx_fsdp_error(void) { return last_error.c_str(); }

int32_t onnx_fsdp_option_count(const char* name) {
  const std::vector<cli::OptionEntry> table = cli::option_table();
  const cli::OptionEntry* entry = cli::find_entry(table, name);
  if (entry == nullptr || !entry->in_files) return 0;
  return entry->kind == cli::OptionEntry::Kind::kRepeated ? 2 : 1;
}

int onnx_fsdp_command(int argc, char** argv) {
  return cli::run_program(argc, argv, onnx_fsdp_version());
}

onnx_fsdp_status onnx_fsdp_plan(const onnx_fsdp_settings* settings, char** json) {
  return call([&]() -> Status {
    OFSDP_ASSIGN_OR_RETURN(const std::string text, plan_printed(settings, "--json"));
    return copy_out(text, json);
  });
}

onnx_fsdp_status onnx_fsdp_check(const onnx_fsdp_settings* settings, char** json) {
  return call([&]() -> Status {
    OFSDP_ASSIGN_OR_RETURN(const std::string text, check_printed(settings));
    return copy_out(text, json);
  });
}
onnx_fsdp_status onnx_fsdp_plan_page(const onnx_fsdp_settings* settings, char** html) {
  return call([&] { return plan_page(settings, html); });
}

void onnx_fsdp_free(char* text) { std::free(text); }

onnx_fsdp_status onnx_fsdp_run_start(const char* command, const onnx_fsdp_settings* settings,
                                     onnx_fsdp_run** run) {
  return call([&]() -> Status {
    const std::string name = command == nullptr ? "" : command;
    OFSDP_REJECT_IF(name != "train" && name != "eval",
                    "onnx_fsdp_run_start: command: expected train or eval, found '{}'", name);
    OFSDP_ASSIGN_OR_RETURN(Run::Request request, request_of(name, settings));
    OFSDP_ASSIGN_OR_RETURN(auto started, Run::start(std::move(request)));
    *run = new onnx_fsdp_run{std::move(started)};
    return {};
  });
}

onnx_fsdp_status onnx_fsdp_run_next(onnx_fsdp_run* run, int32_t milliseconds, const char** row,
                                    int32_t* ended) {
  *row = nullptr;
  *ended = 1;  // also with an error
  const onnx_fsdp_status status = call([&]() -> Status {
    OFSDP_ASSIGN_OR_RETURN(const Run::Next next, run->run->next(milliseconds));
    if (next == Run::Next::kRow) *row = run->run->row().c_str();
    *ended = next == Run::Next::kEnded ? 1 : 0;
    return {};
  });
  const bool stopped = status == ONNX_FSDP_OK && *ended != 0 && run->run->stopped();
  return stopped ? ONNX_FSDP_STOPPED : status;
}

void onnx_fsdp_run_stop(onnx_fsdp_run* run) { run->run->stop(); }

void onnx_fsdp_run_close(onnx_fsdp_run* run) { delete run; }

onnx_fsdp_status onnx_fsdp_train(const onnx_fsdp_settings* settings, onnx_fsdp_callback callback,
                                 void* user) {
  constexpr int32_t kLook = 100;
  onnx_fsdp_run* run = nullptr;
  onnx_fsdp_status status = onnx_fsdp_run_start("train", settings, &run);
  int32_t ended = status == ONNX_FSDP_OK ? 0 : 1;
  while (ended == 0) {
    const char* row = nullptr;
    status = onnx_fsdp_run_next(run, kLook, &row, &ended);
    if (ended == 0 && callback != nullptr && callback(row, user) != 0) onnx_fsdp_run_stop(run);
  }
  onnx_fsdp_run_close(run);
  return status;
}

}  // extern "C"
