// Rows of different length (--bucket-by): an order in which rows of like length follow each other,
// and the shorter rows that a micro-batch of them needs.
//
// LengthOrder cuts the permutation of an epoch into windows and sorts the samples of a window by
// length, equal ones as the permutation has them. A tree then shuffles the window: its halves are
// swapped or not, and each half is cut again. So 2^k positions from a multiple of 2^k on hold
// neighbours in length, for every k: batches of any size have rows of like length and come in a
// random order. It depends on lengths, seed and epoch alone; without --shuffle, windows of adjacent
// samples are only sorted.
//
// RowCuts: the lengths to which rows are cut. A whole micro-batch takes the least that holds its
// longest row; a short one keeps whole rows, as it comes once an epoch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "runtime/data/row_source.h"

namespace ofsdp::runtime {

class LengthOrder {
 public:
  // `lengths`: of each sample, at least one.
  LengthOrder(std::vector<int32_t> lengths, bool shuffle, uint64_t seed);

  int64_t samples() const { return std::ssize(lengths_); }
  int64_t length(int64_t sample) const { return lengths_[static_cast<size_t>(sample)]; }
  std::span<const int32_t> lengths() const { return lengths_; }
  // Returns the sample at a position of the epoch. From any thread; does not allocate.
  int64_t at(int64_t epoch, int64_t position) const;

 private:
  struct Window {
    int64_t epoch = -1, number = -1;
    std::vector<uint64_t> sorted;  // length and place in the permutation
    std::vector<int64_t> samples;  // by length
  };

  const Window& window(int64_t epoch, int64_t number) const;  // REQUIRES: mutex_ is held
  void fill(Window& window) const;
  int64_t shuffled(const Window& window, int64_t position) const;

  const std::vector<int32_t> lengths_;
  const bool shuffle_;
  const uint64_t seed_;
  const int64_t window_;  // samples, a power of two
  // An update may read two windows in turn.
  mutable std::mutex mutex_;
  mutable std::array<Window, 2> windows_;
};

struct RowCuts {
  struct Cut {
    int64_t length = 0;
    std::vector<Shape> rows;  // of each column
  };
  std::shared_ptr<const LengthOrder> order;
  std::vector<Cut> cuts;   // by length; empty: rows stay whole
  int64_t batch_size = 0;  // of a whole micro-batch

  // Returns the cut for these samples; null: whole rows.
  const Cut* find(std::span<const int64_t> samples) const;
};

// Returns true for a column of flags that let tokens pass.
bool is_mask(std::string_view column);

// Returns kInput naming `option` if a row of one axis has a label that counts, or a mask lets
// something pass, from entry `from` on. `used`: the entries that the option counts. `ignored`: the
// ignore-index of labels; none: a mask.
Status check_unused(const BoundColumn& column, int64_t sample, const std::byte* row, int64_t from,
                    int64_t used, std::optional<int64_t> ignored, std::string_view option);

// Keeps the first `to` elements on each axis of `count` rows of shape `from`; the rows then follow
// each other from the first byte on. REQUIRES: equal ranks, `to` is at most `from`.
void cut_rows(std::byte* rows, int64_t count, const Shape& from, const Shape& to,
              size_t element_bytes);

}  // namespace ofsdp::runtime
