#include "runtime/cli/options/option_reader.h"

#include <utility>

#include "kernels/base/text.h"
#include "runtime/remote/address.h"

namespace ofsdp::cli {
namespace {

Status as_error(const Verdict& verdict, const std::string& text, const std::string& subject) {
  if (verdict.fine) return ok_status();
  return input_error("{}: expected {}, found '{}'{}{}", subject, verdict.expected, text,
                     out_of_range_hint(text), verdict.hint);
}

// Data may lie at an address that somebody has named; nothing is written to one.
Status check_address(const OptionEntry& entry, const std::string& text, Source source,
                     const std::string& subject) {
  OFSDP_REJECT_IF(entry.name != "data" && entry.name != "eval-data",
                  "{}: expected a path, found the address '{}', which a model and data may have",
                  subject, text);
  OFSDP_REJECT_IF(source == Source::kModelYaml,
                  "{}: an address is not allowed in a model's own YAML; pass --{} or --config {}",
                  subject, entry.name, subject.substr(0, subject.rfind(" line ")));
  return {};
}

}  // namespace

Status no_effect_with(std::string_view name, Command command) {
  return input_error("--{} has no effect with fsdp-run {}", name, name_of(command));
}

Source OptionReader::source_of(const std::string& name) const {
  const auto found = said_.find(name);
  return found == said_.end() ? Source::kDefault : found->second.source;
}

void OptionReader::begin(const OptionEntry& entry, Source source, const std::string& subject) {
  if (!said(entry.name) || source_of(entry.name) != source) entry.clear(options_);
  said_[entry.name] = {source, subject};
}

Status OptionReader::read(const std::string& name, const std::string& text, Source source,
                          const std::string& subject) {
  if (name == "no-shuffle") {
    const std::optional<bool> off = parse_switch(text);
    if (!off) return input_error("{}: expected on or off, found '{}'", subject, text);
    return read("shuffle", *off ? "off" : "on", source, subject);
  }
  const OptionEntry* entry = find_entry(table_, name);
  OFSDP_CHECK(entry != nullptr, "option {}", name);
  if (source == Source::kModelYaml && !entry->in_model_yaml) {
    return input_error("{}: not allowed in a model's own YAML; pass --{} or --config {}", subject,
                       entry->name, subject.substr(0, subject.rfind(" line ")));
  }
  if (entry->is_path && is_address(text)) {
    OFSDP_RETURN_IF_ERROR(check_address(*entry, text, source, subject));
  }
  OFSDP_RETURN_IF_ERROR(agree(*entry, text, source, subject));
  begin(*entry, source, subject);
  return as_error(entry->set(options_, text), text, subject);
}

// The later flag counts; two keys in a file must not differ.
Status OptionReader::agree(const OptionEntry& entry, const std::string& text, Source source,
                           const std::string& subject) {
  const bool twice = source != Source::kFlag && said(entry.name) &&
                     entry.kind != OptionEntry::Kind::kRepeated &&
                     source_of(entry.name) == source && said_.at(entry.name).subject != subject;
  if (!twice) return ok_status();
  Options other = options_;
  (void)entry.set(other, text);  // the caller reports errors
  const std::string before = entry.show(options_), after = entry.show(other);
  if (before == after) return ok_status();
  return input_error("{} contradicts {}: {} is {} here and {} there", subject,
                     said_.at(entry.name).subject, entry.name, after, before);
}

void OptionReader::read_empty(const OptionEntry& entry, Source source, const std::string& subject) {
  begin(entry, source, subject);
}

void OptionReader::read_inline_data(DataChoice data, Source source, const std::string& subject) {
  options_.run.data = std::move(data);
  said_["data"] = {source, subject};
}

std::string OptionReader::meeting_host() const {
  const std::string& endpoint = options_.launch.rdzv_endpoint;
  const size_t colon = endpoint.rfind(':');
  const bool port = colon != std::string::npos && endpoint.find(':') == colon;
  const bool ipv6 = endpoint.find("]:") != std::string::npos;
  return port || ipv6 ? endpoint.substr(0, colon) : endpoint;
}

std::string OptionReader::overriding() const {
  for (const OptionEntry& entry : table_) {
    if (entry.in_training_info && said(entry.name)) return said_.at(entry.name).subject;
  }
  return "";
}

// One epoch by default; with `--steps` alone the run goes on into later epochs.
Status OptionReader::resolve_length(Command command) {
  RunOptions& run = options_.run;
  if (!said("epochs") && run.steps) run.epochs.reset();
  if (!run.epochs && !run.steps) {
    return input_error("{}: expected a number beside no --steps, found 'none'",
                       said_.at("epochs").subject);
  }
  const bool endless = run.data.kind == DataChoice::Kind::kSynthetic && !run.steps;
  if (endless && command == Command::kTrain) {
    return input_error("{} synthetic is endless: expected --steps N, found none",
                       said_.at("data").subject);
  }
  return ok_status();
}

// A list such as "4,2" is for nested parallelism; we use the first number. Libraries divide sums
// among threads, so equal bits on any number of ranks need equal thread counts: 1 unless given.
Status OptionReader::resolve_threads(const std::optional<std::string>& omp_num_threads) {
  if (!said("threads") && options_.launch.deterministic == Determinism::kAcrossRanks) {
    options_.launch.threads = 1;
    return ok_status();
  }
  if (said("threads") || !omp_num_threads || omp_num_threads->empty()) return ok_status();
  const std::optional<int64_t> count = parse_integer(split_list(*omp_num_threads).front());
  if (!count || *count < 1) {
    return input_error("OMP_NUM_THREADS: expected a whole number of at least 1, found '{}'",
                       *omp_num_threads);
  }
  options_.launch.threads = count;
  return ok_status();
}

// Refuses a schedule that lacks a number without a default.
Status OptionReader::refuse_unsaid() const {
  const auto needs = [this](ScheduleKind kind, const char* name, const char* what) -> Status {
    if (options_.schedule.kind != kind || said(name)) return ok_status();
    return input_error("--lr-schedule {} needs --{} {}, found none", name_of(kind), name, what);
  };
  OFSDP_RETURN_IF_ERROR(needs(ScheduleKind::kExponential, "gamma", "X"));
  OFSDP_RETURN_IF_ERROR(needs(ScheduleKind::kMultistep, "milestones", "N,N,..."));
  return needs(ScheduleKind::kCosineRestarts, "restart-steps", "N");
}

Status OptionReader::refuse_without_effect() const {
  for (const OptionEntry& entry : table_) {
    if (!said(entry.name)) continue;
    const NoEffect none = entry.no_effect(options_);
    const bool neutral = !none.strict && entry.show(options_) == entry.show(Options());
    if (none.beside.empty() || neutral) continue;
    // If a stronger source gives "--lr-schedule linear", a weaker one's gamma has no effect.
    const std::string decides = none.beside.substr(2, none.beside.find(' ') - 2);
    if (source_of(entry.name) < source_of(decides)) continue;
    return input_error("{} has no effect with {}", said_.at(entry.name).subject, none.beside);
  }
  OFSDP_RETURN_IF_ERROR(refuse_unsaid());
  const bool across = options_.launch.deterministic == Determinism::kAcrossRanks;
  if (across && options_.loss_mean == LossMean::kPerRank) {
    return input_error("{} contradicts --deterministic across_ranks: it depends on the ranks",
                       said_.at("loss-mean").subject);
  }
  if (options_.qat_scales == QatScales::kLearned &&
      options_.checkpoint.type == CheckpointType::kFull) {
    return input_error("{} contradicts {}: the model in a checkpoint has the file's scales",
                       said_.at("checkpoint-type").subject, said_.at("qat-scales").subject);
  }
  if (options_.optimizer.nesterov && options_.optimizer.momentum == 0) {
    return input_error("{} needs a --momentum above 0, found 0", said_.at("nesterov").subject);
  }
  return ok_status();
}

void OptionReader::place(GivenCount& count, const std::string& name) const {
  count.source = source_of(name);
  if (said(name)) count.said = said_.at(name).subject;
}

// An evaluation takes a training's command line, and leaves the files that only a training writes.
void OptionReader::warn_of_results() {
  for (const char* name : {"output", "output-form", "adapter", "checkpoint-dir", "run-dir",
                           "run-name", "report", "plot"}) {
    const bool read = std::string_view(name) == "checkpoint-dir" && said("resume");
    if (source_of(name) == Source::kFlag && !read) {
      warn(format_text("--{} has no effect with fsdp-run eval", name));
    }
  }
}

Result<Options> OptionReader::finish(Command command,
                                     const std::optional<std::string>& omp_num_threads) {
  options_.command = command;
  if (!options_.launch.hostfile.empty()) {
    LaunchOptions& launch = options_.launch;
    if (source_of("nnodes") != Source::kDefault) launch.most_hosts = launch.nnodes;
    if (source_of("nproc-per-node") != Source::kDefault) launch.most_slots = launch.nproc_per_node;
  }
  place(options_.batch.batch_size, "batch-size");
  place(options_.batch.grad_accum, "grad-accum");
  place(options_.batch.global_batch_size, "global-batch-size");
  // Files that a run has written have the default, too.
  const auto names = [](const RunOptions& run) {
    std::vector<std::string> list;
    for (const MetricSpec& metric : run.eval_metrics) list.push_back(metric.name);
    return list;
  };
  options_.run.asks_metrics =
      source_of("eval-metrics") == Source::kFlag || names(options_.run) != names(RunOptions());
  take_defaults_unless(options_.optimizer, [this](const char* name) { return said(name); });
  OFSDP_RETURN_IF_ERROR(refuse_without_effect());
  if (command == Command::kEval) warn_of_results();
  const bool both = source_of("data") == Source::kFlag && source_of("eval-data") == Source::kFlag;
  if (command == Command::kPredict && both) {
    return input_error("{} contradicts {}: expected one of them, whose rows are predicted",
                       said_.at("eval-data").subject, said_.at("data").subject);
  }
  OFSDP_RETURN_IF_ERROR(resolve_length(command));
  OFSDP_RETURN_IF_ERROR(resolve_threads(omp_num_threads));
  for (const OptionEntry& entry : table_) {
    const bool given = entry.show(options_) != entry.show(Options());
    // A file that is for training may serve other commands, too.
    const bool of_run = contains(entry.commands, Command::kTrain);
    if (!given || contains(entry.commands, command)) continue;
    if (!of_run || source_of(entry.name) == Source::kFlag) {
      return no_effect_with(entry.name, command);
    }
  }
  return std::move(options_);
}

}  // namespace ofsdp::cli
