// OptionEntry: one option of the program, said once and used four times: as a flag, as a YAML key,
// in the help text and in the printed configuration. The factories below make entries from a field
// of Options; a field is a generic lambda, see OFSDP_FIELD.
//
// An entry reads a text into Options and answers with a Verdict: fine, wrong (with what was
// expected), or right but not built yet. The caller knows where the text stood and makes the error
// line.
//
// Ownership: entries are values and hold no Options. Threads: any. Errors: as verdicts.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/nearest_name.h"
#include "runtime/cli/options/option_value.h"
#include "runtime/options.h"

namespace ofsdp::cli {

struct Verdict {
  enum class Kind { kFine, kWrong, kNotBuilt };
  Kind kind = Kind::kFine;
  std::string expected;  // kWrong: "a number above 0"
  std::string hint;      // kWrong: "; did you mean 'adamw'?"
};

inline Verdict fine() { return {}; }
inline Verdict wrong(std::string expected) {
  return {Verdict::Kind::kWrong, std::move(expected), {}};
}
inline Verdict fine_or(bool good, std::string_view expected) {
  return good ? fine() : wrong(std::string(expected));
}

struct OptionEntry {
  enum class Kind { kValue, kSwitch, kRepeated };
  std::string name;    // without the dashes; YAML writes '_' for '-'
  std::string values;  // for the help: the default first
  std::string help;
  Kind kind = Kind::kValue;
  bool is_path = false;                                           // in YAML: relative to that file
  std::function<Verdict(Options&, const std::string&)> set = {};  // kRepeated: adds one
  std::function<std::string(const Options&)> show = {};           // as YAML
  std::function<void(Options&)> clear = [](Options&) {};          // kRepeated: before the first
};

#define OFSDP_FIELD(member) \
  [](auto& options) -> auto& { return options.member; }

// A closed set of values: its name, and whether the program can do it yet.
template <typename E>
struct Choice {
  std::string_view name;
  E value;
  bool built = true;
};

struct Range {
  std::string_view text;  // "a number above 0"
  bool (*accepts)(double);
};

inline constexpr Range kAboveZero = {"a number above 0", [](double x) { return x > 0; }};
inline constexpr Range kAtLeastZero = {"a number of at least 0", [](double x) { return x >= 0; }};
inline constexpr Range kZeroToOne = {"a number from 0 to 1",
                                     [](double x) { return x >= 0 && x <= 1; }};

template <typename E>
std::vector<std::string> choice_names(std::span<const Choice<E>> choices) {
  std::vector<std::string> names;
  for (const Choice<E>& choice : choices) names.emplace_back(choice.name);
  return names;
}

template <typename E>
std::string choice_name(std::span<const Choice<E>> choices, E value) {
  for (const Choice<E>& choice : choices) {
    if (choice.value == value) return std::string(choice.name);
  }
  return "?";
}

// Reads one of the names.
template <typename E>
Verdict set_choice(std::span<const Choice<E>> choices, const std::string& text, E& value) {
  for (const Choice<E>& choice : choices) {
    if (choice.name != text) continue;
    value = choice.value;
    return {choice.built ? Verdict::Kind::kFine : Verdict::Kind::kNotBuilt, {}, {}};
  }
  const std::vector<std::string> names = choice_names(choices);
  return {Verdict::Kind::kWrong, format_text("one of {}", joined(names, ", ")),
          did_you_mean(text, names)};
}

namespace entries {

// " (not built yet: zero1, auto)", or nothing.
template <typename E>
std::string unbuilt_names(std::span<const Choice<E>> choices) {
  std::vector<std::string> names;
  for (const Choice<E>& choice : choices) {
    if (!choice.built) names.emplace_back(choice.name);
  }
  return names.empty() ? "" : format_text(" (not built yet: {})", joined(names, ", "));
}

template <typename E, size_t N, typename Field>
OptionEntry choice(std::string name, const Choice<E> (&choices)[N], std::string help, Field field) {
  const std::span<const Choice<E>> all(choices);  // the arrays are constants of the program
  OptionEntry entry{std::move(name), format_text("{}", joined(choice_names(all), ", ")),
                    help + unbuilt_names(all)};
  entry.set = [=](Options& o, const std::string& text) { return set_choice(all, text, field(o)); };
  entry.show = [=](const Options& o) { return choice_name(all, field(o)); };
  return entry;
}

template <typename Field>
OptionEntry integer(std::string name, std::string values, std::string help, int64_t least,
                    Field field) {
  OptionEntry entry{std::move(name), std::move(values), std::move(help)};
  entry.set = [=](Options& o, const std::string& text) {
    const std::optional<int64_t> value = parse_integer(text);
    if (value) field(o) = *value;
    return fine_or(value && *value >= least, format_text("a whole number of at least {}", least));
  };
  entry.show = [=](const Options& o) { return format_text("{}", field(o)); };
  return entry;
}

// As `integer`, of an optional: `word` (none, auto) stands for nothing.
template <typename Field>
OptionEntry integer_or(std::string word, std::string name, std::string values, std::string help,
                       int64_t least, Field field) {
  OptionEntry entry{std::move(name), std::move(values), std::move(help)};
  entry.set = [=](Options& o, const std::string& text) {
    field(o) = parse_integer(text);
    const bool good = text == word || (field(o) && *field(o) >= least);
    return fine_or(good, format_text("{} or a whole number of at least {}", word, least));
  };
  entry.show = [=](const Options& o) {
    return field(o) ? format_text("{}", *field(o)) : std::string(word);
  };
  return entry;
}

template <typename Field>
OptionEntry number(std::string name, std::string values, std::string help, Range range,
                   Field field) {
  OptionEntry entry{std::move(name), std::move(values), std::move(help)};
  entry.set = [=](Options& o, const std::string& text) {
    const std::optional<double> value = parse_number(text);
    if (value) field(o) = *value;
    return fine_or(value && range.accepts(*value), range.text);
  };
  entry.show = [=](const Options& o) { return show_number(field(o)); };
  return entry;
}

template <typename Field>
OptionEntry toggle(std::string name, std::string values, std::string help, Field field) {
  OptionEntry entry{std::move(name), std::move(values), std::move(help),
                    OptionEntry::Kind::kSwitch};
  entry.set = [=](Options& o, const std::string& text) {
    const std::optional<bool> value = parse_switch(text);
    field(o) = value.value_or(false);
    return fine_or(value.has_value(), "on or off");
  };
  entry.show = [=](const Options& o) { return std::string(field(o) ? "on" : "off"); };
  return entry;
}

// A name or path; `word` stands for the empty text.
template <typename Field>
OptionEntry text(std::string word, std::string name, std::string values, std::string help,
                 Field field) {
  OptionEntry entry{std::move(name), std::move(values), std::move(help)};
  entry.set = [=](Options& o, const std::string& value) {
    field(o) = value == word ? std::string() : value;
    return fine_or(!value.empty(), "a name");
  };
  entry.show = [=](const Options& o) {
    const std::string nothing = word.empty() ? "~" : word;
    return field(o).empty() ? nothing : yaml_quoted(field(o));
  };
  return entry;
}

template <typename Field>
OptionEntry path(std::string name, std::string values, std::string help, Field field) {
  OptionEntry entry = text("none", std::move(name), std::move(values), std::move(help), field);
  entry.is_path = true;
  return entry;
}

// Names or glob patterns, one an occurrence; `word`, when not empty, stands for none at all.
template <typename Field>
OptionEntry repeated(std::string word, std::string name, std::string values, std::string help,
                     Field field) {
  OptionEntry entry{std::move(name), std::move(values), std::move(help),
                    OptionEntry::Kind::kRepeated};
  entry.set = [=](Options& o, const std::string& value) {
    if (word.empty() || value != word) field(o).push_back(value);
    return fine_or(!value.empty(), "a name or pattern");
  };
  entry.show = [=](const Options& o) { return yaml_list(field(o)); };
  entry.clear = [=](Options& o) { field(o).clear(); };
  return entry;
}

// An option that the program does not have yet: only its default is accepted.
OptionEntry not_built(OptionEntry entry);

}  // namespace entries
}  // namespace ofsdp::cli
