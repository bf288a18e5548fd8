#include "runtime/data/row_split.h"

#include <cmath>
#include <map>
#include <numeric>

#include "runtime/data/sampler.h"

namespace ofsdp::runtime {
namespace {

constexpr uint64_t kSplitStream = 0x73706c6974;  // apart from the streams of epochs

int64_t whole_part(double part, int64_t rows) {
  return std::clamp<int64_t>(std::llround(part * static_cast<double>(rows)), 1, rows - 1);
}

// Takes `count` of the rows; class k draws from a stream of its own.
void choose(const std::vector<int64_t>& rows, int64_t count, uint64_t seed, uint64_t k,
            std::vector<int64_t>& chosen) {
  const Permutation order(std::ssize(rows), seed, kSplitStream + k);
  for (int64_t i = 0; i < count; ++i) chosen.push_back(rows[static_cast<size_t>(order.at(i))]);
}

// Divides `total` among groups by the part: each gets the whole rows of its share, and those with
// the largest rests one more, smaller classes first.
std::vector<int64_t> shares(const std::vector<std::vector<int64_t>>& groups, double part,
                            int64_t total) {
  std::vector<int64_t> counts;
  std::vector<double> rests;
  for (const auto& rows : groups) {
    const double share = part * static_cast<double>(rows.size());
    counts.push_back(static_cast<int64_t>(share));
    rests.push_back(share - std::floor(share));
  }
  std::vector<size_t> order(groups.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return rests[a] > rests[b]; });
  int64_t left = total - std::reduce(counts.begin(), counts.end());
  for (size_t i = 0; left > 0; i = (i + 1) % order.size()) {
    auto& count = counts[order[i]];
    if (count == std::ssize(groups[order[i]])) continue;
    ++count;
    --left;
  }
  return counts;
}

std::vector<std::vector<int64_t>> grouped(int64_t rows, std::span<const int64_t> classes) {
  std::map<int64_t, std::vector<int64_t>> groups;
  for (int64_t i = 0; i < rows; ++i) {
    groups[classes.empty() ? 0 : classes[static_cast<size_t>(i)]].push_back(i);
  }
  std::vector<std::vector<int64_t>> made;
  for (auto& [label, members] : groups) made.push_back(std::move(members));
  return made;
}

}  // namespace

Result<std::shared_ptr<const RowSplit>> RowSplit::make(const std::string& origin, int64_t rows,
                                                       double part, uint64_t seed,
                                                       std::span<const int64_t> classes) {
  OFSDP_REJECT_IF(rows < 2, "{}: split: expected at least 2 samples, found {}", origin, rows);
  const std::shared_ptr<RowSplit> split(new RowSplit(rows));
  const auto groups = grouped(rows, classes);
  const auto counts = shares(groups, part, whole_part(part, rows));
  for (size_t k = 0; k < groups.size(); ++k) choose(groups[k], counts[k], seed, k, split->chosen_);
  std::ranges::sort(split->chosen_);
  return std::shared_ptr<const RowSplit>(split);
}

// chosen_[k] - k training rows lie before the k-th chosen row, so `i` follows all chosen rows for
// which that is at most i.
int64_t RowSplit::row(bool evaluation, int64_t i) const {
  if (evaluation) return chosen_[static_cast<size_t>(i)];
  int64_t low = 0, high = std::ssize(chosen_);
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    chosen_[static_cast<size_t>(middle)] - middle <= i ? low = middle + 1 : high = middle;
  }
  return i + low;
}

}  // namespace ofsdp::runtime
