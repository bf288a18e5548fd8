#include "runtime/state/resume.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "importer/proto/graph_hash.h"
#include "kernels/base/escaped.h"
#include "kernels/base/reject.h"
#include "kernels/cpu/parallel.h"
#include "runtime/state/settings_changes.h"

namespace ofsdp::runtime {
namespace {

constexpr const char* kLatest = "latest";
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
    OFSDP_ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::open(folder));
    OFSDP_RETURN_IF_ERROR(
        reader.verify(communicator_.rank(), communicator_.size(), pool_threads()));
    return std::make_unique<CheckpointReader>(std::move(reader));
  }

  // The ranks' worst answer and the first rank that gave it.
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

  // Ends the run with the status of rank `rank`.
  Status end_with(int rank, Status mine) {
    if (rank == communicator_.rank()) return std::move(mine).with_prefix("--resume");
    return communicator_.barrier(kSite);  // ends when that rank has said so
  }

  static Status check_named(const std::string& folder) {
    if (is_file(join_path(folder, kManifestName))) return ok_status();
    const char* found = is_folder(folder) ? "a folder without manifest.json" : "nothing";
    OFSDP_ASSIGN_OR_RETURN(const auto below, complete_checkpoints(folder));
    const bool above = is_folder(folder) && !below.empty();
    return input_error("--resume {}: expected a complete checkpoint, found {}{}", folder, found,
                       above ? "; its checkpoints are in folders below it" : "");
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

  // A checkpoint that rank 0 has listed.
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

  // As rank 0 has seen the folder; names are told as numbers.
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
    if (communicator_.rank() == 0) {
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
    print_lines(stdout, format_text("resuming from {}: step {}, saved by {} rank{} under {}\n",
                                    reader->folder(), m.step, m.world, m.world == 1 ? "" : "s",
                                    escaped(m.strategy)));
    std::fflush(stdout);
    if (options_.command != Command::kEval) warn_of_another_order(m);
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
  OFSDP_ASSIGN_OR_RETURN(const OnnxFile model, OnnxFile::open(options.model));
  Result<OnnxFile> weights = OnnxFile::open(resume);
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

}  // namespace ofsdp::runtime
