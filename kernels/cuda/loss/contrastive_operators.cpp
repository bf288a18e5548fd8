// Contrastive loss: kernels of loss.h around cuBLASLt products. Scores are one batched product over
// ranks; the gradient accumulates one product per rank.
#include <array>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/loss/loss.h"
#include "kernels/cuda/matmul/product.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr int64_t kColumns = kProductAlignment / sizeof(float);  // blocks start at aligned columns

// Inputs (x) or (du, x), one dtype.
Acceptance accepts_rows(const Problem& p) {
  return accept({plain(p), supported(p.all_dtype(DType::kFloat32))});
}

std::unique_ptr<CudaKernel> create_unit(DeviceState&, const Problem& p) {
  const Shape& x = p.in(0).shape;
  return make_cuda_kernel([rows = x[0], width = x[1]](cudaStream_t stream, const Launch& l) {
    return unit_rows(rows, width, l.in<float>(0), l.out<float>(0), stream);
  });
}

std::unique_ptr<CudaKernel> create_unit_grad(DeviceState&, const Problem& p) {
  const Shape& x = p.in(1).shape;
  return make_cuda_kernel([rows = x[0], width = x[1]](cudaStream_t stream, const Launch& l) {
    return unit_rows_grad(rows, width, l.in<float>(0), l.in<float>(1), l.out<float>(0), stream);
  });
}

std::unique_ptr<CudaKernel> create_terms(DeviceState&, const Problem& p) {
  return make_cuda_kernel([rows = p.in(1).shape[0]](cudaStream_t stream, const Launch& l) {
    return contrastive_terms(rows, l.in<float>(0), l.in<float>(1), l.out<float>(0), stream);
  });
}

// Input indices: this rank's tensor `own`, all ranks' tensor `joined`.
struct Side {
  size_t own, joined;
};

class Pairs {
 public:
  Pairs(const Problem& p, Side b, Side terms)
      : width_(p.in(0).shape[1]),
        rank_(p.attributes.i("rank", 0)),
        inverse_temperature_(1 / p.attributes.f("temperature", 0.07f)),
        joins_(p.has_in(b.joined)),
        others_(rows(p, b, width_)) {
    if (p.has_in(terms.own)) terms_ = rows(p, terms, 3);
    scores_.rows = p.in(0).shape[0];
    scores_.block = (others_.most + kColumns - 1) / kColumns * kColumns;
    scores_.of = others_;
  }

  int64_t rows() const { return scores_.rows; }
  int64_t width() const { return width_; }
  int64_t rank() const { return joins_ ? rank_ : 0; }
  float inverse_temperature() const { return inverse_temperature_; }
  int64_t score_count() const { return rows() * scores_.row(); }
  int64_t ranks() const { return others_.ranks; }
  size_t operand(Side s) const { return joins_ ? s.joined : s.own; }

  GatheredRows others(const void* data) const { return with(others_, data); }
  Scores scores(const void* joined) const {
    Scores made = scores_;
    made.of = others(joined);
    return made;
  }
  Scores terms(const void* joined) const {
    Scores made = scores_;
    made.of = with(terms_, joined);
    return made;
  }

  // Scores: this rank's rows times all ranks' rows, divided by the temperature.
  ProductShape product() const {
    ProductShape s{.rows = rows(), .columns = others_.most, .inner = width_};
    s.transpose_b = true;
    s.ld_d = scores_.row();
    s.alpha = inverse_temperature_;
    s.batch = others_.ranks;
    if (s.batch > 1) s.stride_b = others_.part;
    if (s.batch > 1) s.stride_d = scores_.block;
    return s;
  }

  // Weights times one rank's rows, added to the previous ranks' result.
  ProductShape weighted(bool adds) const {
    ProductShape s{.rows = rows(), .columns = width_, .inner = others_.most};
    s.ld_a = scores_.row();
    s.alpha = inverse_temperature_ / 2;
    s.beta = adds ? 1.0f : 0.0f;
    return s;
  }
  const float* rank_weights(const float* weights, int64_t rank) const {
    return weights + rank * scores_.block;
  }
  static const float* rank_data(const GatheredRows& of, int64_t rank) {
    return of.data + rank * of.part + of.header;
  }

 private:
  GatheredRows rows(const Problem& p, Side side, int64_t width) const {
    if (!joins_) return {.most = p.in(side.own).shape[0], .width = width};
    return gathered_rows(p.in(side.joined), p.attributes.i("most", 0), width);
  }
  static GatheredRows with(GatheredRows rows, const void* data) {
    rows.data = static_cast<const float*>(data);
    return rows;
  }

  int64_t width_, rank_;
  float inverse_temperature_;
  bool joins_;
  GatheredRows others_, terms_;
  Scores scores_;
};

Acceptance accepts_pairs(const Problem& p) {
  return accept({plain(p), supported(p.all_dtype(DType::kFloat32)), some(p.in(0))});
}

// (a, b, joined a, joined b) -> loss, statistics
constexpr Side kA{0, 2}, kB{1, 3};

std::unique_ptr<CudaKernel> create_loss(DeviceState& device, const Problem& p) {
  const Pairs pairs(p, kB, {p.inputs.size(), p.inputs.size()});
  std::shared_ptr<MatrixProduct> product = make_product(device, pairs.product());
  if (product == nullptr) return nullptr;
  Places places;
  const size_t scores = places.take(pairs.score_count(), sizeof(float));
  const size_t losses = places.take(pairs.rows(), sizeof(float));
  const size_t sums = places.take(2 * pairs.rows(), sizeof(float));
  const size_t work = places.take(product->workspace_bytes());
  const auto run = [=](cudaStream_t stream, const Launch& l) {
    const auto part = [&](size_t offset) {
      return reinterpret_cast<float*>(at(l.workspace, offset));
    };
    float* const kept = l.out(1) != nullptr ? l.out<float>(1) : part(sums);
    const auto side = [&](size_t own, Side other, int k) {
      const Scores s = pairs.scores(l.in(pairs.operand(other)));
      OFSDP_CUDA_TRY(product->run(stream, {.a = l.in(own),
                                           .b = Pairs::rank_data(s.of, 0),
                                           .d = part(scores),
                                           .workspace = part(work)}));
      return contrastive_sums(s, part(scores), k, kept, stream);
    };
    OFSDP_CUDA_TRY(side(kA.own, kB, 0));
    OFSDP_CUDA_TRY(side(kB.own, kA, 1));
    return contrastive_mean({.rows = pairs.rows(),
                             .width = pairs.width(),
                             .inverse_temperature = pairs.inverse_temperature(),
                             .a = l.in<float>(kA.own),
                             .b = l.in<float>(kB.own),
                             .sums = kept,
                             .losses = part(losses),
                             .loss = l.out<float>(0)},
                            stream);
  };
  return make_cuda_kernel(run, places.bytes());
}

// (a, b, terms, joined a, joined b, joined terms) -> da, db
constexpr Side kGradA{0, 3}, kGradB{1, 4}, kTerms{2, 5};

std::unique_ptr<CudaKernel> create_loss_grad(DeviceState& device, const Problem& p) {
  const Pairs pairs(p, kGradB, kTerms);
  std::shared_ptr<MatrixProduct> product = make_product(device, pairs.product());
  const std::array<std::shared_ptr<MatrixProduct>, 2> weighted{
      make_product(device, pairs.weighted(false)), make_product(device, pairs.weighted(true))};
  if (product == nullptr || weighted[0] == nullptr || weighted[1] == nullptr) return nullptr;
  Places places;
  const size_t weights = places.take(pairs.score_count(), sizeof(float));
  const size_t work =
      places.take(std::max({product->workspace_bytes(), weighted[0]->workspace_bytes(),
                            weighted[1]->workspace_bytes()}));
  const auto run = [=](cudaStream_t stream, const Launch& l) {
    auto* const scores = reinterpret_cast<float*>(at(l.workspace, weights));
    void* const space = at(l.workspace, work);
    const Scores terms = pairs.terms(l.in(pairs.operand(kTerms)));
    const auto side = [&](size_t own, Side other, int own_sum) {
      const GatheredRows others = pairs.others(l.in(pairs.operand(other)));
      OFSDP_CUDA_TRY(product->run(
          stream,
          {.a = l.in(own), .b = Pairs::rank_data(others, 0), .d = scores, .workspace = space}));
      OFSDP_CUDA_TRY(contrastive_weights(terms, l.in<float>(kTerms.own), own_sum, pairs.rank(),
                                         scores, stream));
      for (int64_t r = 0; r < pairs.ranks(); ++r) {
        OFSDP_CUDA_TRY(weighted[r == 0 ? 0 : 1]->run(stream, {.a = pairs.rank_weights(scores, r),
                                                              .b = Pairs::rank_data(others, r),
                                                              .d = l.out(own),
                                                              .workspace = space}));
      }
      return cudaSuccess;
    };
    OFSDP_CUDA_TRY(side(kGradA.own, kGradB, 0));
    return side(kGradB.own, kGradA, 1);
  };
  return make_cuda_kernel(run, places.bytes());
}

}  // namespace

void add_contrastive(CudaImplementations& list) {
  list.insert(list.end(),
              {{"ofsdp.UnitRows", "own", accepts_rows, create_unit},
               {"ofsdp.UnitRowsGrad", "own", accepts_rows, create_unit_grad},
               {"ofsdp.ContrastiveLoss", "cublaslt", accepts_pairs, create_loss},
               {"ofsdp.ContrastiveTerms", "own", accepts_rows, create_terms},
               {"ofsdp.ContrastiveLossGrad", "cublaslt", accepts_pairs, create_loss_grad}});
}

}  // namespace ofsdp::kernels::cuda
