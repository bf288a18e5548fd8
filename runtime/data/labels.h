// Labels: which are allowed, and how many of a micro-batch count in the mean of the loss.
//
// A label is kept when it is not the ignore-index. The mean over the global batch divides by the
// kept ones of all ranks, or by the sum of their class weights where the loss has such; a run
// without labels divides by samples.
//
// Takes labels as int32 or int64, any shape, rows of samples. Ownership: values and views. Threads:
// any. Errors: kInput naming file, column, sample and value of a label outside 0 .. classes-1.
#pragma once

#include <vector>

#include "runtime/data/row_source.h"

namespace ofsdp::runtime {

struct LabelRange {
  int64_t classes = 0;  // labels are 0 .. classes-1; 0: anything goes
  int64_t ignore_index = -100;

  bool allows(int64_t label) const {
    return classes == 0 || label == ignore_index || (label >= 0 && label < classes);
  }
};

struct LabelRule {
  int column = -1;  // of the RowSource; -1: no labels, every sample counts 1
  LabelRange range;
  std::vector<float> class_weights;  // `classes` of them; empty: every kept label counts 1
};

Status wrong_label(const std::string& source, const std::string& column, int64_t sample,
                   int64_t label, const LabelRange& range);

// The sum of the kept labels' weights in the rows of `samples`. Does not allocate when it succeeds.
Result<double> count_kept(const LabelRule& rule, const BoundColumn& column,
                          std::span<const int64_t> samples, const std::byte* labels);

}  // namespace ofsdp::runtime
