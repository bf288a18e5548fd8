// Philox 4x32-10 (kernels/core/philox.h) in vector lanes: the random bits of many elements of a
// sample at once, the same bits as philox_element gives for each.
//
// Written with intrinsics in the folder of each kind of processor, because gcc's vectoriser takes
// three multiplications for each product of 32 bits; best_philox_fill() picks one for this
// processor, while planning.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/core/philox.h"

namespace ofsdp::kernels {

inline constexpr int64_t kPhiloxGroup = 64;  // elements of sixteen blocks, the unit of a fill

// bits[0 .. 64*groups-1] for elements 64*first_group .. of sample `sample`; `bits` is 64-byte
// aligned.
using PhiloxFill = void (*)(PhiloxKey key, uint64_t sample, int64_t first_group, int64_t groups,
                            uint32_t* bits);

PhiloxFill best_philox_fill();
std::vector<PhiloxFill> vector_philox_fills();  // with intrinsics, the best one first
std::vector<PhiloxFill> all_philox_fills();     // that this processor can run; for tests

}  // namespace ofsdp::kernels
