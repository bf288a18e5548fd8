// Counter-based random bits: a value depends on its key and counter alone, so any rank may make any
// value at any time. Built from the finalizer of splitmix64 (Steele, Lea, Flood 2014), which passes
// BigCrush as a counter generator.
//
// Errors: none.
#pragma once

#include <cstdint>
#include <string_view>

namespace ofsdp::runtime {

constexpr uint64_t mix_bits(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr uint64_t mix_bits(uint64_t key, uint64_t counter) {
  return mix_bits(mix_bits(key) ^ counter);
}

constexpr uint64_t mix_bits(uint64_t key, std::string_view name) {
  for (char c : name) key = mix_bits(key, static_cast<unsigned char>(c));
  return key;
}

}  // namespace ofsdp::runtime
