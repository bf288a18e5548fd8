// Reads other programs' configuration files. A key table reads a mapping: a key may have an effect
// (its reader sets our options), have none here (one warning per file lists them), or be unknown
// (an error with the nearest name). If two keys give an option different values, the error names
// both (OptionReader).
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

// One key with its value.
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

  // For messages: the keys are command line words.
  void of_flags() { of_flags_ = true; }
  bool is_of_flags() const { return of_flags_; }

  const std::string& path() const { return path_; }
  Source source() const { return source_; }
  OptionReader& reader() { return reader_; }

  ForeignKey key(const YAML::Node& key, const YAML::Node& value, const std::string& section) const;

  // Reads every key in a mapping; null counts as absent. `section` is the mapping's path ("" for
  // the file). Rules have whole names; the file's may lack `prefix` ("fsdp_").
  Status read(const YAML::Node& mapping, const std::string& section,
              const std::vector<KeyRule>& rules, const std::string& prefix = "");
  // Reads one key by the rule `name`.
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
  // Sets it to the key's text.
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
  // Warns about the keys without effect, if any. The functions that read a whole file call it last.
  void finish();

 private:
  std::string path_, program_;
  Source source_;
  OptionReader& reader_;
  std::vector<std::string> without_effect_;
  bool of_flags_ = false;
};

// Returns the error that the key's value is not `description`.
Status expected(const ForeignKey& key, const std::string& description);

// These read a value; errors name the key, expected and found. If the key is absent, they return
// `otherwise`.
Result<std::string> text_of(const ForeignKey& key);
Result<bool> switch_of(const ForeignKey& key);
Result<bool> switch_or(const std::optional<ForeignKey>& key, bool otherwise);
Result<int64_t> count_of(const ForeignKey& key, int64_t least);  // accepts 100000000 and 1e8
Result<int64_t> count_or(const std::optional<ForeignKey>& key, int64_t least, int64_t otherwise);
Result<double> number_of(const ForeignKey& key);
// Returns the value's index in `words`, ignoring case.
Result<size_t> read_choice(const ForeignKey& key, const std::vector<std::string>& words);

// Returns the error that two keys disagree.
Status contradiction(const ForeignKey& a, const ForeignKey& b, const std::string& why);

// Returns the only document in a YAML or JSON file (`what`); null if it is empty. JSON is read as
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

// Reads the keys that `accelerate config` writes, as in Hugging Face Accelerate 1.15 and earlier
// versions that wrote YAML: the top level, `fsdp_config`, `parallelism_config` and
// `deepspeed_config`. Absent keys take our defaults; the keys are in
// docs/reference/configuration.md. Sets options and adds warnings in the file's OptionReader;
// errors as in ForeignFile.

// `mixed_precision` and related keys: parameters, reduction and buffers get `dtype`, a name of
// ours.
Status set_precision(ForeignFile& file, const ForeignKey& key, const std::string& dtype);

// Reads Accelerate's `fsdp_config` (FSDP1, or FSDP2 if `fsdp_version` is 2) and
// `parallelism_config` if present, and `num_processes` to check that the mesh has as many ranks.
Status read_accelerate_fsdp(ForeignFile& file, const std::optional<ForeignKey>& fsdp,
                            const std::optional<ForeignKey>& parallelism,
                            const std::optional<ForeignKey>& processes);

// Accelerate names modules by a regular expression that must match whole names ("lm_head", "a|b",
// ".*\.norm"); --ignore takes globs for parameter names. Returns none if no glob is equivalent.
std::optional<std::vector<std::string>> ignored_globs(std::string_view expression);

bool is_accelerate_key(std::string_view name);
std::vector<std::string> accelerate_key_names();

// `keys`: top level keys for which is_accelerate_key is true.
Status read_accelerate(ForeignFile& file, const std::vector<ForeignKey>& keys);

// Reads DeepSpeed's configuration as DeepSpeed 0.19 documents it
// (https://www.deepspeed.ai/docs/config-json/): batch, precision, ZeRO, clipping, optimizer and
// scheduler become our options; "auto" and absent keys take our defaults.
// docs/reference/configuration.md has the keys, also those that are refused because they would
// compute something else.
//
// [Note: DeepSpeed's schedules] As functions of DeepSpeed's iteration i, WarmupDecayLR with
// warmup_type linear is our linear, WarmupLR is linear with min_lr_ratio 1, and WarmupCosineLR
// without warm-up is our cosine with min_lr_ratio cos_min_ratio. DeepSpeed uses i = s - 1 for
// update s, since the optimizer steps before the scheduler; so the first two come one update
// earlier here, and WarmupCosineLR adds that one itself. WarmupCosineLR's warm-up starts at 0, ours
// at lr/W, so it is refused.
//
// Errors as in ForeignFile.

// Reads DeepSpeed's top level keys, or an inline `deepspeed_config`: file.read(mapping, section,
// keys.rules()), then keys.resolve(), which sets the options that several keys decide together. The
// object must outlive its rules.
class DeepSpeedKeys {
 public:
  explicit DeepSpeedKeys(ForeignFile& file) : file_(file) {}

  std::vector<KeyRule> rules();
  Status resolve();

  // Accelerate's own keys may set these before resolve().
  std::optional<ForeignKey> stage, offload_optimizer, offload_param;

 private:
  std::vector<KeyRule> zero_rules();
  KeyRule offload(std::string_view name, std::optional<ForeignKey>& device);
  KeyRule old_offload(std::string_view name, const char* now, std::string meaning);
  KeyRule precision(std::string_view name, std::optional<ForeignKey>& enabled);
  KeyRule must_be_off(std::string_view name);
  Status read_zero(const ForeignKey& key);
  Status read_checkpointing(const ForeignKey& key);
  Status resolve_stage();
  Status resolve_offload();
  Status resolve_precision();
  Status resolve_buckets();

  ForeignFile& file_;
  std::optional<ForeignKey> clipping_, fp16_, bf16_, hpz_, mics_, gathered_, reduced_, prefetched_,
      optimizer_, scheduler_;
};

Status read_deepspeed_config(const std::string& path, Source source, OptionReader& reader);

// Accepts words from torchrun, `accelerate launch`, `deepspeed` and Transformers' Trainer on our
// command line, so that such a command works here if the model replaces the script. '_' and '-' are
// equal.
//
// A word means one of our flags (an alias, or an Accelerate key with a value), has no effect here
// (one warning lists them all), or asks for something else and is refused. Errors: kInput with the
// word.

enum class ForeignLauncher { kNone, kTorchrun, kAccelerate, kDeepSpeed };

// Removes `torchrun`, `accelerate launch`, `accelerate`, `deepspeed` or `python -m MODULE` from the
// front.
ForeignLauncher take_launcher(std::vector<std::string>& arguments);

struct CommandWord {
  enum class Kind { kValue, kBare, kOptional };  // has a value, has none, may have one
  Kind kind = Kind::kValue;
  std::string flag = {};   // our flag with this meaning; empty: read_command_words decides
  std::string value = {};  // the value that a bare word gives to our flag
};

// `word` as written, with dashes. Returns none if no launcher has it.
std::optional<CommandWord> find_command_word(std::string_view word);
// Returns true if `next` is an optional word's value: `--fsdp full_shard`, `--deepspeed ds.json`.
bool takes_next(std::string_view word, const std::string& next);

struct SaidWord {
  std::string word;  // as written
  std::string text;  // "on" for a bare word
};

using ReadWholeFile = std::function<Status(const std::string&, Source, OptionReader&)>;

// Reads the words that are no aliases for our flags. Files that they name count as --config;
// `read_whole` reads a whole Accelerate file.
Status read_command_words(const std::vector<SaidWord>& words, OptionReader& reader,
                          const ReadWholeFile& read_whole);

// Returns `accelerate config`'s default output file.
std::string accelerate_default_file();

}  // namespace ofsdp::cli
