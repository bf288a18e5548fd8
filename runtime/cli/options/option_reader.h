// OptionReader fills Options from texts, one source after the other, weakest first, and remembers
// each source. If two keys in one file give an option different values (our name and another
// program's), that is an error. `finish` then resolves options that depend on others: the
// optimizer's defaults, options without effect, the run's length.
//
// Takes names without leading dashes ("batch-size"), texts, and a subject for messages
// ("--batch-size", "model.yaml line 3: batch_size"). Errors: kInput, one line with subject,
// expected and found.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {

// Returns the error for an option that `command` does not have.
Status no_effect_with(std::string_view name, Command command);

class OptionReader {
 public:
  OptionReader() : table_(option_table()) {}

  const std::vector<OptionEntry>& table() const { return table_; }
  // The values read so far:
  OptimizerKind optimizer() const { return options_.optimizer.kind; }
  const std::string& config() const { return options_.config; }
  int64_t hosts() const { return options_.launch.nnodes; }
  std::string meeting_host() const;  // from --rdzv-endpoint, without the port
  // Returns the flag, word or key that gave an option; empty if it was not given.
  std::string find_subject(const std::string& name) const {
    return said(name) ? said_.at(name).subject : "";
  }

  // A repeated option's texts add up within a source; a stronger source starts again.
  Status read(const std::string& name, const std::string& text, Source source,
              const std::string& subject);
  // Reads `name: []`: a repeated option without values.
  void read_empty(const OptionEntry& entry, Source source, const std::string& subject);
  // The mapping under `data:`.
  void read_inline_data(DataChoice data, Source source, const std::string& subject);

  // Records a file from which options were read.
  void note_file(const std::string& path) { files_.push_back(path); }
  const std::vector<std::string>& files() const { return files_; }

  // Adds a warning, which the run prints once, on a line.
  void warn(std::string line) { warnings_.push_back(std::move(line)); }
  const std::vector<std::string>& warnings() const { return warnings_; }

  // `omp_num_threads`: the environment variable's text if it is set, which is then the default of
  // --threads.
  Result<Options> finish(Command command, const std::optional<std::string>& omp_num_threads);
  // Returns the first given option that a model with a training_info decides itself; empty if none.
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
  void warn_of_results();

  std::vector<OptionEntry> table_;
  Options options_;
  std::map<std::string, Said> said_;
  std::vector<std::string> files_;
  std::vector<std::string> warnings_;
};

}  // namespace ofsdp::cli
