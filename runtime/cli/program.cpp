
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <new>
#include <sstream>
#include <string>

#include "fsdp/comm/rank_identity.h"
#include "importer/dialects/onnxruntime/ort_artifacts.h"
#include "importer/normalize/onnx_import.h"
#include "kernels/base/process.h"
#include "kernels/base/shell_words.h"
#include "kernels/base/text.h"
#include "kernels/core/device.h"
#include "kernels/cpu/parallel.h"
#include "plugins/check/check.h"
#include "runtime/cli/command_line.h"
#include "runtime/cli/config/config_files.h"
#include "runtime/cli/launch/launcher.h"
#include "runtime/cli/launch/node_messages.h"
#include "runtime/commands/commands.h"
#include "runtime/compile/compile.h"
#include "runtime/compile/simulate.h"
#include "runtime/log/log_parts.h"
#include "runtime/train/prepared_run.h"
#include "runtime/train/setup/run_files.h"

namespace ofsdp::cli {
namespace {

int exit_status(const Status& status) { return status.kind() == ErrorKind::kInput ? 2 : 1; }

void say(const std::string& line) { print_lines(stderr, "fsdp-run: " + line + "\n"); }

// One launcher prints all ranks' messages; it gave this rank a pipe.
bool tell_launcher(const std::string& message) {
  const char* const fd = getenv("OFSDP_FAILURE_FD");
  if (fd == nullptr || *fd == 0) return false;
  const std::string line = message.substr(0, 4000) + "\n";
  return write(std::atoi(fd), line.data(), line.size()) == static_cast<ssize_t>(line.size());
}

// On stderr an error's advice follows its line; a fault's tables go to `tables` first.
int report(const Status& status, std::FILE* tables = stdout) {
  std::string message = status.message();
  const size_t end = message.find('\n');
  if (status.kind() == ErrorKind::kFault && end != std::string::npos) {
    print_lines(tables, message.substr(end + 1) + "\n");
    std::fflush(tables);
    message.resize(end);
  }
  if (!tell_launcher(message)) say(message);
  return exit_status(status);
}

int exit_with(const Status& status) { return status.ok() ? 0 : report(status); }
int exit_with(const Result<int>& status) { return status.ok() ? *status : report(status.error()); }

// Reports why a rank fails, once: the first rank to fail prints, the others end with the same
// status.
class RankFailure {
 public:
  // With `json` tables go to stderr, since stdout has only a result.
  RankFailure(Communicator& communicator, bool json)
      : communicator_(communicator), tables_(json ? stderr : stdout) {}

  void report(const Status& status) {
    if (status_ != 0) return;
    const bool prints = status.kind() != ErrorKind::kPeer && communicator_.fail(status);
    status_ = prints ? cli::report(status, tables_) : std::max(1, communicator_.exit_status());
  }
  int exit_status() const { return status_; }

 private:
  Communicator& communicator_;
  std::FILE* tables_;
  int status_ = 0;
};

// Returns the words that start such ranks, as far as they are known here.
std::vector<std::string> launcher_words(const RankIdentity& identity) {
  const std::string world = std::to_string(identity.world);
  if (identity.started_by == "torchrun") {
    return {"torchrun", "--no-python", "--nproc-per-node", world};
  }
  if (identity.started_by == "Slurm") return {"srun", "-n", world};
  const bool mpi = identity.started_by == "Open MPI" || identity.started_by == "MPICH";
  return mpi ? std::vector<std::string>{"mpirun", "-n", world} : std::vector<std::string>{};
}

// A launcher of several hosts changes the words for each host; by this variable a rank knows those
// that a user has typed.
constexpr const char* kTypedCommand = "OFSDP_COMMAND";

std::vector<std::string> typed_command(char** argv) {
  const char* const typed = getenv(kTypedCommand);
  if (typed != nullptr) {
    if (auto words = shell_words(typed); words.ok() && !words->empty()) return *std::move(words);
  }
  std::vector<std::string> words;
  for (char** word = argv; *word != nullptr; ++word) words.emplace_back(*word);
  return words;
}

// The texts about a run that rank 0 prints and keeps. `argv` as in main.
RunTexts run_texts(const ParsedCommand& command, const RankIdentity& identity, char** argv) {
  RunTexts texts{effective_config(command.options, identity.world),
                 changed_settings(command.options)};
  if (getenv("OFSDP_ROWS_FD") != nullptr) return texts;  // a library's words are no command
  texts.command = typed_command(argv);
  texts.launcher = launcher_words(identity);
  return texts;
}

// Returns an id that no other run has, if there is one: a restart has it too.
std::string unique_id(const RankIdentity& identity) {
  const char* const id = getenv("TORCHELASTIC_RUN_ID");
  return identity.started_by == "fsdp-run" && id != nullptr ? id : "";
}

// Returns the exit status, unless an error ends the run.
Result<int> train(const ParsedCommand& command, const RankIdentity& identity, char** argv,
                  const StopSignal* signal, Communicator& communicator, MemoryLedger& ledger,
                  RankFailure& failure) {
  RunTexts texts;
  if (identity.rank == 0) texts = run_texts(command, identity, argv);
  OFSDP_ASSIGN_OR_RETURN(Options options, after_restart(command.options, identity.world));
  if (identity.rank == 0) OFSDP_RETURN_IF_ERROR(check_run_files(options, command.origin));
  OFSDP_ASSIGN_OR_RETURN(const auto plugins,
                         load_plugins(options.plugins, options.plugin_override));
  RunFolder folder;
  if (options.command == Command::kTrain) {
    OFSDP_ASSIGN_OR_RETURN(
        folder, RunFolder::open(options, command.origin, communicator, unique_id(identity)));
  }
  folder.fill(options, command.origin);
  if (identity.rank == 0) {
    if (options.command == Command::kTrain) make_adapter_folder(options.edit.adapter);
    OFSDP_RETURN_IF_ERROR(folder.begin(texts.command, texts.configuration));
  }
  return run_session({options, command.origin, plugins.registry, plugins.optimizers, communicator,
                      ledger, signal, &folder},
                     texts, [&failure](const Status& status) { failure.report(status); });
}

// From here on a signal stops the run in order, or ends the process if that is not asked for.
std::unique_ptr<StopSignal> listen_to_signals(const Options& options) {
  const bool stops = options.command == Command::kTrain && options.checkpoint.save_on_signal;
  auto signal = stops ? std::make_unique<StopSignal>() : nullptr;
  hold_stop_signals(false);
  return signal;
}

int run_rank(const ParsedCommand& command, const RankIdentity& identity, char** argv) {
  const Options& options = command.options;
  const std::unique_ptr<StopSignal> signal = listen_to_signals(options);
  set_pool_threads(
      static_cast<int>(options.launch.threads.value_or(cores_per_rank(identity.ranks_here()))));
  MemoryLedger ledger;  // outlives the communicator, whose segments it counts
  const auto timeout = static_cast<int64_t>(std::ceil(options.launch.timeout_seconds));
  auto communicator = connect_ranks(identity, std::chrono::seconds(timeout));
  if (!communicator.ok()) {
    const Status status = std::move(communicator).status();
    return status.kind() == ErrorKind::kPeer ? 1 : report(status);
  }
  RankFailure failure(**communicator, options.json);
  const Result<int> ended =
      train(command, identity, argv, signal.get(), **communicator, ledger, failure);
  Status status =
      ended.ok() ? (*communicator)->leave() : Status(ended.error().kind(), ended.error().message());
  if (!status.ok()) failure.report(status);
  hold_stop_signals(true);  // one that comes now is too late
  return failure.exit_status() != 0 ? failure.exit_status() : *ended;
}

// A topology file does not tell whether ranks share memory (they may be GPUs), so assume not.
Result<std::unique_ptr<Communicator>> absent_ranks(const Options& options,
                                                   const std::optional<RankIdentity>& identity,
                                                   int world) {
  if (!options.report.topology.empty()) {
    OFSDP_ASSIGN_OR_RETURN(const Topology topology, read_topology(options.report.topology));
    return make_absent_ranks(world, topology.hosts, false);
  }
  const int64_t asked_for = identity ? identity->hosts() : options.launch.nnodes;
  const int64_t hosts = options.report.world ? 1 : asked_for;
  return make_absent_ranks(world, static_cast<int>(hosts), true);
}

// A run of many ranks that this process examines alone.
struct Examined {
  Options options;
  const ModelOrigin& origin;
  int world = 1;
  MemoryLedger ledger;  // outlives the communicator
  std::unique_ptr<Communicator> communicator;
  LoadedPlugins plugins;

  RunContext context() {
    return {options, origin, plugins.registry, plugins.optimizers, *communicator, ledger};
  }
};

Result<std::unique_ptr<Examined>> examine(const ParsedCommand& command,
                                          const std::optional<RankIdentity>& identity) {
  OFSDP_RETURN_IF_ERROR(check_run_files(command.options, command.origin));
  std::unique_ptr<Examined> run(new Examined{command.options, command.origin, 1, {}, {}, {}});
  Options& options = run->options;
  if (options.report.fit) options.sharding.memory_limit.reset();  // --fit answers instead
  const int64_t asked_for = asked_ranks(options.launch);
  const int64_t here_now = identity ? identity->world : asked_for;
  run->world = static_cast<int>(options.report.world.value_or(here_now));
  const int here = options.report.topology.empty() ? run->world : 1;
  set_pool_threads(static_cast<int>(options.launch.threads.value_or(cores_per_rank(here))));
  OFSDP_ASSIGN_OR_RETURN(run->communicator, absent_ranks(options, identity, run->world));
  OFSDP_ASSIGN_OR_RETURN(run->plugins, load_plugins(options.plugins, options.plugin_override));
  return run;
}

// plan --compare
Status compare(const ParsedCommand& command, const std::optional<RankIdentity>& identity) {
  std::vector<std::unique_ptr<Examined>> runs;
  std::vector<ComparedPlan> plans;
  const ParsedCommand* const second = command.compared.get();
  for (const ParsedCommand* one : {&command, second}) {
    const std::string& file = one->options.config;
    OFSDP_ASSIGN_OR_RETURN(auto run, prefixed(file, examine(*one, identity)));
    OFSDP_ASSIGN_OR_RETURN(ComparedPlan plan,
                           prefixed(file, plan_to_compare(run->context(), file)));
    runs.push_back(std::move(run));
    plans.push_back(std::move(plan));
  }
  print_lines(stdout, compared_text(plans[0], plans[1], command.options.json));
  return {};
}

// Plans for several ranks while only this one runs.
int run_plan(const ParsedCommand& command, const std::optional<RankIdentity>& identity,
             char** argv) {
  if (command.compared != nullptr) return exit_with(compare(command, identity));
  auto examined = examine(command, identity);
  if (!examined.ok()) return report(examined.error());
  Examined& run = **examined;
  const RunContext context = run.context();
  if (run.options.command == Command::kDoctor) return exit_with(run_doctor(context));
  if (run.options.command == Command::kCheck) return exit_with(run_check(context));
  return exit_with(run_session(
      context, {effective_config(run.options, run.world), {}, typed_command(argv), {}}));
}

// plan --make-plugin
Status make_plugin(const Options& options, const Registry& registry) {
  OFSDP_ASSIGN_OR_RETURN(const OnnxFile file, OnnxFile::open(options.model));
  OFSDP_ASSIGN_OR_RETURN(const auto missing, missing_operators(file, {registry, &ort_operators()}));
  if (missing.empty()) return input_error("--make-plugin: {} lacks no operator", options.model);
  std::vector<SkeletonOperator> operators;
  for (const MissingOperator& op : missing) {
    operators.push_back({op.domain, op.name, op.inputs, op.outputs, op.attributes});
  }
  OFSDP_RETURN_IF_ERROR(write_skeleton(options.make_plugin, operators));
  print_lines(stdout, format_text("{}: a plug-in for {} operator{}\n", options.make_plugin,
                                  missing.size(), missing.size() == 1 ? "" : "s"));
  return {};
}

int check(const Options& options) {
  std::error_code error;  // a name without a slash is searched in OFSDP_PLUGIN_PATH
  const bool bare = options.model.find('/') == std::string::npos &&
                    std::filesystem::is_regular_file(options.model, error);
  auto plugins = load_plugins({(bare ? "./" : "") + options.model}, /*may_override=*/true);
  if (!plugins.ok()) return report(plugins.error());
  const PluginReport found = check_plugins(*plugins);
  print_lines(stdout, found.text);
  if (found.faults == 0) return 0;
  return report(
      fault("{}: {} fault{} found", options.model, found.faults, found.faults == 1 ? "" : "s"));
}

int complete(const Options& options) {
  const auto script = completion_script(options.model);
  if (!script.ok()) return report(script.error());
  print_lines(stdout, *script);
  return 0;
}

// The manual page, or the page of docs/ about the options.
int print_manual(const Options& options) {
  if (!options.model.empty() && options.model != "markdown") {
    return report(
        input_error("fsdp-run man: expected nothing or markdown, found '{}'", options.model));
  }
  print_lines(stdout, options.model.empty() ? manual_page() : options_reference());
  return 0;
}

// Runs the commands that neither train nor plan.
int run_alone(const ParsedCommand& command) {
  const Options& options = command.options;
  if (const Status apart = check_run_files(options, command.origin); !apart.ok()) {
    return report(apart);
  }
  if (options.command == Command::kConfig) {
    const bool terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
    std::istringstream nothing;
    std::istream& answers = command.unasked ? static_cast<std::istream&>(nothing) : std::cin;
    return exit_with(ask_configuration(options, answers, terminal && !command.unasked));
  }
  if (options.command == Command::kCheckPlugin) return check(options);
  if (options.command == Command::kDemo) return exit_with(run_demo(options));
  if (options.command == Command::kCompletion) return complete(options);
  if (options.command == Command::kMan) return print_manual(options);
  auto plugins = load_plugins(options.plugins, options.plugin_override);
  if (!plugins.ok()) return report(plugins.error());
  const Registry& registry = plugins->registry;
  if (!options.make_plugin.empty()) return exit_with(make_plugin(options, registry));
  if (options.command == Command::kMakeTraining) {
    return exit_with(make_training(options, command.origin, registry));
  }
  if (options.command == Command::kExport) return exit_with(export_checkpoint(options, registry));
  if (options.command == Command::kData) return exit_with(show_data(options, registry));
  if (options.command == Command::kPrepare) return exit_with(prepare_data(options, registry));
  if (options.command == Command::kPredict) {
    set_pool_threads(static_cast<int>(options.launch.threads.value_or(cores_per_rank(1))));
    return exit_with(predict(options, registry));
  }
  print_lines(stdout, operator_table(*plugins, options.json));
  return 0;
}

bool runs_alone(const Options& options) {
  const Command command = options.command;
  return command == Command::kOps || command == Command::kConfig || command == Command::kExport ||
         command == Command::kCheckPlugin || command == Command::kMakeTraining ||
         command == Command::kDemo || command == Command::kCompletion || command == Command::kMan ||
         command == Command::kPredict || takes_data(command) || !options.make_plugin.empty();
}

// Returns true if one process examines a run of many ranks.
bool is_alone_for_all(const Options& options) {
  return options.command == Command::kPlan || options.command == Command::kDoctor ||
         options.command == Command::kCheck;
}

void warn(const std::vector<std::string>& warnings) {
  for (const std::string& line : warnings) say(line);
}

// libgomp reads OMP_WAIT_POLICY before main, so the program starts itself again, once
// (docs/internals/threads.md): threads that spin between kernels would take cores from other
// processes.
void set_what_libgomp_reads(char** argv) {
  if (getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv("OMP_WAIT_POLICY", "passive", 0);
  execv(own_program().c_str(), argv);  // if this fails, the run goes on
}

bool is_own_rank(const std::optional<RankIdentity>& identity) {
  return identity && identity->started_by == "fsdp-run";
}

// Returns true if this process starts ranks; then the first rank prints the warnings.
bool starts_ranks(const Options& options, const std::optional<RankIdentity>& identity) {
  if (runs_alone(options) || is_alone_for_all(options) || is_own_rank(identity)) {
    return false;
  }
  if (starts_hosts(options.launch)) return true;
  // One process a host, started by srun, is a launcher and no rank.
  return names_rendezvous(options.launch) || (!identity && needs_launcher(options.launch));
}

// Warns that only the program that started this rank can restart it.
void warn_of_no_launcher(const LaunchOptions& options, const RankIdentity& identity) {
  if (options.max_restarts == 0 || is_own_rank(identity) || identity.rank != 0) return;
  say(format_text("warning: --max-restarts has no effect on ranks that {} starts",
                  identity.started_by));
}

// MPI draws a secret for its ranks, and our launcher warns by itself.
void warn_of_no_secret(const RankIdentity& identity) {
  const bool open = identity.several_hosts() && identity.engine == "tcp" && identity.secret.empty();
  if (open && identity.rank == 0 && !is_own_rank(identity)) warn({kNoSecret});
}

// Shows ranks only the GPUs of this host that --include or --exclude left.
void show_slots(const LaunchOptions& launch) {
  const auto own = static_cast<size_t>(launch.no_ssh ? launch.node_rank.value_or(0) : 0);
  if (own >= launch.hosts.size() || !launch.hosts[own].some) return;
  setenv("CUDA_VISIBLE_DEVICES", slots_text(launch.hosts[own]).c_str(), 1);
}

// Many ranks on few cores wait for each other. GPUs have their own limit.
void warn_of_many_ranks(const LaunchOptions& options) {
  constexpr int64_t kMany = 8;  // ranks of a core
  const int64_t cores = cores_per_rank(1), ranks = options.nproc_per_node;
  if (starts_hosts(options) || ranks <= kMany * cores) return;
  const Result<int> gpus = count_devices();
  if (options.device != DeviceChoice::kCpu && gpus.ok() && *gpus > 0) return;
  say(format_text("warning: --nproc-per-node: {} ranks share {}; {} would be faster", ranks,
                  plural(cores, "core"), cores));
}

// The signals that are held wait for the launcher's queue.
int launch(const ParsedCommand& command, char** argv) {
  const Options& options = command.options;
  warn_of_many_ranks(options.launch);
  LaunchPlan plan{.options = options.launch, .checkpoint_dir = {}, .output = {}};
  if (options.command == Command::kTrain) {
    plan.checkpoint_dir = checkpoint_folder(options, options.folder.taken);
    plan.output = options.files.output;
    plan.find_folder = [parent = options.folder.parent](const std::string& run_id) {
      return find_run_folder(parent, run_id);
    };
  }
  std::error_code error;  // ranks get the same words, and follow `resume` themselves
  if (!command.started_in.empty()) std::filesystem::current_path(command.started_in, error);
  if (starts_hosts(options.launch)) {
    setenv(kTypedCommand, shell_line(typed_command(argv)).c_str(), 1);
    hold_stop_signals(false);
    return exit_with(launch_hosts(options.launch, argv));
  }
  show_slots(options.launch);
  return exit_with(launch_ranks(plan, argv));
}

// For commands that print their result: a full disk is an error, a closed pipe is not.
int printed(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  if (poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0) return status;
  const int failed = report(fault("standard output: expected room for all of it, found none"));
  return status == 0 ? failed : status;
}

int run(int argc, char** argv, const char* version) {
  const auto identity = rank_identity_from_environment();
  auto parsed = parse_command_line(argc, argv);
  const bool first = !identity.ok() || !*identity || (**identity).rank == 0;
  if (!parsed.ok()) return first ? report(parsed.error()) : exit_status(parsed.error());
  if (!identity.ok()) return report(identity.error());
  if (parsed->options.help) {
    if (first) print_lines(stdout, parsed->help);
    return printed(0);
  }
  if (parsed->options.version) {
    if (first) print_lines(stdout, version_text(version));
    return printed(0);
  }
  const Options& options = parsed->options;
  const bool starts = starts_ranks(options, *identity);
  const bool waits = starts || !(runs_alone(options) || is_alone_for_all(options));
  if (!waits) hold_stop_signals(false);
  if (first && !starts) warn(parsed->warnings);
  if (options.command == Command::kPredict && !first) return 0;  // one process for all rows
  if (runs_alone(options)) return printed(run_alone(*parsed));
  if (is_alone_for_all(options) && first) return printed(run_plan(*parsed, *identity, argv));
  if (is_alone_for_all(options)) return 0;
  if (starts) return launch(*parsed, argv);
  if (!*identity) return run_rank(*parsed, RankIdentity{}, argv);
  warn_of_no_launcher(options.launch, **identity);
  warn_of_no_secret(**identity);
  return run_rank(*parsed, **identity, argv);
}

// Some exporters write a data file for each weight, more than the usual 1,024 descriptors.
void raise_open_files() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);  // if this fails, the run goes on
}

// No file, flag or peer should cause an exception; if one does, it ends in one line.
int run_caught(int argc, char** argv, const char* version) {
  try {
    return run(argc, argv, version);
  } catch (const std::bad_alloc&) {
    return report(fault("out of memory: expected less than the machine has or its limits allow"));
  } catch (const std::exception& error) {
    return report(fault("unexpected: {}", error.what()));
  }
}

}  // namespace

int run_program(int argc, char** argv, const char* version) {
  hold_stop_signals(true);
  set_what_libgomp_reads(argv);
  raise_open_files();
  end_on_signals();
  std::signal(SIGPIPE, SIG_IGN);  // a log that nobody reads must not end the run
  return run_caught(argc, argv, version);
}

}  // namespace ofsdp::cli
