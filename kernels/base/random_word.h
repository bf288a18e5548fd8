// 64 random bits of the system, for names and tokens that two processes must not share.
#pragma once

#include <sys/random.h>

#include <cstdint>

#include "kernels/base/namespaces.h"

namespace ofsdp::base {

inline uint64_t random_word() {
  uint64_t word = 0;
  [[maybe_unused]] const ssize_t got = getrandom(&word, sizeof word, 0);
  return word;
}

}  // namespace ofsdp::base
