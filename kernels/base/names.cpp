#include "kernels/base/names.h"

#include <algorithm>
#include <cstddef>

namespace ofsdp::base {
namespace {

std::string folded(std::string_view name) {
  std::string result(name);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '_') c = '-';
  }
  return result;
}

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, changed});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

size_t most_edits(size_t length) {
  if (length <= 3) return length < 2 ? 0 : 1;
  return std::max<size_t>(2, length / 3);
}

std::string continued(const std::string& name, const std::vector<std::string>& known) {
  std::string found;
  for (const std::string& candidate : known) {
    if (name.size() < 3 || !folded(candidate).starts_with(name)) continue;
    if (found.empty() || candidate.size() < found.size()) found = candidate;
  }
  return found;
}

}  // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& known) {
  constexpr size_t kLongest = 200;  // edit_distance costs the lengths' product
  if (name.empty() || name.size() > kLongest) return {};
  const std::string wanted = folded(name);
  size_t fewest = most_edits(wanted.size()) + 1;
  std::string found;
  for (const std::string& candidate : known) {
    if (candidate.size() > kLongest) continue;
    const size_t edits = edit_distance(wanted, folded(candidate));
    if (edits < fewest) {
      fewest = edits;
      found = candidate;
    }
  }
  return found.empty() ? continued(wanted, known) : found;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
  const std::string near = nearest_name(name, known);
  return near.empty() ? std::string() : "; did you mean '" + near + "'?";
}

}  // namespace ofsdp::base
