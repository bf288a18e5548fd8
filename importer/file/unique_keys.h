// parse_unique: a JSON text in which no object may have a key twice. nlohmann takes the last of two
// values and says nothing; a reader of tensors or data must not choose between them.
//
// Errors: kInput that names the key.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/escaped.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {

// Returns a discarded value if `text` is no JSON.
inline Result<nlohmann::json> parse_unique(std::string_view text) {
  using Json = nlohmann::json;
  std::vector<std::set<std::string>> open;  // the keys so far of each object that is not closed
  std::optional<std::string> twice;
  const auto see = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event != Json::parse_event_t::key) return true;
    const std::string& key = value.get_ref<const std::string&>();
    if (!open.back().insert(key).second && !twice) twice = key;
    return true;
  };
  Json parsed = Json::parse(text, see, false);
  if (!parsed.is_discarded() && twice) {
    return input_error("key '{}' stands twice in one object", escaped(*twice));
  }
  return parsed;
}

}  // namespace ofsdp::importer
