// RowSplit: `split: 0.1` cuts the rows of one source into a training and an evaluation part.
//
// The choice depends on the number of rows, the part and the seed alone, so every run on the data,
// with any --seed and on any ranks, has the same two parts. Both keep the rows' order.
// Stratified: each class gives its share of rows, as near as whole rows allow, and the parts have
// the same total.
//
// Errors are kInput: fewer than 2 rows, or a column to stratify by whose rows are no single number.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/status.h"

namespace ofsdp::runtime {

class RowSplit {
 public:
  // `classes`: one number for each of the `rows`; empty: not stratified.
  static Result<std::shared_ptr<const RowSplit>> make(const std::string& origin, int64_t rows,
                                                      double part, uint64_t seed,
                                                      std::span<const int64_t> classes);

  int64_t size(bool evaluation) const {
    return evaluation ? std::ssize(chosen_) : rows_ - std::ssize(chosen_);
  }
  // Returns the row of the source that is row `i` of a part.
  int64_t row(bool evaluation, int64_t i) const;

 private:
  explicit RowSplit(int64_t rows) : rows_(rows) {}

  int64_t rows_;
  std::vector<int64_t> chosen_;  // rows that evaluate, in order
};

}  // namespace ofsdp::runtime
