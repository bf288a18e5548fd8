// RankNumbers: a few doubles of every rank, however many: an exchange takes kExchangeMost at once.
//
// Ownership: its own memory, made with it. Threads: one; `exchange` is collective, and the barrier
// that a Communicator's is. No allocation in `exchange`. Errors: the communicator's.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "fsdp/comm/communicator.h"

namespace ofsdp::runtime {

class RankNumbers {
 public:
  RankNumbers(int ranks, size_t count)
      : mine_(count),
        piece_(static_cast<size_t>(ranks) * kExchangeMost),
        all_(static_cast<size_t>(ranks) * count) {}

  std::span<double> mine() { return mine_; }  // to be set before an exchange
  // Returns the numbers of a rank, after an exchange.
  std::span<const double> of(size_t rank) const {
    return std::span(all_).subspan(rank * mine_.size(), mine_.size());
  }
  size_t ranks() const { return all_.size() / mine_.size(); }

  Status exchange(Communicator& communicator, const CollectiveSite& site) {
    for (size_t first = 0; first < mine_.size(); first += kExchangeMost) {
      const size_t count = std::min<size_t>(kExchangeMost, mine_.size() - first);
      const auto all = std::span(piece_).first(count * ranks());
      OFSDP_RETURN_IF_ERROR(
          communicator.exchange(std::span(mine_).subspan(first, count), all, site));
      for (size_t r = 0; r < ranks(); ++r) {
        std::ranges::copy(all.subspan(r * count, count),
                          all_.begin() + static_cast<ptrdiff_t>(r * mine_.size() + first));
      }
    }
    return {};
  }

 private:
  std::vector<double> mine_, piece_, all_;  // of this rank; of all, for one exchange; of all
};

}  // namespace ofsdp::runtime
