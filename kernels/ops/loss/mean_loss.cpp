#include "kernels/ops/loss/mean_loss.h"

#include "kernels/cpu/elementwise.h"

namespace ofsdp::kernels::ops {
namespace {

constexpr int64_t kMeanBlock = 4096;

Status same_shape(const TensorDesc& prediction, const TensorDesc& target) {
  if (prediction.shape == target.shape && prediction.dtype == target.dtype) return ok_status();
  return input_error("expected prediction and target alike, found {} and {}", prediction.text(),
                     target.text());
}

}  // namespace

Result<std::vector<TensorDesc>> infer_mean_loss(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(same_shape(c.inputs[0], c.inputs[1]));
  return std::vector{TensorDesc{c.inputs[0].dtype, {}}};
}

Result<std::vector<TensorDesc>> infer_mean_loss_grad(const InferContext& c) {
  OFSDP_RETURN_IF_ERROR(same_shape(c.inputs[1], c.inputs[2]));
  return std::vector{c.inputs[1]};
}

bool accepts_mean_loss(const Problem& p) { return p.all_dtype(DType::kFloat32) && p.all_plain(); }

std::unique_ptr<Kernel> mean_loss_kernel(const Problem& p, SumSpan span) {
  const int64_t n = p.in(0).numel();
  const int64_t blocks = (n + kMeanBlock - 1) / kMeanBlock;
  auto run = [n, blocks, span](const KernelArgs& a) {
    auto* sums = reinterpret_cast<double*>(a.workspace);
    parallel_for(blocks, 2, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kMeanBlock;
        sums[block] =
            span(a.in<float>(0) + first, a.in<float>(1) + first, std::min(kMeanBlock, n - first));
      }
    });
    double sum = 0;
    for (int64_t block = 0; block < blocks; ++block) sum += sums[block];
    *a.out<float>(0) = n == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(n));
    return ok_status();
  };
  return make_kernel(run, static_cast<size_t>(blocks) * sizeof(double));
}

std::unique_ptr<Kernel> mean_loss_grad_kernel(const Problem& p, DiffSpan span) {
  return make_kernel([n = p.out(0).numel(), span](const KernelArgs& a) {
    const auto scale = static_cast<float>(static_cast<double>(*a.in<float>(0)) /
                                          static_cast<double>(std::max<int64_t>(n, 1)));
    parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
      span(scale, a.in<float>(1) + begin, a.in<float>(2) + begin, a.out<float>(0) + begin,
           end - begin);
    });
    return ok_status();
  });
}

std::vector<SampleCase> mean_loss_samples() {
  const TensorDesc matrix{DType::kFloat32, {5, 7}};
  const TensorDesc long_one{DType::kFloat32, {9001}};
  const TensorDesc empty{DType::kFloat32, {0, 7}};
  return {{.name = "matrix", .inputs = {matrix, matrix}},
          {.name = "blocks", .inputs = {long_one, long_one}, .check_grad = false},
          {.name = "empty", .inputs = {empty, empty}}};
}

std::vector<SampleCase> mean_loss_grad_samples() {
  std::vector<SampleCase> list = mean_loss_samples();
  for (SampleCase& s : list) s.inputs.insert(s.inputs.begin(), {DType::kFloat32, {}});
  return list;
}

}  // namespace ofsdp::kernels::ops
