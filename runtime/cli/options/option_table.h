// The list of options, from which every flag, YAML key, help line and printed configuration is
// made. Files *_entries.cpp hold its parts.
//
// Also decides which options have no effect with others (`--momentum` with `--optimizer adamw`):
// giving one is an error, and the printed configuration leaves it out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/names.h"
#include "runtime/options.h"

namespace ofsdp::cli {

// Parses option values: numbers, switches, byte counts, intervals. The whole text must be read and
// numbers must be finite; nothing is rounded or cut off.
//
// A parser returns none for a text that it cannot read; the caller knows flag and file and makes
// the message. The `show` functions write forms that can be read again.

std::optional<int64_t> parse_integer(std::string_view text, int64_t least = INT64_MIN);
std::optional<uint64_t> parse_unsigned(std::string_view text);
std::optional<double> parse_number(std::string_view text);      // finite
std::optional<bool> parse_switch(std::string_view text);        // on off true false yes no
std::optional<int64_t> parse_bytes(std::string_view text);      // 12GiB, 1.5GB, 4096; above 0
std::optional<Interval> parse_interval(std::string_view text);  // 1epoch, 200step
std::vector<std::string> split_list(std::string_view text);     // at commas; removes spaces around
std::string lowered(std::string_view text);                     // ASCII letters in lower case

std::string show_number(double value);  // the shortest text that reads back as the same double
std::string show_bytes(int64_t bytes);
std::string show_interval(const Interval& interval);
std::string yaml_quoted(const std::string& text);
std::string yaml_list(const std::vector<std::string>& texts);  // ["a", "b"]

// OptionEntry: one row in the option table with an option's flag, YAML key, help and printed
// configuration. The factories below make rows from an Options field, named by OFSDP_FIELD.
//
// An entry reads a text into Options and returns a Verdict: fine, or wrong with the expected form.
// The caller knows where the text comes from and makes the error line.
struct Verdict {
  bool fine = true;
  std::string expected = {};  // if wrong: "a number above 0"
  std::string hint = {};      // if wrong: "; did you mean 'adamw'?"
};

inline Verdict fine_or(bool good, std::string_view expected) {
  return good ? Verdict{} : Verdict{.fine = false, .expected = std::string(expected)};
}

// Starts a value that names a plug-in's loss or optimizer.
inline constexpr std::string_view kPluginPrefix = "plugin:";

// A command set, one bit each.
using Commands = unsigned;
constexpr Commands only(Command command) { return 1u << static_cast<unsigned>(command); }
constexpr bool contains(Commands set, Command command) { return (set & only(command)) != 0; }
inline constexpr Commands kEveryCommand = ~0u;

// The sections of the help, in its order.
enum class OptionGroup { kModel, kLength, kOptimizer, kMemory, kRanks, kFiles, kCommands };
OFSDP_ENUM_NAMES(OptionGroup, {kModel, "Model, data and loss"}, {kLength, "Length and batch"},
                 {kOptimizer, "Optimizer and learning rate"}, {kMemory, "Memory and precision"},
                 {kRanks, "Ranks and devices"}, {kFiles, "Files and screen"},
                 {kCommands, "Single commands"})

// Says whether an option has no effect because of another, such as momentum with adamw.
struct NoEffect {
  std::string beside = {};  // "--optimizer adamw"; empty: the option has an effect
  bool strict = false;      // an error even with the default value, as in PyTorch
};

struct OptionEntry {
  enum class Kind {
    kValue,
    kSwitch,    // `--name`, or on or off after it
    kRepeated,  // may be given several times
    kBare,      // `--name` alone
    kPair,      // two values, which `set` gets with a zero byte between them
  };
  std::string name;         // without dashes; YAML writes '_' for '-'
  std::string values = {};  // for the help, the default first
  std::string help = {};
  Kind kind = Kind::kValue;
  Commands commands = kEveryCommand;
  bool in_files = true;       // also a YAML key
  bool in_model_yaml = true;  // also in MODEL.yaml, which is read without being named
  bool is_path = false;       // in YAML, relative to the file
  std::function<Verdict(Options&, const std::string&)> set = {};  // kRepeated: adds a value
  std::function<std::string(const Options&)> show = {};           // as YAML
  // kRepeated: called before the first value
  std::function<void(Options&)> clear = [](Options&) {};
  std::function<NoEffect(const Options&)> no_effect = [](const Options&) { return NoEffect(); };
  bool in_training_info = false;  // a model with a training_info decides it itself
  // option_table() sets these:
  OptionGroup group = OptionGroup::kFiles;
  bool common = false;  // one of the options that most people need, which `--help` shows
};

// A value in Options with type T. All fields with one T have the same type, so the factories below
// are compiled once for them.
template <typename T>
class OptionField {
 public:
  explicit OptionField(T& (*of)(Options&)) : of_(of) {}
  T& operator()(Options& options) const { return of_(options); }
  const T& operator()(const Options& options) const { return of_(const_cast<Options&>(options)); }

 private:
  T& (*of_)(Options&);
};

#define OFSDP_FIELD(member) OptionField(+[](Options & options) -> auto& { return options.member; })

struct Range {
  std::string_view text;  // "a number above 0"
  bool (*accepts)(double);
};

inline constexpr Range kAboveZero = {"a number above 0", [](double x) { return x > 0; }};
inline constexpr Range kAtLeastZero = {"a number of at least 0", [](double x) { return x >= 0; }};
inline constexpr Range kBelowOne = {"a number from 0 to below 1",
                                    [](double x) { return x >= 0 && x < 1; }};
inline constexpr Range kZeroToOne = {"a number from 0 to 1",
                                     [](double x) { return x >= 0 && x <= 1; }};

// Names for an enum, and for element types, which have separate functions.
template <typename E>
std::optional<E> choice_named(const std::string& name) {
  if constexpr (std::is_same_v<E, DType>) {
    return dtype_from_name(name);
  } else {
    return value_named<E>(name);
  }
}
template <typename E>
std::string choice_name(E value) {
  if constexpr (std::is_same_v<E, DType>) {
    return std::string(dtype_name(value));
  } else {
    return std::string(name_of(value));
  }
}

// Returns the name in `names` that `text` is, in any case ("FULL_SHARD", "full-shard") or by
// another word for it ("bf16", "gpu"); else `text`.
std::string matched_name(const std::string& text, const std::vector<std::string>& names);

// did_you_mean for options and their values: knows the words of other programs (other_words.cpp).
std::string name_hint(std::string_view name, const std::vector<std::string>& known);

// Reads an enum's name.
template <typename E>
Verdict set_choice(const std::string& text, E& value, const std::vector<std::string>& names) {
  const std::string name = matched_name(text, names);
  const auto found = choice_named<E>(name);
  if (found && std::find(names.begin(), names.end(), name) != names.end()) {
    value = *found;
    return {};
  }
  return {false, "one of " + joined(names, ", "), name_hint(text, names)};
}

namespace entries {

// In each factory `entry` has name, values and help, and `field` is an OFSDP_FIELD.

// A value with one parser. If `parse` returns none, the text is wrong and the field keeps the
// value.
template <typename Field, typename Parse, typename Show>
OptionEntry parsed(OptionEntry entry, std::string expected, Field field, Parse parse, Show show) {
  entry.set = [=](Options& o, const std::string& text) {
    const auto value = parse(text);
    if (value) field(o) = *value;
    return fine_or(value.has_value(), expected);
  };
  entry.show = [=](const Options& o) { return std::string(show(field(o))); };
  return entry;
}

// An optional value; `word` (none, auto, off) means no value.
template <typename Field, typename Parse, typename Show>
OptionEntry parsed_or(std::string word, OptionEntry entry, const std::string& expected, Field field,
                      Parse parse, Show show) {
  entry.set = [=, wanted = word + " or " + expected](Options& o, const std::string& text) {
    field(o) = parse(text);
    return fine_or(lowered(text) == word || field(o), wanted);
  };
  entry.show = [=](const Options& o) { return field(o) ? std::string(show(*field(o))) : word; };
  return entry;
}

// One from `names`, by default any in the enum.
template <typename Field, typename E = std::remove_cvref_t<
                              decltype(std::declval<Field>()(std::declval<Options&>()))>>
OptionEntry choice(std::string name, std::string help, Field field,
                   std::vector<std::string> names = names_of<E>()) {
  OptionEntry entry{std::move(name), joined(names, ", "), std::move(help)};
  entry.set = [=](Options& o, const std::string& text) {
    return set_choice(text, field(o), names);
  };
  entry.show = [=](const Options& o) { return choice_name(field(o)); };
  return entry;
}

template <typename Field>
OptionEntry integer(OptionEntry entry, int64_t least, Field field) {
  const auto parse = [=](const std::string& text) { return parse_integer(text, least); };
  return parsed(std::move(entry), format_text("a whole number of at least {}", least), field, parse,
                [](int64_t value) { return std::to_string(value); });
}

template <typename Field>
OptionEntry integer_or(std::string word, OptionEntry entry, int64_t least, Field field) {
  const auto parse = [=](const std::string& text) { return parse_integer(text, least); };
  return parsed_or(std::move(word), std::move(entry),
                   format_text("a whole number of at least {}", least), field, parse,
                   [](int64_t value) { return std::to_string(value); });
}

template <typename Field>
OptionEntry number(OptionEntry entry, Range range, Field field) {
  const auto parse = [=](const std::string& text) {
    const std::optional<double> value = parse_number(text);
    return value && range.accepts(*value) ? value : std::nullopt;
  };
  return parsed(std::move(entry), std::string(range.text), field, parse, show_number);
}

template <typename Field>
OptionEntry number_or(std::string word, OptionEntry entry, Range range, Field field) {
  const auto parse = [=](const std::string& text) {
    const std::optional<double> value = parse_number(text);
    return value && range.accepts(*value) ? value : std::nullopt;
  };
  return parsed_or(std::move(word), std::move(entry), std::string(range.text), field, parse,
                   show_number);
}

template <typename Field>
OptionEntry toggle(OptionEntry entry, Field field) {
  entry.kind = OptionEntry::Kind::kSwitch;
  return parsed(std::move(entry), "on or off", field, parse_switch,
                [](bool on) { return on ? "on" : "off"; });
}

// A name; `word` means the empty text.
template <typename Field>
OptionEntry text(std::string word, OptionEntry entry, Field field) {
  entry.set = [=](Options& o, const std::string& value) {
    field(o) = value == word ? std::string() : value;
    return fine_or(!value.empty(), "a name");
  };
  entry.show = [=](const Options& o) {
    if (field(o).empty()) return word.empty() ? "~" : word;
    return yaml_quoted(field(o));
  };
  return entry;
}

template <typename Field>
OptionEntry path(OptionEntry entry, Field field) {
  entry.is_path = true;
  return text("none", std::move(entry), field);
}

// Names or glob patterns, one an occurrence; `word`, if not empty, means none.
template <typename Field>
OptionEntry repeated(std::string word, OptionEntry entry, Field field) {
  entry.kind = OptionEntry::Kind::kRepeated;
  entry.set = [=](Options& o, const std::string& value) {
    if (word.empty() || value != word) field(o).push_back(value);
    return fine_or(!value.empty(), "a name or pattern");
  };
  entry.show = [=](const Options& o) { return yaml_list(field(o)); };
  entry.clear = [=](Options& o) { field(o).clear(); };
  return entry;
}

// An entry that loads code, writes or connects, and so is not read from MODEL.yaml.
inline OptionEntry trusted(OptionEntry entry) {
  entry.in_model_yaml = false;
  return entry;
}

// An entry that only the command line has.
inline OptionEntry flag(Commands commands, OptionEntry entry) {
  entry.commands = commands;
  entry.in_files = false;
  return entry;
}

// An entry that a model with a training_info decides itself.
inline OptionEntry in_training_info(OptionEntry entry) {
  entry.in_training_info = true;
  return entry;
}

// An entry without effect unless `has_effect`.
inline OptionEntry unless_idle(OptionEntry entry, bool (*has_effect)(const Options&),
                               std::string beside) {
  entry.no_effect = [=](const Options& o) {
    return has_effect(o) ? NoEffect() : NoEffect{.beside = beside};
  };
  return entry;
}

// A flag without a value.
template <typename Field>
OptionEntry bare(OptionEntry entry, Commands commands, Field field) {
  entry = toggle(std::move(entry), field);
  entry.kind = OptionEntry::Kind::kBare;
  return flag(commands, std::move(entry));
}

}  // namespace entries

std::vector<OptionEntry> option_table();

std::vector<OptionEntry> sharding_entries();   // strategy, units, precision, memory
std::vector<OptionEntry> launch_entries();     // ranks, hosts, devices
std::vector<OptionEntry> loss_entries();       // with the teacher
std::vector<OptionEntry> trained_entries();    // parameters, training_info
std::vector<OptionEntry> optimizer_entries();  // with groups, weights' average, clipping
std::vector<OptionEntry> schedule_entries();   // the learning rate's schedule
std::vector<OptionEntry> edit_entries();       // adapters, head, copies
std::vector<OptionEntry> length_entries();     // batch, steps
std::vector<OptionEntry> data_entries();       // data, evaluation
std::vector<OptionEntry> run_entries();        // checkpoints, files, plug-ins

// Returns the entry `name` (without dashes), or null; `find_key` only finds YAML keys.
const OptionEntry* find_entry(const std::vector<OptionEntry>& table, std::string_view name);
const OptionEntry* find_key(const std::vector<OptionEntry>& table, std::string_view name);
std::vector<std::string> entry_names(const std::vector<OptionEntry>& table);  // only keys
std::string yaml_key(std::string name);                                       // '_' for '-'

// Another name of an option, which other programs use. A switch gives the option a value.
struct OptionSynonym {
  std::string_view name;    // "learning-rate", "bf16"
  std::string_view option;  // "lr", "param-dtype"
  std::string_view value = {};
};
std::span<const OptionSynonym> option_synonyms();
// Returns the row with `name`, or null.
const OptionSynonym* find_synonym(std::string_view name);
// Returns "; use --log wandb:DIR" for an option that names such a log ("wandb"), else "".
std::string log_hint(std::string_view name);

// Sets PyTorch's defaults for this kind of optimizer, except for options in `given`.
void take_defaults_unless(OptimizerOptions& optimizer,
                          const std::function<bool(const char*)>& given);

// Returns the effective configuration as YAML for --config: one line an option; options without
// effect are left out. With `sizes`, the batch is given by global_batch_size and grad_accum (with
// slices: batch_size), from which a run on other ranks computes the third.
std::string describe(const Options& options, const std::optional<BatchSizes>& sizes = {});

// Returns the default as a person reads it: "0.001", "none".
std::string default_text(const OptionEntry& entry);

}  // namespace ofsdp::cli
