// 64-bit FNV-1a hash over bytes or words, equal on every host and in every build. Not for security,
// and not if an attacker chooses the input.
//
//   Fnv1a().add("text").value()       the standard hash of the bytes
//   Fnv1a(seed).add(word).value()     64-bit words, one step each
//
// Follows Fowler, Noll, Vo: http://www.isthe.com/chongo/tech/comp/fnv/
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/base/namespaces.h"

namespace ofsdp::base {

class Fnv1a {
 public:
  explicit Fnv1a(uint64_t seed = 0) : state_(0xcbf29ce484222325u ^ seed) {}

  Fnv1a& add(uint64_t word) {
    state_ = (state_ ^ word) * 0x100000001b3u;
    return *this;
  }
  Fnv1a& add(std::string_view bytes) {
    for (const char c : bytes) add(uint64_t{static_cast<unsigned char>(c)});
    return *this;
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_;
};

}  // namespace ofsdp::base
