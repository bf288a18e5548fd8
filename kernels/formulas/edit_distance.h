// Levenshtein's distance between two sequences of classes, or of their words; for the CPU and for
// devices. Memory is the caller's.
#pragma once

#include <cstdint>

#include "kernels/base/formula.h"

namespace ofsdp::kernels {

// Parts of a sequence, by begin and end: its words, or each class by itself.
struct SequenceParts {
  const int64_t* classes;
  int64_t* begins;
  int64_t* ends;
  int64_t count = 0;

  OFSDP_HD void split(int64_t size, int64_t space) {
    count = 0;
    for (int64_t i = 0; i < size; ++i) {
      if (classes[i] == space) continue;
      const bool inside = i > 0 && classes[i - 1] != space;
      if (!inside) begins[count++] = i;
      ends[count - 1] = i + 1;
    }
  }
  OFSDP_HD void take_each(int64_t size) {
    count = size;
    for (int64_t i = 0; i < size; ++i) ends[i] = (begins[i] = i) + 1;
  }
  OFSDP_HD bool same(int64_t i, const SequenceParts& other, int64_t j) const {
    const int64_t length = ends[i] - begins[i];
    if (length != other.ends[j] - other.begins[j]) return false;
    for (int64_t k = 0; k < length; ++k) {
      if (classes[begins[i] + k] != other.classes[other.begins[j] + k]) return false;
    }
    return true;
  }
};

// `row` has b.count + 1 elements.
OFSDP_HD int64_t edit_distance(const SequenceParts& a, const SequenceParts& b, int64_t* row) {
  for (int64_t j = 0; j <= b.count; ++j) row[j] = j;
  for (int64_t i = 1; i <= a.count; ++i) {
    int64_t corner = row[0];
    row[0] = i;
    for (int64_t j = 1; j <= b.count; ++j) {
      int64_t least = corner + (a.same(i - 1, b, j - 1) ? 0 : 1);
      corner = row[j];
      if (row[j] + 1 < least) least = row[j] + 1;
      if (row[j - 1] + 1 < least) least = row[j - 1] + 1;
      row[j] = least;
    }
  }
  return row[b.count];
}

}  // namespace ofsdp::kernels
