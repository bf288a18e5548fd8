#include "kernels/core/philox.h"

namespace ofsdp::kernels {
namespace {

void fill_plain(PhiloxKey key, uint64_t sample, int64_t first_group, int64_t groups,
                uint32_t* bits) {
  for (int64_t group = 0; group < groups; ++group, bits += kPhiloxGroup) {
    for (uint32_t lane = 0; lane < 16; ++lane) {
      const uint64_t block = static_cast<uint64_t>(first_group + group) * 16 + lane;
      const PhiloxCounter words =
          philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                      static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)},
                     key);
      for (uint32_t word = 0; word < 4; ++word) bits[word * 16 + lane] = words[word];
    }
  }
}

}  // namespace

std::vector<PhiloxFill> all_philox_fills() {
  std::vector<PhiloxFill> fills = vector_philox_fills();
  fills.push_back(fill_plain);
  return fills;
}

PhiloxFill best_philox_fill() { return all_philox_fills().front(); }

}  // namespace ofsdp::kernels
