// The common part of the readers of other programs' configuration files. A mapping is read by a
// table of keys, so that every key is one of three: known with an effect (its reader gives our
// options), known without one here (listed in one warning a file), unknown (an error with the
// nearest name). Options that two keys give differently are an error that names both
// (OptionReader).
//
// Ownership: ForeignFile borrows the OptionReader; keys share yaml-cpp's nodes. Threads: one.
// Errors: kInput naming file, line, key, what was expected and found. without_yaml_exceptions turns
// those of yaml-cpp into such.
#pragma once

#include <yaml-cpp/yaml.h>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/cli/options/option_reader.h"

namespace ofsdp::cli {

// One key of the file and its value.
struct ForeignKey {
  std::string path;     // "fsdp_config.fsdp_version"
  std::string subject;  // "c.yaml line 3: fsdp_config.fsdp_version"
  YAML::Node value;

  bool is(std::string_view word) const;  // the value, whatever its case
  bool automatic() const { return is("auto"); }
};

struct KeyRule {
  std::string_view name;
  std::function<Status(const ForeignKey&)> read;  // empty: without effect here
};

// Keys without effect here; `names` are separated by spaces and outlive the rules.
void add_without_effect(std::vector<KeyRule>& rules, std::string_view names);
// Keeps the key for later; `unless_auto` drops one whose value is auto.
KeyRule keep(std::string_view name, std::optional<ForeignKey>& at, bool unless_auto = false);

class ForeignFile {
 public:
  // `program`: whose file it is, for warnings.
  ForeignFile(std::string path, std::string program, Source source, OptionReader& reader)
      : path_(std::move(path)), program_(std::move(program)), source_(source), reader_(reader) {}

  // Keys that are words of the command line, for messages.
  void of_flags() { of_flags_ = true; }
  bool is_of_flags() const { return of_flags_; }

  const std::string& path() const { return path_; }
  Source source() const { return source_; }
  OptionReader& reader() { return reader_; }

  ForeignKey key(const YAML::Node& key, const YAML::Node& value, const std::string& section) const;

  // Reads every key of a mapping; null counts as absent. `section` is the mapping's own path (""
  // for the file), `prefix` what names may lack ("fsdp_").
  Status read(const YAML::Node& mapping, const std::string& section,
              const std::vector<KeyRule>& rules, const std::string& prefix = "");
  Status read_one(ForeignKey key, const std::string& name, const std::vector<KeyRule>& rules);
  // As `read`, of a key whose value must be a mapping.
  Status read_section(const ForeignKey& key, const std::vector<KeyRule>& rules,
                      const std::string& prefix = "");

  // Sets our option `name`.
  Status set(const std::string& name, const std::string& text, const ForeignKey& key) {
    return reader_.read(name, text, source_, key.subject);
  }
  Status set(const std::string& name, int64_t number, const ForeignKey& key) {
    return set(name, std::to_string(number), key);
  }
  // Sets it to the key's own text.
  Status copy(const std::string& name, const ForeignKey& key);
  // A rule that does so, unless the text is auto.
  KeyRule copies(std::string_view key, std::string name);
  // Sets it to the value that the key's word means.
  Status set_meaning(const std::string& name, const ForeignKey& key,
                     const std::vector<std::pair<std::string, std::string>>& meanings);
  void without_effect(const ForeignKey& key) { without_effect_.push_back(key.path); }
  void warn(const ForeignKey& key, const std::string& text) {
    reader_.warn(key.subject + ": " + text);
  }
  // The line of the keys without effect, when there are any.
  void finish();

 private:
  std::string path_, program_;
  Source source_;
  OptionReader& reader_;
  std::vector<std::string> without_effect_;
  bool of_flags_ = false;
};

// Reads a value; the errors name the key, what was expected and what was found. An absent key is
// `otherwise`.
Status expected(const ForeignKey& key, const std::string& what);
Result<std::string> text_of(const ForeignKey& key);
Result<bool> switch_of(const ForeignKey& key);
Result<bool> switch_or(const std::optional<ForeignKey>& key, bool otherwise);
Result<int64_t> count_of(const ForeignKey& key, int64_t least);  // 100000000 and 1e8 alike
Result<int64_t> count_or(const std::optional<ForeignKey>& key, int64_t least, int64_t otherwise);
Result<double> number_of(const ForeignKey& key);
// The position of the value among these words; case does not count.
Result<size_t> choice_of(const ForeignKey& key, const std::vector<std::string>& words);

// The error that two keys disagree.
Status contradiction(const ForeignKey& a, const ForeignKey& b, const std::string& why);

// The one document of a YAML or JSON file (`what`); null for an empty one. JSON is YAML, but for
// tabs between its words.
Result<YAML::Node> read_document(const std::string& path, const std::string& what);

template <typename Read>
Status without_yaml_exceptions(const std::string& path, const char* what, Read read) {
  try {
    return read();
  } catch (const YAML::Exception& error) {
    return input_error("{} line {}: expected {}: {}", path, error.mark.line + 1, what, error.msg);
  }
}

}  // namespace ofsdp::cli
