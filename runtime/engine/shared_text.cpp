#include "runtime/engine/shared_text.h"

#include <array>
#include <cstring>
#include <vector>

namespace ofsdp::runtime {

// In the doubles of exchanges: four bytes each, the first the length.
Result<std::string> text_of_rank0(Communicator& communicator, std::string text) {
  constexpr size_t kBytes = 4;
  if (communicator.size() == 1) return text;
  const CollectiveSite site{"output ticket", -1, 0};
  const auto ranks = static_cast<size_t>(communicator.size());
  std::vector<double> all(ranks * kMaxExchange);
  std::array<double, kMaxExchange> mine{static_cast<double>(text.size())};
  OFSDP_RETURN_IF_ERROR(communicator.exchange({mine.data(), 1}, {all.data(), ranks}, site));
  text.resize(static_cast<size_t>(all[0]));
  for (size_t begin = 0; begin < text.size(); begin += kBytes * kMaxExchange) {
    for (size_t i = 0; i < mine.size() && communicator.rank() == 0; ++i) {
      uint32_t word = 0;
      const size_t at = begin + i * kBytes;
      if (at < text.size()) std::memcpy(&word, &text[at], std::min(kBytes, text.size() - at));
      mine[i] = word;
    }
    OFSDP_RETURN_IF_ERROR(communicator.exchange(mine, all, site));
    for (size_t at = begin; at < std::min(text.size(), begin + kBytes * kMaxExchange); ++at) {
      const auto word = static_cast<uint32_t>(all[(at - begin) / kBytes]);
      text[at] = static_cast<char>(word >> (at - begin) % kBytes * 8);
    }
  }
  return text;
}

}  // namespace ofsdp::runtime
