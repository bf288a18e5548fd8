#include "runtime/cli/config/foreign/foreign_file.h"

#include <yaml-cpp/eventhandler.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "kernels/base/status.h"

namespace ofsdp::cli {
namespace {

std::string lower(std::string_view text) {
  std::string low(text);
  for (char& c : low) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return low;
}

std::string found(const ForeignKey& key) {
  if (key.value.IsMap()) return "a mapping";
  if (key.value.IsSequence()) return "a list";
  return key.value.IsScalar() ? format_text("'{}'", key.value.Scalar()) : "nothing";
}

const KeyRule* find_rule(const std::vector<KeyRule>& rules, std::string_view name) {
  const auto at =
      std::find_if(rules.begin(), rules.end(), [&](const KeyRule& r) { return r.name == name; });
  return at == rules.end() ? nullptr : &*at;
}

Result<std::string> read_text(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return input_error("{}: expected a YAML file, found a folder", path);
  }
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (file) text << file.rdbuf();
  if (!file) return input_error("{}: cannot read the file: {}", path, std::strerror(errno));
  return text.str();
}

}  // namespace

void add_without_effect(std::vector<KeyRule>& rules, std::string_view names) {
  while (!names.empty()) {
    const size_t space = std::min(names.find(' '), names.size());
    rules.push_back({names.substr(0, space), {}});
    names.remove_prefix(std::min(space + 1, names.size()));
  }
}

KeyRule keep(std::string_view name, std::optional<ForeignKey>& at, bool unless_auto) {
  return {name, [&at, unless_auto](const ForeignKey& key) {
            if (!unless_auto || !key.automatic()) at = key;
            return ok_status();
          }};
}

bool ForeignKey::is(std::string_view word) const {
  return value.IsScalar() && lower(value.Scalar()) == lower(word);
}

ForeignKey ForeignFile::key(const YAML::Node& key, const YAML::Node& value,
                            const std::string& section) const {
  const std::string name = key.IsScalar() ? key.Scalar() : "?";
  if (of_flags_) return {"--" + name, "--" + name, value};
  const std::string path = section.empty() ? name : section + "." + name;
  return {path, format_text("{} line {}: {}", path_, key.Mark().line + 1, path), value};
}

Status ForeignFile::read_one(ForeignKey key, const std::string& name,
                             const std::vector<KeyRule>& rules) {
  const KeyRule* rule = find_rule(rules, name);
  if (rule == nullptr) {
    std::vector<std::string> names;
    for (const KeyRule& known : rules) names.emplace_back(known.name);
    return input_error("{}: a key that {} does not have{}", key.subject, program_,
                       did_you_mean(name, names));
  }
  if (key.value.IsNull()) return ok_status();
  if (rule->read) return rule->read(key);
  without_effect(key);
  return ok_status();
}

Status ForeignFile::read(const YAML::Node& mapping, const std::string& section,
                         const std::vector<KeyRule>& rules, const std::string& prefix) {
  std::set<std::string> seen;
  for (const auto& pair : mapping) {
    const ForeignKey one = key(pair.first, pair.second, section);
    if (!pair.first.IsScalar()) return input_error("{}: expected the name of a key", one.subject);
    std::string name = pair.first.Scalar();
    if (!prefix.empty() && !name.starts_with(prefix)) name = prefix + name;
    if (!seen.insert(name).second) return input_error("{}: the key stands here twice", one.subject);
    OFSDP_RETURN_IF_ERROR(read_one(one, name, rules));
  }
  return ok_status();
}

Status ForeignFile::read_section(const ForeignKey& key, const std::vector<KeyRule>& rules,
                                 const std::string& prefix) {
  if (!key.value.IsMap()) return expected(key, "a mapping");
  return read(key.value, key.path, rules, prefix);
}

void ForeignFile::finish() {
  if (without_effect_.empty()) return;
  reader_.warn(format_text("{}: known to {}, without effect here: {}", path_, program_,
                           joined(without_effect_, ", ")));
}

Status ForeignFile::copy(const std::string& name, const ForeignKey& key) {
  OFSDP_ASSIGN_OR_RETURN(const std::string text, text_of(key));
  return set(name, text, key);
}

KeyRule ForeignFile::copies(std::string_view key, std::string name) {
  return {key, [this, name = std::move(name)](const ForeignKey& found) {
            return found.automatic() ? ok_status() : copy(name, found);
          }};
}

Status ForeignFile::set_meaning(const std::string& name, const ForeignKey& key,
                                const std::vector<std::pair<std::string, std::string>>& meanings) {
  std::vector<std::string> words;
  for (const auto& [word, meaning] : meanings) words.push_back(word);
  OFSDP_ASSIGN_OR_RETURN(const size_t which, read_choice(key, words));
  return set(name, meanings[which].second, key);
}

Status expected(const ForeignKey& key, const std::string& what) {
  return input_error("{}: expected {}, found {}", key.subject, what, found(key));
}

Result<std::string> text_of(const ForeignKey& key) {
  if (!key.value.IsScalar()) return expected(key, "a value");
  return key.value.Scalar();
}

Result<bool> switch_of(const ForeignKey& key) {
  if (key.value.IsScalar()) {
    const std::string text = lower(key.value.Scalar());
    if (text == "1") return true;
    if (text == "0") return false;
    if (const std::optional<bool> value = parse_switch(text)) return *value;
  }
  return expected(key, "true or false");
}

Result<bool> switch_or(const std::optional<ForeignKey>& key, bool otherwise) {
  return key ? switch_of(*key) : Result<bool>(otherwise);
}

Result<int64_t> count_or(const std::optional<ForeignKey>& key, int64_t least, int64_t otherwise) {
  return key ? count_of(*key, least) : Result<int64_t>(otherwise);
}

Result<double> number_of(const ForeignKey& key) {
  const auto value = key.value.IsScalar() ? parse_number(key.value.Scalar()) : std::nullopt;
  if (!value) return expected(key, "a number");
  return *value;
}

Result<int64_t> count_of(const ForeignKey& key, int64_t least) {
  const auto value = key.value.IsScalar() ? parse_number(key.value.Scalar()) : std::nullopt;
  constexpr double kExact = 9e15;  // whole numbers up to here are exact in double
  if (!value || *value != std::floor(*value) || std::abs(*value) > kExact ||
      *value < static_cast<double>(least)) {
    return expected(key, format_text("a whole number of at least {}, at most 9e15", least));
  }
  return static_cast<int64_t>(*value);
}

Result<size_t> read_choice(const ForeignKey& key, const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (key.is(words[i])) return i;
  }
  const std::string hint = key.value.IsScalar() ? did_you_mean(key.value.Scalar(), words) : "";
  return input_error("{}: expected one of {}, found {}{}", key.subject, joined(words, ", "),
                     found(key), hint);
}

Status contradiction(const ForeignKey& a, const ForeignKey& b, const std::string& why) {
  return input_error("{} ({}) contradicts {} ({}): {}", a.subject, found(a), b.subject, found(b),
                     why);
}

namespace {

// Ignores events: counts documents, and may stop before the last, since yaml-cpp 0.7 finds endless
// documents after a closing brace.
class Deaf final : public YAML::EventHandler {
  using Mark = YAML::Mark;
  using Text = std::string;
  using Style = YAML::EmitterStyle::value;
  void OnDocumentStart(const Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const Mark&, YAML::anchor_t) override {}
  void OnAlias(const Mark&, YAML::anchor_t) override {}
  void OnScalar(const Mark&, const Text&, YAML::anchor_t, const Text&) override {}
  void OnSequenceStart(const Mark&, const Text&, YAML::anchor_t, Style) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const Mark&, const Text&, YAML::anchor_t, Style) override {}
  void OnMapEnd() override {}
};

// Counts up to three.
int documents_in(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Deaf deaf;
  int count = 0;
  while (count < 3 && parser.HandleNextDocument(deaf)) ++count;
  return count;
}

}  // namespace

Result<YAML::Node> read_document(const std::string& path, const std::string& what) {
  OFSDP_ASSIGN_OR_RETURN(std::string text, read_text(path));
  if (what == "JSON") std::replace(text.begin(), text.end(), '\t', ' ');
  const int documents = documents_in(text);
  OFSDP_REJECT_IF(documents > 1, "{}: expected one {} document, found {}", path, what,
                  documents == 2 ? "2" : "more");
  return YAML::Load(text);
}

}  // namespace ofsdp::cli
