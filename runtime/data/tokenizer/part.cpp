#include <algorithm>
#include <limits>

#include "kernels/base/text.h"
#include "runtime/data/tokenizer/components.h"

namespace ofsdp::runtime {

Result<std::string> Part::type() const {
  if (!json_.is_object()) {
    return input_error("{}: expected an object, found '{}'", place_,
                       escaped(json_.dump().substr(0, 60)));
  }
  return text("type");
}

Status Part::check_keys(std::initializer_list<std::string_view> keys) const {
  for (const auto& [key, value] : json_.items()) {
    const bool known = key == "type" || std::ranges::find(keys, key) != keys.end();
    OFSDP_REJECT_IF(!known, "{}: key '{}' is not supported here", place_, escaped(key));
  }
  return {};
}

Status Part::wrong(std::string_view key, const char* expected) const {
  const auto found = json_.find(key);
  const std::string text =
      found == json_.end() ? "nothing" : format_text("'{}'", escaped(found->dump().substr(0, 60)));
  return input_error("{}: key '{}': expected {}, found {}", place_, key, expected, text);
}

bool Part::has(std::string_view key) const {
  const auto found = json_.find(key);
  return found != json_.end() && !found->is_null();
}

Result<Part> Part::part(std::string_view key) const {
  const auto found = json_.find(key);
  if (found == json_.end() || !found->is_object()) return wrong(key, "an object");
  return Part(*found, format_text("{}: {}", place_, key));
}

Result<std::vector<Part>> Part::list(std::string_view key) const {
  const auto found = json_.find(key);
  if (found == json_.end() || !found->is_array()) return wrong(key, "a list");
  std::vector<Part> parts;
  for (size_t i = 0; i < found->size(); ++i) {
    parts.emplace_back((*found)[i], format_text("{}: {}[{}]", place_, key, i));
  }
  return parts;
}

Result<std::string> Part::text(std::string_view key) const {
  const auto found = json_.find(key);
  if (found == json_.end() || !found->is_string()) return wrong(key, "a text");
  return found->get<std::string>();
}

Result<bool> Part::flag(std::string_view key, bool absent) const {
  const auto found = json_.find(key);
  if (found == json_.end() || found->is_null()) return absent;
  if (!found->is_boolean()) return wrong(key, "true or false");
  return found->get<bool>();
}

Result<int64_t> Part::number(std::string_view key) const {
  const auto found = json_.find(key);
  const bool fits = found != json_.end() && found->is_number_integer() && *found >= 0 &&
                    *found <= std::numeric_limits<int32_t>::max();
  if (!fits) return wrong(key, "a whole number from 0");
  return found->get<int64_t>();
}

Status unknown_type(const Part& part, const std::string& type,
                    const std::vector<std::string_view>& known) {
  return input_error("{}: type '{}' is not supported (expected one of {})", part.place(),
                     escaped(type), joined(known, ", "));
}

Result<Pattern> read_pattern(const Part& part) {
  OFSDP_ASSIGN_OR_RETURN(const Part pattern, part.part("pattern"));
  OFSDP_RETURN_IF_ERROR(pattern.check_keys({"String", "Regex"}));
  if (pattern.has("String")) {
    OFSDP_ASSIGN_OR_RETURN(const std::string text, pattern.text("String"));
    return Pattern::literal(text);
  }
  OFSDP_ASSIGN_OR_RETURN(const std::string text, pattern.text("Regex"));
  return prefixed(pattern.place(), Pattern::regex(text));
}

namespace {

// ["[SEP]", 102]
Result<TokenId> pair_id(const Part& part, std::string_view key) {
  const auto found = part.json().find(key);
  const bool fits = found != part.json().end() && found->is_array() && found->size() == 2 &&
                    (*found)[1].is_number_unsigned() &&
                    (*found)[1] <= std::numeric_limits<int32_t>::max();
  if (!fits) return part.wrong(key, "a token and its number");
  return (*found)[1].get<TokenId>();
}

Result<Surrounding> class_and_separator(const Part& part) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({"cls", "sep", "trim_offsets", "add_prefix_space"}));
  OFSDP_ASSIGN_OR_RETURN(const TokenId first, pair_id(part, "cls"));
  OFSDP_ASSIGN_OR_RETURN(const TokenId last, pair_id(part, "sep"));
  return Surrounding{{first}, {last}};
}

Result<Surrounding> offsets_only(const Part& part) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({"add_prefix_space", "trim_offsets", "use_regex"}));
  return Surrounding{};
}

// {"SpecialToken": {"id": "[CLS]", ..}} stands for the ids under that name.
Result<std::vector<TokenId>> template_ids(const Part& tokens, const Part& special) {
  OFSDP_ASSIGN_OR_RETURN(const std::string name, special.text("id"));
  OFSDP_ASSIGN_OR_RETURN(const Part entry, tokens.part(name));
  OFSDP_RETURN_IF_ERROR(entry.check_keys({"id", "ids", "tokens"}));
  std::vector<TokenId> ids;
  const auto list = entry.json().find("ids");
  const bool any = list != entry.json().end() && list->is_array();
  for (const auto& id : any ? *list : nlohmann::json::array()) {
    const bool fits = id.is_number_unsigned() && id <= std::numeric_limits<int32_t>::max();
    if (!fits) return entry.wrong("ids", "numbers of tokens");
    ids.push_back(id.get<TokenId>());
  }
  if (!any) return entry.wrong("ids", "a list");
  return ids;
}

// `single` has the text, Sequence A, once, and special tokens around it.
Result<Surrounding> from_template(const Part& part) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({"single", "pair", "special_tokens"}));
  OFSDP_ASSIGN_OR_RETURN(const Part tokens, part.part("special_tokens"));
  OFSDP_ASSIGN_OR_RETURN(const std::vector<Part> items, part.list("single"));
  Surrounding made;
  int texts = 0;
  for (const Part& item : items) {
    OFSDP_RETURN_IF_ERROR(item.check_keys({"SpecialToken", "Sequence"}));
    if (item.has("Sequence")) {
      ++texts;
      continue;
    }
    OFSDP_ASSIGN_OR_RETURN(const Part special, item.part("SpecialToken"));
    OFSDP_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, template_ids(tokens, special));
    std::vector<TokenId>& side = texts == 0 ? made.before : made.after;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  if (texts != 1) return part.wrong("single", "one Sequence");
  return made;
}

// Each goes around the ones before it.
Result<Surrounding> post_processors_in_order(const Part& part) {
  OFSDP_RETURN_IF_ERROR(part.check_keys({"processors"}));
  OFSDP_ASSIGN_OR_RETURN(const std::vector<Part> parts, part.list("processors"));
  Surrounding made;
  for (const Part& one : parts) {
    OFSDP_ASSIGN_OR_RETURN(const Surrounding next, read_surrounding(one));
    made.before.insert(made.before.begin(), next.before.begin(), next.before.end());
    made.after.insert(made.after.end(), next.after.begin(), next.after.end());
  }
  return made;
}

constexpr Kind<Surrounding> kPostProcessors[] = {
    {"BertProcessing", class_and_separator},    {"ByteLevel", offsets_only},
    {"RobertaProcessing", class_and_separator}, {"Sequence", post_processors_in_order},
    {"TemplateProcessing", from_template},
};

}  // namespace

Result<Surrounding> read_surrounding(const Part& part) { return make_kind(part, kPostProcessors); }

}  // namespace ofsdp::runtime
