// ofsdp.JoinRows(x), attributes ranks, rank, most: the rows of all ranks. x is float32 [rows,
// width], at most `most` rows; the output is [ranks, part] as kernels/core/joined_rows.h says. The
// kernel writes this rank's part and clears the others'; the schedule fills them in
// (importer/graph/rank_rows.h). No gradient flows back through it: nodes that read the rows of all
// ranks give the whole gradient of their own rows.
#include <algorithm>

#include "kernels/core/joined_rows.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

int64_t joining_ranks(const Attributes& attributes) { return attributes.i("ranks", 1); }
int64_t joining_rank(const Attributes& attributes) { return attributes.i("rank", 0); }

Result<std::vector<TensorDesc>> infer_join(const InferContext& c) {
  const Shape& rows = c.inputs[0].shape;
  const int64_t ranks = joining_ranks(c.attributes), rank = joining_rank(c.attributes);
  const int64_t most = c.attributes.i("most", 0);
  if (rows.rank() != 2 || rows[0] > most || rank < 0 || rank >= ranks) {
    return input_error("expected at most {} rows [rows, width] of rank {} of {}, found {}", most,
                       rank, ranks, c.inputs[0].text());
  }
  return std::vector{
      TensorDesc{c.inputs[0].dtype, Shape{ranks, JoinedRows::part_of(most, rows[1])}}};
}

std::vector<RefTensor> join_reference(const ReferenceContext& c) {
  RefTensor y = zeros(c.output_descs[0]);
  const int64_t own = joining_rank(c.attributes) * y.desc.shape[1];
  y[own] = static_cast<double>(c.inputs[0].desc.shape[0]);
  for (int64_t i = 0; i < c.inputs[0].desc.numel(); ++i) {
    y[own + JoinedRows::kHeader + i] = c.inputs[0][i];
  }
  return {y};
}

std::unique_ptr<Kernel> create_join(const Problem& p) {
  const int64_t rows = p.in(0).shape[0], count = p.in(0).numel(), all = p.out(0).numel();
  const int64_t own = joining_rank(p.attributes) * p.out(0).shape[1];
  return make_kernel([=](const KernelArgs& a) {
    float* const y = a.out<float>(0);
    std::fill_n(y, all, 0.0f);
    y[own] = static_cast<float>(rows);
    std::copy_n(a.in<float>(0), count, y + own + JoinedRows::kHeader);
  });
}

}  // namespace

void add_join_rows(Registry& registry) {
  registry.add_own(make_op("JoinRows", {infer_join, no_grad, join_reference},
                           {{"copy", accepts_plain_of<float>, create_join}},
                           {.float32_only = true}));
}

}  // namespace ofsdp::kernels::ops
