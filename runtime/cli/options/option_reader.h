// OptionReader: fills Options from texts, source after source, weakest first, and remembers the
// place of each. Two keys of one file that give one option differently (its own name and another
// program's) contradict each other. finish() then resolves options that depend on others: the
// optimizer's own defaults, options without effect, the length of the run.
//
// Takes names without dashes ("batch-size"), texts, and a subject for messages ("--batch-size",
// "model.yaml line 3: batch_size"). Ownership: owns the Options until finish() gives them away.
// Threads: one. Errors: kInput, one line with subject, expected and found.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {

// The refusal of an option that `command` does not have.
Status no_effect_with(std::string_view name, Command command);

class OptionReader {
 public:
  OptionReader() : table_(option_table()) {}

  const std::vector<OptionEntry>& table() const { return table_; }
  // So far:
  OptimizerKind optimizer() const { return options_.optimizer.kind; }
  const std::string& config() const { return options_.config; }
  int64_t hosts() const { return options_.launch.nnodes; }
  std::string meeting_host() const;  // of --rdzv-endpoint, without its port
  // The flag, word or key that gave an option; empty: none.
  std::string subject_of(const std::string& name) const {
    return said(name) ? said_.at(name).subject : "";
  }

  // The texts of a repeated option add up within a source; a stronger source begins anew.
  Status read(const std::string& name, const std::string& text, Source source,
              const std::string& subject);
  // `name: []`, a repeated option said to be empty.
  void read_empty(const OptionEntry& entry, Source source, const std::string& subject);
  // The mapping under `data:`.
  void read_inline_data(DataChoice data, Source source, const std::string& subject);

  // The files that options were read from.
  void note_file(const std::string& path) { files_.push_back(path); }
  const std::vector<std::string>& files() const { return files_; }

  // Warnings, printed once, one per line, when the run starts.
  void warn(std::string line) { warnings_.push_back(std::move(line)); }
  const std::vector<std::string>& warnings() const { return warnings_; }

  // `omp_num_threads`: the environment variable, where set; the default of --threads.
  Result<Options> finish(Command command, const std::optional<std::string>& omp_num_threads);
  // The first given option that a model with a training_info answers itself; empty: none.
  std::string overriding() const;

 private:
  struct Said {
    Source source;
    std::string subject;
  };

  bool said(const std::string& name) const { return said_.count(name) > 0; }
  Source source_of(const std::string& name) const;
  void place(GivenCount& count, const std::string& name) const;
  void begin(const OptionEntry& entry, Source source, const std::string& subject);
  Status agree(const OptionEntry& entry, const std::string& text, Source source,
               const std::string& subject);
  Status resolve_length(Command command);
  Status resolve_threads(const std::optional<std::string>& omp_num_threads);
  Status refuse_unsaid() const;
  Status refuse_without_effect() const;

  std::vector<OptionEntry> table_;
  Options options_;
  std::map<std::string, Said> said_;
  std::vector<std::string> files_;
  std::vector<std::string> warnings_;
};

}  // namespace ofsdp::cli
