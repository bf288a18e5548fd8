#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "fsdp/checkpoint/disk.h"
#include "importer/file/onnx_file.h"
#include "kernels/base/shell_words.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "kernels/cpu/parallel.h"
#include "runtime/compile/saved_slices.h"
#include "runtime/train/checkpointing.h"
#include "runtime/train/prepared_run.h"
#include "runtime/train/setup/checkpoint_values.h"
#include "runtime/train/setup/class_names.h"
#include "runtime/train/setup/opened_model.h"

namespace ofsdp::runtime {

namespace {

// Keys in the order of the option tables: sharding, loss, trained tensors, optimizer, schedule,
// edits, batch.
constexpr const char* kKeys =
    "param_dtype reduce_dtype buffer_dtype matmul_precision "
    "loss loss_mean prediction labels ignore_index label_smoothing class_weights pos_weight "
    "teacher distill_weight distill_temperature batch_axis free_batch sample_shape input "
    "nhwc_weights "
    "freeze train sync_batch_norm qat_scales training_info initialize "
    "optimizer lr weight_decay momentum nesterov betas eps rho state_dtype no_decay group ema "
    "ema_use clip_grad_norm muon_adjust "
    "lr_schedule warmup_steps total_steps min_lr_ratio power step_size milestones gamma "
    "schedule_unit decay_steps restart_steps restart_mult pct_start div_factor "
    "final_div_factor "
    "lora lora_rank lora_alpha lora_dropout lora_from replace_head add_head untie "
    "global_batch_size bucket_by pack";
constexpr std::array kFollowTheLength =
    std::to_array<std::string_view>({"linear", "cosine", "polynomial", "wsd", "onecycle"});

std::vector<std::string> keys_that_change_weights() {
  std::istringstream words(kKeys);
  return {std::istream_iterator<std::string>(words), {}};
}

using KeyValues = std::map<std::string, std::string>;

// Reads the lines "key: value"; a comment ends a value.
KeyValues values_in(const std::string& yaml) {
  KeyValues values;
  for (size_t begin = 0; begin < yaml.size();) {
    const size_t end = std::min(yaml.find('\n', begin), yaml.size());
    const std::string line = yaml.substr(begin, end - begin);
    const size_t colon = line.find(": ");
    if (colon != std::string::npos && line[0] != ' ' && line[0] != '#') {
      std::string value = line.substr(colon + 2);
      if (!value.starts_with('"')) value = value.substr(0, value.find("  #"));
      values[line.substr(0, colon)] = value;
    }
    begin = end + 1;
  }
  return values;
}

bool schedule_follows_length(const KeyValues& values) {
  const auto kind = values.find("lr_schedule"), total = values.find("total_steps");
  if (kind == values.end() || std::ranges::count(kFollowTheLength, kind->second) == 0) return false;
  const bool given = total != values.end() && total->second.find_first_of("0123456789") == 0;
  return !given;
}

}  // namespace

bool changes_weights(std::string_view key) {
  return std::ranges::count(keys_that_change_weights(), key) > 0;
}

std::string changed_settings_line(const std::string& saved, const std::string& present) {
  const KeyValues before = values_in(saved), now = values_in(present);
  std::vector<std::string> changes;
  const auto compare = [&](const std::string& key, const char* why) {
    const auto old = before.find(key), other = now.find(key);
    if (old == before.end() || other == now.end() || old->second == other->second) return;
    changes.push_back(format_text("{} {} (was {}{})", key, other->second, old->second, why));
  };
  for (const std::string& key : keys_that_change_weights()) compare(key, "");
  if (schedule_follows_length(now)) {
    compare("steps", "; lr_schedule follows it");
    compare("epochs", "; lr_schedule follows it");
  }
  return escaped(joined(changes, ", "));
}

namespace {

const CollectiveSite kSite{"check of the checkpoint", -1, 0};

class Finder {
 public:
  Finder(const Options& options, Communicator& communicator, CheckpointStore* store)
      : options_(options), communicator_(communicator), store_(store) {}

  Result<std::unique_ptr<CheckpointReader>> find() {
    const std::string& resume = options_.checkpoint.resume;
    if (resume.empty()) return std::unique_ptr<CheckpointReader>();
    if (resume == kLatest) return latest();
    OFSDP_RETURN_IF_ERROR(check_named(resume));
    return open_named(resume);
  }

 private:
  using Opened = Result<std::unique_ptr<CheckpointReader>>;

  Opened open_verified(const std::string& folder) const {
    const int share = communicator_.rank(), shares = communicator_.size();
    OFSDP_ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::open(folder, share, shares));
    OFSDP_RETURN_IF_ERROR(reader.verify(share, shares, pool_threads()));
    return std::make_unique<CheckpointReader>(std::move(reader));
  }

  // The worst answer and the first rank that gave it.
  struct Answer {
    double worst = kGood;
    int rank = 0;
  };
  static constexpr double kGood = 0, kHarmed = 1, kUnreadable = 2;

  Result<Answer> answer_of_all(const Status& mine) {
    const double said = mine.ok()                          ? kGood
                        : mine.kind() == ErrorKind::kInput ? kHarmed
                                                           : kUnreadable;
    std::vector<double> all(static_cast<size_t>(communicator_.size()));
    OFSDP_RETURN_IF_ERROR(communicator_.exchange({&said, 1}, all, kSite));
    const auto worst = std::ranges::max_element(all);
    return Answer{*worst, static_cast<int>(worst - all.begin())};
  }

  // Ends the run with rank `rank`'s status.
  Status end_with(int rank, Status mine) {
    if (rank == communicator_.rank()) return std::move(mine).with_prefix("--resume");
    return communicator_.barrier(kSite);  // until that rank has reported it
  }

  static Status check_named(const std::string& folder) {
    if (is_file(join_path(folder, kManifestName))) return ok_status();
    const char* found = is_folder(folder) ? "a folder without manifest.json" : "nothing";
    OFSDP_ASSIGN_OR_RETURN(const auto below, complete_checkpoints(folder));
    const bool above = is_folder(folder) && !below.empty();
    return input_error("--resume {}: expected a complete checkpoint, found {}{}", folder, found,
                       above ? "; its checkpoints are in folders below it: --resume latest "
                               "--checkpoint-dir with this folder takes the newest"
                             : "");
  }

  Opened open_named(const std::string& folder) {
    Opened opened = open_verified(folder);
    OFSDP_ASSIGN_OR_RETURN(const Answer answer, answer_of_all(status_of(opened)));
    if (answer.worst == kGood) return use(*std::move(opened));
    return end_with(answer.rank, std::move(opened).status());
  }

  Opened latest() {
    const std::string& dir = options_.checkpoint.dir;
    if (dir.empty()) {
      return input_error("--resume latest looks in --checkpoint-dir: expected one, found none");
    }
    std::vector<std::string> names;
    if (communicator_.rank() == 0) {
      OFSDP_ASSIGN_OR_RETURN(names, complete_checkpoints(dir));
    }
    for (size_t i = 0;; ++i) {
      OFSDP_ASSIGN_OR_RETURN(const std::string name, next_name(names, i));
      if (name.empty() && i == 0) return from_the_beginning();
      if (name.empty()) return end_with(0, all_harmed(i));
      Opened opened = open_seen(join_path(dir, name));
      OFSDP_ASSIGN_OR_RETURN(const Answer answer, answer_of_all(status_of(opened)));
      if (answer.worst == kGood) return use(*std::move(opened));
      if (answer.worst == kUnreadable) return end_with(answer.rank, std::move(opened).status());
      if (answer.rank == communicator_.rank()) say_passed_over(opened.error());
      if (store_ != nullptr) store_->set_aside(name);
    }
  }

  // Opens a checkpoint that rank 0 has listed.
  Opened open_seen(const std::string& folder) const {
    OFSDP_FAULT_IF(is_absent(join_path(folder, kManifestName)),
                   "{}: rank 0 sees a checkpoint there, rank {} none: expected a folder that all "
                   "ranks share",
                   folder, communicator_.rank());
    return open_verified(folder);
  }

  Status all_harmed(size_t count) const {
    return fault(
        "latest: all {} checkpoints in {} are harmed and are kept there as bad-step-N; "
        "without --resume the run starts from the beginning",
        count, options_.checkpoint.dir);
  }

  static Status status_of(const Opened& opened) {
    return opened.ok() ? Status() : Status(opened.error().kind(), opened.error().message());
  }

  // Returns the name that rank 0 sees in the folder; names are exchanged as numbers.
  Result<std::string> next_name(const std::vector<std::string>& names, size_t i) {
    constexpr size_t kPrefix = std::string_view("step-").size();
    double mine = -1;
    if (i < names.size()) mine = std::strtod(names[i].c_str() + kPrefix, nullptr);
    std::vector<double> all(static_cast<size_t>(communicator_.size()));
    OFSDP_RETURN_IF_ERROR(communicator_.exchange({&mine, 1}, all, kSite));
    return all[0] < 0 ? std::string() : checkpoint_name(static_cast<int64_t>(all[0]));
  }

  static void say_passed_over(const Status& reason) {
    print_lines(stderr,
                format_text("fsdp-run: --resume latest passes over a harmed checkpoint: {}\n",
                            reason.message()));
  }

  Opened from_the_beginning() const {
    if (communicator_.rank() == 0 && prints_screen(options_)) {
      print_lines(stdout,
                  format_text("--resume latest: no complete checkpoint in {}, starting from "
                              "the beginning\n",
                              options_.checkpoint.dir));
      std::fflush(stdout);
    }
    return std::unique_ptr<CheckpointReader>();
  }

  std::unique_ptr<CheckpointReader> use(std::unique_ptr<CheckpointReader> reader) {
    const Manifest& m = reader->manifest();
    if (communicator_.rank() != 0) return reader;
    const bool examines =
        options_.command == Command::kDoctor || options_.command == Command::kCheck;
    if (prints_screen(options_) && !examines) {
      print_lines(stdout, format_text("resuming from {}: step {}, saved by {} rank{} under {}\n",
                                      reader->folder(), m.step, m.world, m.world == 1 ? "" : "s",
                                      escaped(m.strategy)));
      std::fflush(stdout);
    }
    if (options_.command == Command::kTrain) warn_of_another_order(m);
    return reader;
  }

  void warn_of_another_order(const Manifest& m) const {
    const RunOptions& run = options_.run;
    if (m.sampler.seed == run.seed && m.sampler.shuffle == run.shuffle &&
        m.sampler.drop_last == run.drop_last) {
      return;
    }
    print_lines(stderr,
                format_text("fsdp-run: warning: the checkpoint was trained with --seed {}, shuffle "
                            "{}, drop-last {}, which this run has not: its samples come in another "
                            "order\n",
                            m.sampler.seed, m.sampler.shuffle ? "on" : "off",
                            m.sampler.drop_last ? "on" : "off"));
  }

  const Options& options_;
  Communicator& communicator_;
  CheckpointStore* store_;
};

}  // namespace

Result<std::string> weights_to_start_from(const Options& options) {
  const std::string& resume = options.checkpoint.resume;
  if (resume.empty() || resume == kLatest || !is_file(resume)) return std::string();
  OFSDP_ASSIGN_OR_RETURN(const OnnxFile model,
                         OnnxFile::open(options.model, named_weights(options)));
  Result<OnnxFile> weights = OnnxFile::open(resume, named_weights(options));
  if (!weights.ok()) return std::move(weights).status().with_prefix("--resume");
  const std::string expected = graph_hash(model), found = graph_hash(*weights);
  if (expected == found) return resume;
  return input_error("--resume {}: expected the graph of {} (hash {}), found another (hash {})",
                     resume, options.model, expected, found);
}

Result<std::unique_ptr<CheckpointReader>> find_checkpoint(const Options& options,
                                                          Communicator& communicator,
                                                          CheckpointStore* store) {
  return Finder(options, communicator, store).find();
}

void warn_of_other_settings(const CheckpointReader& checkpoint, const std::string& configuration) {
  if (configuration.empty()) return;
  std::ifstream file(join_path(checkpoint.folder(), kSavedConfiguration));
  std::ostringstream saved;
  saved << file.rdbuf();
  if (!file) {
    return print_lines(stderr,
                       format_text("fsdp-run: warning: {} has no {}: it is not known whether this "
                                   "run has the settings that the checkpoint was trained with\n",
                                   checkpoint.folder(), kSavedConfiguration));
  }
  const std::string changed = changed_settings_line(saved.str(), configuration);
  if (changed.empty()) return;
  print_lines(stderr, format_text("fsdp-run: warning: this run has other settings than the "
                                  "checkpoint was trained with: {}\n",
                                  changed));
}

ResumePoint resume_point(const CheckpointReader* checkpoint) {
  if (checkpoint == nullptr) return {};
  const Manifest& m = checkpoint->manifest();
  return {m.step, m.sampler.epoch, m.sampler.sample};
}

namespace {

std::vector<NamedTensor> trained_of(const Graph& graph) {
  std::vector<NamedTensor> list;
  for (const Parameter& p : graph.parameters) {
    if (p.trained) list.push_back({p.name, graph.value(p.value).desc.shape});
  }
  return list;
}

// Returns the numbers that only this kind of schedule has.
std::string own_numbers(const ScheduleOptions& s) {
  const auto or_none = [](const std::optional<int64_t>& n) { return n ? std::to_string(*n) : "-"; };
  switch (s.kind) {
    case ScheduleKind::kMultistep: {
      std::string text = ", at";
      for (const int64_t at : s.milestones) text += " " + std::to_string(at);
      return text;
    }
    case ScheduleKind::kWsd:
      return ", decay " + or_none(s.decay_steps);
    case ScheduleKind::kCosineRestarts:
      return format_text(", cycle {}, times {}", or_none(s.restart_steps), s.restart_mult);
    case ScheduleKind::kOneCycle:
      return format_text(", top at {}, over {} and {}", s.pct_start, s.div_factor,
                         s.final_div_factor);
    default:
      return "";
  }
}

std::string schedule_text(const ScheduleOptions& s) {
  return format_text(
      "{}, {} warm-up steps, total {}, least {}, power {}, every {} {}s, factor {}{}",
      name_of(s.kind), s.warmup_steps, s.total_steps ? std::to_string(*s.total_steps) : "the run's",
      s.min_lr_ratio, s.power, s.step_size, name_of(s.unit), s.gamma, own_numbers(s));
}

// Returns an error for the first name that only one side has, or that differs in shape.
Status check_trained(const std::vector<NamedTensor>& saved, const std::vector<NamedTensor>& run) {
  std::map<std::string, Shape> left;
  for (const NamedTensor& tensor : saved) left.emplace(tensor.name, tensor.shape);
  for (const NamedTensor& tensor : run) {
    const auto found = left.find(tensor.name);
    if (found == left.end()) {
      return input_error("'{}' is trained in this run, but was not in the checkpoint", tensor.name);
    }
    if (!(found->second == tensor.shape)) {
      return input_error("'{}' has shape {}, in the checkpoint {}", tensor.name,
                         tensor.shape.text(), found->second.text());
    }
    left.erase(found);
  }
  if (left.empty()) return ok_status();
  return input_error("'{}' was trained in the checkpoint, but is not in this run",
                     left.begin()->first);
}

// Returns an error unless the checkpoint has all states that the run needs, in the same shape.
Status check_state_tensors(const Manifest& m, const CompiledRun& plan, const Graph& graph) {
  std::map<std::pair<std::string, std::string>, Shape> saved;
  for (const StateTensor& tensor : saved_states(m))
    saved[{tensor.kind, tensor.name}] = tensor.shape;
  for (const StateTensor& tensor : state_tensors(plan, graph)) {
    const auto found = saved.find({tensor.kind, tensor.name});
    if (found == saved.end()) {
      return input_error("it has no {} of '{}', which this run's optimizer of it needs",
                         tensor.kind, tensor.name);
    }
    if (found->second == tensor.shape) continue;
    return input_error("its {} of '{}' has shape {}, this run's {}", tensor.kind, tensor.name,
                       found->second.text(), tensor.shape.text());
  }
  return ok_status();
}

std::string identity_of_teacher(const ModelSetup& setup) {
  const Teacher* teacher = setup.source->teacher();
  return teacher == nullptr ? "" : teacher->identity;
}

// Returns the adapters that no checkpoint has, since they are frozen or no loss reaches them.
std::vector<std::string> untrained_adapters(const ModelSetup& setup) {
  std::set<std::string> trained;
  for (const Parameter& p : setup.graph.parameters) {
    if (p.trained) trained.insert(p.name);
  }
  std::vector<std::string> names;
  for (const Initializer& w : setup.file.initializers()) {
    if (is_adapter_weight(w.name) && !trained.contains(w.name)) names.push_back(w.name);
  }
  return names;
}

// The edits name the file of --lora-from if it has whole weights, or if an adapter that is not
// trained has its values from it.
ModelEdits edits_to_repeat(const Options& options, const ModelSetup& setup) {
  ModelEdits edits = edits_of(options);
  std::string& from = edits.adapters.from;
  if (from.empty()) return edits;
  const bool needed = !untrained_adapters(setup).empty() || has_whole_weights(from);
  from = needed ? absolute_path(from) : "";
  return edits;
}

}  // namespace

Manifest describe_run(const Options& options, const CompiledRun& plan, const ModelSetup& setup) {
  const SamplerOptions& sampler = plan.train_sampler->options();
  Manifest m;
  m.type = name_of(options.checkpoint.type);
  m.model = absolute_path(setup.file.path());
  m.graph = graph_hash(setup.file);
  m.edits = text_of(edits_to_repeat(options, setup));
  m.teacher = identity_of_teacher(setup);
  m.classes = setup.class_names();
  m.world = plan.shards.world;
  m.strategy = name_of(plan.shards.strategy);
  m.wrap = name_of(options.sharding.wrap);
  m.sampler = {.samples = sampler.samples,
               .global_batch = sampler.global_batch(),
               .seed = sampler.seed,
               .shuffle = sampler.shuffle,
               .drop_last = sampler.drop_last};
  m.schedule = schedule_text(options.schedule);
  m.lr = options.optimizer.lr;
  m.optimizer = plan.optimizer->name;
  m.states = plan.updates.states;
  m.trained = trained_of(setup.graph);
  m.state_tensors = uneven_states(plan, setup.graph);
  for (const KeptValues::Entry* entry : carried_entries(plan)) {
    m.statistics.push_back(
        {setup.graph.parameters[static_cast<size_t>(entry->parameter)].name, entry->desc.shape});
  }
  for (const Unit& unit : plan.shards.units) {
    UnitLayout layout{unit.padded_numel, {}};
    for (const UnitParam& p : unit.params) layout.params.push_back({p.name, p.offset, p.numel});
    m.units.push_back(std::move(layout));
  }
  return m;
}

namespace {

// The data may lack a class that the saved run had: its labels would be numbered anew.
Status check_classes(const std::vector<std::string>& saved, const std::vector<std::string>& present,
                     const std::string& model) {
  if (saved == present || saved.empty() || present.empty()) return ok_status();
  return input_error(
      "its labels are numbered {}, this run's {}: expected the same; write the first, a name a "
      "line, as {}",
      escaped(joined(saved, ", ").substr(0, 200)), escaped(joined(present, ", ").substr(0, 200)),
      class_files_of(model)[0]);
}

}  // namespace

Status check_resumable(const Manifest& m, const CompiledRun& plan, const ModelSetup& setup) {
  if (const std::string hash = graph_hash(setup.file); m.graph != hash) {
    return input_error("it is of another graph than {} (hash {}, found {}): it was made from {}",
                       setup.file.path(), m.graph, hash, m.model);
  }
  if (!plan.evaluated.empty()) return ok_status();  // only weights are needed, each by name
  const std::string teacher = identity_of_teacher(setup);
  if (m.teacher != teacher) {
    const auto named = [](const std::string& one) { return one.empty() ? "none" : one; };
    return input_error("it has another --teacher than this run: expected {}, found {}",
                       named(m.teacher), named(teacher));
  }
  OFSDP_RETURN_IF_ERROR(check_classes(m.classes, setup.class_names(), setup.file.path()));
  OFSDP_RETURN_IF_ERROR(check_trained(m.trained, trained_of(setup.graph)));
  const std::vector<std::string> states = plan.updates.states;
  if (std::set(m.states.begin(), m.states.end()) == std::set(states.begin(), states.end())) {
    return check_state_tensors(m, plan, setup.graph);
  }
  return input_error("its optimizer is {} with states [{}], this run's has [{}]", m.optimizer,
                     joined(m.states, ", "), joined(states, ", "));
}

Status with_edits_of(const Manifest& manifest, const Options& options, Status refusal) {
  if (refusal.ok()) return refusal;
  const auto saved = edits_from(manifest.edits);
  if (!saved.ok()) return refusal;
  return with_edits_of(*saved, edits_of(options), std::move(refusal));
}

// If such adapters were drawn, the seed must be the same; if a file had them, the file.
Status check_untrained_adapters(const Manifest& manifest, const Options& options,
                                const ModelSetup& setup) {
  const auto saved = edits_from(manifest.edits);
  const std::vector<std::string> names = untrained_adapters(setup);
  if (!saved.ok()) return {};
  if (names.empty()) {
    const std::string had = saved->adapters.from;
    const std::string has = edits_to_repeat(options, setup).adapters.from;
    OFSDP_REJECT_IF(
        had != has, "its run had {}, with whole weights: expected the same here, found {}",
        had.empty() ? "no --lora-from" : "--lora-from " + had, has.empty() ? "none" : has);
    return {};
  }
  const std::string from = saved->adapters.from;
  const std::string given = options.edit.adapters.from;
  OFSDP_REJECT_IF(from != (given.empty() ? "" : absolute_path(given)),
                  "its adapter '{}' is not trained and had {}: expected the same here, found {}",
                  names[0], from.empty() ? "no --lora-from" : "--lora-from " + from,
                  given.empty() ? "none" : given);
  OFSDP_REJECT_IF(from.empty() && saved->seed != options.run.seed,
                  "its adapter '{}' is not trained and was drawn with --seed {}: expected the same "
                  "here, found {}",
                  names[0], saved->seed, options.run.seed);
  return {};
}

namespace {

// The command with --resume latest in place of its --resume; before a `--`.
std::vector<std::string> with_resume(const std::vector<std::string>& command) {
  constexpr std::string_view kFlag = "--resume";
  std::vector<std::string> words;
  const auto end = std::ranges::find(command, "--");
  for (auto word = command.begin(); word != end; ++word) {
    if (*word == kFlag && word + 1 != end) {
      ++word;
    } else if (!word->starts_with(std::string(kFlag) + "=")) {
      words.push_back(*word);
    }
  }
  words.insert(words.end(), {std::string(kFlag), "latest"});
  words.insert(words.end(), end, command.end());
  return words;
}

// Returns the words that continue the run; empty: nothing does.
std::vector<std::string> continuing(const RunTexts& texts, const Options& options, bool saved) {
  if (options.folder.path.empty() && options.checkpoint.dir.empty()) return {};
  if (!options.folder.taken.empty()) return texts.command;  // is a `resume` already
  if (!options.folder.path.empty()) return {texts.command[0], "resume", options.folder.path};
  return saved ? with_resume(texts.command) : texts.command;
}

}  // namespace

std::string stopped_line(const RunTexts& texts, const Options& options, int64_t made, int64_t total,
                         bool saved) {
  const std::string where = format_text("stopped at update {} of {}", made, total);
  if (texts.command.empty()) return where + "\n";
  std::vector<std::string> words = continuing(texts, options, saved);
  if (words.empty()) {
    return where +
           "; nothing can be continued, as there is neither a folder (--run-dir) nor "
           "--checkpoint-dir\n";
  }
  words.insert(words.begin(), texts.launcher.begin(), texts.launcher.end());
  return format_text("{}; to continue: {}\n", where, shell_line(words));
}

Status load_checkpoint(CheckpointReader& reader, const RankState& state) {
  const CompiledRun& plan = state.plan();
  const std::vector<std::string> states = plan.updates.states;
  for (const Unit& unit : plan.shards.units) {
    const auto read = [&](const std::string& kind) {
      return [&reader, kind](const ShardPart& part) {
        return reader.read(kind, part.param.name, part.first, part.values);
      };
    };
    OFSDP_RETURN_IF_ERROR(state.held(unit, -1).for_each_part(read(kParameterKind)));
    for (size_t i = 0; i < states.size(); ++i) {
      OFSDP_RETURN_IF_ERROR(state.each_state(unit, static_cast<int>(i), read(states[i])));
    }
  }
  const int from = reader.manifest().world == plan.shards.world ? state.rank() : 0;
  for (const KeptValues::Entry* entry : carried_entries(plan)) {
    OFSDP_RETURN_IF_ERROR(reader.read_statistic(state.parameter(entry->parameter).name, from,
                                                state.statistic(*entry)));
  }
  return ok_status();
}

}  // namespace ofsdp::runtime
