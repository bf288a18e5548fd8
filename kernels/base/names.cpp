#include "kernels/base/names.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

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

// Returns whether `known` has the letters of `wanted`, in this order.
bool abbreviates(const std::string& wanted, const std::string& known) {
  size_t at = 0;
  for (const char c : known) at += at < wanted.size() && wanted[at] == c ? 1 : 0;
  return at == wanted.size();
}

constexpr size_t kFar = SIZE_MAX;

// Returns how far `known` is from `wanted`, 4 for each edit; kFar if it is not near.
size_t distance(const std::string& wanted, const std::string& known) {
  constexpr size_t kShortest = 3;  // letters that tell a name
  const size_t edits = edit_distance(wanted, known);
  size_t far = kFar;
  if (edits <= most_edits(wanted.size())) {
    far = 4 * edits + (known[0] == wanted[0] ? 0 : 2) + (abbreviates(wanted, known) ? 0 : 1);
  }
  if (wanted.size() >= kShortest && known.starts_with(wanted)) far = std::min<size_t>(far, 3);
  if (known.size() >= 2 && wanted.starts_with(known + '-')) far = std::min<size_t>(far, 7);
  if (known.size() >= kShortest && wanted.ends_with('-' + known)) far = std::min<size_t>(far, 8);
  return far;
}

}  // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& known) {
  constexpr size_t kLongest = 200;  // edit_distance costs the lengths' product
  if (name.empty() || name.size() > kLongest) return {};
  const std::string wanted = folded(name);
  std::string found;
  size_t least = kFar;
  for (const std::string& candidate : known) {
    if (candidate.empty() || candidate.size() > kLongest) continue;
    const size_t far = distance(wanted, folded(candidate));
    const bool shorter = far == least && far < 4 && candidate.size() < found.size();
    if (far < least || shorter) {
      least = far;
      found = candidate;
    }
  }
  return found;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
  const std::string near = nearest_name(name, known);
  return near.empty() ? std::string() : "; did you mean '" + near + "'?";
}

}  // namespace ofsdp::base
