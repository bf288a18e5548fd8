// Kernels with a mistake each, and the same without it: the first must be found, in a line that
// names kernel and place, and the second must not. Threads: one.
#pragma once

#include "tests/races/watched.h"

namespace ofsdp::races {

struct Planted {
  const char* kernel;
  const char* words;  // of the line that is expected
  cudaError_t (*launch)(Buffers&, bool mistaken);
};
std::vector<Planted> planted_kernels();
float last_of_blocks(Watched& watched, bool backwards);  // the number of the one that ran last

// Prints mistakes that were not found, and findings in their right twins; returns how many.
int check_planted(Watched& watched);

}  // namespace ofsdp::races
