// Reads configuration files of other programs. A mapping is read by a table of keys: a key may have
// an effect (its reader sets our options), have none here (one warning a file lists these), or be
// unknown (an error with the nearest name). If two keys give an option different values, the error
// names both (OptionReader).
//
// Borrows the OptionReader. Errors: kInput with file, line, key, expected and found;
// without_yaml_exceptions makes such errors from yaml-cpp's exceptions.
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

// One key of the file with the value.
struct ForeignKey {
  std::string path;     // "fsdp_config.fsdp_version"
  std::string subject;  // "c.yaml line 3: fsdp_config.fsdp_version"
  YAML::Node value;

  bool is(std::string_view word) const;  // compares the value, ignoring case
  bool automatic() const { return is("auto"); }
};

struct KeyRule {
  std::string_view name;
  std::function<Status(const ForeignKey&)> read;  // empty: no effect here
};

// Adds keys without effect; `names` are separated by spaces and must outlive the rules.
void add_without_effect(std::vector<KeyRule>& rules, std::string_view names);
// Keeps the key for later; with `unless_auto` skips the value auto.
KeyRule keep(std::string_view name, std::optional<ForeignKey>& at, bool unless_auto = false);

class ForeignFile {
 public:
  // `program`: the program that owns the format, for warnings.
  ForeignFile(std::string path, std::string program, Source source, OptionReader& reader)
      : path_(std::move(path)), program_(std::move(program)), source_(source), reader_(reader) {}

  // For messages: the keys are words of the command line.
  void of_flags() { of_flags_ = true; }
  bool is_of_flags() const { return of_flags_; }

  const std::string& path() const { return path_; }
  Source source() const { return source_; }
  OptionReader& reader() { return reader_; }

  ForeignKey key(const YAML::Node& key, const YAML::Node& value, const std::string& section) const;

  // Reads every key of a mapping; null counts as absent. `section` is the path of the mapping (""
  // for the file); names may lack `prefix` ("fsdp_").
  Status read(const YAML::Node& mapping, const std::string& section,
              const std::vector<KeyRule>& rules, const std::string& prefix = "");
  Status read_one(ForeignKey key, const std::string& name, const std::vector<KeyRule>& rules);
  // The same for a key that must hold a mapping.
  Status read_section(const ForeignKey& key, const std::vector<KeyRule>& rules,
                      const std::string& prefix = "");

  // Sets our option `name`.
  Status set(const std::string& name, const std::string& text, const ForeignKey& key) {
    return reader_.read(name, text, source_, key.subject);
  }
  Status set(const std::string& name, int64_t number, const ForeignKey& key) {
    return set(name, std::to_string(number), key);
  }
  // Sets it to the text of the key.
  Status copy(const std::string& name, const ForeignKey& key);
  // Returns a rule that does so, unless the text is auto.
  KeyRule copies(std::string_view key, std::string name);
  // Sets it to the meaning of the key's word.
  Status set_meaning(const std::string& name, const ForeignKey& key,
                     const std::vector<std::pair<std::string, std::string>>& meanings);
  void without_effect(const ForeignKey& key) { without_effect_.push_back(key.path); }
  void warn(const ForeignKey& key, const std::string& text) {
    reader_.warn(key.subject + ": " + text);
  }
  // Warns about the keys without effect, if any.
  void finish();

 private:
  std::string path_, program_;
  Source source_;
  OptionReader& reader_;
  std::vector<std::string> without_effect_;
  bool of_flags_ = false;
};

// These read a value; errors name the key, expected and found. If the key is absent, they return
// `otherwise`.
Status expected(const ForeignKey& key, const std::string& what);
Result<std::string> text_of(const ForeignKey& key);
Result<bool> switch_of(const ForeignKey& key);
Result<bool> switch_or(const std::optional<ForeignKey>& key, bool otherwise);
Result<int64_t> count_of(const ForeignKey& key, int64_t least);  // accepts 100000000 and 1e8
Result<int64_t> count_or(const std::optional<ForeignKey>& key, int64_t least, int64_t otherwise);
Result<double> number_of(const ForeignKey& key);
// Returns the index of the value in `words`, ignoring case.
Result<size_t> read_choice(const ForeignKey& key, const std::vector<std::string>& words);

// Returns the error that two keys disagree.
Status contradiction(const ForeignKey& a, const ForeignKey& b, const std::string& why);

// Returns the only document of a YAML or JSON file (`what`); null if it is empty. JSON is read as
// YAML, except for tabs between words.
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
