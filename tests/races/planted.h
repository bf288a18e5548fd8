// Kernels with one mistake each, and right twins: the mistake must be found, in a line that names
// kernel and place, and the twin must have no finding. Threads: one.
#pragma once

#include "tests/races/watched.h"

namespace ofsdp::races {

struct Planted {
  const char* kernel;
  const char* words;  // in the expected line
  cudaError_t (*launch)(Buffers&, bool mistaken);
};
std::vector<Planted> planted_kernels();
float last_of_blocks(Watched& watched, bool backwards);  // the number of the block that ran last

// Prints mistakes that were not found, and findings in their right twins; returns how many.
int check_planted(Watched& watched);

}  // namespace ofsdp::races
